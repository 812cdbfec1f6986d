"""Changes of budget entries, and grants, as decisions that people read later."""

import hashlib
from collections.abc import Iterable

import yaml

from timekeeper.accounts.budget_history import GROUP, LABEL, MOVED, BudgetEntry, History
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.usage import gpu_hours
from timekeeper.core.budgets.mistakes import BadEntryError
from timekeeper.core.budgets.yaml_nodes import fields_of
from timekeeper.core.decisions import BUDGET, GRANT, MESSAGE, Decision, DecisionRun, Figure

_DIGITS = 16
_WITH_VALUES = frozenset(
    (
        *("gpuHours", "period", "carryOver", "onExhausted", "group", "warnAt", "price", "currency"),
        *("maxGPUs", "maxGPUsPerPod", "maxWaiting", "mode", "timeZone", "lookahead", "chargeBy"),
        *("reserve", "requireDuration", "overtime", "overuse", "idle", "policy", "hostShare"),
    )
)


def of_changes(
    entries: Iterable[BudgetEntry], grants: Iterable[Grant], before: History | None = None
) -> list[DecisionRun]:
    """New, changed and ended entries, and grants; written in the transaction of what they are about.
    ``before``: the entries until now."""
    made = [
        *(_of_entry(entry, before) for entry in entries if not entry.key.startswith(MOVED)),
        *(
            decision
            for each in grants
            for decision in (_of_passing_on(each) if each.group else (_of_grant(each),))
        ),
    ]
    return [DecisionRun(each, 1, each.at_ms) for each in made]


def _of_entry(entry: BudgetEntry, before: History | None) -> Decision:
    if entry.key.startswith(LABEL):
        return _of_label(entry)
    earlier = None if before is None else before.text(entry.key)
    if entry.text is None:
        reason, verb = "EntryRemoved", "was removed"
    elif earlier is None:
        reason, verb = "EntryAdded", "was added"
    else:
        reason, verb = "EntryChanged", f"was changed{_changed_fields(earlier, entry.text)}"
    figures: dict[str, Figure] = {MESSAGE: f"The budget entry {entry.key} {verb}."}
    if entry.text is not None:
        figures["textSha256"] = hashlib.sha256(entry.text.encode(errors="replace")).hexdigest()[:_DIGITS]
    return Decision(
        at_ms=entry.from_ms,
        kind=BUDGET,
        reason=reason,
        namespace=entry.key,
        figures=figures,
        budget=f"{entry.key}@{entry.from_ms}",
    )


def _of_label(entry: BudgetEntry) -> Decision:
    """The label of a namespace names another mode, or none any more."""
    name, word = entry.key.removeprefix(LABEL), entry.text or "no mode"
    message = f"The label bursar.dev/mode of namespace {name} names {word} now."
    return Decision(
        at_ms=entry.from_ms,
        kind=BUDGET,
        reason="ModeLabelChanged",
        namespace=name,
        figures={MESSAGE: message},
    )


def _changed_fields(earlier: str, later: str) -> str:
    """Names of the fields that differ; those of amounts, periods and modes with their values, for lists
    are long."""
    try:
        old, new = _values_of(earlier), _values_of(later)
    except BadEntryError:
        return ""
    changed = [
        f"{each} from {old.get(each, 'none')} to {new.get(each, 'none')}" if each in _WITH_VALUES else each
        for each in {**old, **new}
        if old.get(each) != new.get(each)
    ]
    return f": {', '.join(changed)}" if changed else ""


def _values_of(text: str) -> dict[str, str]:
    """Each field of an entry as YAML text. Raises BadEntryError."""
    return {name: yaml.serialize(node).strip(".\n") for name, node in fields_of(text).items()}


def _of_grant(grant: Grant) -> Decision:
    hours = gpu_hours(grant.amount)
    figures: dict[str, Figure] = {
        MESSAGE: f"{hours} GPU-hours were granted ({grant.kind}) by {grant.actor}: {grant.reason}",
        "amount": grant.amount,
        "grantKind": grant.kind,
        "actor": grant.actor,
        "periodStartMs": grant.span.start_ms,
        "periodEndMs": grant.span.end_ms,
    }
    return Decision(
        at_ms=grant.created_ms, kind=GRANT, reason="Granted", namespace=grant.subject, figures=figures
    )


def _of_passing_on(grant: Grant) -> tuple[Decision, Decision]:
    """One for the namespace, and one for the group, whose readers may be others."""
    hours, group = gpu_hours(abs(grant.amount)), grant.group.removeprefix(GROUP)
    taken = grant.amount < 0
    reason = "TakenBack" if taken else "PassedOn"
    moved = f"taken back from {grant.subject} to" if taken else f"passed on to {grant.subject} by"
    figures: dict[str, Figure] = {
        MESSAGE: f"{hours} GPU-hours were {moved} group {group}, by {grant.actor}: {grant.reason}",
        "amount": grant.amount,
        "grantKind": grant.kind,
        "actor": grant.actor,
        "group": group,
        "receiver": grant.subject,
        "periodStartMs": grant.span.start_ms,
        "periodEndMs": grant.span.end_ms,
    }
    return (
        Decision(at_ms=grant.created_ms, kind=GRANT, reason=reason, namespace=grant.subject, figures=figures),
        Decision(at_ms=grant.created_ms, kind=GRANT, reason=reason, namespace=grant.group, figures=figures),
    )
