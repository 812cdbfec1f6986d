"""Which of Kueue's LocalQueues the budget of their namespace holds (`kueue: hold`). Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, History, is_group
from timekeeper.core.budgets.policy import STOPS
from timekeeper.core.decisions import QUEUE
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.object_names import millis
from timekeeper.core.texts import apart, moment

MANAGER = "bursar-timekeeper-queues"  # the field manager of holds
LEAST_MS = 300_000  # a hold lasts so long where no grant, entry or period ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueue:
    """``policy``: its stopPolicy; ``held_ms``: since when our field manager owns that, None: it does not;
    ``owners``: the others who do."""

    namespace: str
    name: str
    uid: str
    version: str
    policy: str
    held_ms: int | None
    owners: tuple[str, ...]

    def named(self, version: str) -> dict[str, Any]:
        """The object as far as it is named, in this version of the API."""
        metadata = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        return {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": QUEUE, "metadata": metadata}


def read_queue(raw: Json) -> LocalQueue:
    """A LocalQueue as the API server has it. Managed fields have whole seconds."""
    metadata, held_ms, owners = mapping(raw.get("metadata")), None, list[str]()
    for entry in map(mapping, sequence(metadata.get("managedFields"))):
        if "f:stopPolicy" not in mapping(mapping(entry.get("fieldsV1")).get("f:spec")):
            continue
        if entry.get("manager") == MANAGER:
            held_ms = millis(entry.get("time")) or 0
        else:
            owners.append(str(entry.get("manager")))
    names = {field: str(metadata.get(field, "")) for field in ("namespace", "name", "uid")}
    version = str(metadata.get("resourceVersion", ""))
    policy = str(mapping(raw.get("spec")).get("stopPolicy") or "None")
    return LocalQueue(**names, version=version, policy=policy, held_ms=held_ms, owners=tuple(owners))


@dataclass(frozen=True, slots=True)
class SinceHold:
    """Of an account. ``rate_milli``: at which it was charged when the queue was held; ``granted``: since
    then; ``is_other``: its entry, its group's or the lookahead says something else of it than then."""

    rate_milli: int
    granted: int
    is_other: bool


def holding(
    statement: Statement,
    held_ms: int | None,
    since: Callable[[Statement], SinceHold],
    lookahead_ms: int,
    now_ms: int,
) -> Statement | None:
    """The account, the namespace's own or its group's, that holds its queues; None: none does. ``held_ms``:
    since when they are held."""
    deciding = statement.deciding
    if statement.standing == "OVER_BUDGET" and deciding.in_force.budget.on_exhausted in STOPS:
        return deciding
    for account in () if held_ms is None else (statement, statement.group):
        left = None if account is None else account.balance.remaining
        if account is None or left is None or account.in_force.budget.on_exhausted not in STOPS:
            continue
        facts = since(account)
        if facts.is_other or facts.granted >= max(1, left):  # without that it would be over budget
            continue
        needed = min(account.balance.granted or 0, facts.rate_milli * lookahead_ms)
        if now_ms - (held_ms or 0) < LEAST_MS or left < needed:
            return account
    return None


def terms(history: History, namespace: str, at_ms: int) -> tuple[object, ...]:
    """What decides which account counts and how long a pod reserves: a change may end a hold."""
    own = history.budget(namespace, at_ms).budget
    group = history.budget(GROUP + own.group, at_ms).budget if own.group else None
    return own.group, own.period, group and group.period, history.settings(at_ms).lookahead_ms


def queue_words(namespace: str, account: Statement | None, zone: tzinfo, what: str) -> str:
    """What is said of a queue of the namespace: by whose budget it ``what``; None: by none."""
    if account is None:
        return "is let go"
    left, granted = apart(max(0, account.balance.remaining or 0), account.balance.granted or 0)
    until = ""
    if account.ends_ms < FOREVER_MS:
        ends = datetime.fromtimestamp(account.ends_ms / 1000, zone)
        until = f"{ends.day} {ends:%B}" if f"{ends:%H%M}" == "0000" else moment(account.ends_ms, zone)
        until = f" until {until}"
    key = account.in_force.key
    whose = f"group {key.removeprefix(GROUP)}" if is_group(key) else namespace
    return f"{what} by the budget of {whose}: {left} of {granted} GPU-hours left{until}"
