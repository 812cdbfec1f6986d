"""Paths and patches of one pod, for every part that writes a pod's status."""

import datetime
from typing import Any

from timekeeper.core import names

Body = dict[str, Any]


def pod_path(namespace: str, name: str) -> str:
    """The API server's path of a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def wake_patch(uid: str, reason: str, message: str, now_ms: int) -> Body:
    """A strategic merge patch that sets a condition of ours on a pod's status; other conditions stay.

    The message carries the time, so each patch changes the pod: a patch without a change wakes no scheduler
    and keeps the resource version.
    """
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": names.WAKE_CONDITION,
        "status": "True",
        "reason": reason,
        "message": f"{message} at {now.isoformat(timespec='milliseconds')}",
        "lastTransitionTime": seconds,
    }
    return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
