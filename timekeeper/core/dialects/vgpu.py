"""The resources, constraints and texts that HAMi and Volcano's vGPU share: a number of cards, and of each of
them memory and compute.

The plugins of both read the cards of a pod from an annotation and erase from it what they have handed to a
container. Sources: HAMi, volcano-vgpu-device-plugin (`docs/dialects.md`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from timekeeper.core.dialects.amounts import MAX_CARDS, MAX_MEMORY_MIB, ContainerLimits, PodFacts, amount
from timekeeper.core.name_lists import listed, too_long
from timekeeper.core.quantity import integral
from timekeeper.core.values import WHOLE_MILLI, Ask, Card, GPURequest, Placement, Slice
from timekeeper.core.violation import Violation, shown

VENDOR = "NVIDIA"  # the type of a device in the annotations of a pod
TRUE = ("1", "t", "T", "true", "TRUE", "True")  # as Go reads them
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


@dataclass(frozen=True, slots=True)
class VgpuResources:
    """The names of one system. ``priority`` is empty where it has no such resource."""

    number: str
    memory: str
    percentage: str
    cores: str
    priority: str = ""
    one_by_default: bool = False  # memory or compute without a number is of one card

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (self.number, *self.amounts)

    @property
    def amounts(self) -> tuple[str, ...]:
        """All but the number."""
        return tuple(filter(None, (self.memory, self.percentage, self.cores, self.priority)))

    @property
    def instead(self) -> tuple[str, ...]:
        """Those that stand for one card where there is no number."""
        found = filter(None, (self.memory, self.percentage, self.cores))
        return tuple(found) if self.one_by_default else ()

    @property
    def zeros(self) -> tuple[str, ...]:
        """Those of which zero is an amount."""
        return tuple(filter(None, (self.cores, self.priority)))

    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """The least and the greatest amount of each."""
        found = {
            self.number: (1, MAX_CARDS),
            self.memory: (1, MAX_MEMORY_MIB),
            self.percentage: (1, 100),
            self.cores: (0, 100),
            self.priority: (0, 1),
        }
        return {name: bounds for name, bounds in found.items() if name}

    @property
    def examples(self) -> Mapping[str, str]:
        """A valid amount of each."""
        texts = {self.number: "1", self.memory: "8192", self.percentage: "50", self.cores: "30"}
        return {name: text for name, text in {**texts, self.priority: "0"}.items() if name}

    def read(self, limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
        """What a container requests of each of its cards, or all its mistakes.

        Without an amount of memory, or with all of it, and without an amount of compute, its cards are whole.
        """
        found = {name: self._amount(limits, name) for name in self.bounds}
        broken = tuple(each for each in found.values() if isinstance(each, Violation))
        if broken:
            return broken
        if found[self.number] is None and not any(name in limits.amounts for name in self.instead):
            return (self._missing(limits),)
        return self._ask({name: each for name, each in found.items() if isinstance(each, int)})

    def _ask(self, amounts: Mapping[str, int]) -> Ask:
        devices = amounts.get(self.number, 1)
        memory, cores = amounts.get(self.memory, 0), amounts.get(self.cores)
        percentage = 0 if memory else amounts.get(self.percentage, 100)
        if cores == 100 or (cores is None and percentage == 100):
            return Ask(devices, WHOLE_MILLI, 0)
        return Ask(devices, 10 * (cores or 0), memory, memory_milli=10 * percentage)

    def _amount(self, limits: ContainerLimits, name: str) -> int | Violation | None:
        least, most = self.bounds[name]
        unit = " MiB" if name == self.memory else ""
        allowed = f"a whole number from {least} to {most}{unit}"
        if name in self.zeros and name in limits.amounts and integral(limits.amounts[name]) == 0:
            return 0
        found = amount(limits, name, least, allowed, self.examples[name])
        if not isinstance(found, int) or found <= most:
            return found
        example = f'{name}: "{self.examples[name]}"'
        got = shown(limits.amounts[name])
        return Violation("vgpu-range", limits.at(name), got, "too much", allowed, example)

    def _missing(self, limits: ContainerLimits) -> Violation:
        given = next(name for name in self.amounts if name in limits.amounts)
        return Violation(
            "vgpu-number",
            limits.at(self.number),
            "",
            f"{given} requires {self.number}",
            f"the number of cards in {self.number}, and the amounts on each of them",
            f'{self.number}: "1"',
        )


@dataclass(frozen=True, slots=True)
class VgpuAnnotations:
    """The constraints that users write on a pod. An empty list is no constraint."""

    models: str
    exclude_models: str
    uuids: str
    exclude_uuids: str
    mode: str
    numa: str = ""
    policy: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that there are."""
        lists = self.models, self.exclude_models, self.uuids, self.exclude_uuids
        return tuple(filter(None, (*lists, self.mode, self.numa, self.policy)))

    def constrain(self, request: GPURequest, pod: PodFacts) -> GPURequest | tuple[Violation, ...]:
        """The request with them; Bursar's own annotations take precedence."""
        lists = self.models, self.exclude_models, self.uuids, self.exclude_uuids
        if pod.annotations.keys().isdisjoint(self.names):
            return request
        broken = [too_long(pod.annotations, name, "A100") for name in lists]
        broken += [self._wrong_mode(pod), self._wrong_numa(pod)]
        found = tuple(each for each in broken if each)
        if found:
            return found
        policy = pod.annotations.get(self.policy)
        return replace(
            request,
            models=request.models or listed(pod.annotations, self.models),
            exclude_models=request.exclude_models or listed(pod.annotations, self.exclude_models),
            uuids=request.uuids or listed(pod.annotations, self.uuids),
            exclude_uuids=listed(pod.annotations, self.exclude_uuids),
            topology=request.topology or ("numa" if pod.annotations.get(self.numa) in TRUE else ""),
            policy=request.policy or (policy if policy in ("binpack", "spread") else ""),
        )

    def _wrong_mode(self, pod: PodFacts) -> Violation | None:
        mode = pod.annotations.get(self.mode, "")
        if not mode or "hami-core" in str(mode):
            return None
        return _wrong(self.mode, mode, "Bursar gives out shares by HAMi-core alone", "hami-core", "hami-core")

    def _wrong_numa(self, pod: PodFacts) -> Violation | None:
        numa = pod.annotations.get(self.numa, "false")
        if numa in (*TRUE, *_FALSE):
            return None
        return _wrong(self.numa, numa, "neither true nor false", "true, or no annotation", '"true"')


def _wrong(name: str, got: object, problem: str, allowed: str, example: str) -> Violation:
    path = f"metadata.annotations[{name}]"
    return Violation("vgpu-constraint", path, shown(got), problem, allowed, f"{name}: {example}")


def devices_text(placement: Placement, containers: Sequence[str]) -> tuple[str, ...]:
    """For each of these containers its devices, each as UUID, type, MiB and per cent of the card's compute;
    "" for a container without a card."""
    placed = dict(placement.containers)
    return tuple("".join(map(_device, placed.get(name, ()))) for name in containers)


def devices_found(text: object, request: GPURequest) -> dict[str, tuple[int | str, ...]]:
    """The UUIDs of each container's cards in such texts. Of a container without cards some schedulers write
    an empty entry, some one with an empty UUID, and some none: HAMi before 2.9 of no init container, 2.10 not
    of all. So the entries with cards are, in their order, of the containers that request cards; empty if
    there are not as many."""
    entries = text.split(";") if isinstance(text, str) else []
    uuids = ((device.partition(",")[0] for device in entry.split(":")) for entry in entries)
    given = [cards for entry in uuids if (cards := tuple(filter(None, entry)))]
    asking = [ask.container for ask in request.asks]
    return dict(zip(asking, given, strict=True)) if len(given) == len(asking) else {}


def _device(part: Slice) -> str:
    return f"{part.uuid},{VENDOR},{part.memory_mib},{part.share_milli // 10}:"


@dataclass(frozen=True, slots=True)
class RegisteredCard:
    """A card as a node plugin registers it."""

    uuid: str
    index: int | None
    model: str
    memory_mib: int
    healthy: bool
    numa: int | None = None


def registered(found: Iterable[RegisteredCard], cordoned: Sequence[str] = ()) -> tuple[Card, ...]:
    """The cards. Where the indexes are not known or not distinct, a card's place is its index. Raises
    ValueError."""
    cards = tuple(found)
    if len(cards) > MAX_CARDS:
        raise ValueError(f"more than {MAX_CARDS} cards")
    if len({each.uuid for each in cards}) < len(cards) or not all(each.uuid for each in cards):
        raise ValueError("a card without a UUID, or two with the same")
    if any(each.memory_mib < 1 for each in cards):
        raise ValueError("a card without memory")
    indexes = [each.index for each in cards]
    known = None not in indexes and len(set(indexes)) == len(cards)
    return tuple(
        Card(
            each.uuid,
            each.index if known and each.index is not None else place,
            each.model,
            each.memory_mib,
            each.healthy,
            each.numa,
            cordoned=each.uuid in cordoned,
        )
        for place, each in enumerate(cards)
    )


def natural(text: object) -> int:
    """A number from 0 on, of 32 bits, from JSON or text. Raises ValueError."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 11:
        text = int(text)
    if not isinstance(text, int) or isinstance(text, bool) or not 0 <= text < 2**31:
        raise ValueError(f"{shown(text)} is not a whole number from 0 on")
    return text


def numa_node(text: object) -> int | None:
    """The number of a NUMA node; None for -1, which stands for an unknown one. Raises ValueError."""
    return None if text in (-1, "-1") else natural(text)
