"""Waiting pods for which cards are held, as the API server would give them."""

import datetime
import json
from typing import Any

from tests.scheduler_ext.worlds import on
from tests.worlds import Json

NOW_MS = 1_795_000_000_000  # a whole second of 2026


def stamp(at_ms: int) -> str:
    """A Kubernetes timestamp."""
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).isoformat().replace("+00:00", "Z")


def held(
    raw: Json,
    where: str,
    *uuids: str,
    since_ms: int = NOW_MS,
    until_ms: int = NOW_MS + 60_000,
    status: str = "True",
    **said: Any,
) -> Json:
    """The waiting pod with cards held on that node: one for each container, as `worlds.on` places it.
    Keywords replace what the condition's message says."""
    devices = json.loads(on(raw, where, *uuids)["metadata"]["annotations"]["bursar.dev/devices"])
    message = devices | {"node": where, "until": stamp(until_ms)} | said
    condition = {
        "type": "bursar.dev/CardsHeld",
        "status": status,
        "reason": "CardsHeld",
        "message": json.dumps(message),
        "lastTransitionTime": stamp(since_ms),
    }
    other = {"type": "PodScheduled", "status": "False"}
    metadata = {**raw["metadata"], "resourceVersion": "3"}
    return {
        **raw,
        "metadata": metadata,
        "status": {"phase": "Pending", "nominatedNodeName": where, "conditions": [other, condition]},
    }
