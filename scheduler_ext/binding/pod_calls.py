"""A bind's calls to the API server, within the time that is left to it."""

import time
from collections.abc import Callable

from scheduler_ext.binding.outcome import GONE, NotBound, refused
from scheduler_ext.binding.values import BindingArgs, ReadPod
from scheduler_ext.clients.pod_patches import pod_path
from scheduler_ext.model.pod import read_pod
from timekeeper.core.json_values import Json, mapping
from timekeeper.runtime.api_server import Answered, Api, Reply, Unsent

LEAST_S = 0.05  # with less time left another call is pointless


class PodCalls:
    """``until``: a moment of the monotonic clock ``now_s``."""

    def __init__(self, api: Api, most_grace_ms: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._api, self._most_grace_ms, self._now_s = api, most_grace_ms, now_s

    def read(self, args: BindingArgs, until: float) -> ReadPod | NotBound:
        """The pod of this name from the API server; `GONE`, or why the read failed."""
        reply = self.send("GET", pod_path(args.namespace, args.name), None, until)
        if isinstance(reply, Answered) and reply.status == 200:
            return self.parse(reply.body)
        if isinstance(reply, Answered):
            return GONE if reply.status == 404 else refused(reply.message)
        return refused(reply.message)

    def parse(self, raw: Json) -> ReadPod:
        """The pod in an answer of the API server."""
        metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
        return ReadPod(
            uid=str(metadata.get("uid", "")),
            version=str(metadata.get("resourceVersion", "")),
            node=str(spec.get("nodeName") or ""),
            pod=read_pod(raw, self._most_grace_ms),
        )

    def send(
        self, method: str, path: str, body: Json | None, until: float, content_type: str = "application/json"
    ) -> Reply:
        """One call, which ends at ``until``; it is not sent if too little time is left."""
        left = until - self._now_s()
        if left < LEAST_S:
            return Unsent("the API server was too slow: no time was left for the call")
        return self._api.call(method, path, body, content_type=content_type, timeout_s=left)
