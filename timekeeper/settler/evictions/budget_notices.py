"""The texts on pods of an exhausted namespace that must leave: Events, and the reasons of conditions."""

from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.settler.pod_notices import hours_text

NOTICE = "EvictionNotice"
EVICTED = "BudgetEviction"
PROTECTED = "BudgetEvictionRefused"
TARGET = "BursarBudgetExhausted"
SPARED = "BursarBudgetRestored"


def notice(terms: EvictionTerms, evict_after: str) -> str:
    """``evict_after``: the time in the annotation."""
    return (
        f"The GPU budget of {terms.subject} is exhausted (onExhausted: evict). Once it is spent, this pod is "
        f"evicted, not before {evict_after}. It stays if the budget is raised, granted or renewed by then."
    )


def exhausted(terms: EvictionTerms) -> str:
    """Why the pod must leave, with the figures."""
    spent, granted = hours_text(terms.spent), hours_text(terms.granted)
    return f"{terms.subject} has spent {spent} of {granted} GPU-hours of its budget (onExhausted: evict)."


def evicted(terms: EvictionTerms, is_deleted: bool) -> str:
    """That the pod was evicted, or deleted against its PodDisruptionBudget, and why."""
    how = (
        "Deleted by Bursar, because its PodDisruptionBudget was respected for pdbGrace" if is_deleted else ""
    )
    return f"{how or 'Evicted by Bursar'}: {exhausted(terms)}"


def protected(terms: EvictionTerms, delete_after: str) -> str:
    """``delete_after``: the time in the annotation."""
    return (
        f"A PodDisruptionBudget prevents the eviction of this pod; it is deleted after {delete_after}: "
        f"{exhausted(terms)}"
    )


def spared(namespace: str) -> str:
    """Why the pod's notice was withdrawn."""
    return f"Namespace {namespace} is in its GPU budget again."
