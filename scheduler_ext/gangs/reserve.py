"""``POST /v1/gangs/reserve``: reserves cards for all members of a gang, or for none.

The cards are taken in the cache first, in one step, so that no bind comes between; then each member's object
gets its reservation. Where one is refused, all are taken back.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import orjson

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.gangs.asked import GangAsked, read_asked
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.late_members import Followers, cards_for, followers_of, kept_text, of_both
from scheduler_ext.gangs.plan import (
    GangPlan,
    PlannedMember,
    lack_text,
    missing_cards,
    place_text,
    plan,
    why_text,
)
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.late_cards import LateCards
from scheduler_ext.snapshot.late_changes import end_late, rests
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.ledger.reservation import MAX_MS, Reservation
from timekeeper.runtime.http.problem_details import bad, unavailable

ATTEMPTS = 3  # plans for one call, where the nodes change meanwhile
FOLLOWER = "another replica leads"
MAX_KNOWN = 1_024  # gangs of which is known what they lacked last

Written = Literal["written", "refused", "unclear"]


class GangReservations:
    """``given``: what a plan reads of this snapshot; ``write``: writes a reservation on a pod's object;
    ``withdraw``: removes it again;
    ``at_once``: how many such calls may be under way; ``drains``: keeps cards for a gang that lacks them."""

    def __init__(
        self,
        cache: ClusterCache,
        given: Callable[[Snapshot], PlanInput],
        write: Callable[[Pod, Reservation], Written],
        withdraw: Callable[[Pod], object],
        leads: Callable[[], bool],
        now_ms: Callable[[], int],
        log: Log,
        at_once: int = 1,
        drains: GangDrains | None = None,
    ) -> None:
        self._cache, self._given, self._leads, self._now_ms = cache, given, leads, now_ms
        self._write, self._withdraw, self._log = write, withdraw, log
        self._drains = drains or GangDrains(cache, given, now_ms, log)
        self._lacks: dict[tuple[str, str], str] = {}  # by namespace and key of the gang
        self._map = map if at_once == 1 else ThreadPoolExecutor(at_once, "gang-call").map

    def __call__(self, body: bytes) -> bytes:
        """The answer to a body: ``reserved`` members, or why not. Raises a Problem for a bad body, and where
        this replica does not lead."""
        asked = read_asked(body)
        if not self._leads():
            raise unavailable(FOLLOWER)
        since_ms = self._now_ms() // 1000 * 1000
        if not since_ms < asked.until_ms <= since_ms + MAX_MS:
            raise bad("until", "it must be within the next hour")
        for _ in range(ATTEMPTS):
            answer = self._reserved(asked, since_ms)
            if answer is not None:
                return orjson.dumps({"version": 1, **answer})
        return orjson.dumps(
            {"version": 1, "reserved": 0, "missing": 0, "why": "the cluster changes too fast"}
        )

    def lack(self, pod: Pod) -> str:
        """What the pod's gang lacked when cards were looked for last; "" if nothing, or if it is not known
        to this replica."""
        return self._lacks.get(_key(pod), "")

    def _note(self, pod: Pod, lack: str) -> None:
        self._lacks.pop(_key(pod), None)
        if lack and pod.gang is not None:
            self._lacks[_key(pod)] = f"gang {pod.gang.name} starts whole: {lack}"
        for oldest in list(self._lacks)[:-MAX_KNOWN]:
            del self._lacks[oldest]

    def _reserved(self, asked: GangAsked, since_ms: int) -> dict[str, Any] | None:
        """None: the nodes changed since the plan was made."""
        snapshot = self._cache.snapshot
        pods = [pod for uid in asked.uids if (pod := snapshot.pods.get(uid)) is not None and _waits(pod)]
        if len(pods) < len(asked.uids):
            why = "not all of its pods are known to wait"
            return {"reserved": 0, "missing": len(asked.uids) - len(pods), "why": why}
        there = (each.node for uid in asked.bound if (each := snapshot.pods.get(uid)) is not None)
        beside = {node for node in there if node}
        # of a gang that runs those that follow exist, or cards are kept for them
        late = Followers() if asked.bound else followers_of(pods[0], snapshot)
        made = self._plan(pods, late, asked, snapshot, beside)
        members, following = of_both(made)
        if not made.suffices(asked.needed + len(late.pods)) or len(following) < len(late.pods):
            kept = self._drains.keep(pods, asked, beside, late.pods)
            self._note(pods[0], "; ".join(each for each in (lack_text(made), kept) if each))
            lacks = {"missing": len(made.left), "cards": missing_cards(made), "near": made.near}
            more = {"members": len(made.members) + len(made.left)} if late.pods else {}
            more_kept = {"drain": kept} if kept else {}
            return {"reserved": 0, **lacks, "why": why_text(made), **more, **more_kept}
        self._note(pods[0], "")
        together = [(each.pod, _reservation(each, asked, since_ms)) for each in members]
        is_kept = asked.late_ms > since_ms and not rests(snapshot, pods[0].namespace, since_ms)
        following, first = following if is_kept else [], [pod for pod, _ in together]
        cards = None if asked.bound else cards_for(following, first, since_ms, asked.late_ms)
        if not self._cache.reserve(together, snapshot, cards):
            return None
        self._drains.end(pods[0])
        if late.pods:  # the bound is of all, and only these are there
            made = replace(made, members=tuple(members), least=0)
        return self._recorded(together, asked, made, cards)

    def _plan(
        self, pods: list[Pod], late: Followers, asked: GangAsked, snapshot: Snapshot, beside: set[str]
    ) -> GangPlan:
        """All that exist and that follow; if not all fit, as many as must exist, with those that follow."""
        gang = pods[0].gang
        if gang is not None and not asked.bound:
            snapshot = end_late(snapshot, pods[0].namespace, gang.key)
        made = plan([*pods, *late.pods], self._given(snapshot), beside, late.without_gpus)
        if not late.pods or not made.left or asked.needed == len(pods):
            return made
        return plan([*pods[: asked.needed], *late.pods], self._given(snapshot), beside, late.without_gpus)

    def _recorded(
        self,
        together: Sequence[tuple[Pod, Reservation]],
        asked: GangAsked,
        made: GangPlan,
        late: LateCards | None,
    ) -> dict[str, Any]:
        results = list(self._map(lambda each: self._write(*each), together))
        nodes = len({reservation.node for _, reservation in together})
        self._log(
            "gang", pods=len(together), nodes=nodes, epoch=asked.epoch, results=",".join(sorted(set(results)))
        )
        if "refused" not in results:
            where = place_text(made) + kept_text(late)
            return {"reserved": len(together), "missing": 0, "where": where, "why": ""}
        written = [pod for (pod, _), result in zip(together, results, strict=True) if result != "refused"]
        list(self._map(self._withdraw, written))
        self._cache.take_back((pod for pod, _ in together), late)
        return {"reserved": 0, "missing": 0, "why": "a pod changed while its cards were reserved"}


def _key(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.gang.key if pod.gang is not None else ""


def _waits(pod: Pod) -> bool:
    return not (pod.node or pod.deleting or pod.terminal) and pod.gang is not None


def _reservation(member: PlannedMember, asked: GangAsked, since_ms: int) -> Reservation:
    """No pod holds these cards, so they are the gang's from now on."""
    return Reservation(
        member.node, member.placement, since_ms, asked.until_ms, "gang", free_ms=since_ms, epoch=asked.epoch
    )
