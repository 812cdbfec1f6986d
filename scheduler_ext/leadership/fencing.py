"""Makes void whatever Binding an earlier leader may have sent: a touch of the pod's status moves its version.

Every GPU pod that could still be bound is touched, for nobody knows which of them the earlier leader was
about to bind, nor where to. The touches are few at a time, whatever the number of pods: with 10,000 that
wait they take their time before the first bind, and leave the API server room for others.
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
    """False for a pod that the API server binds no more, or not before its version moves, or that no extender
    binds."""
    return not (pod.node or pod.gated or pod.deleting or pod.terminal or pod.request is None)


def toucher(api: Api, cache: ClusterCache, most_grace_ms: int, log: Log, each: Each | None = None) -> Touch:
    """The function that touches pods, ``AT_ONCE`` at a time, with a word that is new with each taking over: a
    patch that changed nothing would leave the version as it was. What the answers tell of a Binding that came
    before the touch is booked. It gives back the pods whose touch is not certain; those that are gone are
    among them until the watch shows it, and with it whether they had been bound.

    A pod so large that the store takes no touch of it is not certain either: a Binding takes away what
    kube-scheduler had written of why the pod waits, so it may be the smaller write, and succeed."""
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
                cache.forget(pod.uid)  # what an earlier term of ours assumed cannot come true any more
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
                why="it keeps every extender from binding",
            )
        return [pod for pod, _ in undone]

    return touch


def marker(api: Api, namespace: str, name: str, log: Log) -> Callable[[str], bool]:
    """The function that writes a mark on this replica's own pod; False where it may not have been written."""

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
