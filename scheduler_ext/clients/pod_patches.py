"""Paths and patches of one pod, for every part that writes a pod's status."""

from typing import Any

from scheduler_ext.model.pod import Pod
from timekeeper.core import names
from timekeeper.core.object_names import timestamp
from timekeeper.runtime.api_server import Answered, Reply

Body = dict[str, Any]

# etcd's word for an object that it does not store, and that of the API server's client of etcd
_TOO_LARGE = ("request is too large", "trying to send message larger than max")


def pod_path(namespace: str, name: str) -> str:
    """The API server's path of a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def touch_patch(uid: str, word: str, *, has_condition: bool) -> Body:
    """A strategic merge patch that changes the version of a waiting pod and makes it grow less than any
    Binding of the same version does. ``word``: at most 17 characters that were never written before; a patch
    without a change would keep the version. ``has_condition``: it has PodScheduled.

    It removes kube-scheduler's message about waiting, as a Binding does, and writes ``status.message``. With
    the API server's record of the field's manager that adds at most 110 bytes. A Binding adds the annotation
    of the cards and the node's name, at least 114 bytes and the UUID of a card.
    """
    status: Body = {"message": word}
    if has_condition:
        status["conditions"] = [{"type": "PodScheduled", "message": None}]
    return {"metadata": {"uid": uid}, "status": status}


def is_too_large(pod: Pod | None, reply: Reply) -> bool:
    """True if the store has refused `touch_patch` because the pod is too large: then it refuses every Binding
    of the same version too. Never for a pod that has an annotation of its cards before it is bound: a Binding
    would replace it and might be smaller."""
    if not isinstance(reply, Answered) or pod is None or pod.placement is not None or pod.undecodable:
        return False
    return reply.status >= 400 and any(words in reply.message for words in _TOO_LARGE)


def wake_patch(uid: str, reason: str, message: str, now_ms: int) -> Body:
    """A strategic merge patch that sets a condition of ours on a pod's status; other conditions stay.

    The message carries the time, so each patch changes the pod: a patch without a change wakes no scheduler
    and keeps the resource version.
    """
    condition = {
        "type": names.WAKE_CONDITION,
        "status": "True",
        "reason": reason,
        "message": f"{message} at {timestamp(now_ms, 'milliseconds')}",
        "lastTransitionTime": timestamp(now_ms),
    }
    return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
