"""Binds a pod: fits it again, assumes its cards, sends one Binding, and frees cards only on certainty.

What an answer to the Binding means:

- success: the cards stay allocated; the watch will show the pod bound.
- a refusal (4xx), or never sent: no Binding happened; the cards are free again.
- 409: a read tells which of two cases it is. The pod is bound already (success if to the same node), or its
  version has changed, and the Binding is sent again with the new version.
- no answer, or 5xx: unknown. A read of the pod may tell at once. Otherwise the cards stay assumed until the
  watch shows the pod bound, or until `Binder.resolve_uncertain` has made every earlier Binding void.

With several replicas a Binding belongs to one term of leadership: it is sent only during that term, and it
names only a version that the watch has shown (`scheduler_ext.leadership.takeover` explains why).
"""

import datetime
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from scheduler_ext.binding.locks import Locks
from scheduler_ext.binding.manifest import (
    CHOSEN_BY_PLUGIN,
    NOTHING,
    Written,
    binding,
    binding_path,
    with_marks,
    written_for,
)
from scheduler_ext.binding.node_locks import NodeLocks
from scheduler_ext.binding.outcome import (
    BOUND,
    CARDS_CHANGED,
    FOLLOWER,
    GANG,
    GONE,
    NOT_SHOWN,
    TOO_LARGE,
    Bound,
    NotBound,
    NotBoundReason,
    Outcome,
    bound_to,
    is_conflict,
    is_unknown,
    refused,
)
from scheduler_ext.binding.pod_calls import PodCalls
from scheduler_ext.binding.values import BindingArgs, ReadPod, Sending, Turn
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.pod_patches import is_too_large, pod_path, touch_patch
from scheduler_ext.fit import refusal
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.log import Log
from scheduler_ext.model.node import Node
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings, as_if_enforced
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.drains import beside_drain
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core import names
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.values import GPURequest, Placement
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api, Reply, Unsent

MAX_SENT = 4  # attempts to send a Binding, each after a read that found the pod unbound
SETTLE_S = 2.0
EARLIER = "?"  # stands for the unknown version of a Binding that an earlier call sent


class Binder:
    """``policy`` returns a pod's policy. ``turn`` says if this replica may bind. ``ended`` is called with
    the UID after each bind. ``taken_back`` is called with an assumed allocation that never became a
    binding, its node and the pod's controller; ``bound`` with a pod, its node and its cards once its Binding
    is known to be made. ``mark_of``: the mark of a started gang that its Binding writes, ""."""

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        policy: Callable[[Pod], Policy],
        log: Log,
        *,
        timeout_s: float,
        most_grace_ms: int,
        ended: Callable[[str], None],
        turn: Turn,
        taken_back: Callable[[Allocation, str, str], None] = lambda _allocation, _node, _owner: None,
        standings: Callable[[], NamespaceStandings] = lambda: UNHEARD,
        caps: CapChecks | None = None,
        bound: Callable[[Pod, str, Placement], None] = lambda _pod, _node, _placement: None,
        now_s: Callable[[], float] = time.monotonic,
        mark_of: Callable[[Pod], str] = lambda _pod: "",
    ) -> None:
        self._mark_of = mark_of
        self._calls, self._now_s = PodCalls(api, most_grace_ms, now_s), now_s
        self._cache, self._policy, self._log = cache, policy, log
        self._timeout_s, self._ended = timeout_s, ended
        self._turn, self._taken_back, self._standings = turn, taken_back, standings
        self._bound = bound
        self._caps = caps or CapChecks(standings)
        self._pods, self._nodes, self._sent = Locks(), Locks(), Locks()
        self._locks = NodeLocks(self._calls.send, cache, lambda: datetime.datetime.now(datetime.UTC), now_s)

    def bind(self, args: BindingArgs) -> Outcome:
        """Bind the pod to the node, within the time limit."""
        until = self._now_s() + self._timeout_s
        with self._pods.hold(args.uid):
            outcome = self._bind(args, until)
        self._ended(args.uid)
        return outcome

    def resolve_uncertain(self, uid: str) -> None:
        """Find out whether an assumed pod was bound. If it was not, make sure that it cannot be any more.

        The patch of its status changes the pod's version: either the answer shows it bound, or no earlier
        Binding can succeed. The patch also makes kube-scheduler retry the pod.
        """
        with self._pods.hold(uid):
            self._settle(uid, SETTLE_S)

    def _bind(self, args: BindingArgs, until: float) -> Outcome:
        # 1. Only the leader binds.
        term = self._turn.opens(lambda: until - self._now_s())
        if not term:
            return FOLLOWER
        if self._turn.excludes(args.uid):
            return TOO_LARGE
        # 2. An earlier bind may have assumed cards for the pod, or bound it.
        assumed = self._assumed(args, until)
        if isinstance(assumed, Bound | NotBound):
            return assumed
        # 3. The pod must still be unbound, and its request readable.
        read = self._known(args, until)
        if isinstance(read, NotBound):
            return read
        if read.node:
            return bound_to(read.node, args.node)
        if read.pod is None:
            return self._send(Sending(args, NOTHING, term, until), read.version, set())
        if read.pod.request is None:
            return NotBound(NotBoundReason.MALFORMED, refusal.malformed(read.pod.malformed).sentence)
        # 4. Its namespace must not have spent a budget that denies.
        if assumed is None and read.pod.gang is None and (spent := self._spent(read.pod)):
            return spent
        # A member of a gang goes where cards are kept for it: its plan was made by the standing and the caps.
        if assumed is None and read.pod.gang is not None and not self._is_planned(args):
            return GANG
        # 5. The cards: those assumed before, or a new fit on the node as it is now.
        placement = self._placement(args, read.pod, read.pod.request, assumed, until)
        if not isinstance(placement, Placement):
            return placement
        # 6. The node's plugin may need to know whose devices it hands out next.
        there = self._cache.snapshot.node(args.node).node_object
        why_not_locked = self._locks.take(there, args, until)
        if why_not_locked:
            return self._not_locked(args, why_not_locked, assumed)
        # 7. One Binding carries node and cards.
        lost = set() if assumed is None else {EARLIER}
        with self._in_order(read.pod.request, args.node):
            is_named = BY_NAME[read.pod.request.dialect].own_cards
            if there is not None and there.is_counted and not is_named:
                placement = CHOSEN_BY_PLUGIN
            written = _written(read.pod, read.pod.request, placement, args.node, there)
            mark = self._mark_of(read.pod) if read.pod.gang is not None else ""
            written = with_marks(written, mark, self._standing_of(read.pod))
            outcome = self._send(Sending(args, written, term, until), read.version, lost)
        if isinstance(outcome, Bound):
            self._bound(read.pod, args.node, placement)
        elif self._allocation(args.uid)[0] is None:
            self._locks.release(there, args, self._now_s() + SETTLE_S)
        return outcome

    def _placement(
        self, args: BindingArgs, pod: Pod, request: GPURequest, assumed: Allocation | None, until: float
    ) -> Placement | Outcome:
        """The cards that the pod gets, or why it gets none."""
        if assumed is not None and assumed.fault:
            return CARDS_CHANGED
        placement = self._take(pod, request, args.node) if assumed is None else assumed.placement
        if placement is None:
            return self._superseded(args, until)
        if isinstance(placement, Placement):
            return placement
        reason = NotBoundReason.CAPPED if placement.kind == "cap" else NotBoundReason.NO_FIT
        return NotBound(reason, placement.sentence)

    def _in_order(self, request: GPURequest, node: str) -> AbstractContextManager[None]:
        """Where the node's plugin takes the pod with the earliest time, Bindings of a node are made in the
        order of their times, so that it takes the pod that the kubelet starts."""
        return self._sent.hold(node) if BY_NAME[request.dialect].pairs_by_time else nullcontext()

    def _not_locked(self, args: BindingArgs, why: str, assumed: Allocation | None) -> NotBound:
        if assumed is None:
            self._cache.forget(args.uid)
        return NotBound(NotBoundReason.NODE_LOCKED, why)

    def _spent(self, pod: Pod) -> NotBound | None:
        """Why the namespace's budget refuses the pod. A budget in observe mode only logs that."""
        standings = self._standings()
        standing, watched = standings.of_pod(pod), as_if_enforced(standings).of_pod(pod)
        sentence = refusal.spent(pod.namespace, standing.deciding_group).sentence
        if watched.refuses and not standing.refuses:
            self._log("would-refuse", pod=pod.full_name, uid=pod.uid, reason=sentence)
        return NotBound(NotBoundReason.SPENT, sentence) if standing.refuses else None

    def _standing_of(self, pod: Pod) -> str:
        """What is to be recorded of a pod that was created in budget and gets its cards over it; "" else."""
        is_recorded = pod.governed and pod.standing not in ("", "OVER_BUDGET")
        demotes = is_recorded and self._standings().of_pod(pod).demotes
        return f"{pod.standing}{names.OVER_AT_BINDING}" if demotes else ""

    def _assumed(self, args: BindingArgs, until: float) -> Allocation | Outcome | None:
        """The cards assumed for the pod on this node, None without any; an outcome if the pod is bound, or if
        an earlier Binding to another node is not settled."""
        allocation, node = self._allocation(args.uid)
        if allocation is not None and allocation.state == "assumed" and node != args.node:
            self._settle(args.uid, until - self._now_s())
            allocation, node = self._allocation(args.uid)
        if allocation is None or allocation.state in ("reserved", "planned"):
            return None  # cards kept for a waiting pod are no binding
        if allocation.state == "bound":
            return bound_to(node, args.node)
        if allocation.state == "assumed" and node == args.node:
            return allocation
        return NotBound(NotBoundReason.UNSETTLED, f"an earlier binding to node {node} is not settled yet")

    def _allocation(self, uid: str) -> tuple[Allocation | None, str]:
        snapshot = self._cache.snapshot
        return snapshot.allocation(uid), snapshot.allocated_on.get(uid) or ""

    def _is_planned(self, args: BindingArgs) -> bool:
        allocation, node = self._allocation(args.uid)
        return allocation is not None and allocation.state == "planned" and node == args.node

    def _superseded(self, args: BindingArgs, until: float) -> Outcome:
        """The outcome for a pod that was bound, or deleted, after it was read as waiting."""
        read = self._calls.read(args, until)
        if isinstance(read, NotBound):
            return read
        if read.uid != args.uid:
            return GONE
        return self._found(read, args) if read.node else NOT_SHOWN

    def _take(self, pod: Pod, request: GPURequest, name: str) -> Placement | Refusal | None:
        """Fit again on the node as it is now, and assume the cards unless that exceeds a cap. None if the pod
        is bound or gone."""
        with self._nodes.hold(name):
            while True:
                snapshot = self._cache.snapshot
                node = snapshot.node(name)
                found = as_found_by(pod.uid, beside_drain(pod, node, now_ms()))
                placement = fit(request, found, self._policy(pod))
                if self._cache.is_superseded(pod.uid):
                    return None
                if isinstance(placement, Refusal):
                    return placement
                refuses = _never if pod.gang is not None else self._caps.exceeded
                taken = self._cache.assume(pod, node, placement, refuses)
                if isinstance(taken, Refusal):
                    return taken
                if taken:
                    observed = self._caps.exceeded(pod, self._cache.snapshot, observed=True)
                    if observed is not None:
                        self._log("would-refuse", pod=pod.full_name, uid=pod.uid, reason=observed.sentence)
                    return placement

    def _send(self, sending: Sending, version: str, lost: set[str]) -> Outcome:
        """Send the Binding until the outcome is certain or time is up. ``lost``: the versions named by
        Bindings whose outcome is unknown."""
        args = sending.args
        for _ in range(MAX_SENT):
            reply = self._post(sending, version)
            if isinstance(reply, Answered) and reply.status < 300:
                return BOUND
            if is_unknown(reply):
                lost.add(version)
            elif not is_conflict(reply):
                return self._give_up(args, lost, reply)
            read = self._calls.read(args, sending.until)
            if isinstance(read, NotBound) and read != GONE:
                break
            if isinstance(read, NotBound) or read.uid != args.uid:
                (self._cache.orphan if lost else self._cache.forget)(args.uid)
                return GONE
            if read.node:
                return self._found(read, args)
            lost &= {read.version, EARLIER}  # a Binding that names an older version cannot succeed any more
            if is_conflict(reply) and read.version == version:
                return self._give_up(args, lost, reply)
            version = self._shown(read, version if version != read.version else "", sending.until)
            if not version:
                return self._give_up(args, lost, Unsent(NOT_SHOWN.sentence))
        return self._give_up(args, lost, reply)

    def _post(self, sending: Sending, version: str) -> Reply:
        if self._turn.term != sending.term:
            return Unsent(FOLLOWER.sentence)
        args = sending.args
        body = binding(args.namespace, args.name, args.uid, version, args.node, sending.written)
        return self._calls.send("POST", binding_path(args.namespace, args.name), body, sending.until)

    def _shown(self, read: ReadPod, before: str, until: float) -> str:
        """The version that a Binding may name. With other replicas it is one that the watch has shown, other
        than ``before``; "" if it shows none in time. A pod without cards needs no such check."""
        if read.pod is None or not self._turn.elected:
            return read.version

        def shown(snapshot: Snapshot) -> bool:
            known = snapshot.pods.get(read.uid)
            return known is not None and known.version != before

        self._cache.wait_for(shown, until - self._now_s())
        known = self._cache.snapshot.pods.get(read.uid)
        return "" if known is None or known.version == before else known.version

    def _give_up(self, args: BindingArgs, lost: set[str], reply: Reply) -> NotBound:
        """Free the cards only if no Binding sent so far can still succeed."""
        if lost:
            self._cache.mark_uncertain(args.uid)
        else:
            self._cache.forget(args.uid)
        return refused(reply.message)

    def _found(self, read: ReadPod, args: BindingArgs) -> Outcome:
        if read.pod is not None:
            self._cache.pod_read(read.pod)
        return bound_to(read.node, args.node)

    def _known(self, args: BindingArgs, until: float) -> ReadPod | NotBound:
        """The pod as the watch shows it, else as a read does."""
        pod = self._cache.snapshot.pods.get(args.uid)
        if pod is not None:
            return ReadPod(pod.uid, pod.version, pod.node, pod)
        read = self._calls.read(args, until)
        if isinstance(read, NotBound):
            return read
        if read.uid != args.uid:
            return GONE
        version = self._shown(read, "", until)
        return replace(read, version=version) if read.node or version else NOT_SHOWN

    def _settle(self, uid: str, timeout_s: float) -> None:
        allocation, _ = self._allocation(uid)
        if allocation is None or allocation.state != "assumed":
            return
        namespace, name = allocation.full_name.split("/", 1)
        known = self._cache.snapshot.pods.get(uid)
        had = known is not None and known.has_condition
        patch = touch_patch(uid, f"settles {now_ms() % 10**9}", has_condition=had)
        path, until = f"{pod_path(namespace, name)}/status", self._now_s() + timeout_s
        reply = self._calls.send("PATCH", path, patch, until, STRATEGIC_MERGE)
        why, full = reply.message, is_too_large(known, reply)
        if isinstance(reply, Answered) and reply.status == 200:
            return self._settled(allocation, self._calls.parse(reply.body))
        # A denying webhook and a faster writer answer 409 too. Only a read proves that the pod is gone.
        may_be_gone = isinstance(reply, Answered) and (reply.status in (404, 409) or full)
        found = (
            self._calls.read(BindingArgs(namespace, name, uid, ""), until) if may_be_gone else refused(why)
        )
        if found == GONE or (isinstance(found, ReadPod) and found.uid != uid):
            self._cache.orphan(uid)
            return self._log("settled", pod=allocation.full_name, uid=uid, gone=why)
        if full and isinstance(found, ReadPod) and found.pod is not None and found.pod.has_condition == had:
            return self._settled(allocation, found)  # the store refused the Binding too
        self._cache.postpone(uid)
        return self._log("unsettled", level="warning", pod=allocation.full_name, uid=uid, error=why)

    def _settled(self, allocation: Allocation, read: ReadPod) -> None:
        """Record what has become of an assumed pod whose earlier Bindings can no longer succeed."""
        if read.pod is not None:
            self._cache.pod_read(read.pod)
        if read.node and read.pod is not None and read.pod.placement is not None:
            self._bound(read.pod, read.node, read.pod.placement)
        if not read.node:
            node = self._allocation(read.uid)[1]
            self._cache.forget(read.uid)
            self._taken_back(allocation, node, read.pod.controller if read.pod is not None else "")
        self._log("settled", pod=allocation.full_name, uid=read.uid, node=read.node or "none")


def _never(_pod: Pod, _snapshot: Snapshot) -> Refusal | None:
    return None


def _written(pod: Pod, request: GPURequest, placement: Placement, name: str, there: Node | None) -> Written:
    """What the Binding writes on the pod, with the present time."""
    now_ns = time.time_ns()
    if there is None:
        return written_for(pod, request, placement, name, now_ns)
    family, plugins = there.family, there.runtime_plugins
    return written_for(pod, request, placement, name, now_ns, there.cards, family, plugins)
