"""Resources that count per cent of a card, and memory beside them: gpu-manager's and those of nano-gpu.

A request below 100 is a share of one card; multiples of 100 are whole cards, which include all of their
memory. A node advertises the sums over its cards, which must be alike.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from timekeeper.core.dialects.amounts import (
    MAX_CARDS,
    MAX_MEMORY_MIB,
    ContainerLimits,
    Most,
    NodeFacts,
    amount,
    units,
)
from timekeeper.core.dialects.mig import card_model, instance_of, profile_of
from timekeeper.core.values import WHOLE_MILLI, Ask, Card
from timekeeper.core.violation import Violation, shown

UNKNOWN_MEMORY_MIB = 1000  # of a card whose node does not say: a MiB is then a thousandth of the card
# of GPU feature discovery; autoscalers copy them to templates
MODEL_LABEL, MEMORY_LABEL = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
COUNT_LABEL = "nvidia.com/gpu.count"
STRATEGY_LABEL, SLICES_LABEL = "nvidia.com/mig.strategy", "nvidia.com/gpu.slices.gi"
# of clouds: GKE's, and Karpenter's on AWS
CLIENTS_LABEL = "cloud.google.com/gke-max-shared-clients-per-gpu"
PARTITION_LABEL = "cloud.google.com/gke-gpu-partition-size"
_MODEL_LABELS = (MODEL_LABEL, "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentResources:
    """The names of one system. ``memory`` is empty where it has no such resource; then a share of compute is
    also one of memory. ``together``: a share needs both resources. ``most_cards``: of one container.
    ``step``: a share is a multiple of it."""

    core: str
    memory: str = ""
    unit_mib: int = 1
    together: bool = False
    most_cards: int = MAX_CARDS
    step: int = 1

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of its resources."""
        return (self.core, self.memory) if self.memory else (self.core,)

    @property
    def examples(self) -> Mapping[str, str]:
        """A valid amount of each resource."""
        return dict(zip(self.resources, ("50", str(8192 // self.unit_mib)), strict=False))

    def read(self, limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
        """What a container requests, or all its mistakes."""
        core = amount(limits, self.core, 1, self._core_allowed, self.examples[self.core])
        memory = None
        if self.memory:
            allowed = f"a whole number of {self.most_memory.unit}, at least 1"
            memory = amount(limits, self.memory, 1, allowed, self.examples[self.memory])
        if isinstance(core, Violation) or isinstance(memory, Violation):
            return tuple(each for each in (core, memory) if isinstance(each, Violation))
        return self._ask(limits, core, memory)

    def cards(self, node: NodeFacts) -> tuple[Card, ...]:
        """The cards of a node, by index: all alike, because it advertises sums only."""
        count = min(node.capacity.get(self.core, 0) // 100, MAX_CARDS)
        if not count:
            return ()
        total = node.capacity.get(self.memory, 0) * self.unit_mib
        memory = total // count or label_mib(node.labels) or UNKNOWN_MEMORY_MIB
        model = node.labels.get(MODEL_LABEL, "GPU")
        return tuple(Card(f"card{index}", index, model, memory) for index in range(count))

    def _ask(
        self, limits: ContainerLimits, core: int | None, memory: int | None
    ) -> Ask | tuple[Violation, ...]:
        broken = tuple(self._broken(limits, core, memory))
        if broken:
            return broken
        if core is None or core < 100:
            return Ask(1, 10 * (core or 0), self.unit_mib * (memory or 0))
        return Ask(core // 100, WHOLE_MILLI, 0)  # whole cards include all of their memory

    def _broken(self, limits: ContainerLimits, core: int | None, memory: int | None) -> Iterator[Violation]:
        if core is None and self.together:
            yield self._missing(limits, self.core, f"{self.memory} requires {self.core}")
        step = 100 if core is not None and core > 100 else self.step
        if core is not None and (core % step or core > 100 * self.most_cards):
            yield self._violation(limits, "neither a share of a card nor whole cards")
        if core is not None and core < 100 and memory is None and self.together:
            yield self._missing(limits, self.memory, f"a share in {self.core} requires {self.memory}")
        if memory is not None:
            cards = max(1, (core or 0) // 100)
            found = units(limits, self.most_memory, self.examples[self.memory], cards)
            if isinstance(found, Violation):
                yield found

    @property
    def _core_allowed(self) -> str:
        share = "1 to 99" if self.step == 1 else f"a multiple of {self.step} below 100"
        whole = "100 for a whole card"
        if self.most_cards > 1:
            whole = f"a multiple of 100 up to {100 * self.most_cards} for whole cards"
        return f"{share} for a share of one card, or {whole}"

    @property
    def most_memory(self) -> Most:
        """The most memory of a card."""
        unit = {1: "MiB", 1024: "GiB"}.get(self.unit_mib, f"units of {self.unit_mib} MiB")
        return Most(self.memory, MAX_MEMORY_MIB // self.unit_mib, unit)

    def _violation(self, limits: ContainerLimits, problem: str) -> Violation:
        example = f'{self.core}: "{100 * min(2, self.most_cards)}"'
        got = shown(limits.amounts[self.core])
        return Violation("share-range", limits.at(self.core), got, problem, self._core_allowed, example)

    def _missing(self, limits: ContainerLimits, resource: str, problem: str) -> Violation:
        allowed = f"both {self.core} and {self.memory}, or whole cards alone"
        example = f'{resource}: "{self.examples[resource]}"'
        return Violation("share-without-memory", limits.at(resource), "", problem, allowed, example)


def label_mib(labels: Mapping[str, str]) -> int:
    """The memory of each card by GPU feature discovery, 0 where it does not say."""
    return label_number(labels, MEMORY_LABEL)


def label_number(labels: Mapping[str, str], name: str) -> int:
    """The number in the label; 0 without one."""
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def labelled_model(labels: Mapping[str, str]) -> str:
    """The model of each ``nvidia.com/gpu`` of a node by its labels; GPU: they do not say. Of MIG instances it
    ends with their profile, as NVML's name of one does."""
    product = next((labels[name] for name in _MODEL_LABELS if labels.get(name)), "GPU")
    strategy, size = labels.get(STRATEGY_LABEL, ""), labels.get(PARTITION_LABEL, "")
    if strategy not in ("", "single"):
        return card_model(product)
    if instance_of(product):
        return product
    slices, mib = label_number(labels, SLICES_LABEL), label_mib(labels)
    if not profile_of(size) and strategy and slices and mib:
        size = f"{slices}g.{-(-mib // 1024)}gb"
    return f"{product}-MIG-{size}" if profile_of(size) else product
