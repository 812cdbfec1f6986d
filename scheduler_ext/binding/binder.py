"""Binds a pod: fits it again, books its cards, sends one Binding, and never gives cards back on a guess.

What an answer to the Binding means (design D7):

- done: the cards stay booked; the watch will show the pod bound.
- refused (4xx), or never sent: nothing was bound; the cards are free again.
- 409: either the pod is bound already, which a look at it tells and which is success where it is to the same
  node; or its version has moved on, and the Binding is sent again with the one just read.
- no answer, or 5xx: nobody knows. A look at the pod may tell at once; else the cards stay booked until the
  watch shows the pod bound, or `settle` has made sure that it cannot be.

Where replicas take over from each other, a Binding belongs to one term of leading: it is sent only while that
lasts, and names only a version that the watch has shown (`scheduler_ext.leadership.takeover` tells why).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from scheduler_ext.binding.locks import Locks
from scheduler_ext.binding.manifest import NOTHING, Written, binding, binding_path, written_for
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.pod_patches import pod_path, wake_patch
from scheduler_ext.fit import refusal
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.snapshot.node_info import Allocation, without_pod
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.values import GPURequest, Placement
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api, Lost, Reply, Unsent
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.log import Log

MOST_SENT = 4  # times that a Binding is sent, each after a look that found the pod unbound
LEAST_S = 0.05  # less time than this is not worth another call
SETTLE_S = 2.0
UNSETTLED = "?"  # the version of a Binding that an earlier call sent


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """What kube-scheduler asks: this pod to this node."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod as it was just read. ``pod`` is None for one that asks for no GPU."""

    uid: str
    version: str
    node: str
    pod: Pod | None


@dataclass(frozen=True, slots=True)
class Sending:
    """A Binding under way: by which term of leading, and until which monotonic second."""

    order: BindingArgs
    written: Written
    term: int
    until: float


class Turn(Protocol):
    """Whose turn it is to bind. ``elected``: there are other replicas. ``term``: a number for each time that
    this one has led, 0 while it does not."""

    elected: bool

    @property
    def term(self) -> int: ...

    def opens(self, until_s: Callable[[], float]) -> int:
        """The term, once there is one or ``until_s()`` seconds are over."""


GONE = "the pod is gone"
UNSHOWN = "the watch has not shown the pod as it is yet"
FOLLOWS = "this extender does not lead: another one binds"


class Binder:
    """``policy`` gives the policy of a pod; ``turn`` tells whether it is ours to bind; ``ended`` hears
    the UID of each pod whose bind has ended, ``taken_back`` the seat that was assumed on a node and turned
    out not to be bound."""

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
        taken_back: Callable[[Allocation, str], None] = lambda _allocation, _node: None,
    ) -> None:
        self._api, self._cache, self._policy, self._log = api, cache, policy, log
        self._timeout_s, self._most_grace_ms, self._ended = timeout_s, most_grace_ms, ended
        self._queue_key, self._taken_back = turn, taken_back
        self._pods, self._nodes = Locks(), Locks()

    def bind(self, order: BindingArgs) -> str:
        """Why the pod is not bound to the node; "" where it is."""
        until = time.monotonic() + self._timeout_s
        with self._pods.hold(order.uid):
            error = self._bind(order, until)
        self._ended(order.uid)
        return error

    def settle(self, uid: str) -> None:
        """Find out whether an assumed pod was bound; where it was not, make sure that it cannot be any more.

        The patch of its status moves the pod's version: it comes back bound, or no Binding sent before can
        succeed. It also makes kube-scheduler try the pod again.
        """
        with self._pods.hold(uid):
            self._settle(uid, SETTLE_S)

    def _bind(self, order: BindingArgs, until: float) -> str:
        term = self._queue_key.opens(lambda: until - time.monotonic())
        if not term:
            return FOLLOWS
        snapshot = self._cache.snapshot
        allocation, where = snapshot.allocation(order.uid), snapshot.allocated_on.get(order.uid)
        if allocation is not None and allocation.state == "assumed" and where != order.node:
            self._settle(order.uid, until - time.monotonic())
            allocation, where = (
                self._cache.snapshot.allocation(order.uid),
                self._cache.snapshot.allocated_on.get(order.uid),
            )
        if allocation is not None and allocation.state == "reserved":
            allocation = None  # it is not there yet, wherever cards are held for it
        if allocation is not None and (allocation.state != "assumed" or where != order.node):
            return (
                _bound_to(where or "", order.node)
                if allocation.state == "bound"
                else f"not settled yet on node {where}"
            )
        seen = self._seen(order, until)
        if isinstance(seen, str):
            return seen
        if seen.node:
            return _bound_to(seen.node, order.node)
        if seen.pod is None:
            return self._send(Sending(order, NOTHING, term, until), seen.version, set())
        if seen.pod.request is None:
            return refusal.malformed(seen.pod.malformed).sentence
        if allocation is not None and allocation.fault:
            return "the node's cards are no longer those that were assumed for the pod"
        lost = set() if allocation is None else {UNSETTLED}
        placement = (
            allocation.placement
            if allocation is not None
            else self._take(seen.pod, seen.pod.request, order.node)
        )
        if placement is None:
            return self._late(order, until)
        if not isinstance(placement, Placement):
            return placement.sentence if placement else "no placement was assumed"
        written = written_for(seen.pod, seen.pod.request, placement, order.node, time.time_ns())
        return self._send(Sending(order, written, term, until), seen.version, lost)

    def _late(self, order: BindingArgs, until: float) -> str:
        """What is to be said of a pod that was bound, or went, after we had seen it waiting."""
        seen = self._look(order, until)
        if isinstance(seen, str):
            return seen
        if seen.uid != order.uid:
            return GONE
        return self._found(seen, order) if seen.node else UNSHOWN

    def _take(self, pod: Pod, request: GPURequest, name: str) -> Placement | Refusal | None:
        """Fit again, on the node as it is now, and book; None where the pod waits no more."""
        with self._nodes.hold(name):
            while True:
                node = self._cache.snapshot.node(name)
                placement = fit(request, without_pod(node, pod.uid), self._policy(pod))
                if self._cache.is_superseded(pod.uid):
                    return None
                if isinstance(placement, Refusal) or self._cache.assume(pod, node, placement):
                    return placement

    def _send(self, sending: Sending, version: str, lost: set[str]) -> str:
        """Send the Binding until something is certain or time is up. ``lost``: the versions of Bindings of
        which nobody knows whether they were, or will be, obeyed."""
        order = sending.order
        for _ in range(MOST_SENT):
            reply = self._post(sending, version)
            if isinstance(reply, Answered) and reply.status < 300:
                return ""
            if _is_unknown(reply):
                lost.add(version)
            elif not _is_conflict(reply):
                return self._refused(order, lost, reply)
            seen = self._look(order, sending.until)
            if isinstance(seen, str) and seen != GONE:
                break
            if isinstance(seen, str) or seen.uid != order.uid:
                (self._cache.orphan if lost else self._cache.forget)(order.uid)
                return GONE
            if seen.node:
                return self._found(seen, order)
            lost &= {seen.version, UNSETTLED}  # a Binding to an older version can do nothing any more
            if _is_conflict(reply) and seen.version == version:
                return self._refused(order, lost, reply)
            version = self._shown(seen, version if version != seen.version else "", sending.until)
            if not version:
                return self._refused(order, lost, Unsent(UNSHOWN))
        return self._refused(order, lost, reply)

    def _post(self, sending: Sending, version: str) -> Reply:
        if self._queue_key.term != sending.term:
            return Unsent(FOLLOWS)
        order = sending.order
        body = binding(order.namespace, order.name, order.uid, version, order.node, sending.written)
        return self._call("POST", binding_path(order.namespace, order.name), body, sending.until)

    def _shown(self, seen: Seen, before: str, until: float) -> str:
        """The version of a pod just read that a Binding may name: beside other replicas one that the watch
        has shown, past the one from ``before``; "" where it shows none in time. A pod without cards takes
        none from anybody."""
        if seen.pod is None or not self._queue_key.elected:
            return seen.version

        def shown(snapshot: Snapshot) -> bool:
            known = snapshot.pods.get(seen.uid)
            return known is not None and known.version != before

        self._cache.wait_for(shown, until - time.monotonic())
        known = self._cache.snapshot.pods.get(seen.uid)
        return "" if known is None or known.version == before else known.version

    def _refused(self, order: BindingArgs, lost: set[str], reply: Reply) -> str:
        """The last Binding did nothing, or may have; the cards are free only where no other may yet."""
        if lost:
            self._cache.mark_uncertain(order.uid)
        else:
            self._cache.forget(order.uid)
        return reply.message if isinstance(reply, Answered) else reply.why

    def _found(self, seen: Seen, order: BindingArgs) -> str:
        if seen.pod is not None:
            self._cache.pod_read(seen.pod)
        return _bound_to(seen.node, order.node)

    def _seen(self, order: BindingArgs, until: float) -> Seen | str:
        """The pod as the watch tells, else as a read does."""
        pod = self._cache.snapshot.pods.get(order.uid)
        if pod is not None:
            return Seen(pod.uid, pod.version, pod.node, pod)
        seen = self._look(order, until)
        if isinstance(seen, str):
            return seen
        if seen.uid != order.uid:
            return GONE
        version = self._shown(seen, "", until)
        return replace(seen, version=version) if seen.node or version else UNSHOWN

    def _look(self, order: BindingArgs, until: float) -> Seen | str:
        """The pod of this name as the API server has it now; `GONE`, or why it could not be read."""
        reply = self._call("GET", pod_path(order.namespace, order.name), None, until)
        if isinstance(reply, Answered) and reply.status == 200:
            return self._read(reply.body)
        if isinstance(reply, Answered):
            return GONE if reply.status == 404 else reply.message
        return reply.why

    def _read(self, raw: Json) -> Seen:
        metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
        return Seen(
            uid=str(metadata.get("uid", "")),
            version=str(metadata.get("resourceVersion", "")),
            node=str(spec.get("nodeName") or ""),
            pod=read_pod(raw, self._most_grace_ms),
        )

    def _settle(self, uid: str, timeout_s: float) -> None:
        allocation = self._cache.snapshot.allocation(uid)
        if allocation is None or allocation.state != "assumed":
            return
        namespace, name = allocation.full_name.split("/", 1)
        patch = wake_patch(uid, "BindingUnsettled", "looking whether the pod was bound", now_ms())
        path, until = f"{pod_path(namespace, name)}/status", time.monotonic() + timeout_s
        reply = self._call("PATCH", path, patch, until, STRATEGIC_MERGE)
        if isinstance(reply, Answered) and reply.status == 200:
            seen = self._read(reply.body)
            if seen.pod is not None:
                self._cache.pod_read(seen.pod)
            if not seen.node:
                where = self._cache.snapshot.allocated_on.get(uid) or ""
                self._cache.forget(uid)
                self._taken_back(allocation, where)
            self._log("settled", pod=allocation.full_name, uid=uid, node=seen.node or "none")
            return
        why = reply.message if isinstance(reply, Answered) else reply.why
        # Others say 409 too: a webhook that denies, or writers that were faster. Only a read tells of an end.
        told = isinstance(reply, Answered) and reply.status in (404, 409)
        there = self._look(BindingArgs(namespace, name, uid, ""), until) if told else why
        if there == GONE or (isinstance(there, Seen) and there.uid != uid):
            self._cache.orphan(uid)
            self._log("settled", pod=allocation.full_name, uid=uid, gone=why)
            return
        self._cache.postpone(uid)
        self._log("unsettled", level="warning", pod=allocation.full_name, uid=uid, error=why)

    def _call(
        self, method: str, path: str, body: Json | None, until: float, content_type: str = "application/json"
    ) -> Reply:
        left = until - time.monotonic()
        if left < LEAST_S:
            return Unsent("the API server was too slow: no time was left to ask it")
        return self._api.call(method, path, body, content_type=content_type, timeout_s=left)


def _is_unknown(reply: Reply) -> bool:
    return isinstance(reply, Lost) or (isinstance(reply, Answered) and reply.status >= 500)


def _is_conflict(reply: Reply) -> bool:
    return isinstance(reply, Answered) and reply.status == 409


def _bound_to(node: str, wanted: str) -> str:
    return "" if node == wanted else f"the pod is already bound to node {node}"
