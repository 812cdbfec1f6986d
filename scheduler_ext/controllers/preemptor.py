"""The preemptor: makes room on cards for pods that kube-scheduler cannot make room for, one step after the
other, each of which the objects tell.

1. The cards are held for the waiting pod by a condition on its own status (`reservation`).
2. Only once the watch shows that, those who must leave are asked to, by the Eviction API.
3. When the cards are free the pod is woken, and bound by kube-scheduler as any other. What did not come true
   in time is taken back.

So nobody has to leave for a pod that others could take the cards from, and a replica that takes over reads
what has been begun from the objects and goes on with it: who is still to leave follows from them alone.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.controllers.evictions import delete, evict, hold_cards, let_go
from scheduler_ext.model.pdb import Disruptions
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.reservation import Reservation
from scheduler_ext.model.standing import UNHEARD, Standings, as_if_enforced
from scheduler_ext.preemption.active import Course, Courses, Tally
from scheduler_ext.preemption.cooldown import Cooling
from scheduler_ext.preemption.plan import (
    Terms,
    begun,
    has_room,
    kind_of,
    may_be_forced,
    may_begin,
    pdb_grace_ms,
    remaining,
    reserving,
)
from scheduler_ext.preemption.precedence import outranks
from scheduler_ext.preemption.preemption_queue import Queue
from scheduler_ext.preemption.victims import Choice, Moment
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.node_info import Node
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import Waiter
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.runtime.log import Log

TICK_S = 0.1
RETRY_S = 1.0
GIVES_UP_S = 3.0  # so long there must have been no way
WAKES_AGAIN_S = 2.0
LOOK_FOR_S = 2.0  # at the nodes, for one waiting pod
BEGINS_WITHIN_S = 0.5  # no further look begins in a step: what has been begun waits for it
BREATHES_EACH = 8  # nodes
BREATH_S = 0.002

Tell = Callable[[Pod, str, str], None]  # an Event on a pod: its reason, and what is said


@dataclass(frozen=True, slots=True)
class World:
    """What the preemptor sees, and whom it tells. ``waiters``: the pods refused everywhere, with the nodes
    they were offered; ``freed`` hears of nodes that have room; ``leads``: whether this replica may act;
    ``seconds``: a monotonic clock; ``breathe`` lets other threads run for so many seconds."""

    cache: ClusterCache
    waiters: Callable[[], list[Waiter]]
    policy: Callable[[Pod], Policy]
    standings: Callable[[], Standings]
    disruptions: Callable[[], Disruptions]
    leads: Callable[[], bool]
    freed: Callable[[Iterable[str]], None]
    tell: Tell
    log: Log
    now_ms: Callable[[], int]
    seconds: Callable[[], float]
    breathe: Callable[[float], object]


class Preemptor:
    """`run` does the work in one thread. What it remembers between steps spares calls, counts what happened,
    and is the cool-down: whoever takes over does not know for whom others have left in vain, nor whose
    replacements are to be left alone, and may so ask one pod more to leave."""

    def __init__(self, api: Api, world: World, terms: Terms) -> None:
        self._api, self._world, self._terms = api, world, terms
        self._courses, self._queue = Courses(), Queue(terms)
        self.cooling = Cooling()
        self.tally = Tally()

    def run(self, stop: threading.Event) -> None:
        """Acts until ``stop``, while this replica leads."""
        while not stop.wait(TICK_S):
            if self._world.cache.complete and self._world.leads():
                self.step()
            else:
                self._courses, self._queue = Courses(), Queue(self._terms)

    def step(self) -> None:
        """One look at everything: what has been begun goes on, and one more pod may begin."""
        snapshot = self._world.cache.snapshot
        self._queue.follow(snapshot, self._world.seconds())
        moment = Moment(
            snapshot.pods,
            self._world.standings(),
            self._world.now_ms(),
            self._world.disruptions(),
            self.cooling,
        )
        held = self._queue.held(snapshot)
        for course, result in self._courses.ended(snapshot):
            self.tally.ended(course.kind, result)
            self._world.log("preemption", pod=course.pod.full_name, uid=course.pod.uid, result=result)
        for pod, reservation in held:
            self._go_on(pod, reservation, snapshot, moment)
        known = moment.standings is not UNHEARD or not self._terms.heeds
        if known and len(held) < self._terms.most and not self._queue.awaits(snapshot, self._world.seconds()):
            self._begin(snapshot, replace(moment, cooling=self.cooling))

    # what has been begun

    def _go_on(self, pod: Pod, reservation: Reservation, snapshot: Snapshot, moment: Moment) -> None:
        now_s = self._world.seconds()
        course = self._courses.of(pod, reservation)
        if course is None:
            course = self._courses.begin(pod, reservation)
            self._world.tell(pod, "CardsHeld", _held_text(reservation))
        if not reservation.lasts(moment.now_ms):
            return self._let_go(pod, course, "TimeUp", "the cards did not become free in time")
        seat = snapshot.seat(pod.uid)
        if seat is not None and seat.held != "reserved":
            return None  # a bind is under way
        for_this = replace(moment, cooling=_without(self.cooling, pod))
        asked = course.asked(now_s)
        left = remaining(pod, reservation, snapshot, for_this, self._world.policy, asked)
        if isinstance(left, str):
            if course.no_way(now_s) >= GIVES_UP_S:
                self._let_go(pod, course, "NoWay", left)
            return None
        course.way()
        if left.victims:
            self._ask(pod, reservation, course, left.victims, moment)
        elif not left.awaits and not course.waits_for(snapshot) and course.may_wake(now_s, WAKES_AGAIN_S):
            self._world.freed([reservation.node])
        return None

    def _ask(
        self, pod: Pod, reservation: Reservation, course: Course, victims: Iterable[Pod], moment: Moment
    ) -> None:
        """Ask them to leave, those first whom a PodDisruptionBudget may keep: where it does, nobody else
        leaves in vain."""
        disruptions, standings = moment.disruptions, moment.standings
        ordered = sorted(victims, key=lambda each: (not disruptions.over(each), each.uid))
        if not course.may_ask(self._world.seconds()):
            return
        kept = [
            v for v in ordered if disruptions.over(v) and not may_be_forced(pod, v, standings, self._terms)
        ]
        probed = kept if len(ordered) > 1 else []
        for victim in probed:
            if evict(self._api, victim, dry_run=True)[0] != "going":
                return self._put_off(course, victim, "a PodDisruptionBudget keeps it")
        for victim in ordered:
            now = self._by_now(moment)  # calls take their time, and standings may turn meanwhile
            if not self._world.leads() or not outranks(pod, victim, now.standings):
                return
            if not self._leaves(pod, reservation, course, victim, now):
                return

    def _by_now(self, moment: Moment) -> Moment:
        return replace(moment, standings=self._world.standings(), now_ms=self._world.now_ms())

    def _leaves(
        self, pod: Pod, reservation: Reservation, course: Course, victim: Pod, moment: Moment
    ) -> bool:
        """True where the victim has been asked, or is gone already."""
        how = "evicted"
        left, said = evict(self._api, victim)
        if left == "protected":
            self.tally.protected += 1
            moment = self._by_now(moment)
            over_ms = moment.now_ms - reservation.since_ms - pdb_grace_ms(self._terms, moment.standings)
            if over_ms >= 0 and may_be_forced(pod, victim, moment.standings, self._terms):
                how = "deleted"
                left, said = delete(self._api, victim)
        if left != "going":
            self._put_off(course, victim, said)
            return False
        course.ask(victim, self._world.seconds())
        self.cooling = self.cooling.after(victim, pod, moment.now_ms)
        kind = kind_of(pod, [victim], moment.standings)
        self.tally.left(kind, how)
        self._world.tell(
            victim, "Preempted" if kind == "fragmentation" else "Reclaimed", _left_text(pod, kind)
        )
        self._world.log(
            "preempted", pod=victim.full_name, uid=victim.uid, how=how, kind=kind, by=pod.full_name
        )
        return True

    def _put_off(self, course: Course, victim: Pod, said: str) -> None:
        course.put_off(self._world.seconds() + RETRY_S)
        self._world.log(
            "stays", level="warning", pod=victim.full_name, uid=victim.uid, why=said, by=course.pod.full_name
        )

    def _let_go(self, pod: Pod, course: Course, reason: str, why: str) -> None:
        if not course.may_ask(self._world.seconds()):
            return
        course.put_off(self._world.seconds() + RETRY_S)
        reply = let_go(self._api, pod, reason, why, self._world.now_ms())
        said = reply.status if isinstance(reply, Answered) else reply.why
        self._world.log("let-go", pod=pod.full_name, uid=pod.uid, node=course.node, why=why, answer=said)
        if said == 200:
            self._queue.rests(pod.uid, self._world.seconds())
            self._world.tell(
                pod, "CardsLetGo", f"No cards of node {course.node} are held for it any more: {why}."
            )

    # who begins

    def _begin(self, snapshot: Snapshot, moment: Moment) -> None:
        known: dict[str, Waiter] = {}
        now_s = self._world.seconds()
        for pod in self._queue.next(snapshot, moment, now_s):
            if self._world.seconds() - now_s >= BEGINS_WITHIN_S:
                return None
            known = known or {each.pod.uid: each for each in self._world.waiters()}
            told = known.get(pod.uid)
            offered = told.offered if told is not None and told.asked else frozenset[str]()
            if pod.request is None:
                continue
            waiter = Waiter(pod, self._world.policy(pod), offered)
            began_s = self._world.seconds()
            choice = self._choice(waiter, snapshot, moment)
            if choice is None:
                ended_s = self._world.seconds()
                self._queue.found_none(pod, ended_s, ended_s - began_s)
            else:
                return self._hold(pod, choice, moment)
        return None

    def _choice(self, waiter: Waiter, snapshot: Snapshot, moment: Moment) -> Choice | None:
        """Who is to leave for it; None too where that is only told, for budgets that are only watched."""
        standings = moment.standings
        claimed = self._queue.claimed(snapshot, waiter.pod)
        choice = begun(waiter, self._nodes(waiter, snapshot, standings), moment, self._terms, claimed)
        if choice is not None and has_room(waiter, self._queue.may_have_room(snapshot, waiter)):
            return None
        if choice is not None and not any(standings.of(v.namespace).watched for v in choice.victims):
            return choice
        if not standings.watches:
            return None
        supposed = replace(moment, standings=as_if_enforced(standings))
        if choice is None and may_begin(waiter.pod, self._terms, supposed.standings):
            nodes = self._nodes(waiter, snapshot, supposed.standings)
            choice = begun(waiter, nodes, supposed, self._terms, claimed)
        if choice is None or not choice.victims:
            return None
        if self._queue.may_report(waiter.pod.uid, self._world.seconds()):
            kind = kind_of(waiter.pod, choice.victims, supposed.standings)
            self.tally.ended(kind, "observed")
            self._world.log(
                "would-preempt",
                pod=waiter.pod.full_name,
                uid=waiter.pod.uid,
                node=choice.node,
                kind=kind,
                victims=",".join(each.full_name for each in choice.victims),
            )
        return None

    def _nodes(self, waiter: Waiter, snapshot: Snapshot, standings: Standings) -> Iterator[Node]:
        """The nodes worth a look, with a breath now and then: the verbs are answered by the same process. Of
        very many only as many as can be looked at in time."""
        until_s = self._world.seconds() + LOOK_FOR_S
        for at, node in enumerate(self._queue.worth(snapshot, waiter.pod, standings), 1):
            if self._world.seconds() > until_s:
                return
            yield node
            if at % BREATHES_EACH == 0:
                self._world.breathe(BREATH_S)

    def _hold(self, pod: Pod, choice: Choice, moment: Moment) -> None:
        reservation = reserving(pod, choice, moment, self._terms)
        reply = hold_cards(self._api, pod, reservation)
        said = reply.status if isinstance(reply, Answered) else reply.why
        self._world.log(
            "hold",
            pod=pod.full_name,
            uid=pod.uid,
            node=choice.node,
            kind=reservation.kind,
            victims=",".join(each.full_name for each in choice.victims),
            answer=said,
        )
        refused = isinstance(reply, Answered) and 400 <= reply.status < 500
        if not refused:
            self._queue.await_held(pod.uid, self._world.seconds())


def _without(cooling: Cooling, pod: Pod) -> Cooling:
    """Who has left for the pod is no reason that others who must leave for it too may stay."""
    return Cooling(tuple(each for each in cooling.evictions if each.beneficiary != pod.uid))


def _held_text(reservation: Reservation) -> str:
    cards = len({each.uuid for _, slices in reservation.placement.containers for each in slices})
    on = "a card" if cards == 1 else f"{cards} cards"
    why = ", for their namespace is over its budget" if reservation.kind == "reclaim" else ""
    return f"Holds {on} of node {reservation.node} for it; pods that are in its way there leave{why}."


def _left_text(pod: Pod, kind: str) -> str:
    """What its own namespace may know of the other: kube-scheduler too names no more than the UID."""
    why = (
        "this one's namespace is over its budget" if kind == "reclaim" else "that one has the higher priority"
    )
    return f"Leaves its cards to pod {pod.uid}: {why}."
