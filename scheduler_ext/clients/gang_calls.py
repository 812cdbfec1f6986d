"""The calls to the API server that start a gang, or let go of one that has not started. Each names the pod by
UID, and one that decides by its version too, so it never affects what has changed since."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from scheduler_ext.clients.pod_patches import pod_path, wake_patch
from scheduler_ext.model.pod import CPUMember, Pod
from timekeeper.core import names
from timekeeper.core.json_values import Json
from timekeeper.core.kube.eviction import disruption, eviction
from timekeeper.core.object_names import timestamp
from timekeeper.runtime.api_server import STRATEGIC_MERGE, Answered, Api, Reply

CALL_S = 5.0
AT_ONCE = 8
NOTHING: Json = {}
_GATE = {"$patch": "delete", "name": names.GANG_GATE}
NOT_WHOLE = "BursarGang"  # the reason of the condition DisruptionTarget

# "done", "refused": as the API server answered; "unclear": an error or no answer
Done = Literal["done", "refused", "unclear"]


class GangCalls:
    """``at_once``: how many may be under way."""

    def __init__(self, api: Api, now_ms: Callable[[], int], at_once: int = AT_ONCE) -> None:
        self._api, self._now_ms = api, now_ms
        self.together = map if at_once == 1 else ThreadPoolExecutor(at_once, "gang-call").map

    def open_gates(self, pods: Iterable[Pod | CPUMember]) -> list[Done]:
        """Remove the gang's gate from these pods; kube-scheduler tries one without any gate again."""
        return list(self.together(self._open, pods))

    def evict(self, pods: Sequence[Pod], why: str) -> list[Done]:
        """Evict these pods of one gang, in the versions that the decision was based on."""
        return list(self.together(lambda pod: self._evict(pod, why), pods))

    def mark(self, pod: Pod) -> Done:
        """Note on a member with a node that its gang has started."""
        return self._note(pod, names.GANG_STARTED, timestamp(self._now_ms()))

    def note_needs(self, pods: Iterable[Pod], needed: int) -> list[Done]:
        """Note on members with how many their gang starts. With 0 they are of none, and have no gate."""
        gate = {} if needed else {"spec": {"schedulingGates": [_GATE]}}
        return list(self.together(lambda pod: self._note(pod, names.GANG_NEEDS, str(needed), gate), pods))

    def owners(self, namespace: str, references: Iterable[tuple[str, ...]]) -> list[Json | None]:
        """The objects of these references (`Pod.reference`, of kinds that `is_owner` knows); None for one
        that is not there, or cannot be read, now or by this account."""
        return list(self.together(lambda reference: self._owner(namespace, *reference[:3]), references))

    def _owner(self, namespace: str, api_version: str, kind: str, name: str) -> Json | None:
        path = f"/apis/{api_version}/namespaces/{namespace}/{kind.lower()}s/{name}"
        reply = self._api.call("GET", path, timeout_s=CALL_S)
        return reply.body if isinstance(reply, Answered) and reply.status == 200 else None

    def _note(self, pod: Pod, annotation: str, text: str, more: Json = NOTHING) -> Done:
        return self._patch(pod, {"metadata": {"uid": pod.uid, "annotations": {annotation: text}}, **more})

    def _open(self, pod: Pod | CPUMember) -> Done:
        if pod.gated:
            return self._patch(pod, {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": [_GATE]}})
        patch = wake_patch(pod.uid, "GangStarts", "cards are kept for all of its gang", self._now_ms())
        return self._patch(pod, patch, "/status")

    def _evict(self, pod: Pod, why: str) -> Done:
        body = eviction(pod.namespace, pod.name, pod.uid, version=pod.version)
        path = pod_path(pod.namespace, pod.name)
        done = _done(self._api.call("POST", f"{path}/eviction", body, timeout_s=CALL_S))
        if done == "done":  # the eviction has written another reason
            condition = disruption(True, NOT_WHOLE, why, self._now_ms())
            self._patch(pod, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}, "/status")
        return done

    def _patch(self, pod: Pod | CPUMember, body: dict[str, Any], part: str = "") -> Done:
        path = pod_path(pod.namespace, pod.name) + part
        return _done(self._api.call("PATCH", path, body, content_type=STRATEGIC_MERGE, timeout_s=CALL_S))


def _done(reply: Reply) -> Done:
    if not isinstance(reply, Answered) or reply.status >= 500:
        return "unclear"
    return "done" if reply.status < 300 else "refused"
