"""DeviceTaintRules, by which a device is kept for its heir, where the API server serves them: their calls."""

from collections.abc import Callable, Sequence

from timekeeper.core.claims.heirs import DeviceKey, Heir, TaintRule, read_rule, taint_rule
from timekeeper.core.json_values import mapping, sequence
from timekeeper.log import log
from timekeeper.runtime.api_server import ANSWER_S, Answered, Api
from timekeeper.settler.evictions.disruptions import items

_GROUP = "/apis/resource.k8s.io"
_RESOURCE = "devicetaintrules"
_VERSIONS = ("v1", "v1beta2", "v1alpha3")  # the first that is served
_LOOK_MS = 300_000  # between two looks whether they are served
_AGAIN_MS = 5_000  # after an answer that does not say it


class TaintRules:
    """Used by one thread. ``steady``: a monotonic clock in milliseconds."""

    def __init__(self, api: Api, steady: Callable[[], int]) -> None:
        self._api, self._steady = api, steady
        self._version: str | None = None
        self._due_ms = steady()
        self._problem = ""

    def version(self) -> str | None:
        """The version of the API; "": it is not served; None: that is not known now."""
        if self._steady() >= self._due_ms:
            self._version = self._served()
            self._due_ms = self._steady() + (_AGAIN_MS if self._version is None else _LOOK_MS)
        return self._version

    def all(self) -> tuple[TaintRule, ...] | None:
        """All rules that exist; None where that is not known now."""
        version = self.version()
        if not version:
            return None if version is None else ()
        found = items(self._api, f"{_GROUP}/{version}/{_RESOURCE}")
        if isinstance(found, str):
            self._tell(found)
            return None
        self._tell("")
        return tuple(map(read_rule, found))

    def keep(self, device: DeviceKey, heir: Heir, token: str) -> str | None:
        """Write the rule that keeps the device; its name, None: it was not written."""
        body = taint_rule(self.version() or "", device, heir, token)
        reply = self._api.call("POST", f"{_GROUP}/{self.version()}/{_RESOURCE}", body, timeout_s=ANSWER_S)
        if isinstance(reply, Answered) and reply.status < 300:
            return read_rule(reply.body).name
        self._tell(reply.message)
        return None

    def remove(self, name: str) -> bool:
        """Whether the rule is gone now."""
        version = self.version()
        if not version:
            return False
        reply = self._api.call("DELETE", f"{_GROUP}/{version}/{_RESOURCE}/{name}", timeout_s=ANSWER_S)
        is_gone = isinstance(reply, Answered) and (reply.status < 300 or reply.status == 404)
        self._tell("" if is_gone else reply.message)
        return is_gone

    def _served(self) -> str | None:
        found = self._names(_GROUP, "versions", "version")
        if found is None:
            return None
        for version in _VERSIONS:
            names = self._names(f"{_GROUP}/{version}", "resources", "name") if version in found else ()
            if names is None:
                return None
            if _RESOURCE in names:
                return version
        return ""

    def _names(self, path: str, part: str, member: str) -> Sequence[object] | None:
        reply = self._api.call("GET", path, timeout_s=ANSWER_S)
        if isinstance(reply, Answered) and reply.status == 404:
            return ()
        if not isinstance(reply, Answered) or reply.status >= 300:
            return None
        return [mapping(each).get(member) for each in sequence(reply.body.get(part))]

    def _tell(self, problem: str) -> None:
        """Logs each problem once."""
        if problem and problem != self._problem:
            log("device-taints-failed", level="warning", error=problem)
        self._problem = problem
