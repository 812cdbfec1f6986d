"""Cards that are reserved for a gang, as its pods' conditions say, and the next step. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scheduler_ext.gangs.displacement import Displacement, lead_of
from scheduler_ext.model.pod import Pod
from scheduler_ext.preemption.plan import PreemptionLimits, kind_of, may_be_forced, pdb_grace_ms
from scheduler_ext.preemption.victims import LATE_MS, PreemptionContext
from scheduler_ext.snapshot.gang_table import GangKey, GangState, gang_key, side_of
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.ledger.reservation import MAX_MS, NOBODY_DISPLACED, Displaced, Reservation

STARTS_MS = 600_000  # a start lasts at most
SEEN_MS = 5_000  # after its deadline it is over, and the cards are given back


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The cards are given back, for this reason; ``is_failure``: it counts as a failed start."""

    reason: str
    why: str
    is_failure: bool


# "wait": its start is under way; "reserve": cards for those that have none; "go on": all conditions are
# shown, so victims leave, or the last card is free
Step = GiveBack | Literal["wait", "reserve", "go on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCards:
    """``wanted``: the members that start, or come later to one that ``has_begun``; ``reserved``: those for
    which cards are reserved; ``is_starting``: cards are planned for some, or some have a node."""

    gang: GangState
    has_begun: bool
    wanted: tuple[Pod, ...]
    reserved: tuple[tuple[Pod, Reservation], ...] = ()
    is_starting: bool = False

    @property
    def victims(self) -> dict[str, str]:
        """The UIDs of those that leave for it, or have left, and whose they are."""
        return {uid: owner for pod, _ in self.reserved for uid, owner in pod.displaced.victims}

    @property
    def since_ms(self) -> int:
        """When the first cards were reserved."""
        return min(reservation.since_ms for _, reservation in self.reserved)

    @property
    def until_ms(self) -> int:
        """Until when cards are kept."""
        return min(reservation.until_ms for _, reservation in self.reserved)

    @property
    def free_ms(self) -> int | None:
        """When the last card was free; None: some member does not say so."""
        said = [reservation.free_ms for _, reservation in self.reserved]
        known = [free_ms for free_ms in said if free_ms is not None]
        return min(known) if len(known) == len(said) else None

    @property
    def tries(self) -> int:
        """How often in succession cards were given back before."""
        return max(pod.displaced.tries for pod, _ in self.reserved)

    @property
    def lead(self) -> Pod:
        """The member of the lowest priority."""
        return lead_of(self.wanted or [pod for pod, _ in self.reserved])


def held_by_gang(
    reserved: Iterable[tuple[Pod, Reservation]],
) -> dict[GangKey, list[tuple[Pod, Reservation]]]:
    """The members for which cards are reserved, by gang."""
    found: dict[GangKey, list[tuple[Pod, Reservation]]] = {}
    for pod, reservation in reserved:
        found.setdefault(gang_key(pod) or "", []).append((pod, reservation))
    return found


def held_cards(
    gang: GangState, has_begun: bool, reserved: Sequence[tuple[Pod, Reservation]], snapshot: Snapshot
) -> HeldCards:
    """What the gang's pods say."""
    allocations = (snapshot.allocation(pod.uid) for pod in gang.waiting)
    is_planned = any(each is not None and each.state in ("planned", "assumed") for each in allocations)
    return HeldCards(
        gang=gang,
        has_begun=has_begun,
        reserved=tuple(reserved),
        wanted=tuple(pod for pod, _ in reserved) if has_begun else starting_members(gang),
        is_starting=is_planned or bool(gang.bound and not has_begun),
    )


def starting_members(gang: GangState) -> tuple[Pod, ...]:
    """As many of its members as it needs to start: those for which cards are reserved, then the oldest."""
    needed, paid = max(1, gang.needed - len(gang.bound)), gang.paid
    return tuple(sorted(paid, key=lambda pod: pod.reserved is None)[:needed]) if len(paid) >= needed else ()


def next_step(held: HeldCards, now_ms: int, deadline_ms: int) -> Step:
    """What the objects alone say is to be done."""
    if held.is_starting:
        return "wait"
    if held.free_ms is not None and now_ms >= held.free_ms + deadline_ms + SEEN_MS:
        return GiveBack("Refused", "the gang did not start on them in time", is_failure=True)
    if not all(reservation.lasts(now_ms) for _, reservation in held.reserved):
        return GiveBack("TimeUp", "the cards did not become free in time", is_failure=True)
    if any(pod.displaced.tries > held.tries for pod in held.gang.waiting if pod.reserved is None):
        return GiveBack("NoWay", "the cards of its other members were given back", is_failure=True)
    if not held.wanted:
        return GiveBack("NoWay", "fewer members wait than the gang needs", is_failure=False)
    return "reserve" if any(pod.reserved is None for pod in held.wanted) else "go on"


def reservations(
    found: Displacement,
    since_ms: int,
    tries: int,
    context: PreemptionContext,
    limits: PreemptionLimits,
) -> list[tuple[Pod, Reservation]]:
    """What is written on each member, before a pod is evicted. Each victim is named once, by a member on
    its node if there is one. Cards are kept for the longest grace period, and while PodDisruptionBudgets are
    honoured."""
    lead = lead_of(member.pod for member in found.members)
    forced = [pod for pod in found.victims if may_be_forced(lead, pod, context.standings, limits)]
    is_covered = any(context.pdbs.over(pod) or pod.uid in context.vetoed for pod in forced)
    lasts_ms = found.grace_ms + LATE_MS + (pdb_grace_ms(limits, context.standings) if is_covered else 0)
    named: dict[str, dict[str, str]] = {member.pod.uid: {} for member in found.members}
    first = {member.node: member.pod.uid for member in reversed(found.members)}
    for victim in found.victims:
        named[first.get(victim.node, found.members[0].pod.uid)][victim.uid] = side_of(victim)
    kind = kind_of(lead, found.victims, context.standings)
    return [
        (
            member.pod,
            Reservation(
                node=member.node,
                placement=member.placement,
                since_ms=since_ms,
                until_ms=min(context.now_ms + lasts_ms, since_ms + MAX_MS),
                kind=kind,
                displaced=Displaced(tuple(sorted(named[member.pod.uid].items())), tries=tries),
            ),
        )
        for member in found.members
    ]


def renewed(pod: Pod, reservation: Reservation, until_ms: int) -> Reservation:
    """The member's reservation after another choice: who has left for it before is named still."""
    before, now = pod.displaced, reservation.displaced or NOBODY_DISPLACED
    victims = {**dict(before.victims if before.is_kept else ()), **dict(now.victims)}
    both = replace(now, victims=tuple(sorted(victims.items())))
    return replace(reservation, until_ms=until_ms, displaced=both)


def freed(pod: Pod, reservation: Reservation, free_ms: int, now_ms: int) -> Reservation:
    """The reservation once the last card of its gang is free: it lasts as long as a start may."""
    until_ms = min(max(reservation.until_ms, now_ms + STARTS_MS), reservation.since_ms + MAX_MS)
    return replace(reservation, free_ms=free_ms, until_ms=until_ms, displaced=pod.displaced)
