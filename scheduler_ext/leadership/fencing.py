"""Voids every Binding that an earlier leader may have sent: a touch of the pod's status changes its version,
and a Binding that names the former version is answered 409. Where the store refuses the touch because the pod
is too large, it refuses those Bindings too (`pod_patches.touch_patch`).

Every GPU pod that could still be bound is touched, because it is unknown which of them the earlier leader was
about to bind. A few are touched at a time: with 10,000 waiting pods that takes a while before the first bind,
and leaves the API server to others, too. `marker` writes the mark by which replicas see a takeover.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.pod_patches import is_too_large, pod_path, touch_patch
from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod, read_pod
from timekeeper.core import names
from timekeeper.core.json_values import mapping
from timekeeper.core.object_names import timestamp
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api


@dataclass(frozen=True, slots=True)
class Touched:
    """What has become of some touches. ``uncertain``: pods of which a Binding may still succeed; ``why``: the
    first one's name and error. ``too_large``: pods whose present version the store neither changes nor
    binds."""

    uncertain: tuple[Pod, ...] = ()
    too_large: tuple[Pod, ...] = ()
    why: str = ""


Touch = Callable[[Sequence[Pod], str], Touched]
Each = Callable[[Callable[[Pod], str], Iterable[Pod]], Iterable[str]]

AT_ONCE = 8
CALL_S = 5.0
_FULL = "the store takes no change of the pod"


def may_be_bound(pod: Pod) -> bool:
    """False for a pod that the API server will not bind, or not before its version changes, or that no
    extender binds."""
    return not (pod.node or pod.gated or pod.deleting or pod.terminal or pod.request is None)


def toucher(api: Api, cache: ClusterCache, most_grace_ms: int, log: Log, each: Each | None = None) -> Touch:
    """The function that touches pods, ``AT_ONCE`` at a time, with a word that is new for each takeover (a
    patch without a change would keep the version). Bindings that the answers show are recorded. Uncertain
    are also deleted pods, until the watch shows their deletion and whether they had been bound.
    """
    side_by_side = each or ThreadPoolExecutor(AT_ONCE, "touch").map

    def touched(pod: Pod, word: str) -> str:
        """ "" where it is done, else why it is not certain."""
        patch = touch_patch(pod.uid, word, has_condition=pod.has_condition)
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        reply = api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)
        if not (isinstance(reply, Answered) and reply.status == 200):
            return _FULL if is_too_large(pod, reply) else reply.message
        if not mapping(reply.body.get("spec")).get("nodeName"):
            cache.forget(pod.uid)  # an assumption of an earlier term can no longer come true
        elif (read := read_pod(reply.body, most_grace_ms)) is not None:
            cache.pod_read(read)
        return ""

    def touch(pods: Sequence[Pod], word: str) -> Touched:
        whys = list(zip(pods, side_by_side(lambda pod: touched(pod, word), pods), strict=True))
        uncertain = [(pod, why) for pod, why in whys if why not in ("", _FULL)]
        too_large = tuple(pod for pod, why in whys if why == _FULL)
        why = f"{uncertain[0][0].full_name}: {uncertain[0][1]}" if uncertain else ""
        if uncertain:
            log(
                "untouched",
                level="warning",
                pods=len(uncertain),
                first=uncertain[0][0].full_name,
                error=uncertain[0][1],
            )
        for pod in too_large:
            log("too-large", level="error", pod=pod.full_name, uid=pod.uid, version=pod.version)
        return Touched(tuple(pod for pod, _ in uncertain), too_large, why)

    return touch


def marker(api: Api, namespace: str, name: str, log: Log) -> Callable[[str], bool]:
    """The function that writes a mark on this replica's own pod; it returns False if the write may have
    failed."""

    def mark(word: str) -> bool:
        condition = {"type": names.LEADS_CONDITION, "status": "True", "reason": "Leads", "message": word}
        patch = {"status": {"conditions": [{**condition, "lastTransitionTime": timestamp(now_ms())}]}}
        path = f"{pod_path(namespace, name)}/status"
        reply = api.call("PATCH", path, patch, content_type=STRATEGIC_MERGE, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status == 200:
            return True
        log("unmarked", level="warning", error=reply.message)
        return False

    return mark
