"""Binds a pod: fits it again, books its cards, sends one Binding, and never gives cards back on a guess.

What an answer to the Binding means (design D7):

- done: the cards stay booked; the watch will show the pod bound.
- refused (4xx), or never sent: nothing was bound; the cards are free again.
- 409: either the pod is bound already, which a look at it tells and which is success where it is to the same
  node; or its version has moved on, and the Binding is sent again with the one just read.
- no answer, or 5xx: nobody knows. A look at the pod may tell at once; else the cards stay booked until the
  watch shows the pod bound, or `settle` has made sure that it cannot be.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from scheduler_ext import refusal
from scheduler_ext.api import STRATEGIC_MERGE, Answered, Api, Lost, Reply, Unsent
from scheduler_ext.binding import annotations_for, binding, binding_path, pod_path, wake_patch
from scheduler_ext.books import Books
from scheduler_ext.fit import fit
from scheduler_ext.locks import Locks
from scheduler_ext.log import Log
from scheduler_ext.pods import Pod, read_pod
from scheduler_ext.policy import Policy
from scheduler_ext.refusal import Refusal
from timekeeper.core.request import Json, mapping
from timekeeper.core.values import GPURequest, Placement

MOST_SENT = 4  # times that a Binding is sent, each after a look that found the pod unbound
LEAST_S = 0.05  # less time than this is not worth another call
SETTLE_S = 2.0
UNSETTLED = "?"  # the version of a Binding that an earlier call sent


@dataclass(frozen=True, slots=True)
class Order:
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


GONE = "the pod is gone"


class Binder:
    """``policy`` names the policy of a request; ``ended`` hears the UID of each pod whose bind has ended."""

    def __init__(
        self,
        api: Api,
        books: Books,
        policy: Callable[[GPURequest], Policy],
        log: Log,
        *,
        timeout_s: float,
        most_grace_ms: int,
        ended: Callable[[str], None],
    ) -> None:
        self._api, self._books, self._policy, self._log = api, books, policy, log
        self._timeout_s, self._most_grace_ms, self._ended = timeout_s, most_grace_ms, ended
        self._pods, self._nodes = Locks(), Locks()

    def bind(self, order: Order) -> str:
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

    def _bind(self, order: Order, until: float) -> str:
        snapshot = self._books.snapshot
        seat, where = snapshot.seat(order.uid), snapshot.seated.get(order.uid)
        if seat is not None and seat.held == "assumed" and where != order.node:
            self._settle(order.uid, until - time.monotonic())
            seat, where = self._books.snapshot.seat(order.uid), self._books.snapshot.seated.get(order.uid)
        if seat is not None and (seat.held != "assumed" or where != order.node):
            return (
                _bound_to(where or "", order.node)
                if seat.held == "bound"
                else f"not settled yet on node {where}"
            )
        seen = self._seen(order, until)
        if isinstance(seen, str):
            return seen
        if seen.node:
            return _bound_to(seen.node, order.node)
        if seen.pod is None:
            return self._send(order, seen.version, {}, set(), until)
        if seen.pod.request is None:
            return refusal.malformed(seen.pod.malformed).sentence
        if seat is not None and seat.fault:
            return "the node's cards are no longer those that were assumed for the pod"
        lost = set() if seat is None else {UNSETTLED}
        placement = seat.placement if seat is not None else self._take(seen.pod, seen.pod.request, order.node)
        if not isinstance(placement, Placement):
            return placement.sentence if placement else "no placement was assumed"
        written = annotations_for(seen.pod, seen.pod.request, placement, order.node, time.time_ns())
        return self._send(order, seen.version, written, lost, until)

    def _take(self, pod: Pod, request: GPURequest, name: str) -> Placement | Refusal:
        """Fit again, on the node as it is now, and book."""
        with self._nodes.hold(name):
            while True:
                node = self._books.snapshot.node(name)
                placement = fit(request, node, self._policy(request))
                if isinstance(placement, Refusal) or self._books.assume(pod, node, placement):
                    return placement

    def _send(
        self, order: Order, version: str, annotations: dict[str, str], lost: set[str], until: float
    ) -> str:
        """Send the Binding until something is certain or time is up. ``lost``: the versions of Bindings of
        which nobody knows whether they were, or will be, obeyed."""
        for _ in range(MOST_SENT):
            body = binding(order.namespace, order.name, order.uid, version, order.node, annotations)
            reply = self._call("POST", binding_path(order.namespace, order.name), body, until)
            if isinstance(reply, Answered) and reply.status < 300:
                return ""
            if _is_unknown(reply):
                lost.add(version)
            elif not _is_conflict(reply):
                return self._refused(order, lost, reply)
            seen = self._look(order, until)
            if isinstance(seen, str) and seen != GONE:
                break
            if isinstance(seen, str) or seen.uid != order.uid:
                (self._books.vanish if lost else self._books.forget)(order.uid)
                return GONE
            if seen.node:
                return self._found(seen, order)
            lost &= {seen.version, UNSETTLED}  # a Binding to an older version can do nothing any more
            if _is_conflict(reply) and seen.version == version:
                return self._refused(order, lost, reply)
            version = seen.version
        return self._refused(order, lost, reply)

    def _refused(self, order: Order, lost: set[str], reply: Reply) -> str:
        """The last Binding did nothing, or may have; the cards are free only where no other may yet."""
        if lost:
            self._books.doubt(order.uid)
        else:
            self._books.forget(order.uid)
        return reply.message if isinstance(reply, Answered) else reply.why

    def _found(self, seen: Seen, order: Order) -> str:
        if seen.pod is not None:
            self._books.pod_read(seen.pod)
        return _bound_to(seen.node, order.node)

    def _seen(self, order: Order, until: float) -> Seen | str:
        """The pod as the watch tells, else as a read does."""
        pod = self._books.snapshot.pods.get(order.uid)
        if pod is not None:
            return Seen(pod.uid, pod.version, pod.node, pod)
        seen = self._look(order, until)
        return GONE if isinstance(seen, Seen) and seen.uid != order.uid else seen

    def _look(self, order: Order, until: float) -> Seen | str:
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
        seat = self._books.snapshot.seat(uid)
        if seat is None or seat.held != "assumed":
            return
        namespace, name = seat.full_name.split("/", 1)
        patch = wake_patch(
            uid, "BindingUnsettled", "looking whether the pod was bound", time.time_ns() // 10**6
        )
        path, until = f"{pod_path(namespace, name)}/status", time.monotonic() + timeout_s
        reply = self._call("PATCH", path, patch, until, STRATEGIC_MERGE)
        if isinstance(reply, Answered) and reply.status == 200:
            seen = self._read(reply.body)
            if seen.pod is not None:
                self._books.pod_read(seen.pod)
            if not seen.node:
                self._books.forget(uid)
            self._log("settled", pod=seat.full_name, uid=uid, node=seen.node or "none")
        elif isinstance(reply, Answered) and reply.status in (404, 409):
            self._books.vanish(uid)
            self._log("settled", pod=seat.full_name, uid=uid, gone=reply.message)
        else:
            self._books.postpone(uid)
            why = reply.message if isinstance(reply, Answered) else reply.why
            self._log("unsettled", pod=seat.full_name, uid=uid, error=why)

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
