"""Writes which namespaces have spent a budget that keeps pods, into the parameters of the policy that refuses
to allocate GPUs to their claims (``deploy/manifests/admission-claims.yaml``).

As at filter and bind, charges alone count, not reservations: a pod that waits would block itself.
A namespace that protects pods is left out: the policy does not know the pods of a claim.
"""

from collections.abc import Callable, Iterable, Mapping
from threading import Event

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.held.limits import KEEPING
from timekeeper.log import log
from timekeeper.runtime.api_server import Api
from timekeeper.settler.mode_parameters import ParameterWriter, apply_config_map

CONFIG_MAP = "bursar-spent"
DRIVERS = "_drivers"  # key of the drivers whose devices are GPUs
SPENT = "spent"

_MANAGER = "bursar-timekeeper-spent"
_LOOK_S = 1.0


def parameters(
    statements: Mapping[str, Statement], modes: Callable[[str], str], drivers: Iterable[str]
) -> Mapping[str, str]:
    """The keys of the ConfigMap. ``modes``: of each namespace."""
    keeping = (name for name, each in sorted(statements.items()) if _keeps(each))
    spent = {name: SPENT for name in keeping if modes(name) == "enforce"}
    return {DRIVERS: "\n".join(sorted(drivers))} | spent


def _keeps(each: Statement) -> bool:
    if each.in_force.budget.protect is not None or each.standing != "OVER_BUDGET":
        return False
    return each.is_spent and each.deciding.in_force.budget.on_exhausted in KEEPING


class SpentParameters:
    """Used by one thread. ``statements`` and ``history``: of the last tick, None before the first decision;
    ``drivers``: those whose devices are GPUs; ``clock``: Unix milliseconds; ``seconds``: a monotonic
    clock."""

    def __init__(
        self,
        apply: Callable[[Mapping[str, str]], str],
        statements: Callable[[], Mapping[str, Statement] | None],
        history: Callable[[], History | None],
        drivers: Callable[[], Iterable[str]],
        clock: Callable[[], int],
        seconds: Callable[[], float],
    ) -> None:
        self._statements, self._history, self._drivers, self._clock = statements, history, drivers, clock
        self._of: Mapping[str, Statement] | None = None
        self._writer = ParameterWriter(apply, seconds, _tell)

    def keep(self, stop: Event) -> None:
        """Write what changes until ``stop``."""
        while not stop.wait(_LOOK_S):
            self.step()

    def step(self) -> None:
        """Apply the parameters if they have changed, or if it is time again."""
        statements, history = self._statements(), self._history()
        if statements is None or history is None:
            return
        if statements is self._of and not self._writer.is_due:
            return
        self._of, now_ms = statements, max(self._clock(), history.newest_ms())
        wanted = parameters(statements, lambda name: history.mode(name, now_ms), self._drivers())
        self._writer.write(wanted)


def _tell(problem: str) -> None:
    if problem:
        log("spent-not-written", level="error", error=problem)
    else:
        log("spent-written")


def apply_with(api: Api, namespace: str) -> Callable[[Mapping[str, str]], str]:
    """Applies the ConfigMap; why it was not written, "" if it was."""
    return lambda data: apply_config_map(api, namespace, CONFIG_MAP, data, _MANAGER)
