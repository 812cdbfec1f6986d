"""The rule of budgets with `onExhausted: deny`."""

from datetime import UTC, datetime

from timekeeper.core.admission.policy import Standing
from timekeeper.core.violation import Violation, shown


def budget_violations(namespace: str, standing: Standing) -> tuple[Violation, ...]:
    """The violation of a pod whose namespace is over budget with `onExhausted: deny`."""
    if standing.status != "OVER_BUDGET" or standing.on_exhausted != "deny":
        return ()
    until = "the budget is raised"
    if standing.until_ms is not None:
        moment = datetime.fromtimestamp(standing.until_ms // 1000, UTC)
        until += f" or the next period begins ({moment:%Y-%m-%d %H:%M} UTC)"
    used = (
        f"Namespace {namespace}: pods admitted in the last few seconds will use the remaining GPU budget"
        if standing.by_estimate
        else f"Namespace {namespace} has used its GPU budget"
    )
    sentence = (
        f"{used} (onExhausted: deny). New GPU pods are refused until {until}. Ask your budget administrator."
    )
    return (Violation("budget-exhausted", "metadata.namespace", shown(namespace), sentence, "", ""),)
