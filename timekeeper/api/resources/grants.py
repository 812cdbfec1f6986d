"""``/v1/grants``: additional grants, corrections, and transfers within a group. Rows are only added."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from flask import Flask, Response

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, is_group
from timekeeper.accounts.grants import CORRECTION, MANUAL, MAX_GRANTED, TRANSFER, Grant, caller_key
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api.http.answers import GrantsAnswer, Subject, WrittenGrantsAnswer, answer
from timekeeper.api.http.parameters import (
    AFTER,
    IDEMPOTENCY_KEY,
    KEY,
    LIMIT,
    NAME,
    SUBJECT,
    SUBJECT_GIVEN,
    cursor,
    shaped,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Form, Right, admit, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.granting import PassingOn, grant_once, group_budget
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.names import DOMAIN
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import grants
from timekeeper.store.engine.engine import Connection
from timekeeper.store.grants import GrantFilter, GrantRow

GPU_MINUTE = 60_000_000  # milli-GPU x milliseconds

_MAX_MINUTES = 10**10
_MAX_HOURS = 10**9
_HOURS_ALLOWED = f"it must be a number of GPU-hours with at most 8 decimals, at most {_MAX_HOURS}"
_PASSING_ON_FIELDS = ("namespace", "gpuHours", "amount", "reason")
_GRANT_FIELDS = ("subject", "from", "gpuHours", "amount", "reason", "kind")


def read_increase(body: bytes) -> tuple[int, str]:
    """The body of ``POST /budget/<namespace>/increase``: an amount and its reason. Raises a Problem."""
    raw = _exact_object(body)
    reason = _reason(raw.get("reason", "requested over REST"))
    return _minutes(raw.get("minutes")), reason


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """A parsed ``POST /v1/grants``. ``giver``: the namespace that the amount is moved from; empty for an
    additional grant."""

    subject: str
    giver: str
    amount: int
    reason: str
    kind: str


def read_grant(body: bytes) -> GrantRequest:
    """The body of ``POST /v1/grants``. Raises a Problem that names the field."""
    raw = _exact_object(body)
    unknown = sorted(raw.keys() - set(_GRANT_FIELDS))
    if unknown:
        raise bad(unknown[0][:60], f"no such field; allowed: {', '.join(_GRANT_FIELDS)}")
    subject, giver = raw.get("subject"), raw.get("from", "")
    if not isinstance(subject, str) or not re.fullmatch(SUBJECT, subject, re.ASCII):
        raise bad("subject", "it must be the name of a namespace, or _group.NAME")
    if "from" in raw and not (isinstance(giver, str) and re.fullmatch(NAME, giver, re.ASCII)):
        raise bad("from", "it must be the name of a namespace")
    kind = raw.get("kind", TRANSFER if giver else MANUAL)
    if kind not in ((TRANSFER,) if giver else (MANUAL, CORRECTION)):
        raise bad("kind", "it must be manual or correction; or with from, transfer")
    if giver and (is_group(subject) or giver == subject):
        raise bad("subject", "it must differ from the namespace in from")
    return GrantRequest(subject, giver, _granted(raw, kind), _reason(raw.get("reason")), kind)


def read_passing_on(body: bytes) -> PassingOn:
    """The body of ``POST /v1/groups/{group}/grants``. Raises a Problem that names the field."""
    raw = _exact_object(body)
    unknown = sorted(raw.keys() - set(_PASSING_ON_FIELDS))
    if unknown:
        raise bad(unknown[0][:60], f"no such field; allowed: {', '.join(_PASSING_ON_FIELDS)}")
    namespace = raw.get("namespace")
    if not isinstance(namespace, str) or not re.fullmatch(NAME, namespace, re.ASCII):
        raise bad("namespace", "it must be the name of a namespace")
    # as in a correction, a negative amount takes
    return PassingOn(namespace, _granted(raw, CORRECTION), _reason(raw.get("reason")))


def _granted(raw: Mapping[str, Any], kind: str) -> int:
    """The amount: an integer of milli-GPU x milliseconds, or decimal GPU-hours."""
    if ("amount" in raw) == ("gpuHours" in raw):
        raise bad("gpuHours", "either gpuHours or amount is needed")
    where = "amount" if "amount" in raw else "gpuHours"
    exact = raw["amount"] if where == "amount" else _hours(raw["gpuHours"])
    if not isinstance(exact, int) or isinstance(exact, bool):
        raise bad(where, "it must be a whole number of milli-GPU x milliseconds")
    if kind != CORRECTION and exact <= 0:
        raise bad(where, "it must be above 0; only a correction may be negative")
    if exact == 0 or abs(exact) > _MAX_HOURS * GPU_HOUR:
        raise bad(where, f"it must not be 0, and at most {_MAX_HOURS} GPU-hours")
    return exact


def _hours(value: object) -> int:
    """Decimal GPU-hours as text or number, with at most 8 decimals, so each is a whole amount."""
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,10}(\.[0-9]{1,8})?", value, re.ASCII):
        raise bad("gpuHours", _HOURS_ALLOWED)
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise bad("gpuHours", _HOURS_ALLOWED)
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or not -8 <= exponent <= 10 or abs(exact) > _MAX_HOURS:
        raise bad("gpuHours", _HOURS_ALLOWED)
    return int(exact * GPU_HOUR)


def _reason(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 500 or not value.isprintable():
        raise bad("reason", "it must be a text of 1 to 500 characters, without line breaks")
    return value


def _exact_object(body: bytes) -> dict[str, Any]:
    """The body's fields. Numbers keep their decimal text: 0.1 is a tenth, not the nearest float."""
    try:
        raw = json.loads(body, parse_float=_exact, parse_constant=_no_constant, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise bad("", "the body is not JSON") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    return raw


def _exact(text: str) -> Decimal:
    """A number that is not an integer. If no Decimal can hold its exponent it becomes infinite, which every
    field rejects by its own name."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("Infinity")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise bad("", "a field appears twice in the body")
    return fields


def read_namespace(text: str) -> str:
    """A namespace's name from a path or parameter. Raises a Problem."""
    if not re.fullmatch(NAME, text, re.ASCII):
        raise bad("namespace", "not a valid namespace name")
    return text


def read_key(text: str | None) -> str:
    """The header ``Idempotency-Key``. Raises a Problem."""
    if text is None or not re.fullmatch(KEY, text, re.ASCII):
        raise bad(
            "Idempotency-Key", "this header is needed: 1 to 200 visible ASCII characters, new for each grant"
        )
    return text


def _minutes(value: object) -> int:
    exact = Decimal(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else Decimal(0)
    exponent = exact.as_tuple().exponent
    if not 0 < exact <= _MAX_MINUTES or not isinstance(exponent, int) or exponent < -6:
        raise bad(
            "minutes", f"it must be a number of GPU-minutes above 0, at most {_MAX_MINUTES}, with 6 decimals"
        )
    return int(exact * GPU_MINUTE)


def _no_constant(text: str) -> object:
    raise bad("", f"{text} is not JSON")


_PAGE = 1_000

Amount = Annotated[int, Form(**{"not": {"const": 0}})]
Hours = Annotated[
    str | float,
    Form(anyOf=[{"type": "string", "pattern": r"^-?[0-9]{1,10}(\.[0-9]{1,8})?$"}, {"type": "number"}]),
]

_From = TypedDict("_From", {"from": NotRequired[Annotated[str, Form(pattern=f"^(?:{NAME})$")]]})


class NewGrant(_From):
    """Either `gpuHours`, decimal with at most 8 places, or `amount`. Negative only in a correction. With
    `from` it is a transfer from that namespace to `subject` in the same group."""

    subject: Subject
    gpuHours: NotRequired[Hours]
    amount: NotRequired[Amount]
    reason: Annotated[str, Form(minLength=1, maxLength=500)]
    kind: NotRequired[Literal["manual", "correction", "transfer"]]


ONE_AMOUNT = Form(additionalProperties=False, oneOf=[{"required": ["gpuHours"]}, {"required": ["amount"]}])

GRANTS = ApiRoute(
    "GET",
    "/v1/grants",
    "all grants, oldest first",
    Right("get", "grants"),
    {JSON: GrantsAnswer},
    (SUBJECT_GIVEN, LIMIT, AFTER),
)
CREATE = Right("create", "grants")
GIVE = ApiRoute(
    "POST",
    "/v1/grants",
    "add a grant, correct one, or move what is left; once per Idempotency-Key",
    None,
    {JSON: WrittenGrantsAnswer},
    (IDEMPOTENCY_KEY,),
    body=Annotated[NewGrant, ONE_AMOUNT],
    refuses=(409, 413, 422),
    needs="`create grants` for the subject, or with `from` for the group that both are in,",
)
ROUTES = (GRANTS, GIVE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def list_all(call: Call) -> Response:
        limit = call.get("limit", _PAGE)
        after = shaped(call.get("after"), int)
        which = GrantFilter(call.get("subject", ""), after[0] if after else 0)
        with services.ledger.store.reading() as connection:
            found = grants.page(connection, which, limit + 1)
        follows = cursor(found[limit - 1].number) if len(found) > limit else None
        return answer(
            {"version": 1, "grants": [_shown(each) for each in found[:limit]], "next": follows}, follows
        )

    def give(call: Call) -> Response:
        asked = read_grant(read_body())
        caller, group = _admit(services, asked)
        given = _give(services, asked, group, caller, call.given["Idempotency-Key"])
        return written_answer(given)

    serve(app, services, GRANTS, list_all)
    serve(app, services, GIVE, give)


def _admit(services: Services, asked: GrantRequest) -> tuple[str, str]:
    """The caller's name, and the group within which it may transfer; empty for a grant. A transfer needs the
    right to grant to the common group; without a common group, to everything. The refusal does not reveal
    whether there is a common group."""
    if not asked.giver:
        return admit(services, CREATE, asked.subject).username, ""
    with services.ledger.store.reading() as connection:
        group = _group(services.ledger, connection, asked)
    try:
        return admit(services, CREATE, GROUP + group if group else "").username, group
    except Problem as problem:
        if problem.status != HTTPStatus.FORBIDDEN:
            raise
        detail = f"you may not create grants.{DOMAIN} for a group that both {asked.giver} and"
        raise Problem(403, f"{detail} {asked.subject} are in") from problem


def _group(ledger: LedgerReader, connection: Connection, asked: GrantRequest) -> str:
    """The present common group of giver and receiver; empty if there is none."""
    now_ms, history = ledger.moment(connection)
    group = history.group(asked.giver, now_ms)
    return group if group == history.group(asked.subject, now_ms) else ""


def _give(services: Services, asked: GrantRequest, group: str, actor: str, key: str) -> tuple[GrantRow, ...]:
    """Write the grant, or the two of a transfer within this group, once per caller's key."""

    def made(connection: Connection) -> tuple[Grant, ...]:
        giving = _Giving(services.ledger, connection, asked, group, actor, key)
        return giving.moved() if asked.giver else (giving.added(),)

    return grant_once(services.ledger, (actor, key), lambda known: _request_of(known) == asked, made)


def _request_of(known: tuple[GrantRow, ...]) -> GrantRequest:
    """The request that these rows were written for."""
    receiver = known[-1].grant
    giver = known[0].grant.subject if len(known) > 1 else ""
    return GrantRequest(receiver.subject, giver, receiver.amount, receiver.reason, receiver.kind)


@dataclass(frozen=True, slots=True)
class _Giving:
    """One grant or transfer inside its transaction, which also reads the balances that allow it."""

    ledger: LedgerReader
    connection: Connection
    asked: GrantRequest
    group: str
    actor: str
    key: str

    def added(self) -> Grant:
        """The amount added to the account or taken from it. Raises a Problem."""
        subject, amount = self.asked.subject, self.asked.amount
        account = self._account(subject, "subject")
        granted = account.balance.granted or 0
        if granted + amount < 0:
            raise Problem(409, f"only {gpu_hours(granted)} GPU-hours were granted to {subject}", "gpuHours")
        if amount < 0 and is_group(subject):
            self._check_not_passed_on(subject.removeprefix(GROUP))
        return self._grant(0, subject, account, amount)

    def _check_not_passed_on(self, group: str) -> None:
        budget = group_budget(self.ledger, self.connection, group)
        if -self.asked.amount > (budget.left or 0):
            passed_on, left = gpu_hours(budget.total), gpu_hours(budget.left or 0)
            detail = f"group {group} has passed on {passed_on} GPU-hours: only {left} can be taken"
            raise Problem(409, detail, "gpuHours")

    def moved(self) -> tuple[Grant, Grant]:
        """The amount that leaves one account, and the same for the other. Raises a Problem."""
        giver, subject, amount = self.asked.giver, self.asked.subject, self.asked.amount
        group = _group(self.ledger, self.connection, self.asked)
        if not group:
            raise Problem(409, f"{giver} and {subject} are not in the same group", "from")
        if group != self.group:  # the caller's right is for the group they were in before
            raise Problem(409, f"the group of {giver} and {subject} has just changed; retry", "from")
        taken, given = self._account(giver, "from"), self._account(subject, "subject")
        left = max(0, taken.balance.remaining or 0)
        if amount > left:
            raise Problem(409, f"{giver} has only {gpu_hours(left)} GPU-hours left", "gpuHours")
        return self._grant(0, giver, taken, -amount), self._grant(1, subject, given, amount)

    def _account(self, subject: str, field: str) -> Statement:
        """The subject's account. Raises a Problem if it is unlimited, or if the total would be too large."""
        account, _ = self.ledger.account(self.connection, subject)
        if account.balance.granted is None:
            raise Problem(409, f"{subject} has no budget: it is unlimited", field)
        if account.balance.granted + self.asked.amount > MAX_GRANTED:
            raise Problem(409, "the total granted would exceed what the ledger can hold", "gpuHours")
        return account

    def _grant(self, place: int, subject: str, account: Statement, amount: int) -> Grant:
        now_ms, _ = self.ledger.moment(self.connection)
        key = caller_key(place, self.actor, self.key)
        span, asked = account.account.span, self.asked
        return Grant(subject, span, amount, asked.kind, asked.reason, self.actor, key, now_ms)


def written_answer(given: tuple[GrantRow, ...]) -> Response:
    """The answer to a grant: a `WrittenGrantsAnswer`."""
    return answer({"version": 1, "grants": [_shown(each) for each in given]})


def _shown(written: GrantRow) -> dict[str, Any]:
    """A `GrantAnswer`. Times are Unix milliseconds, ``amount`` is milli-GPU x ms."""
    grant = written.grant
    return {
        "id": written.number,
        "subject": grant.subject,
        "from": grant.span.start_ms,
        "to": None if grant.span.end_ms >= FOREVER_MS else grant.span.end_ms,
        "amount": grant.amount,
        "gpuHours": gpu_hours(grant.amount),
        "kind": grant.kind,
        "reason": grant.reason,
        "actor": grant.actor,
        "created": grant.created_ms,
        "group": grant.group.removeprefix(GROUP) or None,
    }
