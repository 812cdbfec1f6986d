"""Protected pods in answers: what ``protect`` of a budget entry selects and uses."""

from collections.abc import Mapping
from typing import Any, TypedDict

from timekeeper.accounts.usage import gpu_hours
from timekeeper.api.ledger.protected_reading import ProtectedReading
from timekeeper.core import texts
from timekeeper.core.budgets.protection import Protection


class ProtectedPaceAnswer(TypedDict):
    """Of the pods that `protect` selects. `rateMilli`: their rate now, in thousandths of a weighted GPU;
    `usedUpAt`: when a floor of hours is used up at it, null: not in this period, or it is, or the floor is of
    cards."""

    rateMilli: int
    usedUpAt: int | None


def shown(reading: ProtectedReading | None) -> dict[str, Any] | None:
    """`ProtectedAnswer`."""
    if reading is None:
        return None
    protection = reading.protection
    return {
        "labels": dict(protection.labels),
        "owners": list(protection.kinds),
        "cardsMilli": protection.cards_milli,
        "amount": protection.amount,
        "used": reading.used,
        "gpuHours": gpu_hours(reading.used),
        "rateMilli": reading.rate_milli,
        "left": reading.left,
        "pods": reading.pods,
    }


def pace(reading: ProtectedReading | None, now_ms: int) -> Mapping[str, int | None] | None:
    """`ProtectedPaceAnswer`; None if the entry protects none."""
    if reading is None:
        return None
    return {"rateMilli": reading.rate_milli, "usedUpAt": reading.used_up_ms(now_ms)}


def selector_text(protection: Protection) -> str:
    """What it selects, and its floor, for people."""
    labels = ", ".join(f"{name}={value}" for name, value in protection.labels)
    owners = f"pods of {' or '.join(protection.kinds)}" if protection.kinds else "pods"
    floor = texts.floor(protection.cards_milli, protection.amount)
    return f"{owners}{' with ' + labels if labels else ''}, up to {floor}"


def protected_sentence(namespace: str, reading: ProtectedReading) -> str:
    """What the namespace's budget protects, for `explain`."""
    used = f"{float(gpu_hours(reading.used)):.4g} GPU-hours"
    return (
        f"{namespace} protects {selector_text(reading.protection)}: once the budget is spent, they keep class"
        f" and cards; they have used {used} in this period"
    )
