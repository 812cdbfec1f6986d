"""The lock of a node, by which a node plugin finds the pod whose devices it hands out.

HAMi's plugin looks up the pod that the lock names, and removes the lock when it has handed out the pod's
devices or failed. Without a lock it takes any pod of the node that still starts. So a node's pods are bound
one after the other. A lock stands while its pod waits there for devices, however old it is: the kubelet names
no pod to the plugin, so with the next pod's lock the plugin would hand out the next pod's devices to it.
"""

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from scheduler_ext.binding.values import BindingArgs
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.pod_patches import pod_path
from scheduler_ext.model.node import Node
from timekeeper.core.dialects import BY_NAME, Dialect
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.kube.node_lock import NodeLock, read_lock, waits_for_devices
from timekeeper.runtime.api_server import MERGE, Answered, Reply

NOT_BOUND_YET_MS = 10_000  # HAMi's scheduler locks a node this long at most before it binds
RESERVED_S = 0.5  # of a bind's time, for the Binding itself
MAX_TRIES = 20
PAUSE_S = 0.05
MAX_WAITING = 4  # binds that wait for a lock at a time: they keep threads from the binds of other nodes
_TIME = "%Y-%m-%dT%H:%M:%SZ"


class TimedCall(Protocol):
    """A call of the API server that ends at ``until``, in monotonic seconds."""

    def __call__(
        self, method: str, path: str, body: Json | None, until: float, content_type: str = ..., /
    ) -> Reply: ...


class NodeLocks:
    """``now``: the time, as an aware datetime; ``now_s``: the clock of ``until``."""

    def __init__(
        self,
        call: TimedCall,
        cache: ClusterCache,
        now: Callable[[], datetime.datetime],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call, self._cache, self._now, self._now_s = call, cache, now, now_s
        self._counting, self._waiting = threading.Lock(), 0

    def take(self, node: Node | None, args: BindingArgs, until: float) -> str:
        """Lock the node for the pod; "" if it is locked or needs no lock, else why not."""
        dialect = _locking(node)
        if dialect is None or node is None:
            return ""
        held = NodeLock(self._now_ms())
        for _ in range(MAX_TRIES):
            read = self._call("GET", _path(node.name), None, until)
            if not isinstance(read, Answered) or read.status != 200:
                return f"the lock of node {node.name} cannot be read: {read.message}"
            present = annotations_of(read.body).get(dialect.node_lock)
            if present is not None and str(present).endswith(_owner(args)):
                return ""
            lock = read_lock(present)
            if lock is None or self._is_over(lock, dialect, args.node, until):
                reply = self._write(dialect, read.body, self._text(args), until)
                if isinstance(reply, Answered) and reply.status == 200:
                    return ""
                if not isinstance(reply, Answered) or reply.status != 409:
                    return f"node {node.name} cannot be locked: {reply.message}"
            else:
                held = lock
                if not self._changes(node.name, str(present), until - RESERVED_S):
                    break
        return self._why(node.name, held)

    def release(self, node: Node | None, args: BindingArgs, until: float) -> None:
        """Remove the pod's lock, if there is one. Where that fails the lock is over all the same, because the
        pod is not bound."""
        dialect = _locking(node)
        if dialect is None or node is None:
            return
        read = self._call("GET", _path(node.name), None, until)
        if not isinstance(read, Answered) or read.status != 200:
            return
        if str(annotations_of(read.body).get(dialect.node_lock)).endswith(_owner(args)):
            self._write(dialect, read.body, None, until)

    @property
    def waiting(self) -> int:
        """How many binds wait for a lock."""
        return self._waiting

    def _text(self, args: BindingArgs) -> str:
        return self._now().astimezone(datetime.UTC).strftime(_TIME) + _owner(args)

    def _write(self, dialect: Dialect, node: Json, text: str | None, until: float) -> Reply:
        """Only if the node is still in the version that was read."""
        metadata = mapping(node.get("metadata"))
        body: dict[str, Any] = {
            "metadata": {
                "annotations": {dialect.node_lock: text},
                "resourceVersion": str(metadata.get("resourceVersion", "")),
            }
        }
        return self._call("PATCH", _path(str(metadata.get("name", ""))), body, until, MERGE)

    def _changes(self, name: str, text: str, until: float) -> bool:
        def changed(there: Node | None) -> bool:
            return there is None or there.lock != text

        left = until - self._now_s()
        with self._counting:
            if left <= 0 or self._waiting == MAX_WAITING:
                return False
            self._waiting += 1
        try:
            time.sleep(min(left, PAUSE_S))  # the watch may be behind what was just read
            return self._cache.wait_for(lambda s: changed(s.node(name).node_object), max(0, left - PAUSE_S))
        finally:
            with self._counting:
                self._waiting -= 1

    def _is_over(self, lock: NodeLock, dialect: Dialect, node: str, until: float) -> bool:
        """Whether the lock's pod waits for no device on this node any more. Without a pod it expires."""
        if lock.holder is None:
            return lock.is_old(self._now_ms())
        if self._is_assumed(node, "/".join(lock.holder)):
            return False
        reply = self._call("GET", pod_path(*lock.holder), None, until)
        if not isinstance(reply, Answered) or reply.status not in (200, 404):
            return False
        if reply.status == 200 and not mapping(reply.body.get("spec")).get("nodeName"):
            return abs(self._now_ms() - lock.written_ms) > NOT_BOUND_YET_MS
        return reply.status == 404 or not waits_for_devices(reply.body, node, dialect.node_lock)

    def _why(self, node: str, lock: NodeLock) -> str:
        if lock.holder is None or not lock.is_old(self._now_ms()):
            return f"node {node} is locked while its plugin hands out the devices of another pod"
        return (
            f"node {node} has been locked for more than five minutes by pod {'/'.join(lock.holder)}, which"
            " waits for devices: see the log of the node's GPU plugin, or delete this pod"
        )

    def _is_assumed(self, node: str, pod: str) -> bool:
        allocations = self._cache.snapshot.node(node).allocations.values()
        return any(each.full_name == pod and each.state == "assumed" for each in allocations)

    def _now_ms(self) -> int:
        return int(self._now().timestamp() * 1000)


def _locking(node: Node | None) -> Dialect | None:
    dialect = BY_NAME.get(node.family) if node is not None else None
    return dialect if dialect is not None and dialect.node_lock else None


def _owner(args: BindingArgs) -> str:
    return f",{args.namespace},{args.name}"


def _path(node: str) -> str:
    return f"/api/v1/nodes/{node}"
