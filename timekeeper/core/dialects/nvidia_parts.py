"""Parts of cards as NVIDIA's device plugin counts them: ``nvidia.com/gpu.shared``, replicas of a card that
share its time, and ``nvidia.com/mig-1g.5gb`` and others, MIG instances of the strategy ``mixed``.

The device plugin chooses replicas and instances, whichever card they are of. The cards here stand for what a
node has: as many replicas as its plugin divides each card into, and as many slices of compute as a card has
for each profile. So a replica costs its part of a card, and an instance of n slices costs n of them. Sources:
k8s-device-plugin, gpu-feature-discovery, NVIDIA's MIG profiles (`docs/dialects.md`).
"""

import re

from timekeeper.core.dialects.amounts import (
    MAX_CARDS,
    MAX_DEVICES,
    ContainerLimits,
    Most,
    NodeFacts,
    amount,
    units,
)
from timekeeper.core.dialects.dialect import Dialect, nothing_at_admission, nothing_at_binding
from timekeeper.core.dialects.percent import COUNT_LABEL, MODEL_LABEL, UNKNOWN_MEMORY_MIB
from timekeeper.core.values import Ask, Card
from timekeeper.core.violation import Violation, shown

SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"

_MOST_SHARED = Most(SHARED, MAX_DEVICES, "replicas of one card", "amount", "more replicas than a card has")
_PROFILE = re.compile(r"nvidia\.com/mig-([1-7])g\.([1-9][0-9]{0,2})gb((?:\.[a-z-]{1,16}){0,3})", re.ASCII)
_SLICES = 7  # of a card
# profiles of cards with four slices, which no other card has
_OF_FOUR = frozenset({(1, 6), (2, 12), (4, 24), (2, 48), (4, 96)})


def _read_shared(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found = units(limits, _MOST_SHARED, "1")
    return Ask(1, 0, 0, ((SHARED, found),)) if isinstance(found, int) else (found,) if found else ()


def _shared_cards(node: NodeFacts) -> tuple[Card, ...]:
    label = node.labels.get(COUNT_LABEL, "")
    count = int(label) if label.isascii() and label.isdigit() and 0 < len(label) < 4 else 1
    count = max(1, min(count, MAX_CARDS))
    replicas = node.capacity.get(SHARED, 0) // count
    return tuple(_card(node, index, SHARED, replicas) for index in range(count if replicas else 0))


def _read_mig(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found: dict[str, int] = {}
    broken: list[Violation] = []
    for name in (name for name in limits.amounts if name.startswith(MIG)):
        profile = _PROFILE.fullmatch(name)
        if profile is None:
            example = f"{MIG}1g.5gb"
            problem = "no MIG profile has this name"
            broken.append(_violation(limits, name, problem, f"such as {example}", example))
            continue
        slices = int(profile[1])
        allowed = f"1 to {_SLICES // slices} instances of one card"
        count = amount(limits, name, 1, allowed, "1")
        if isinstance(count, int) and count > _SLICES // slices:
            count = _violation(limits, name, "more instances than a card has", allowed)
        if isinstance(count, Violation):
            broken.append(count)
        elif count is not None:
            found[name] = count * slices
    if len(found) > 1 and not broken:
        first, *_, last = sorted(found)
        problem = f"{first} and {last} in one container"
        broken.append(_violation(limits, last, problem, "instances of one profile in a container"))
    return tuple(broken) or Ask(1, 0, 0, tuple(found.items()))


def _mig_cards(node: NodeFacts) -> tuple[Card, ...]:
    profiles = {name: found for name in sorted(node.capacity) if (found := _PROFILE.fullmatch(name))}
    four = any((int(each[1]), int(each[2])) in _OF_FOUR for each in profiles.values())
    whole = 4 if four else _SLICES
    counts = [
        name
        for name, each in profiles.items()
        for _ in range(min(MAX_CARDS, -(-node.capacity[name] // max(1, whole // int(each[1])))))
    ]
    return tuple(_card(node, index, name, whole) for index, name in enumerate(counts[:MAX_CARDS]))


def whole_slices(slices: int, memory_gb: int) -> int:
    """How many slices the card has of which a MIG profile takes these."""
    return 4 if (slices, memory_gb) in _OF_FOUR else _SLICES


def _card(node: NodeFacts, index: int, resource: str, amount: int) -> Card:
    model = node.labels.get(MODEL_LABEL, "GPU")
    return Card(f"card{index}", index, model, UNKNOWN_MEMORY_MIB, resources=((resource, amount),))


def _violation(
    limits: ContainerLimits, name: str, problem: str, allowed: str, example: str = ""
) -> Violation:
    got = shown(limits.amounts[name])
    return Violation("amount", limits.at(name), got, problem, allowed, f'{example or name}: "1"')


DIALECTS = (
    Dialect(
        name="nvidia-shared",
        resources=(SHARED,),
        by_plugin=(SHARED,),
        most=(_MOST_SHARED,),
        examples={SHARED: "1"},
        read=_read_shared,
        cards=_shared_cards,
        own_cards=True,
        plugin_shows=True,
        at_admission=nothing_at_admission,
        at_binding=nothing_at_binding,
    ),
    Dialect(
        name="nvidia-mig",
        resources=(),
        prefix=MIG,
        by_plugin=(MIG,),
        examples={},
        read=_read_mig,
        cards=_mig_cards,
        own_cards=True,
        plugin_shows=True,
        at_admission=nothing_at_admission,
        at_binding=nothing_at_binding,
    ),
)
