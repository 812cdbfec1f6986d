"""The preemptor: frees cards where kube-scheduler cannot, in steps that objects record.

1. It reserves the cards for the waiting pod by a condition on the pod's status (`reservation`).
2. Once the watch shows the reservation, it evicts the victims through the Eviction API.
3. When the cards are free it requeues the pod, and kube-scheduler binds it like any other. A reservation that
  is not used in time is removed.

So no pod is evicted for cards that a third pod could take, and a replica that takes over continues from the
objects alone: they say which victims are left.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.controllers.evictions import (
    delete,
    evict,
    hold_cards,
    let_go,
    mark_reclaimed,
    shorten,
)
from scheduler_ext.controllers.victim_chooser import VictimChooser
from scheduler_ext.log import EventReason, Log
from scheduler_ext.model.pdb import PDBs
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.preemption.active import (
    ActivePreemption,
    ActivePreemptions,
    PreemptionCounts,
    held_text,
    left_text,
)
from scheduler_ext.preemption.cooldown import AnsweredPreemptions, Cooldown
from scheduler_ext.preemption.plan import (
    PreemptionLimits,
    is_refused_there,
    kind_of,
    may_be_forced,
    pdb_grace_ms,
    remaining_victims,
    reservation_for,
)
from scheduler_ext.preemption.precedence import outranks
from scheduler_ext.preemption.preemption_queue import AGAIN_AFTER, PreemptionQueue
from scheduler_ext.preemption.victims import Choice, PreemptionContext
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.settings import ExtenderSettings
from scheduler_ext.snapshot.gang_table import Gangs
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import WaitingPod
from timekeeper.core.kube.eviction import is_webhooks
from timekeeper.core.ledger.reservation import Displaced, Reservation
from timekeeper.edge.events import EventType
from timekeeper.runtime.api_server import Answered, Api, Reply

TICK_S = 0.1
RETRY_S = 1.0
FIRST_VETO_S, MOST_VETO_S = 30.0, 600.0  # after a refusal for good; doubles with each
GIVES_UP_S = 3.0  # so long there must have been no way
WAKES_AGAIN_S = 2.0
BEGINS_WITHIN_S = 0.5  # no further look begins in a step: what has been begun waits for it


class Tell(Protocol):
    """Posts an Event on a pod: reason and text."""

    def __call__(
        self, pod: Pod, reason: EventReason, text: str, event_type: EventType = "Normal", /
    ) -> None: ...


# the members of gangs for which cards are reserved, the moment, and whether pods may leave for this one
Displace = Callable[
    [Sequence[tuple[Pod, Reservation]], Snapshot, PreemptionContext, Callable[[Pod], bool]], object
]
# victim, the pod that gets its cards, kind of the preemption, how it left, node
Evicted = Callable[[Pod, Pod, str, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptorWiring:
    """What the preemptor reads and calls. ``waiting_pods``: pods refused everywhere, with the nodes they were
    offered. ``freed``: called with nodes that have something free. ``leads``: True if this replica may act.
    ``seconds``: a monotonic clock. ``breathe``: sleeps that many seconds so that other threads run.
    ``evicted``: called with each victim that leaves, must not wait. ``is_capped``: as in
    `PreemptionContext`; ``displace``: has others leave for gangs."""

    cache: ClusterCache
    waiting_pods: Callable[[], list[WaitingPod]]
    policy: Callable[[Pod], Policy]
    standings: Callable[[], NamespaceStandings]
    pdbs: Callable[[], PDBs]
    leads: Callable[[], bool]
    freed: Callable[[Iterable[str]], None]
    tell: Tell
    log: Log
    now_ms: Callable[[], int]
    seconds: Callable[[], float]
    breathe: Callable[[float], object]
    evicted: Evicted = lambda _victim, _pod, _kind, _how, _node: None
    is_capped: Callable[[Pod, str], bool] = lambda _pod, _node: False
    gangs: Gangs = field(default_factory=Gangs)
    displace: Displace = lambda _held, _snapshot, _context, _is_worth: None


def limits_of(settings: ExtenderSettings) -> PreemptionLimits:
    """The limits that the settings set."""
    wanted = settings.preempting
    return PreemptionLimits(
        wanted.hold_cards_ms,
        wanted.pdb_grace_ms,
        wanted.most_preemptions,
        settings.scheduler_name,
        bool(settings.timekeeper.url),
    )


class Preemptor:
    """`run` does the work in one thread.

    Its memory between steps saves calls, counts outcomes and holds the cool-down. A replica that takes over
    lacks the cool-down: it does not know which evictions were useless or which replacement pods to spare.
    """

    def __init__(self, api: Api, wiring: PreemptorWiring, limits: PreemptionLimits) -> None:
        self._api, self.wiring, self._limits = api, wiring, limits
        self._active, self._queue = ActivePreemptions(), PreemptionQueue(limits)
        self.answered, self.cooldown, self.counts = AnsweredPreemptions(), Cooldown(), PreemptionCounts()
        # UID -> how often in succession a webhook, a policy or a right has refused, and when to ask again
        self._vetoes: dict[str, tuple[int, float]] = {}
        self._begins_at_s = 0.0  # sorting the waiting pods takes a tenth of the time at most
        self._chooser = VictimChooser(limits, wiring.seconds, wiring.breathe, self.counts, wiring.log)

    def run(self, stop: threading.Event) -> None:
        """Act until ``stop``, while this replica leads."""
        while not stop.wait(TICK_S):
            if self.wiring.cache.complete and self.wiring.leads():
                self.step()
            else:
                self._active, self._queue = ActivePreemptions(), PreemptionQueue(self._limits)
                self.answered = AnsweredPreemptions()

    def hold(self, pod: Pod, reservation: Reservation) -> bool:
        """Write the reservation on the pod; false if that was refused."""
        return not _is_refused(hold_cards(self._api, pod, reservation))

    def let_go(self, pod: Pod, reason: str, why: str, displaced: Displaced) -> bool:
        """Remove the reservation from the pod, and note who has left; false if that was refused."""
        return not _is_refused(let_go(self._api, pod, reason, why, self.wiring.now_ms(), displaced))

    def step(self) -> None:
        """One step: continue all active preemptions, and start at most one more."""
        snapshot = self.wiring.cache.snapshot
        self._queue.follow(snapshot, self.wiring.seconds())
        self._vetoes = {uid: veto for uid, veto in self._vetoes.items() if uid in snapshot.pods}
        context = PreemptionContext(
            snapshot.pods,
            self.wiring.standings(),
            self.wiring.now_ms(),
            self.wiring.pdbs(),
            self.cooldown,
            is_capped=self.wiring.is_capped,
            gangs=self.wiring.gangs,
            vetoed=frozenset(self._vetoes),
        )
        every = self._queue.held(snapshot)
        held = [(pod, reservation) for pod, reservation in every if pod.gang is None]
        for pod in self.answered.unused(snapshot, context.now_ms):
            self.cooldown = self.cooldown.after_unused(pod, context.now_ms)
        for preemption, result in self._active.ended(snapshot):
            self.counts.ended(preemption.kind, result)
            if result != "bound" and preemption.has_evicted:
                self.cooldown = self.cooldown.after_unused(preemption.pod, context.now_ms)
            self.wiring.log("preemption", pod=preemption.pod.full_name, uid=preemption.pod.uid, result=result)
        for pod, reservation in held:
            self._go_on(pod, reservation, snapshot, context)
        known = context.standings is not UNHEARD or not self._limits.needs_standings
        if (
            known
            and len(held) < self._limits.most
            and self.wiring.seconds() >= self._begins_at_s
            and not self._queue.awaits(snapshot, self.wiring.seconds())
        ):
            self._begin(snapshot, replace(context, cooldown=self.cooldown))
        gangs = [(pod, reservation) for pod, reservation in every if pod.gang is not None]
        now = replace(context, cooldown=self.cooldown)
        self.wiring.displace(gangs, snapshot, now, lambda pod: known and self._queue.is_worth(pod, now))

    # what has been begun

    def _go_on(
        self, pod: Pod, reservation: Reservation, snapshot: Snapshot, context: PreemptionContext
    ) -> None:
        now_s = self.wiring.seconds()
        preemption = self._active.of(pod, reservation)
        if preemption is None:
            preemption = self._active.begin(pod, reservation)
            self.wiring.tell(pod, "CardsHeld", held_text(reservation))
        if not reservation.lasts(context.now_ms):
            return self._release_reservation(
                pod, preemption, "TimeUp", "the cards did not become free in time"
            )
        allocation = snapshot.allocation(pod.uid)
        if allocation is not None and allocation.state != "reserved":
            return None  # a bind is under way
        for_this = replace(context, cooldown=self.cooldown.without(pod))
        asked = preemption.recent_victims(now_s)
        left = remaining_victims(pod, reservation, snapshot, for_this, self.wiring.policy, asked)
        if isinstance(left, str):
            if preemption.blocked_s(now_s) >= GIVES_UP_S:
                self._release_reservation(pod, preemption, "NoWay", left)
            return None
        preemption.unblocked()
        if left.victims or left.awaits or preemption.waits_for_victims(snapshot):
            preemption.occupied()
            return self.evict_victims(pod, reservation, preemption, left.victims, context)
        free_since_s = preemption.free_since(now_s)
        if reservation.free_ms is None and preemption.may_act(now_s):
            preemption.defer(now_s + RETRY_S)
            free_ms = context.now_ms - round(1000 * (now_s - free_since_s))
            hold_cards(self._api, pod, replace(reservation, free_ms=free_ms))
        if not preemption.may_wake(now_s, WAKES_AGAIN_S):
            return None
        waiting = next((each for each in self.wiring.waiting_pods() if each.pod.uid == pod.uid), None)
        if is_refused_there(pod, snapshot.node(reservation.node), waiting, free_since_s, now_s):
            return self._release_reservation(pod, preemption, "Refused", "kube-scheduler refuses the node")
        return self.wiring.freed([reservation.node])

    def evict_victims(
        self,
        pod: Pod,
        reservation: Reservation,
        preemption: ActivePreemption,
        victims: Iterable[Pod],
        context: PreemptionContext,
    ) -> None:
        """Evict the victims, those under a PodDisruptionBudget first: if it protects one, no other victim has
        been evicted without use."""
        ordered = sorted(victims, key=lambda each: (not context.pdbs.over(each), each.uid))
        if not preemption.may_act(self.wiring.seconds()):
            return
        kept = self._kept(pod, reservation, ordered, context)
        if kept is not None:
            return self._put_off(preemption, kept, "a PodDisruptionBudget keeps it, or one of its gang")
        for victim in ordered:
            now = self._by_now(context)  # calls take their time, and standings may turn meanwhile
            if not self.wiring.leads() or now.is_capped(pod, reservation.node):
                return
            if not outranks(pod, victim, now.standings):
                return
            if not self._evict_one(pod, reservation, preemption, victim, now):
                return

    def _kept(
        self, pod: Pod, reservation: Reservation, victims: Sequence[Pod], context: PreemptionContext
    ) -> Pod | None:
        """One that a PodDisruptionBudget keeps, and so all, by trials without effect. Of a gang all leave or
        none, also while its budgets are honoured for a time alone; an eviction by itself is allowed by a
        budget that does not allow all of them."""
        if len(victims) < 2:
            return None
        pdbs, is_honoured = context.pdbs, self._left_ms(reservation, context) > 0

        def is_kept(each: Pod) -> bool:
            if each.gang is not None and is_honoured:
                return True
            return bool(pdbs.over(each)) and not may_be_forced(pod, each, context.standings, self._limits)

        asking = [each for each in victims if is_kept(each)]
        of_gangs = [each for each in asking if each.gang is not None]
        if pdbs.violations(of_gangs):
            return of_gangs[0]
        return next((each for each in asking if evict(self._api, each, dry_run=True)[0] != "going"), None)

    def _left_ms(self, reservation: Reservation, context: PreemptionContext) -> int:
        """How long PodDisruptionBudgets are honoured yet."""
        return reservation.since_ms + pdb_grace_ms(self._limits, context.standings) - context.now_ms

    def _by_now(self, context: PreemptionContext) -> PreemptionContext:
        return replace(context, standings=self.wiring.standings(), now_ms=self.wiring.now_ms())

    def _evict_one(
        self,
        pod: Pod,
        reservation: Reservation,
        preemption: ActivePreemption,
        victim: Pod,
        context: PreemptionContext,
    ) -> bool:
        """True if the victim's eviction was accepted, or it is gone already."""
        vetoes, again_s = self._vetoes.get(victim.uid, (0, 0.0))
        if self.wiring.seconds() < again_s:
            preemption.defer(self.wiring.seconds() + RETRY_S)
            return False
        how = "shortened" if victim.deleting else "evicted"
        left, said = (shorten if victim.deleting else evict)(self._api, victim)
        if left == "refused" or (left == "protected" and is_webhooks(429, said)):
            pause_s = min(FIRST_VETO_S * 2**vetoes, MOST_VETO_S) if left == "refused" else 0.0
            self._vetoes[victim.uid] = vetoes + 1, self.wiring.seconds() + pause_s
            if left == "refused" or not vetoes:
                sentence = f"The eviction of this pod is refused: {said}"
                self.wiring.tell(victim, "EvictionRefused", sentence, "Warning")
        if left == "protected":
            self.counts.protected += 1
            context = self._by_now(context)
            is_over = self._left_ms(reservation, context) <= 0
            if is_over and may_be_forced(pod, victim, context.standings, self._limits):
                how = "deleted"
                why = left_text(victim, pod, "reclaim", context.standings)
                left, said = delete(self._api, victim, why, context.now_ms, self.wiring.log)
        if left != "going":
            self._put_off(preemption, victim, said)
            return False
        self._vetoes.pop(victim.uid, None)
        if victim.gang is not None and how == "evicted":
            why = left_text(victim, pod, "reclaim", context.standings)
            mark_reclaimed(self._api, victim, why, context.now_ms)
        preemption.record_eviction(victim, self.wiring.seconds())
        self.cooldown = self.cooldown.after(victim, pod, context.now_ms)
        kind = kind_of(pod, [victim], context.standings)
        self.counts.left(kind, how)
        self.wiring.tell(
            victim,
            "Preempted" if kind == "fragmentation" else "Reclaimed",
            left_text(victim, pod, kind, context.standings),
            "Warning",
        )
        self.wiring.evicted(victim, pod, kind, how, reservation.node)
        self.wiring.log(
            "preempted", pod=victim.full_name, uid=victim.uid, how=how, kind=kind, by=pod.full_name
        )
        return True

    def _put_off(self, preemption: ActivePreemption, victim: Pod, said: str) -> None:
        preemption.defer(self.wiring.seconds() + RETRY_S)
        self.wiring.log(
            "stays",
            level="warning",
            pod=victim.full_name,
            uid=victim.uid,
            why=said,
            by=preemption.pod.full_name,
        )

    def _release_reservation(self, pod: Pod, preemption: ActivePreemption, reason: str, why: str) -> None:
        if not preemption.may_act(self.wiring.seconds()):
            return
        preemption.defer(self.wiring.seconds() + RETRY_S)
        reply = let_go(self._api, pod, reason, why, self.wiring.now_ms())
        said = reply.status if isinstance(reply, Answered) else reply.message
        self.wiring.log("let-go", pod=pod.full_name, uid=pod.uid, node=preemption.node, why=why, answer=said)
        if said == 200:
            self._queue.rests(pod.uid, self.wiring.seconds())
            self.wiring.tell(
                pod, "CardsLetGo", f"Released the GPUs reserved on node {preemption.node}: {why}."
            )

    # the pods that may start a preemption

    def _begin(self, snapshot: Snapshot, context: PreemptionContext) -> None:
        began_s = self.wiring.seconds()
        pods = self._queue.next(snapshot, context, began_s)
        now_s = self.wiring.seconds()
        self._begins_at_s = now_s + AGAIN_AFTER * (now_s - began_s)
        known: dict[str, WaitingPod] = {}
        for pod in pods:
            if self.wiring.seconds() - now_s >= BEGINS_WITHIN_S:
                return None
            known = known or {each.pod.uid: each for each in self.wiring.waiting_pods()}
            told = known.get(pod.uid)
            offered = told.offered if told is not None and told.asked else frozenset[str]()
            if pod.request is None:
                continue
            preemptible = told.preemptible if told is not None else frozenset[str]()
            waiting_pod = WaitingPod(pod, self.wiring.policy(pod), offered, preemptible=preemptible)
            began_s = self.wiring.seconds()
            choice = self._chooser.choice(waiting_pod, snapshot, context, self._queue)
            if choice is None:
                ended_s = self.wiring.seconds()
                self._queue.found_none(pod, ended_s, ended_s - began_s)
            else:
                return self._hold(pod, choice, context)
        return None

    def _hold(self, pod: Pod, choice: Choice, context: PreemptionContext) -> None:
        reservation = reservation_for(pod, choice, context, self._limits)
        reply = hold_cards(self._api, pod, reservation)
        said = reply.status if isinstance(reply, Answered) else reply.message
        self.wiring.log(
            "hold",
            pod=pod.full_name,
            uid=pod.uid,
            node=choice.node,
            kind=reservation.kind,
            victims=",".join(each.full_name for each in choice.victims),
            answer=said,
        )
        if not _is_refused(reply):
            self._queue.await_held(pod.uid, self.wiring.seconds())


def _is_refused(reply: Reply) -> bool:
    return isinstance(reply, Answered) and 400 <= reply.status < 500
