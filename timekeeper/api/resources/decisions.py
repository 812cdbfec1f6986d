"""``/v1/decisions``: what was decided about pods and budgets; webhook and extender report theirs."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from flask import Flask, Response, request

from timekeeper import metrics
from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.decisions.sentences import sentence, without_other
from timekeeper.api.http.answers import Next, Version, answer
from timekeeper.api.http.parameters import (
    AFTER,
    FROM,
    KIND,
    LIMIT,
    OWNER,
    POD,
    REASON,
    SUBJECT,
    SUBJECT_AS_NAMESPACE,
    TO,
    UID,
    cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.posts import OLDEST_MS, is_natural, read_object
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, may, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.core.decisions import (
    MAX_COUNT,
    MAX_FIGURES,
    MAX_INTEGER,
    MAX_NAME,
    MAX_TEXT,
    OTHER_NAMESPACE,
    Decision,
    DecisionRun,
    Figure,
)
from timekeeper.core.wire import Decisions
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import decisions
from timekeeper.store.decisions import DecisionFilter, DecisionRow, page

MAX_DECISIONS = 1_000

_TEXTS = {
    "kind": (r"[a-z][a-z-]{0,31}", "it must be 1 to 32 lower-case letters or -"),
    "reason": (r"[A-Za-z][A-Za-z0-9]{0,63}", "it must be a word of 1 to 64 letters or digits"),
    "namespace": (SUBJECT, "it must be the name of a namespace, or _group.NAME"),
}
_NAMES = ("owner", "name", "generate_name", "uid", "budget")
_SOURCE = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII)
_FIGURE = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PostedDecisions:
    """The role that decided, and what."""

    source: str
    runs: tuple[DecisionRun, ...]


def read_decisions(body: bytes, received_ms: int) -> PostedDecisions:
    """Parse the body, received at that time. Raises a Problem that names the field."""
    raw = read_object(body, ("version", "source", "decisions"))
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    source, listed = raw.get("source"), raw.get("decisions")
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise bad("source", "it must be 1 to 32 lower-case letters or -")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_DECISIONS:
        raise bad("decisions", f"it must be a list of 1 to {MAX_DECISIONS} objects")
    return PostedDecisions(
        source, tuple(_run(each, f"decisions[{at}]", received_ms) for at, each in enumerate(listed))
    )


def _run(raw: object, where: str, received_ms: int) -> DecisionRun:
    if not isinstance(raw, dict):
        raise bad(where, "it must be an object")
    kind, reason, namespace = (_matching(raw, name, where) for name in _TEXTS)
    owner, name, generate_name, uid, budget = (_name(raw, name, where) for name in _NAMES)
    first_age_ms, last_age_ms = (
        _natural(raw, f"{each}_age_ms", where, OLDEST_MS) for each in ("first", "last")
    )
    if last_age_ms > first_age_ms:
        raise bad(f"{where}.last_age_ms", "it must not be more than first_age_ms")
    count = _natural(raw, "count", where, MAX_COUNT)
    if not count:
        raise bad(f"{where}.count", "it must be 1 or more")
    decision = Decision(
        received_ms - first_age_ms,
        kind,
        reason,
        namespace,
        _figures(raw.get("figures"), f"{where}.figures"),
        owner,
        name,
        generate_name,
        uid,
        budget,
    )
    return DecisionRun(decision, count, received_ms - last_age_ms)


def _matching(raw: dict[str, Any], name: str, where: str) -> str:
    pattern, problem = _TEXTS[name]
    return _text(
        raw.get(name), f"{where}.{name}", problem, lambda text: re.fullmatch(pattern, text, re.ASCII)
    )


def _name(raw: dict[str, Any], name: str, where: str) -> str:
    problem = f"it must be a printable text of at most {MAX_NAME} characters"
    return _text(raw.get(name, ""), f"{where}.{name}", problem, lambda text: _is_short(text, MAX_NAME))


def _text(value: object, where: str, problem: str, fits: Callable[[str], object]) -> str:
    if not isinstance(value, str) or not fits(value):
        raise bad(where, problem)
    return value


def _natural(raw: dict[str, Any], name: str, where: str, most: int) -> int:
    value = raw.get(name)
    if not is_natural(value, most):
        raise bad(f"{where}.{name}", f"it must be a whole number from 0 to {most}")
    return value


def _figures(raw: object, where: str) -> dict[str, Figure]:
    if not isinstance(raw, dict) or len(raw) > MAX_FIGURES:
        raise bad(where, f"it must be an object with at most {MAX_FIGURES} members")
    for name, value in raw.items():
        if not _FIGURE.fullmatch(name):
            raise bad(
                where, "the name of a figure must be 1 to 32 letters or digits, and begin with a letter"
            )
        if isinstance(value, bool) or not (
            _is_short(value, MAX_TEXT) if isinstance(value, str) else _is_integer(value)
        ):
            what = f"a whole number of 64 bits, or a printable text of at most {MAX_TEXT} characters"
            raise bad(f"{where}.{name}", f"it must be {what}")
    return raw


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and -MAX_INTEGER <= value <= MAX_INTEGER


def _is_short(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable()


PATH = "/v1/decisions"
READ = Right("get", "decisions")
_PAGE = 1_000


class RecordedDecisions(TypedDict):
    """The decisions are stored."""

    version: Version


class DecisionAnswer(TypedDict):
    """Equal decisions in succession. `pod`: empty where the pod had no name yet, or where the decision is
    about the namespace; `generateName`: of a pod without a name; `budget`: key of the budget entry in force,
    of the group where its account decided, and from when (milliseconds since 1970); `first`, `last`: when the
    first and the last of `count` decisions were taken; `sentence`: for people."""

    id: int
    source: str
    kind: str
    reason: str
    namespace: str
    owner: str
    pod: str
    generateName: str
    uid: str
    budget: str
    figures: dict[str, int | str]
    count: int
    first: int
    last: int
    sentence: str


class DecisionsAnswer(TypedDict):
    """Decisions, the newest first."""

    version: Version
    decisions: list[DecisionAnswer]
    next: Next


REPORT = ApiRoute(
    "POST",
    PATH,
    "webhook and extender report what they decided, and why",
    None,
    {JSON: RecordedDecisions},
    body=Decisions,
    refuses=(413,),
    needs="`create decisions` in all namespaces",
)
LIST = ApiRoute(
    "GET",
    PATH,
    "what was decided about pods and budgets, and why; the newest first",
    READ,
    {JSON: DecisionsAnswer},
    (SUBJECT_AS_NAMESPACE, POD, OWNER, UID, KIND, REASON, FROM, TO, LIMIT, AFTER),
)
ROUTES = (LIST, REPORT)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def list_all(call: Call) -> Response:
        limit, after = call.get("limit", _PAGE), shaped(call.get("after"), int)
        zone = services.ledger.calendar()[0]
        which = DecisionFilter(
            namespace=call.get("namespace", ""),
            subject=call.get("pod", ""),
            owners=(call.get("owner"),) if call.get("owner") else (),
            uid=call.get("uid", ""),
            kind=call.get("kind", ""),
            reason=call.get("reason", ""),
            from_ms=start_ms(call.get("from"), zone),
            to_ms=start_ms(call.get("to"), zone),
            before=after[0] if after else 0,
        )
        with services.ledger.store.reading() as connection:
            history = services.ledger.history(connection)
            found = page(connection, which, limit + 1)
        follows = cursor(found[limit - 1].number) if len(found) > limit else None
        visible = visible_to(services, which.namespace)
        listed = [shown(each, history, visible) for each in found[:limit]]
        return answer({"version": 1, "decisions": listed, "next": follows}, follows)

    serve(app, services, LIST, list_all)

    @app.post(PATH)
    def record_decisions() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "decisions")
        posted = read_decisions(read_body(), received_ms)
        with services.ledger.store.writing() as connection:
            decisions.record(connection, posted.source, posted.runs)
        metrics.DECISIONS.labels(posted.source).inc(sum(each.count for each in posted.runs))
        return answer({"version": 1})


def visible_to(services: Services, namespace: str) -> Callable[[Decision], Decision]:
    """The decision as the caller may see it, who may read those of ``namespace`` ("": of all). Pods of other
    namespaces keep their names only if the caller may read decisions there."""
    known: dict[str, bool] = {namespace: True}

    def may_read(other: str) -> bool:
        if other not in known:
            known[other] = may(services, READ, other)
        return known[other]

    def visible(decision: Decision) -> Decision:
        other = decision.figures.get(OTHER_NAMESPACE)
        if other is None or not namespace or may_read(str(other)):
            return decision
        return replace(decision, figures=without_other(decision.figures))

    return visible


def _account(decision: Decision) -> str:
    """The group, where its account decided, else the namespace."""
    key = decision.budget.partition("@")[0]
    return key if is_group(key) else decision.namespace


def shown(row: DecisionRow, history: History, visible: Callable[[Decision], Decision]) -> dict[str, Any]:
    """The record as it is answered."""
    decision = visible(row.run.decision)
    return {
        "id": row.number,
        "source": row.source,
        "kind": decision.kind,
        "reason": decision.reason,
        "namespace": decision.namespace,
        "owner": decision.owner,
        "pod": decision.name,
        "generateName": decision.generate_name,
        "uid": decision.uid,
        "budget": history.version(_account(decision), row.run.last_ms) or decision.budget,
        "figures": dict(decision.figures),
        "count": row.run.count,
        "first": decision.at_ms,
        "last": row.run.last_ms,
        "sentence": sentence(decision),
    }
