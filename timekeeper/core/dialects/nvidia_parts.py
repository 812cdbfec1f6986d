"""Parts of cards as NVIDIA's device plugin counts them: ``nvidia.com/gpu.shared``, replicas of a card that
share its time, and ``nvidia.com/mig-1g.5gb`` and others, MIG instances of the strategy ``mixed``.

The device plugin chooses replicas and instances, whichever card they are of. The cards here stand for what a
node has: as many replicas as its plugin divides each card into, and as many slices of compute as a card has
for each profile. So a replica costs its part of a card, and an instance of n slices costs n of them. Sources:
k8s-device-plugin, gpu-feature-discovery (`docs/dialects.md`); `timekeeper.core.dialects.mig`.
"""

from collections.abc import Mapping

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
from timekeeper.core.dialects.mig import CardSlices, Profile, card_model, profile_of, slices_of
from timekeeper.core.dialects.percent import (
    COUNT_LABEL,
    UNKNOWN_MEMORY_MIB,
    label_mib,
    label_number,
    labelled_model,
)
from timekeeper.core.values import Ask, Card
from timekeeper.core.violation import Violation, shown

SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"
REPLICAS = ".replicas"  # of GPU feature discovery, after a resource's name
REPLICAS_LABEL = f"nvidia.com/gpu{REPLICAS}"

_MOST_SHARED = Most(SHARED, MAX_DEVICES, "replicas of one card", "amount", "more replicas than a card has")


def _read_shared(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found = units(limits, _MOST_SHARED, "1")
    return Ask(1, 0, 0, ((SHARED, found),)) if isinstance(found, int) else (found,) if found else ()


def _shared_cards(node: NodeFacts) -> tuple[Card, ...]:
    there = node.capacity.get(SHARED, 0)
    count = max(1, min(label_number(node.labels, COUNT_LABEL), MAX_CARDS))
    replicas = label_number(node.labels, REPLICAS_LABEL)
    if 1 < replicas <= there:  # the plugin may divide some of the cards only
        count = min(MAX_CARDS, -(-there // replicas))
    else:
        replicas = there // count
    model = labelled_model(node.labels)
    return tuple(_card(model, index, SHARED, replicas) for index in range(count if replicas else 0))


def _read_mig(limits: ContainerLimits) -> Ask | tuple[Violation, ...]:
    found: dict[str, int] = {}
    broken: list[Violation] = []
    for name in (name for name in limits.amounts if name.startswith(MIG)):
        profile = instance_profile(name)
        if profile is None:
            example = f"{MIG}1g.5gb"
            problem = "no MIG profile has this name"
            broken.append(_violation(limits, name, problem, f"such as {example}", example))
            continue
        allowed = f"1 to {profile.most} instances of one card" if profile.most > 1 else "1: a card has one"
        count = amount(limits, name, 1, allowed, "1")
        if isinstance(count, int) and count > profile.most:
            count = _violation(limits, name, "more instances than a card has", allowed)
        if isinstance(count, Violation):
            broken.append(count)
        elif count is not None:
            found[name] = count * profile.slices
    if len(found) > 1 and not broken:
        first, *_, last = sorted(found)
        problem = f"{first} and {last} in one container"
        broken.append(_violation(limits, last, problem, "instances of one profile in a container"))
    return tuple(broken) or Ask(1, 0, 0, tuple(found.items()))


def _mig_cards(node: NodeFacts) -> tuple[Card, ...]:
    profiles, model = _profiles(node), card_model(labelled_model(node.labels))
    cards: list[tuple[str, int]] = []
    for name, profile in profiles.items():
        # the plugin may divide instances, too: by the number of replicas of each
        replicas = max(1, label_number(node.labels, f"{name.removesuffix('.shared')}{REPLICAS}"))
        whole = _slices(node, name, profiles).slices * replicas
        count = min(MAX_CARDS, -(-node.capacity[name] // (profile.most * replicas)))
        cards += [(name, whole)] * count
    return tuple(_card(model, index, *card) for index, card in enumerate(cards[:MAX_CARDS]))


def instance_profile(resource: str) -> Profile | None:
    """The profile of which the resource counts instances; None: it counts something else."""
    return profile_of(resource.removeprefix(MIG)) if resource.startswith(MIG) else None


def is_in_parts(card: Card) -> bool:
    """Whether the card stands for replicas or instances."""
    return any(name == SHARED or name.startswith(MIG) for name, _ in card.resources)


def mig_doubts(node: NodeFacts) -> Mapping[str, str]:
    """Of each resource of instances whose part of a card is an assumption: which."""
    profiles = _profiles(node)
    doubts = {name: _slices(node, name, profiles).doubt for name in profiles}
    return {name: doubt for name, doubt in doubts.items() if doubt}


def _profiles(node: NodeFacts) -> dict[str, Profile]:
    profiles = ((name, instance_profile(name)) for name in sorted(node.capacity))
    return {name: profile for name, profile in profiles if profile}


def _slices(node: NodeFacts, name: str, profiles: Mapping[str, Profile]) -> CardSlices:
    cards = label_number(node.labels, COUNT_LABEL)
    count = -(-label_number(node.labels, f"{name}.count") // cards) if cards else 0
    model, memory = card_model(labelled_model(node.labels)), label_mib(node.labels)
    return slices_of(model, profiles[name], profiles.values(), memory, count)


def _card(model: str, index: int, resource: str, amount: int) -> Card:
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
