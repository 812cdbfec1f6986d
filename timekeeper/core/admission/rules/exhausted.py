"""The rule of budgets with `onExhausted: deny`."""

import re
from datetime import UTC, datetime

from timekeeper.core.admission.policy import Standing
from timekeeper.core.rating.held import cards_text, depends_on_card, least_milli
from timekeeper.core.standings import payer
from timekeeper.core.texts import hours
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import TRY_AGAIN, Violation, shown

# They change from one pod to the next.
_FIGURES = re.compile(
    r" (?:It is \S+ GPU-hours over|\S+ GPU-hours are left)(?:; this pod asks for .{1,30}? cards?)?\."
    r"(?= New GPU pods are refused until)"
)


def without_figures(refusal: str) -> str:
    """The refusal in the words that all pods share, so that it makes one Event."""
    return _FIGURES.sub("", refusal.removeprefix(TRY_AGAIN))


def budget_violations(
    namespace: str, standing: Standing, request: GPURequest | None = None
) -> tuple[Violation, ...]:
    """The violation of a pod whose namespace is over budget with `onExhausted: deny`. ``request``: the pod's;
    None: not known."""
    if standing.status != "OVER_BUDGET" or standing.on_exhausted != "deny":
        return ()
    until = "the budget is raised"
    if standing.until_ms is not None:
        moment = datetime.fromtimestamp(standing.until_ms // 1000, UTC)
        until += f" or the next period begins ({moment:%Y-%m-%d %H:%M} UTC)"
    whose = payer(namespace, standing.group)
    used = (
        f"{whose}: pods admitted in the last few seconds will use the remaining GPU budget"
        if standing.by_estimate
        else f"{whose} has used its GPU budget"
    )
    used = used[0].upper() + used[1:]
    sentence = (
        f"{used} (onExhausted: deny).{_figures(standing, request)} New GPU pods are refused until {until}."
        " Ask your budget administrator: kubectl bursar budget has names and a text."
    )
    return (
        Violation("budget-exhausted", "metadata.namespace", shown(namespace), sentence, "", "", heals=True),
    )


def _figures(standing: Standing, request: GPURequest | None) -> str:
    """What is left, and what the pod asks for."""
    if standing.remaining is None:
        return ""
    amount = f"{hours(abs(standing.remaining))} GPU-hours"
    said = [f"it is {amount} over" if standing.remaining < 0 else f"{amount} are left"]
    if request is not None:
        held = cards_text(least_milli(request))
        least = "at least " if depends_on_card(request) else ""
        said.append(f"this pod asks for {least}{held} card{'' if held == '1' else 's'}")
    text = "; ".join(said)
    return f" {text[0].upper()}{text[1:]}."
