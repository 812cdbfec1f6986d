"""Voids every Binding that an earlier leader may have sent: a touch of the pod's status changes its version,
and a Binding that names the former version is answered 409.

Every GPU pod that could still be bound is touched, because it is unknown which of them the earlier leader was
about to bind. A few are touched at a time: with 10,000 waiting pods that takes a while before the first bind,
and leaves the API server room for others. `marker` writes the mark by which replicas see a takeover.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.pod_patches import pod_path, wake_patch
from scheduler_ext.model.pod import Pod, read_pod
from timekeeper.core import names
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api
from timekeeper.runtime.clock import now_ms
from timekeeper.runtime.log import Log

Touch = Callable[[Sequence[Pod], str], list[Pod]]
Each = Callable[[Callable[[Pod], str], Iterable[Pod]], Iterable[str]]

AT_ONCE = 8
CALL_S = 5.0
TOO_LARGE = "request is too large"  # etcd's word for an object that it does not store


def may_be_bound(pod: Pod) -> bool:
    """False for a pod that the API server will not bind, or not before its version changes, or that no
    extender binds."""
    return not (pod.node or pod.gated or pod.deleting or pod.terminal or pod.request is None)


def toucher(api: Api, cache: ClusterCache, most_grace_ms: int, log: Log, each: Each | None = None) -> Touch:
    """The function that touches pods, ``AT_ONCE`` at a time, with a word that is new for each takeover (a
    patch without a change would keep the version). Bindings that the answers show are recorded. It returns
    the pods whose touch is uncertain, including deleted ones until the watch shows their deletion and whether
    they had been bound.

    A pod so large that the store rejects the touch is uncertain too: a Binding removes kube-scheduler's
    message about waiting, so it may be the smaller write and succeed.
    """
    side_by_side = each or ThreadPoolExecutor(AT_ONCE, "touch").map

    def touched(pod: Pod, word: str) -> str:
        """ "" where it is done, else why it is not certain."""
        message = f"Bindings of leaders before {word} are void"
        patch = wake_patch(pod.uid, "LeaderChanged", message, now_ms())
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)
        if not (isinstance(reply, Answered) and reply.status == 200):
            return reply.message
        read = read_pod(reply.body, most_grace_ms)
        if read is not None:
            cache.pod_read(read)
            if not read.node:
                cache.forget(pod.uid)  # an assumption of an earlier term can no longer come true
        return ""

    def touch(pods: Sequence[Pod], word: str) -> list[Pod]:
        whys = side_by_side(lambda pod: touched(pod, word), pods)
        undone = [(pod, why) for pod, why in zip(pods, whys, strict=True) if why]
        if undone:
            log(
                "untouched",
                level="warning",
                pods=len(undone),
                first=undone[0][0].full_name,
                error=undone[0][1],
            )
        for pod in [pod for pod, why in undone if TOO_LARGE in why]:
            log(
                "too-large",
                level="error",
                pod=pod.full_name,
                uid=pod.uid,
                why="no extender can lead while it exists",
            )
        return [pod for pod, _ in undone]

    return touch


def marker(api: Api, namespace: str, name: str, log: Log) -> Callable[[str], bool]:
    """The function that writes a mark on this replica's own pod; it returns False if the write may have
    failed."""

    def mark(word: str) -> bool:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": names.LEADS_CONDITION, "status": "True", "reason": "Leads", "message": word}
        patch = {"status": {"conditions": [{**condition, "lastTransitionTime": now}]}}
        path = f"{pod_path(namespace, name)}/status"
        reply = api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status == 200:
            return True
        log("unmarked", level="warning", error=reply.message)
        return False

    return mark
