"""Writes in which mode each namespace is into the parameters of the API server's policies on pods
(``deploy/manifests/admission-modes.yaml``).

Nothing reads the objects back: they are applied whenever a mode changes, and now and then, so that a changed
or deleted one is put right.
"""

from collections.abc import Callable, Mapping
from threading import Event

from timekeeper.accounts.budget_history import History
from timekeeper.runtime.api_server import ANSWER_S, APPLY, Answered, Api
from timekeeper.runtime.log import log

# of the policies on pods that refuse, of those that warn, and of the policies on device claims
CONFIG_MAPS = ("bursar-modes", "bursar-modes-observed", "bursar-device-classes")
DEFAULT = "_default"
_JUDGED = {"bursar-modes-observed": {"_judged": "observe"}}  # else its policies warn where others refuse

_MANAGER = "bursar-timekeeper-modes"
_LOOK_S = 0.5
_AGAIN_S = 15.0


def modes(history: History, at_ms: int) -> Mapping[str, str]:
    """The mode of the cluster, and of each namespace that has another one."""
    default = history.mode("", at_ms)
    found = {name: history.mode(name, at_ms) for name in sorted(history.namespaces())}
    return {DEFAULT: default} | {name: mode for name, mode in found.items() if mode != default}


class ModeParameters:
    """Used by one thread. ``history``: the budgets in force, None before the first decision; ``clock``: Unix
    milliseconds; ``seconds``: a monotonic clock."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        history: Callable[[], History | None],
        clock: Callable[[], int],
        seconds: Callable[[], float],
    ) -> None:
        self._api, self._namespace, self._history = api, namespace, history
        self._clock, self._seconds = clock, seconds
        self._of: History | None = None
        self._wanted: Mapping[str, str] = {}
        self._due_s = 0.0
        self._problem = ""

    def keep(self, stop: Event) -> None:
        """Write what changes until ``stop``."""
        while not stop.wait(_LOOK_S):
            self.step()

    def step(self) -> None:
        """Apply the parameters if a mode has changed, or if it is time again."""
        history = self._history()
        if history is None:
            return
        if history is not self._of:
            wanted = modes(history, max(self._clock(), history.newest_ms()))
            self._of, before, self._wanted = history, self._wanted, wanted
            self._due_s = self._seconds() if wanted != before else self._due_s
        if self._seconds() >= self._due_s:
            self._due_s = self._seconds() + _AGAIN_S
            self._tell("; ".join(filter(None, map(self._apply, CONFIG_MAPS))))

    def _apply(self, name: str) -> str:
        """Why the object was not written; "" if it was."""
        data = {**self._wanted, **_JUDGED.get(name, {})}
        return apply_config_map(self._api, self._namespace, name, data, _MANAGER)

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            log("modes-not-written", level="error", error=problem)
        elif self._problem and not problem:
            log("modes-written")
        self._problem = problem


def apply_config_map(api: Api, namespace: str, name: str, data: Mapping[str, str], manager: str) -> str:
    """Applies the ConfigMap with these keys, and removes others that ``manager`` applied before. Why it was
    not written; "" if it was."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager={manager}&force=true"
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}
    reply = api.call("PATCH", path, body, content_type=APPLY, timeout_s=ANSWER_S)
    is_written = isinstance(reply, Answered) and reply.status < 300
    return "" if is_written else f"{name}: {reply.message}"
