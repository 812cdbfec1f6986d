"""Writes in which mode each namespace is, and how much CPU and memory goes with a card, into the parameters
of the API server's policies on pods (``deploy/manifests/admission-modes.yaml``).

Nothing reads the objects back: they are applied whenever a mode changes, and now and then, so that a changed
or deleted one is put right.
"""

from collections.abc import Callable, Mapping
from threading import Event

from timekeeper.accounts.budget_history import History
from timekeeper.core.admission.rules.catalogue import CATALOGUE
from timekeeper.core.admission.rules.host_share import RULE
from timekeeper.core.budgets.policy import Budget
from timekeeper.core.request.host import CardHost
from timekeeper.log import log
from timekeeper.runtime.api_server import ANSWER_S, APPLY, Answered, Api

# of the policies on pods that refuse, of those that warn, and of the policies on device claims
CONFIG_MAPS = ("bursar-modes", "bursar-modes-observed", "bursar-device-classes")
DEFAULT = "_default"
HOST = "_host"
_JUDGED = {"bursar-modes-observed": {"_judged": "observe"}}  # else its policies warn where others refuse

_MANAGER = "bursar-timekeeper-modes"
_LOOK_S = 0.5
_AGAIN_S = 15.0


def modes(history: History, at_ms: int) -> Mapping[str, str]:
    """The mode of the cluster, and of each namespace that has another one."""
    default = history.mode("", at_ms)
    found = {name: history.mode(name, at_ms) for name in sorted(history.namespaces())}
    return {DEFAULT: default} | {name: mode for name, mode in found.items() if mode != default}


def host_shares(history: History, at_ms: int, card_host: CardHost | None) -> Mapping[str, str]:
    """By what the policy ``bursar-resizes`` judges: of the cluster, and of each namespace with settings of
    its own. Empty while no node with cards is known."""
    if card_host is None:
        return {}
    settings = history.settings(at_ms)

    def told(budget: Budget) -> str:
        mode = dict(settings.rules) | dict(budget.rules)
        times_milli = budget.host_share_milli or settings.host_share_milli
        exempt = sorted({*settings.exempt, *budget.exempt})
        amounts = (times_milli, card_host.cpu_milli, card_host.memory_bytes, max(1, card_host.least_card_mib))
        return " ".join((mode.get(RULE, CATALOGUE[RULE].default), *map(str, amounts), *exempt))

    default = told(history.budget("", at_ms).budget)
    found = {name: told(history.budget(name, at_ms).budget) for name in sorted(history.namespaces())}
    return {HOST: default} | {f"{name}.host": text for name, text in found.items() if text != default}


class ModeParameters:
    """Used by one thread. ``history``: the budgets in force, None before the first decision; ``card_host``:
    CPU and memory for each card; ``clock``: Unix milliseconds; ``seconds``: a monotonic clock."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        history: Callable[[], History | None],
        card_host: Callable[[], CardHost | None],
        clock: Callable[[], int],
        seconds: Callable[[], float],
    ) -> None:
        self._api, self._namespace, self._history = api, namespace, history
        self._card_host, self._clock = card_host, clock
        self._of: tuple[History, CardHost | None] | None = None
        self._modes: Mapping[str, str] = {}
        self._writer = ParameterWriter(self._apply, seconds, _tell)

    def keep(self, stop: Event) -> None:
        """Write what changes until ``stop``."""
        while not stop.wait(_LOOK_S):
            self.step()

    def step(self) -> None:
        """Apply the parameters if a mode has changed, or if it is time again."""
        history, card_host = self._history(), self._card_host()
        if history is None:
            return
        if self._of is None or history is not self._of[0] or card_host != self._of[1]:
            at_ms = max(self._clock(), history.newest_ms())
            self._of = history, card_host
            self._modes = {**modes(history, at_ms), **host_shares(history, at_ms, card_host)}
        self._writer.write(self._modes)

    def _apply(self, wanted: Mapping[str, str]) -> str:
        """Why the objects were not written; "" if they were."""
        parts = ((name, {**wanted, **_JUDGED.get(name, {})}) for name in CONFIG_MAPS)
        problems = (apply_config_map(self._api, self._namespace, *each, _MANAGER) for each in parts)
        return "; ".join(filter(None, problems))


def _tell(problem: str) -> None:
    if problem:
        log("modes-not-written", level="error", error=problem)
    else:
        log("modes-written")


class ParameterWriter:
    """Applies parameters whenever they change, and now and then. Used by one thread. ``apply``: why they were
    not written, "" if they were; ``seconds``: a monotonic clock; ``tell``: called with a new problem, and
    with "" once it is gone."""

    def __init__(
        self,
        apply: Callable[[Mapping[str, str]], str],
        seconds: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        self._apply, self._seconds, self._tell = apply, seconds, tell
        self._wanted: Mapping[str, str] = {}
        self._due_s = 0.0
        self._problem = ""

    @property
    def is_due(self) -> bool:
        """Whether it is time to apply them again."""
        return self._seconds() >= self._due_s

    def write(self, wanted: Mapping[str, str]) -> None:
        """Apply these parameters if they are others than before, or if it is time again."""
        if wanted == self._wanted and not self.is_due:
            return
        self._wanted, self._due_s = wanted, self._seconds() + _AGAIN_S
        problem = self._apply(wanted)
        if problem != self._problem:
            self._tell(problem)
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
