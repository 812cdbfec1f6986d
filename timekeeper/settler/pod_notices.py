"""Messages on pods about their namespace's budget: `kubectl describe pod` shows them as Events."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from timekeeper.accounts.balance import NEARLY_SPENT_MILLI, Statement
from timekeeper.accounts.budget_history import is_group
from timekeeper.accounts.held.limits import QueuedPod
from timekeeper.accounts.held.needs import BudgetNeed
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.policy import GPU_HOUR, BudgetSettings, effect_of, places
from timekeeper.core.decisions import (
    DELETED,
    MESSAGE,
    STANDING,
    WAITING,
    WAITS_FOR_CLAIMS,
    WAITS_FOR_DEVICES,
    Decision,
    Figure,
)
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.names import BUDGET_GATE
from timekeeper.core.object_names import timestamp
from timekeeper.core.standings import payer
from timekeeper.core.texts import apart

MAX_PODS = 100  # of one namespace, for one change of its standing; waiting pods first
BudgetReason = Literal["OverBudget", "BudgetNearlyUsed", "BackInBudget"]
PodReason = BudgetReason | Literal["Demoted", "WaitsForClaims", "HeldByBudget"]
NoticeText = tuple[BudgetReason, str, Literal["Normal", "Warning"]]  # reason, sentence and type
FRESH_MS = 300_000  # an older pod gets no notice about its creation, also after a restart


@dataclass(frozen=True, slots=True)
class PodNotice:
    """A message about a pod: becomes an Event on it."""

    pod: LedgerPod
    reason: PodReason
    message: str
    type: Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The part of a namespace's account whose changes are reported on its pods."""

    standing: str
    is_nearly_spent: bool  # from ``warnAt`` on, or from NEARLY_SPENT_MILLI on


def state_of(statement: Statement) -> BudgetState:
    """The state of a namespace, its group's account included."""
    return BudgetState(statement.standing, statement.nearly_spent(NEARLY_SPENT_MILLI) is not None)


def change_notices(
    changes: Mapping[str, tuple[BudgetState, Statement]],
    pods: Iterable[LedgerPod],
    settings: BudgetSettings,
    protected: Set[str] = frozenset(),
) -> Iterator[PodNotice]:
    """Notices on the pods of namespaces whose state changed. ``changes``: namespace -> its state before, and
    its account now; ``protected``: UIDs of protected pods."""
    by_namespace = defaultdict[str, list[LedgerPod]](list)
    for pod in pods:
        if pod.namespace in changes and pod.ended_ms is None:
            by_namespace[pod.namespace].append(pod)
    for name, (before, statement) in sorted(changes.items()):
        text = texts_on_pods(name, before, statement, settings)
        if text is not None:
            waiting_first = sorted(by_namespace[name], key=lambda pod: (pod.node != "", pod.name))
            yield from (PodNotice(pod, *text.of(pod.uid, protected)) for pod in waiting_first[:MAX_PODS])


@dataclass(frozen=True, slots=True)
class ChangeTexts:
    """Reason, sentence and type of a change, as protected pods and all others read it."""

    others: NoticeText
    protected: NoticeText

    def of(self, uid: str, protected: Set[str]) -> NoticeText:
        """That of the pod with this UID."""
        return self.protected if uid in protected else self.others


def texts_on_pods(
    name: str, before: BudgetState, statement: Statement, settings: BudgetSettings
) -> ChangeTexts | None:
    """What is said of a change of the namespace's state; None: nothing."""
    text = change_text(name, before, statement, settings)
    if text is None:
        return None
    return ChangeTexts(text, _protected_text(name, statement) if text[0] == "OverBudget" else text)


def _protected_text(name: str, statement: Statement) -> NoticeText:
    """What is said on a protected pod instead of what befalls the others."""
    used = _used(name, statement.deciding)
    text = f"{used} This pod is protected (protect in the entry {name}): it keeps its class and its cards."
    return "OverBudget", text, "Normal"


def demotion_notice(pod: LedgerPod, lower_class: str, now_ms: int) -> PodNotice | None:
    """The notice on a pod that was admitted over budget; None where it is not new."""
    if now_ms - pod.created_ms > FRESH_MS:
        return None
    message = (
        f"Namespace {pod.namespace} was over its GPU budget when this pod was created. Its priority class is "
        f"at most {lower_class}, so pods of namespaces in budget go first. It keeps the class until it is "
        "created again."
    )
    return PodNotice(pod, "Demoted", message, "Warning")


def held_notice(pod: LedgerPod, queued: QueuedPod, need: BudgetNeed | None, own: int) -> PodNotice:
    """The notice on a new pod that waits for its budget. ``queued``: the pod, or its gang as one; ``need``:
    what that takes of the budget, of which ``own`` is the pod's, 0: it is the pod alone."""
    at_ms = queued.earliest_ms
    earliest = "not by the present budget" if at_ms is None else timestamp(at_ms)
    whom = f"all of its gang {pod.gang.name}" if pod.gang is not None and own else "it"
    sums = "" if need is None else f": {'; '.join(need.texts(own))}"
    message = (
        f"The scheduling gate {BUDGET_GATE} holds this pod until the GPU budget of namespace {pod.namespace} "
        f"can pay {whom}{sums}. Held pods of the namespace that go before it: {queued.ahead}. Released "
        f"at the earliest: {earliest}."
    )
    return PodNotice(pod, "HeldByBudget", message, "Normal")


def unknown_notice(pod: LedgerPod, reasons: str) -> PodNotice:
    """The notice on a pod that waits until it is known what its claims ask for."""
    message = (
        f"The scheduling gate {BUDGET_GATE} holds this pod until it is known how many GPUs its claims ask "
        f"for: {reasons}."
    )
    return PodNotice(pod, "WaitsForClaims", message, "Warning")


def unknown_decision(pod: LedgerPod, reasons: str, at_ms: int) -> Decision:
    """The record of the same."""
    message = f"Waits until it is known how many GPUs its claims ask for: {reasons}."
    return _waits(pod, WAITS_FOR_CLAIMS, message, f"waits for its claims: {reasons}", at_ms)


def short_decision(pod: LedgerPod, looked_at: str, at_ms: int) -> Decision:
    """The record of a pod for whose claims no node has the devices. ``looked_at``: where they were sought."""
    what = f"node has the devices that its claims ask for: {looked_at}"
    return _waits(pod, WAITS_FOR_DEVICES, f"No {what}.", f"no {what}", at_ms)


def obstacle_decision(pod: LedgerPod, obstacle: str, at_ms: int) -> Decision:
    """The record of a pod that was admitted, and whose claims keep it from every node for another reason."""
    waits = f"waits for its claim: {obstacle}"
    return _waits(pod, WAITS_FOR_CLAIMS, f"Admitted at {timestamp(pod.created_ms)}; {waits}.", waits, at_ms)


def _waits(pod: LedgerPod, reason: str, message: str, obstacle: str, at_ms: int) -> Decision:
    figures: dict[str, Figure] = {MESSAGE: message, "obstacle": obstacle}
    where = {"owner": pod.owner, "name": pod.name, "uid": pod.uid}
    return Decision(
        at_ms=at_ms, kind=WAITING, reason=reason, namespace=pod.namespace, figures=figures, **where
    )


_DELETIONS = {
    "seen": ("DeletedUnbound", "Deleted before it had a node."),
    "unseen": ("DeletedUnbound", "Deleted while no watch ran; it had no node when it was last seen."),
    "requested": (
        "DeletionRequested",
        "Its deletion was requested before it had a node; finalizers keep its object.",
    ),
}


def unbound_deletion(
    pod: LedgerPod | HeldPod, at_ms: int, how: Literal["seen", "unseen", "requested"]
) -> Decision:
    """That a pod without a node was deleted, or that its deletion was requested."""
    reason, text = _DELETIONS[how]
    figures: dict[str, Figure] = {MESSAGE: text, "createdMs": pod.created_ms}
    where = {"owner": pod.owner, "name": pod.name, "uid": pod.uid}
    return Decision(
        at_ms=at_ms, kind=DELETED, reason=reason, namespace=pod.namespace, figures=figures, **where
    )


def of_standings(
    changes: Mapping[str, tuple[BudgetState, Statement]], settings: BudgetSettings, at_ms: int
) -> Iterator[Decision]:
    """Of namespaces whose state changed; see `change_notices`."""
    for name, (before, statement) in sorted(changes.items()):
        text = change_text(name, before, statement, settings)
        if text is None:
            continue
        nearly = statement.nearly_spent(NEARLY_SPENT_MILLI) if text[0] == "BudgetNearlyUsed" else None
        account = nearly or statement.deciding
        balance = account.balance
        figures: dict[str, Figure] = {
            MESSAGE: text[1],
            "standing": statement.standing,
            "before": before.standing,
            "onExhausted": account.in_force.budget.on_exhausted,
            "account": account.in_force.key,
            "posted": balance.posted,
            "pending": balance.pending,
            "reserved": balance.reserved,
        }
        if balance.granted is not None:
            figures["granted"] = balance.granted
        yield Decision(
            at_ms=at_ms,
            kind=STANDING,
            reason=text[0],
            namespace=name,
            figures=figures,
            budget=account.in_force.key,
        )


def forecast_decision(name: str, statement: Statement, at_ms: int) -> Decision | None:
    """That at the present pace the namespace's budget is gone before its period ends; None if it is not. Its
    figures are the same throughout the period."""
    both = (each for each in (statement, statement.group) if each is not None)
    account = next((each for each in both if each.own_exhausted_ms == statement.exhausted_ms), statement)
    span, key = account.account.span, account.in_force.key
    if statement.exhausted_ms is None or span.end_ms >= FOREVER_MS:
        return None
    until = timestamp(span.end_ms)
    whose = payer(name, key if account is not statement else "")
    message = f"At the present pace the GPU budget of {whose} is gone before its period ends ({until})."
    figures: dict[str, Figure] = {
        MESSAGE: message,
        "periodStartMs": span.start_ms,
        "periodEndMs": span.end_ms,
    }
    return Decision(
        at_ms=at_ms, kind=STANDING, reason="ForecastExhaustion", namespace=name, figures=figures, budget=key
    )


def state_after(reason: str) -> BudgetState:
    """The state of which the last decision on a namespace's standing had this reason."""
    return BudgetState("OVER_BUDGET" if reason == "OverBudget" else "IN_BUDGET", reason != "BackInBudget")


def change_text(
    name: str, before: BudgetState, statement: Statement, settings: BudgetSettings
) -> NoticeText | None:
    """Reason, sentence and type of a change that is reported; None for others."""
    now = state_of(statement)
    if now.standing == "OVER_BUDGET" != before.standing:
        account, mode = statement.deciding, statement.in_force.budget.mode or settings.mode
        is_placed = places(statement.in_force.budget, settings)
        effect = _EFFECTS[effect_of(account.in_force.budget.on_exhausted, is_placed)]
        observed = f" The mode is {mode}, so this has no effect." if mode != "enforce" else ""
        return "OverBudget", f"{_used(name, account)} {effect}{observed}", "Warning"
    if before.standing == "OVER_BUDGET" != now.standing:
        return "BackInBudget", f"Namespace {name} is in its GPU budget again.", "Normal"
    nearly = statement.nearly_spent(NEARLY_SPENT_MILLI)
    if nearly and not before.is_nearly_spent and now.standing == "IN_BUDGET":
        return "BudgetNearlyUsed", _used(name, nearly), "Warning"
    return None


_EFFECTS = {
    "deprioritize": "Its new pods get lower priority; pods of namespaces in budget go first.",
    "reclaim": "Its waiting pods go last, and its running pods are evicted where a pod of a namespace in "
    "budget needs their GPUs.",
    "hold": "Its new pods are held until the budget can pay them, and its waiting ones are not placed once "
    "the grant is spent.",
    "evict": "Its running pods get a notice, and are evicted one by one once the budget is spent. Its new "
    "pods wait.",
    "deny": "Its new GPU pods are refused, and its waiting ones are not placed once the grant is spent.",
}


def _used(name: str, account: Statement) -> str:
    balance = account.balance
    granted, remaining = balance.granted or 0, balance.remaining or 0
    key = account.in_force.key
    whose = payer(name, key if is_group(key) else "")
    used, whole = apart(granted - remaining, granted, first=hours_text)
    return f"{whose[0].upper()}{whose[1:]} has used or reserved {used} of {whole} GPU-hours of its budget."


def hours_text(amount: int) -> str:
    """GPU-hours for people: two decimals, or two digits of a small amount."""
    hours = amount / GPU_HOUR
    return f"{hours:.2f}" if abs(hours) >= 0.1 or not amount else f"{Decimal(f'{hours:.2g}'):f}"
