"""Whether a pod declares how long it means to run, where its namespace's budget asks for that."""

from collections.abc import Iterator

from timekeeper.core.json_values import Json
from timekeeper.core.violation import Violation
from webhook.policy import AdmissionPolicy


def duration_violations(pod: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    """The violation of a pod without ``activeDeadlineSeconds``, with ``requireDuration`` in the budget."""
    if policy.requires_duration and pod["spec"].get("activeDeadlineSeconds") is None:
        yield Violation(
            "no-duration",
            "spec.activeDeadlineSeconds",
            "",
            "the budget of the namespace asks each GPU pod how long it means to run (requireDuration)",
            "a number of seconds; of controllers, only a Job and a CronJob can set it",
            "activeDeadlineSeconds: 7200",
        )
