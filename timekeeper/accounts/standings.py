"""The document that webhooks and extender poll, made from statements."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from timekeeper.accounts.balance import Statement
from timekeeper.core.ledger import Balance
from timekeeper.core.policy import Settings
from timekeeper.core.wire import PriorityClassWire, StandingEntry, Standings, StandingSettings

# A reader tells our time by ``generated``: a document that stays for long is made anew this often.
_RENEWED_EACH_MS = 300_000
_GRAIN = 1000  # `remaining` is told anew when it has moved by this part of the grant


@dataclass(frozen=True, slots=True)
class Published:
    """A standings document as it is served: its bytes, and the revision that is its strong ETag.

    ``gist`` is what a reader would act on differently; while it is the same, the document stays as it is.
    """

    revision: str
    body: bytes
    gist: str


def publish(
    settings: Settings,
    classes: Mapping[str, tuple[int, str]],
    default: Statement,
    namespaces: Mapping[str, Statement],
    now_ms: int,
    last: Published | None,
) -> Published:
    """The document now; the last one, byte for byte, where nobody would act differently on a new one."""
    document: Standings = {
        "version": 1,
        "revision": "",
        "generated": now_ms,
        "settings": _settings(settings, classes),
        "default": _entry(default, settings),
        "namespaces": {name: _entry(each, settings) for name, each in sorted(namespaces.items())},
    }
    balances = {"": default.balance, **{name: each.balance for name, each in namespaces.items()}}
    gist = _gist(document, balances)
    if last is not None and last.gist == gist:
        return last
    document["revision"] = hashlib.sha256(_bytes(document)).hexdigest()[:32]
    return Published(document["revision"], _bytes(document), gist)


def _settings(settings: Settings, classes: Mapping[str, tuple[int, str]]) -> StandingSettings:
    return {
        "mode": _mode(settings.mode),
        "rules": dict(settings.rules),
        "exempt": list(settings.exempt),
        "schedulerName": settings.scheduler_name,
        "sidecar": settings.sidecar != "off",
        "sidecarNative": settings.sidecar != "container",
        "priorityClasses": {
            "inBudget": _class(settings.in_budget_class, classes),
            "overBudget": _class(settings.over_budget_class, classes),
        },
        "unknownStanding": "overBudget" if settings.unknown_standing == "overBudget" else "inBudget",
        "maxGracePeriodMs": settings.max_grace_period_ms,
        "lookaheadMs": settings.lookahead_ms,
        "policy": "binpack",
    }


def _mode(mode: str) -> Literal["enforce", "observe"]:
    return "observe" if mode == "observe" else "enforce"


def _class(name: str, classes: Mapping[str, tuple[int, str]]) -> PriorityClassWire:
    value, preemption_policy = classes.get(name, (None, None))
    return {"name": name, "value": value, "preemptionPolicy": preemption_policy}


def _entry(statement: Statement, settings: Settings) -> StandingEntry:
    budget, balance = statement.in_force.budget, statement.balance
    over = balance.standing == "OVER_BUDGET"
    return {
        "standing": "OVER_BUDGET" if over else "UNLIMITED" if balance.granted is None else "IN_BUDGET",
        "onExhausted": budget.on_exhausted,
        "priorityClass": settings.over_budget_class if over else settings.in_budget_class,
        "ratio": balance.ratio_milli,
        "warnAt": budget.warn_at_milli,
        "remaining": balance.remaining,
        "validUntil": statement.valid_until_ms,
        "mode": _mode(budget.mode or settings.mode),
        "rules": dict(budget.rules),
        "exempt": list(budget.exempt),
        "policy": budget.policy,
    }


def _gist(document: Standings, balances: Mapping[str, Balance]) -> str:
    """Everything, but the moment and the exact remainders only by their grains."""
    entries = {"": document["default"], **document["namespaces"]}
    told = {name: {**entry, "remaining": _grains(balances[name])} for name, entry in entries.items()}
    era = document["generated"] // _RENEWED_EACH_MS
    return hashlib.sha256(_bytes([document["settings"], told, era])).hexdigest()


def _grains(balance: Balance) -> int | None:
    if balance.granted is None or balance.remaining is None:
        return None
    return balance.remaining * _GRAIN // max(1, balance.granted)


def _bytes(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
