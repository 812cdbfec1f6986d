"""Compares `maxGracePeriod` with the figure in the API server's policies on grace periods.

The policies cannot read the budgets, so they repeat the figure (``deploy/manifests/admission-grace.yaml``).
Where it is larger than `maxGracePeriod`, a tenant can hold cards for longer than the ledger expects.
"""

from collections.abc import Callable, Mapping
from threading import Event

from timekeeper import metrics
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.log import log
from timekeeper.runtime.api_server import Answered, Api

POLICIES = ("bursar-grace", "bursar-eviction-grace")
VARIABLE = "longest"  # seconds
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_EVERY_S = 60.0
_ANSWER_S = 5.0


def differences(policies: Mapping[str, Json | None], longest_s: int) -> tuple[str, ...]:
    """A sentence for each policy, by name, whose figure is not ``longest_s``; None: it does not exist."""
    return tuple(
        f"policy {name} {found}, but maxGracePeriod is {longest_s} seconds; "
        f"set its variable {VARIABLE} to {longest_s}"
        for name, policy in policies.items()
        if (found := _difference(policy, longest_s))
    )


class GracePolicies:
    """Reads the policies and tells each difference once. ``longest_ms`` gives `maxGracePeriod` now, None
    before it is known."""

    def __init__(self, api: Api, longest_ms: Callable[[], int | None]) -> None:
        self._api, self._longest_ms = api, longest_ms
        self._known: tuple[str, ...] = ()

    def check(self) -> None:
        """Log what has changed since the last check, and set the metric to the number of differences. Where a
        policy cannot be read the metric keeps its value."""
        longest_ms = self._longest_ms()
        if longest_ms is None:
            return
        policies: dict[str, Json | None] = {}
        for name in POLICIES:
            reply = self._api.call("GET", f"{_PATH}/{name}", timeout_s=_ANSWER_S)
            if not isinstance(reply, Answered) or reply.status not in (200, 404):
                self._tell((f"policy {name} cannot be read: {reply.message}",))
                return
            policies[name] = reply.body if reply.status == 200 else None
        found = differences(policies, longest_ms // 1000)
        metrics.GRACE_POLICIES.set(len(found))
        self._tell(found)

    def keep(self, stop: Event) -> None:
        """Check every minute until ``stop``."""
        pause_s = 1.0
        while not stop.wait(pause_s):
            self.check()
            pause_s = _EVERY_S

    def _tell(self, found: tuple[str, ...]) -> None:
        if found == self._known:
            return
        for sentence in found:
            log("grace-policies-differ", level="warning", problem=sentence)
        if not found:
            log("grace-policies-agree")
        self._known = found


def _difference(policy: Json | None, longest_s: int) -> str:
    if policy is None:
        return "does not exist"
    variables = sequence(mapping(policy.get("spec")).get("variables"))
    given = next(
        (mapping(each).get("expression") for each in variables if mapping(each).get("name") == VARIABLE), None
    )
    return "" if given == str(longest_s) else f"has {str(given)[:40]!r}"
