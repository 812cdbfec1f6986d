"""How the budget pays a gang. Pure.

A gang that has not started is paid as one sum, for all members that exist, once as many exist as it needs:
else two gangs that appear pod by pod could each get half of what one needs. Then the gate of all of them goes
in one step. The pods' own objects are the record: a gang with a paid member is paid out without asking again,
as far as it needs. Of a gang that has started each further pod is paid by itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.gangs import Gang, ended_for_good, said_now

Payment = Literal["wait", "together", "singly"]


@dataclass(frozen=True)
class WaitingGang:
    """A gang of which a member has no node. ``members``: the living ones, oldest first; ``held``: those that
    are not paid, as one pod, None: all are; ``ended_well``: how many others have; ``is_one``: all say the
    same sizes."""

    namespace: str
    gang: Gang
    members: tuple[LedgerPod, ...]
    held: HeldPod | None = None
    ended_well: int = 0
    is_one: bool = True

    @property
    def key(self) -> str:
        """What tells it from every other gang."""
        return f"{self.namespace}/{self.gang.key}"

    @cached_property
    def gated(self) -> tuple[str, ...]:
        """The UIDs of the members that are not paid."""
        return tuple(member.uid for member in self.members if member.is_gated)

    @property
    def paid(self) -> int:
        """How many members are paid."""
        return len(self.members) - len(self.gated)

    @cached_property
    def former(self) -> tuple[LedgerPod, ...]:
        """The members that wait without the gang's gate: a release before that gate has created them."""
        return tuple(member for member in self.members if member.membership.is_marked and not member.node)

    @cached_property
    def needed(self) -> int:
        """With how many members it starts."""
        return _needed(self.gang, self.members, self.ended_well)

    @cached_property
    def payment(self) -> Payment:
        """How those that are not paid are paid."""
        needed = self.needed
        if self.paid >= needed or any(member.node and member.membership.is_marked for member in self.members):
            return "singly"
        is_kept = any(member.has_other_gate for member in self.members)
        return "together" if self.is_one and not is_kept and len(self.members) >= needed else "wait"

    @cached_property
    def paid_out(self) -> tuple[str, ...]:
        """The members whose gates are still there although the gang was paid: as many as it needs."""
        is_begun = self.payment == "together" and self.paid > 0
        return self.gated[: self.needed - self.paid] if is_begun else ()


@dataclass(frozen=True, slots=True)
class BrokenGang:
    """A gang of which a member was preempted, and that has fewer pods with cards than its minimum since.
    ``needed``: how many it needs; ``uids``: of those that are left."""

    namespace: str
    gang: Gang
    needed: int
    uids: tuple[str, ...]


def broken(namespace: str, pods: Sequence[LedgerPod]) -> BrokenGang | None:
    """The gang of which one of these pods was preempted; None: it goes on, has ended, or has not started."""
    running = tuple(pod.uid for pod in pods if pod.is_charged)
    if not running or is_unmarked(pods):
        return None
    living = _living(pods)
    gang = _largest(_said(living or pods))
    needed = _needed(gang, living, _ended_well(gang, living, pods, with_jobs=True))
    return BrokenGang(namespace, gang, needed, running) if len(running) < needed else None


def is_unmarked(pods: Iterable[LedgerPod]) -> bool:
    """Whether some of a gang's pods have nodes, and none of these says that it has started."""
    bound = [pod.membership.is_marked for pod in pods if pod.node]
    return bool(bound) and not any(bound)


def gang_of_pods(namespace: str, pods: Sequence[LedgerPod], held: Sequence[HeldPod]) -> WaitingGang | None:
    """The gang of these pods; None: each of them has a node, or leaves. ``held``: those behind the
    budget's gate."""
    members = _living(pods)
    if all(member.node for member in members):
        return None
    said = _said(members)
    gang = _largest(said)
    one = replace(_as_one(held), uid=f"{namespace}/{gang.key}", name=gang.name) if held else None
    return WaitingGang(namespace, gang, members, one, _ended_well(gang, members, pods), len({*said}) == 1)


def _living(pods: Iterable[LedgerPod]) -> tuple[LedgerPod, ...]:
    """Those of the pods that have not ended and do not leave, oldest first."""
    living = (pod for pod in pods if pod.ended_ms is None and pod.hold.deletion_ms is None)
    return tuple(sorted(living, key=lambda pod: (pod.created_ms, pod.uid)))


def _needed(gang: Gang, living: Sequence[LedgerPod], ended_well: int) -> int:
    said = (member.membership.needs_said for member in living if member.membership.needs_said is not None)
    return gang.needed(len(living), ended_well, next(said, None))


def _ended_well(
    gang: Gang, living: Iterable[LedgerPod], pods: Iterable[LedgerPod], *, with_jobs: bool = False
) -> int:
    """Of Jobs none, for one may make others, unless ``with_jobs``: as if none did."""
    owners = {member.owner for member in living}
    every = (pod.owner for pod in pods if pod.membership.has_ended_well)
    ended = (owner for owner in every if with_jobs or not owner.startswith("Job/"))
    return ended_for_good(gang.key, owners, ended)


def gangs_as_one(pods: Iterable[HeldPod]) -> list[tuple[HeldPod, int]]:
    """The held pods, those of a gang as one, with the UID and the name of the oldest; each with its number of
    pods."""
    found: dict[tuple[str, str], list[HeldPod]] = {}
    for pod in pods:
        found.setdefault((pod.namespace, pod.released_with), []).append(pod)
    return [(_as_one(group) if group[0].gang else group[0], len(group)) for group in found.values()]


def _as_one(pods: Iterable[HeldPod]) -> HeldPod:
    held = sorted(pods, key=lambda pod: (pod.created_ms, pod.uid))
    return replace(
        held[0],
        priority=min(pod.priority for pod in held),
        rate_milli=sum(pod.rate_milli for pod in held),
        needs_budget=any(pod.needs_budget for pod in held),
        length_ms=max(pod.length_ms for pod in held),
        cards_milli=sum(pod.cards_milli for pod in held),
        is_gang=True,
    )


def _said(living: Iterable[LedgerPod]) -> list[Gang]:
    return said_now((pod.owner, pod.gang) for pod in living if pod.gang is not None)


def _largest(gangs: Iterable[Gang]) -> Gang:
    return max(gangs, key=lambda gang: (gang.size, gang.minimum, gang.topology, gang.preferred))
