"""Keeps the parameters of the policies on device claims true: the ConfigMap `bursar-device-classes`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.request.device_classes import CONFIG_MAP, mistakes, parameters, read_class, read_settings
from timekeeper.edge.log_events import Log
from timekeeper.runtime.api_server import APPLY, Answered, Api

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
_TIMEOUT_S = 10.0
_MANAGER = "bursar-certificates"


@dataclass(slots=True)
class DeviceClasses:
    """Follows the DeviceClasses of a cluster. ``namespace``: of the ConfigMap."""

    api: Api
    namespace: str
    log: Log
    _reported: set[tuple[str, str, str]] = field(default_factory=set)  # what was logged, once each

    def look(self) -> bool:
        """Judges every class and writes the parameters where they differ; False, with a log line, where
        something could not be read or written: then the former parameters stay, or none, and claims are
        refused. A cluster without DeviceClasses has none."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{CONFIG_MAP}"
        status, stored = self._call("GET", path)
        listed_status, listed = self._call("GET", CLASSES) if status in (200, 404) else (0, {})
        if status not in (200, 404) or listed_status not in (200, 404):
            failed, answer = (path, stored) if status not in (200, 404) else (CLASSES, listed)
            return self._failed(f"cannot read {failed}", answer)
        present = mapping(mapping(stored).get("data")) if status == 200 else {}
        classes = map(read_class, sequence(listed.get("items")) if listed_status == 200 else ())
        found = parameters(classes, read_settings(present))
        self._report(found.unknown, present)
        wanted = found.data()
        if status == 200 and {key: present.get(key) for key in wanted} == wanted:
            return True
        metadata = {"name": CONFIG_MAP, "namespace": self.namespace}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": wanted}
        status, answer = self._call("PATCH", f"{path}?fieldManager={_MANAGER}&force=true", body)
        if status not in (200, 201):
            return self._failed(f"cannot write ConfigMap {CONFIG_MAP}", answer)
        self.log("device-classes-written", no_gpu=len(found.no_gpu), not_judged=len(found.unknown))
        return True

    def _report(self, unjudged: tuple[tuple[str, str], ...], settings: Mapping[str, Any]) -> None:
        """Logs each class that cannot be judged, and each invalid entry of the settings, once while it is
        there."""
        found = {("device-class-not-judged", name, reason) for name, reason in unjudged}
        allowed = {(key, entry): text for key, entry, text in mistakes(settings)}
        found |= {("setting-not-valid", key, entry) for key, entry in allowed}
        for event, name, detail in sorted(found - self._reported):
            if event == "setting-not-valid":
                self.log(
                    event,
                    level="warning",
                    field=f"{CONFIG_MAP}.data.{name}",
                    got=detail,
                    allowed=allowed[name, detail],
                )
            else:
                self.log(event, level="warning", device_class=name, reason=detail)
        self._reported = found

    def _failed(self, what: str, answer: Any) -> bool:
        message = mapping(answer).get("message")
        self.log("device-classes-not-followed", level="error", error=f"{what}: {message}")
        return False

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """The answer; status 0 where none came."""
        reply = self.api.call(method, path, body, content_type=APPLY, timeout_s=_TIMEOUT_S)
        if not isinstance(reply, Answered):
            return 0, {"message": reply.message}
        return reply.status, reply.body
