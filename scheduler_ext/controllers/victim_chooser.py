"""Which pods leave for a waiting pod, out of the nodes that are worth a look."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from zlib import crc32

from scheduler_ext.log import Log
from scheduler_ext.model.standing import NamespaceStandings, as_if_enforced
from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.preemption.plan import PreemptionLimits, fits_on_any, kind_of, may_begin, plan
from scheduler_ext.preemption.preemption_queue import PreemptionQueue
from scheduler_ext.preemption.victims import Choice, PreemptionContext
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import WaitingPod

LOOK_FOR_S = 2.0  # at the nodes, for one waiting pod
ENOUGH_NODES = 400  # then the best choice so far is taken; kube-scheduler too looks at a part of the nodes
BREATHES_EACH = 8  # nodes
BREATH_S = 0.002


class VictimChooser:
    """``seconds``: a monotonic clock. ``breathe``: sleeps that many seconds so that other threads run.
    ``counts`` gets the preemptions that are only reported."""

    def __init__(
        self,
        limits: PreemptionLimits,
        seconds: Callable[[], float],
        breathe: Callable[[float], object],
        counts: PreemptionCounts,
        log: Log,
    ) -> None:
        self._limits, self._seconds, self._breathe = limits, seconds, breathe
        self._counts, self._log = counts, log

    def choice(
        self,
        waiting_pod: WaitingPod,
        snapshot: Snapshot,
        context: PreemptionContext,
        queue: PreemptionQueue,
    ) -> Choice | None:
        """The victims for the pod. Also None if the choice is only reported, for budgets in observe mode."""
        standings = context.standings
        claimed = queue.claimed(snapshot, waiting_pod.pod)
        choice = plan(
            waiting_pod,
            self._nodes(waiting_pod, snapshot, standings, queue),
            context,
            self._limits,
            claimed,
            ENOUGH_NODES,
        )
        if choice is not None and fits_on_any(waiting_pod, queue.that_may_take(snapshot, waiting_pod)):
            return None
        if choice is not None and not any(standings.of(v.namespace).watched for v in choice.victims):
            return choice
        if not standings.watches:
            return None
        supposed = replace(context, standings=as_if_enforced(standings))
        if choice is None and may_begin(waiting_pod.pod, self._limits, supposed.standings):
            nodes = self._nodes(waiting_pod, snapshot, supposed.standings, queue)
            choice = plan(waiting_pod, nodes, supposed, self._limits, claimed)
        if choice is None or not choice.victims:
            return None
        if queue.may_report(waiting_pod.pod.uid, self._seconds()):
            kind = kind_of(waiting_pod.pod, choice.victims, supposed.standings)
            self._counts.ended(kind, "observed")
            self._log(
                "would-preempt",
                pod=waiting_pod.pod.full_name,
                uid=waiting_pod.pod.uid,
                node=choice.node,
                kind=kind,
                victims=",".join(each.full_name for each in choice.victims),
            )
        return None

    def _nodes(
        self,
        waiting_pod: WaitingPod,
        snapshot: Snapshot,
        standings: NamespaceStandings,
        queue: PreemptionQueue,
    ) -> Iterator[NodeInfo]:
        """The nodes worth examining, with a pause now and then, because the same process answers the verbs.
        With very many nodes it stops when time is up; pods begin at different nodes, so all are looked at."""
        until_s = self._seconds() + LOOK_FOR_S
        worth = list(queue.worth(snapshot, waiting_pod.pod, standings))
        first = crc32(waiting_pod.pod.uid.encode()) % max(1, len(worth))
        for at, node in enumerate((*worth[first:], *worth[:first]), 1):
            if self._seconds() > until_s:
                return
            yield node
            if at % BREATHES_EACH == 0:
                self._breathe(BREATH_S)
