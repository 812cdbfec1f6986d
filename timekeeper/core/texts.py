"""Figures and times for people."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal
from typing import Any, Literal

GPU_HOUR = Decimal(3_600_000_000)

NOT_PLACED = (
    "placement is off here: a pod's own scheduler chooses its node and cards. Bursar knows neither the cards "
    "nor why a pod waits; kubectl describe pod has that scheduler's reason"
)


# said of members of a gang that the timekeeper has not paid yet, after their number
UNPAID = "wait for their budget or their turn"
NOTHING_RECORDED = "Nothing is recorded about "
CREATED = "; enforcement would have "  # after when a metered pod that holds nothing was created


def not_bound(mode: str, namespace: str) -> str:
    """What is said of a pod of a metered namespace that holds nothing."""
    return (
        f"in mode {mode} a pod is known from its Binding on, and why it waits is not:"
        f" kubectl describe pod -n {namespace} has its scheduler's reason; where there is no such pod, the"
        " name or the namespace is wrong"
    )


LEDGER_ALONE = (
    "a ledger alone has no scheduler and no webhook: it knows neither which cards are free, nor why a pod "
    "waits, nor what would happen to one"
)


WITHOUT_TIMEKEEPER = (
    "Pods run on, and new ones are admitted and placed; for 30 s by the last standings, then as "
    "unknownStanding says. Nothing is lost: this time is charged once the timekeeper is back. Until then no "
    "held pod is released, no budget evicts, and budgets, grants, reports and the dashboard have no answer."
)
WORK_WITHOUT_TIMEKEEPER = ("kubectl get gpubudgets", "kubectl bursar check", "kubectl bursar audit")


def only_printable(text: str) -> str:
    """With a blank for a line break, and "?" for each other character that is not printable: it could move a
    terminal's cursor, and PostgreSQL stores no NUL."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))


def gate_sentence(gates: Iterable[str]) -> str:
    """Which scheduling gate keeps a pod from every scheduler, and whose it is: that of another system before
    Bursar's; "" where it has none."""
    of_others_first = sorted(gates, key=lambda gate: (gate.startswith("bursar.dev/"), gate))
    if not of_others_first:
        return ""
    gate = of_others_first[0]
    domain = gate.partition("/")[0]
    whose = _GATES.get(gate) or _GATES.get(domain) or f"that of another system ({domain})"
    return f"its scheduling gate {gate} keeps it from every scheduler: it is {whose}"


KUEUES_GATE = "Kueue's, until its Workload is admitted"
_GATES = {
    "bursar.dev/budget": "Bursar's, until the budget pays for it",
    "bursar.dev/gang": "Bursar's, until there are cards for all of its gang",
    "kueue.x-k8s.io": KUEUES_GATE,
}


def not_in_group(namespace: str, group: str) -> str:
    """Why a group cannot pass anything on to a namespace."""
    return f"{namespace} is not in group {group}"


def no_fractions(nodes: int) -> str:
    """Why a pod waits that may use nodes of NVIDIA's plugin alone. ``nodes``: their number."""
    on = "1 node" if nodes == 1 else f"{nodes} nodes"
    return (
        f"no node that it may use gives out fractions: on {on} NVIDIA's plugin gives out whole cards;"
        " docs/nodes.md gives a node to fractions"
    )


def hours(amount: int | None) -> str:
    """An amount as GPU-hours with two decimals, or two digits of a small one; ``unlimited`` for None."""
    if amount is None:
        return "unlimited"
    return short(Decimal(amount) / GPU_HOUR)


def apart(*amounts: int, first: Callable[[int], str] | None = None) -> tuple[str, ...]:
    """Amounts of one sentence as GPU-hours, so that different ones have different figures: with four digits,
    or as ``first`` writes them, where that tells them apart, else with as many digits as it takes."""
    shown = tuple(map(first, amounts)) if first else ()
    for digits in range(4, 40):
        if shown and len(set(shown)) == len(set(amounts)):
            break
        shown = tuple(_with_digits(Decimal(amount) / GPU_HOUR, digits) for amount in amounts)
    return shown


def _with_digits(exact: Decimal, digits: int) -> str:
    """The number with these digits, and whole ones in full, without zeros at the end."""
    places = max(0, digits - 1 - exact.adjusted()) if exact else 0
    return f"{round(exact, places).normalize():f}"


def few_digits(amount: int) -> str:
    """An amount as GPU-hours in a sentence: as `hours`, without zeros at the end."""
    return f"{Decimal(hours(amount)).normalize():f}"


def cell(amount: int | None, is_used: bool = False) -> str:
    """An amount in a column, as GPU-hours with two decimals, ``<0.01`` for less than that; what is used is
    rounded down, so that it is never shown as all. Sentences have `hours`."""
    if amount is None:
        return "unlimited"
    exact = Decimal(amount) / GPU_HOUR
    if 0 < abs(exact) < Decimal("0.01"):
        return "<0.01" if amount > 0 else "-<0.01"
    return str(exact.quantize(Decimal("0.01"), ROUND_DOWN if is_used else ROUND_HALF_EVEN))


def short(exact: Decimal) -> str:
    """A number with two decimals, or two digits of a small one."""
    return f"{exact:.2f}" if abs(exact) >= Decimal("0.1") or not exact else f"{Decimal(f'{exact:.2g}'):f}"


def cost(exact: str | None) -> str:
    """A decimal cost, as `short` has it; "" without a price."""
    return short(Decimal(exact)) if exact else ""


def money(exact: Decimal) -> str:
    """A cost in a column, with commas between thousands and two decimals, ``<0.01`` for less than that."""
    if 0 < abs(exact) < Decimal("0.01"):
        return "<0.01" if exact > 0 else "-<0.01"
    return f"{exact:,.2f}"


def percent(part: int, whole: int | None) -> str:
    """A part of a whole as whole per cent; "" without a whole."""
    return f"{100 * part // whole}%" if whole else ""


def share(part: int, whole: int | None) -> str:
    """A part of a whole as whole per cent, rounded; "" without a whole. What is used is rounded down, by
    `percent`."""
    return f"{(200 * part + whole) // (2 * whole)}%" if whole else ""


def per_mille(milli: int) -> str:
    """Thousandths as per cent, without zeros at the end, `5 %`."""
    return f"{Decimal(milli) / 10:f}".removesuffix(".0") + " %"


def gpus(milli: int) -> str:
    """Milli-GPU as GPUs, without zeros at the end."""
    return f"{Decimal(milli) / 1000:f}"


def floor(cards_milli: int | None, amount: int | None) -> str:
    """The floor of ``protect``; of the two one is None."""
    return (
        f"{hours(amount)} GPU-hours a period"
        if cards_milli is None
        else f"{gpus(cards_milli)} cards at one time"
    )


def is_unknown(budget: Mapping[str, Any]) -> bool:
    """Whether the API's answer is about a namespace that has no entry and no budget and uses nothing, as one
    that does not exist."""
    has_budget = budget["granted"] is not None or budget.get("group")
    has_entry = budget.get("entry") == budget["namespace"]
    return not (has_budget or has_entry or budget["posted"] or budget["pending"])


def caps(total_milli: int | None, pod_milli: int | None) -> str:
    """What ``maxGPUs`` and ``maxGPUsPerPod`` allow; "" where neither is set."""
    if 0 in (total_milli, pod_milli):
        field = "maxGPUs" if total_milli == 0 else "maxGPUsPerPod"
        return f"takes no new GPU pods, for {field} is 0; running ones go on"
    parts = [] if total_milli is None else [f"at most {gpus(total_milli)} GPUs at a time"]
    parts += [] if pod_milli is None else [f"at most {gpus(pod_milli)} a pod"]
    return f"may hold {', and '.join(parts)}" if parts else ""


def received(granted: int, passed_on: int, each_period: int) -> str:
    """How what a group passed on adds to a namespace's own budget."""
    whole, own, passed, later = apart(granted, granted - passed_on, passed_on, each_period, first=hours)
    anew = f"; the split of its group passes {later} on at the start of each period" if each_period else ""
    return (
        f"{whole} GPU-hours of this period: {own} by its own budget and grants, and {passed} that its group"
        f" passed on beside them{anew}; what it uses counts in its group's budget too"
    )


def request_notes(request: Mapping[str, str] | None) -> tuple[str, ...]:
    """The people to ask for more, and the text, of the API's answer."""
    if request is None:
        return ()
    return f"For more, send this to {request['to']}; Bursar sends nothing:", request["text"]


_UTC_TIME = re.compile(
    r"\b([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.[0-9]+)?(?:Z| UTC)(?!\w)"
)


def moment(time_ms: int | None, zone: tzinfo = UTC, to: Literal["minutes", "seconds"] = "minutes") -> str:
    """A time of a zone with its difference from UTC, by ISO 8601, such as 2026-11-01 00:00+01:00, or with Z;
    "" for None."""
    return "" if time_ms is None else _written(_at(time_ms, zone), to)


def exact_moment(time_ms: int, zone: tzinfo = UTC) -> str:
    """The same in a file, by RFC 3339, in whole seconds where it is one."""
    at = _at(time_ms, zone).replace(microsecond=time_ms % 1000 * 1000)
    return at.isoformat("T", "milliseconds" if at.microsecond else "seconds").replace("+00:00", "Z")


def _at(time_ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(time_ms // 1000, zone)


def _written(at: datetime, to: str) -> str:
    return at.isoformat(" ", to).replace("+00:00", "Z")


def in_zone(text: str, zone: tzinfo) -> str:
    """The text with its times in UTC as `moment` has them in this zone. What looks like a time and is none
    stays."""

    def local(found: re.Match[str]) -> str:
        try:
            at = datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00").astimezone(zone)
        except (ValueError, OverflowError):
            return found[0]
        return _written(at, "seconds" if found[2].count(":") > 1 else "minutes")

    return _UTC_TIME.sub(local, text)


def age(milliseconds: int) -> str:
    """A duration in its two largest units, such as 3h12m."""
    seconds = max(0, milliseconds // 1000)
    days, rest = divmod(seconds, 86_400)
    of_day, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d{of_day}h"
    if of_day:
        return f"{of_day}h{minutes}m"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
