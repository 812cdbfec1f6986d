"""Each pod's use of each card, from NVML's processes and the kernel's owners of processes. Pure.

A figure is 0 only if that is known. If a card did not answer, or one of its processes has an unknown owner, a
pod without a process of its own there gets no figure.
"""

from __future__ import annotations

from sidecar.node.values import CardLoad
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.node.values import GPUProcess, PodState, ProcessOwner

WHOLE_PERCENT = 100


@value
class PodLoad:
    """A pod's use of its cards, and of other cards that it has processes on."""

    uid: str
    cards: tuple[CardLoad, ...]


@value
class UsageReading:
    """The use of one reading, or the mean of several: by pod, and of each card as a whole."""

    pods: tuple[PodLoad, ...]
    cards: tuple[CardLoad, ...]


@value
class ContainerLoad:
    """The use of cards by the processes of one container. ``container``: its name; empty: unknown."""

    uid: str  # of its pod
    container: str
    container_id: str  # of the runtime; empty if the kernel names the pod alone
    cards: tuple[CardLoad, ...]


NOTHING = UsageReading((), ())


def measure(
    loads: tuple[CardLoad, ...],
    processes: Iterable[GPUProcess],
    owners: Mapping[int, ProcessOwner | None],
    pods: Iterable[PodState],
) -> UsageReading:
    """The use of the pods with cards, in the order of their UIDs.

    ``loads``: of the cards that answered. ``owners``: the owner of each process by PID, None for a process of
    no pod; a process without an entry has an unknown owner.
    """
    on_card: dict[str, list[GPUProcess]] = {}
    for each in processes:
        on_card.setdefault(each.uuid, []).append(each)
    by_uuid = {each.uuid: each for each in loads}
    found = []
    for pod in sorted((each for each in pods if each.cards), key=lambda each: each.uid):
        strayed = (uuid for uuid, those in on_card.items() if _of(pod.uid, those, owners))
        uuids = sorted({*pod.cards, *strayed})
        cards = (_on(pod.uid, uuid, by_uuid.get(uuid), on_card.get(uuid, []), owners) for uuid in uuids)
        found.append(PodLoad(pod.uid, tuple(cards)))
    return UsageReading(tuple(found), loads)


def by_container(
    loads: tuple[CardLoad, ...],
    processes: Iterable[GPUProcess],
    owners: Mapping[int, ProcessOwner | None],
    pods: Iterable[PodState],
) -> tuple[ContainerLoad, ...]:
    """The use of each container that has processes on cards, in the order of UIDs and container IDs. The
    arguments are those of `measure`.

    A process names its container by ID alone. The name is that of the one container of the pod which was
    allocated all cards that this ID is on; where several were, or none, it is unknown.
    """
    seen = tuple(processes)
    by_uuid = {each.uuid: each for each in loads}
    found = []
    for pod in sorted((each for each in pods if each.cards), key=lambda each: each.uid):
        by_id: dict[str, list[GPUProcess]] = {}
        for each in seen:
            owner = owners.get(each.pid)
            if owner is not None and owner.pod_uid == pod.uid:
                by_id.setdefault(owner.container_id, []).append(each)
        for container_id, those in sorted(by_id.items()):
            uuids = sorted({each.uuid for each in those})
            cards = tuple(_of_processes(by_uuid.get(uuid), uuid, those, seen) for uuid in uuids)
            found.append(ContainerLoad(pod.uid, _container(pod, uuids), container_id, cards))
    return tuple(found)


def _container(pod: PodState, uuids: list[str]) -> str:
    names = [name for name, cards in pod.containers if set(uuids) <= set(cards)]
    return names[0] if len(names) == 1 else ""


def _of_processes(
    load: CardLoad | None, uuid: str, mine: list[GPUProcess], seen: tuple[GPUProcess, ...]
) -> CardLoad:
    """The use of one card by these of its processes; ``load`` None: the card did not answer."""
    if load is None:
        return CardLoad(uuid, None, None)
    own = [each for each in mine if each.uuid == uuid]
    return _sum_on(load, own, len(own) == sum(each.uuid == uuid for each in seen))


def mean(looks: tuple[UsageReading, ...]) -> UsageReading:
    """The mean of several readings, each figure over the readings that have it. `NOTHING` if there are
    none."""
    pods: dict[str, dict[str, list[CardLoad]]] = {}
    cards: dict[str, list[CardLoad]] = {}
    for look in looks:
        for pod in look.pods:
            _gather(pods.setdefault(pod.uid, {}), pod.cards)
        _gather(cards, look.cards)
    return UsageReading(
        tuple(PodLoad(uid, _means(pods[uid])) for uid in sorted(pods)),
        _means(cards),
    )


def _on(
    uid: str,
    uuid: str,
    load: CardLoad | None,
    there: list[GPUProcess],
    owners: Mapping[int, ProcessOwner | None],
) -> CardLoad:
    """The pod's use of one card; ``load`` None: the card did not answer."""
    if load is None:
        return CardLoad(uuid, None, None)
    mine = _of(uid, there, owners)
    is_untold = any(each.pid not in owners for each in there) or (not there and (load.utilisation or 0) > 0)
    if not mine:
        return CardLoad(uuid, None, None) if is_untold else CardLoad(uuid, 0, 0)
    return _sum_on(load, mine, len(mine) == len(there))


def _sum_on(load: CardLoad, mine: list[GPUProcess], is_alone: bool) -> CardLoad:
    """The sum of these processes. If they alone use the card, the card's own figures replace unknown ones."""
    utilisation = _sum([each.utilisation for each in mine])
    memory_mib = _sum([each.memory_mib for each in mine])
    if is_alone:
        utilisation = load.utilisation if utilisation is None else utilisation
        memory_mib = load.memory_mib if memory_mib is None else memory_mib
    return CardLoad(load.uuid, None if utilisation is None else min(WHOLE_PERCENT, utilisation), memory_mib)


def _of(uid: str, there: list[GPUProcess], owners: Mapping[int, ProcessOwner | None]) -> list[GPUProcess]:
    seated = ((each, owners.get(each.pid)) for each in there)
    return [each for each, owner in seated if owner is not None and owner.pod_uid == uid]


def _sum(figures: list[int | None]) -> int | None:
    """None if one figure is unknown: the sum of the others would be too small."""
    known = [each for each in figures if each is not None]
    return sum(known) if len(known) == len(figures) else None


def _gather(into: dict[str, list[CardLoad]], cards: tuple[CardLoad, ...]) -> None:
    for each in cards:
        into.setdefault(each.uuid, []).append(each)


def _means(by_uuid: dict[str, list[CardLoad]]) -> tuple[CardLoad, ...]:
    return tuple(
        CardLoad(uuid, _mean([each.utilisation for each in seen]), _mean([each.memory_mib for each in seen]))
        for uuid, seen in sorted(by_uuid.items())
    )


def _mean(figures: list[int | None]) -> int | None:
    """The nearest whole number, halves up."""
    known = [each for each in figures if each is not None]
    return (2 * sum(known) + len(known)) // (2 * len(known)) if known else None
