"""``/v1/grants``: additional grants, corrections, and transfers within a group. Rows are only added."""

import re
import sys
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from flask import Flask, Response
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import DAY_MS, GROUP, is_group
from timekeeper.accounts.grants import CORRECTION, MANUAL, MAX_GRANTED, TRANSFER, Grant, GrantKind, caller_key
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api import sheets
from timekeeper.api.http.answers import AmountAnswer, Bounds, Paged, Versioned, amount_of, answer, bounds
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import (
    AFTER,
    IDEMPOTENCY_KEY,
    LIMIT,
    SUBJECT_GIVEN,
    cursor,
    shaped,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, admit, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.granting import grant_once, group_budget
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.core.budgets.sentences import beyond_its_group
from timekeeper.core.names import DOMAIN
from timekeeper.core.object_names import NAMESPACE
from timekeeper.core.texts import moment
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import grants
from timekeeper.store.engine.engine import Connection
from timekeeper.store.grants import GrantFilter, GrantRow
from timekeeper.wire.forms import NotAllowedError, allowed, check_printable, like, text
from timekeeper.wire.values import Subject

_MAX_HOURS = 10**9
_HOURS_ALLOWED = (
    "it must be a number of GPU-hours other than 0, with at most 8 decimals or as an answer has it, at most"
    f" {_MAX_HOURS}"
)

_HOURS = r"^-?[0-9]{1,10}(\.[0-9]{1,12})?$"
_KIND_ALLOWED = "it must be manual or correction; or with from, transfer"

Namespace = Annotated[str, like(NAMESPACE, "it must be the name of a namespace")]
Reason = Annotated[str, text(500, 1, "it must be a text of 1 to 500 characters, without line breaks")]
Amount = Annotated[
    int, allowed("it must be a whole number of milli-GPU x milliseconds", {"not": {"const": 0}})
]
# as they are written: 0.1 is a tenth, not the nearest float
Hours = Annotated[
    Raw, allowed(_HOURS_ALLOWED, {"anyOf": [{"type": "string", "pattern": _HOURS}, {"type": "number"}]})
]


class GivenAmount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `gpuHours`, decimal with at most 8 places or a figure of an answer, or `amount`."""

    gpuHours: Hours | UnsetType = UNSET
    amount: Amount | UnsetType = UNSET
    reason: Reason

    def __post_init__(self) -> None:
        check_printable(self, "reason")
        if self.gpuHours is not UNSET and not exact_hours(self.gpuHours):
            raise NotAllowedError("gpuHours")
        if (self.amount is UNSET) == (self.gpuHours is UNSET):
            raise NotAllowedError("gpuHours", "either gpuHours or amount is needed")


ONE_AMOUNT: dict[str, Any] = {"oneOf": [{"required": ["gpuHours"]}, {"required": ["amount"]}]}


class NewGrant(GivenAmount, frozen=True, kw_only=True):
    """Either `gpuHours`, as of other amounts, or `amount`. Negative only in a correction. With
    `from` it is a transfer from that namespace to `subject` in the same group."""

    subject: Subject
    giver: Namespace | UnsetType = field(name="from", default=UNSET)
    kind: Annotated[Literal["manual", "correction", "transfer"], allowed(_KIND_ALLOWED)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        GivenAmount.__post_init__(self)
        if self.kind is not UNSET and (self.kind == TRANSFER) != bool(self.giver):
            raise NotAllowedError("kind")
        if self.giver and (is_group(self.subject) or self.giver == self.subject):
            raise NotAllowedError("subject", "it must differ from the namespace in from")


BODY = Body(NewGrant, ONE_AMOUNT)


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """A parsed ``POST /v1/grants``. ``giver``: the namespace that the amount is moved from; empty for an
    additional grant."""

    subject: str
    giver: str
    amount: int
    reason: str
    kind: GrantKind


def read_grant(body: bytes) -> GrantRequest:
    """The body of ``POST /v1/grants``. Raises a Problem that names the field."""
    new = BODY.read(body)
    kind = new.kind or (TRANSFER if new.giver else MANUAL)
    return GrantRequest(new.subject, new.giver or "", granted(new, kind), new.reason, kind)


def granted(new: GivenAmount, kind: str) -> int:
    """The amount: an integer of milli-GPU x milliseconds, or decimal GPU-hours."""
    where = "gpuHours" if new.amount is UNSET else "amount"
    exact_amount = new.amount or (exact_hours(new.gpuHours) if new.gpuHours else None) or 0
    if kind != CORRECTION and exact_amount <= 0:
        raise bad(where, "it must be above 0; only a correction may be negative")
    if exact_amount == 0 or abs(exact_amount) > _MAX_HOURS * GPU_HOUR:
        raise bad(where, f"it must not be 0, and at most {_MAX_HOURS} GPU-hours")
    return exact_amount


def exact_hours(raw: Raw) -> int | None:
    """Decimal GPU-hours as text or number: a whole amount, as with at most 8 decimals, or the figure of 12
    that `gpu_hours` has of one. None for others."""
    value = bytes(raw).decode()
    if value.startswith('"'):
        value = msgspec.json.decode(raw)
        if not re.fullmatch(_HOURS, value, re.ASCII):
            return None
    hours, exponent = exact_number(value)
    if not -12 <= exponent <= 10 or abs(hours) > _MAX_HOURS:
        return None
    amount = int((hours * GPU_HOUR).to_integral_value())
    return amount if amount == hours * GPU_HOUR or Decimal(gpu_hours(amount)) == hours else None


def exact_number(value: str) -> tuple[Decimal, int]:
    """The number that a JSON value is, in all of its digits, and its exponent: one that nothing allows where
    it is no number, or where no Decimal can hold it."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        return Decimal(0), -sys.maxsize
    exponent = number.as_tuple().exponent
    return (number, exponent) if isinstance(exponent, int) else (Decimal(0), -sys.maxsize)


_PAGE = 1_000


class GrantAnswer(Bounds, AmountAnswer):
    """An amount granted to the account of this period; never changed. `to`: null if it never ends."""

    id: int
    subject: Subject
    kind: GrantKind
    reason: str
    actor: str
    created: int
    group: Annotated[str | None, Meta(description="the group that passed the amount on; null: none")]


class GrantsAnswer(Paged):
    """Grants in order of creation."""

    grants: list[GrantAnswer]


class WrittenGrantsAnswer(Versioned):
    """The grants under the idempotency key: one, or the two of a transfer. `warnings`: where a namespace has
    more of its own now than its group has left, or its period ends within a day."""

    grants: list[GrantAnswer]
    warnings: list[str]


GRANTS = ApiRoute(
    path="/v1/grants",
    about="all grants, oldest first",
    right=Right("get", "grants"),
    answers={JSON: GrantsAnswer},
    parameters=(SUBJECT_GIVEN, LIMIT, AFTER),
    sheet=sheets.GRANTS,
)
CREATE = Right("create", "grants")
GIVE = ApiRoute(
    method="POST",
    path="/v1/grants",
    about="add a grant, correct one, or move what is left; once per Idempotency-Key",
    right=None,
    answers={JSON: WrittenGrantsAnswer},
    parameters=(IDEMPOTENCY_KEY,),
    body=BODY,
    refuses=(409, 422),
    needs="`create grants` for the subject, or with `from` for the group that both are in,",
    sheet=sheets.GRANTS,
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
        rows = list(map(_shown, found[:limit]))
        return answer(GrantsAnswer(version=1, grants=rows, next=follows), follows)

    def give(call: Call) -> Response:
        asked = read_grant(read_body())
        caller, group = _admit(services, asked)
        given = _give(services, asked, group, caller, call.given["Idempotency-Key"])
        return written_answer(services, given)

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
        account = self.ledger.account(self.connection, subject)
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


def written_answer(services: Services, given: tuple[GrantRow, ...]) -> Response:
    """The answer to a grant."""
    shown, receiver = list(map(_shown, given)), given[-1].grant
    with services.ledger.store.reading() as connection:
        statement = services.ledger.account(connection, receiver.subject)
        now_ms, _ = services.ledger.moment(connection)
    own, group, warnings = statement.balance.remaining, statement.group, [""]
    if receiver.amount > 0 and group is not None:
        named = statement.in_force.budget.group
        warnings.append(beyond_its_group(receiver.subject, own, named, group.balance.remaining))
    if receiver.amount > 0 and receiver.span.end_ms - now_ms < DAY_MS:
        ends = moment(receiver.span.end_ms, ZoneInfo(statement.account.zone))
        warnings.append(
            f"the period of {receiver.subject} ends at {ends}: what is left of it then is gone, but for its"
            " carryOver"
        )
    return answer(WrittenGrantsAnswer(version=1, grants=shown, warnings=[*filter(None, warnings)]))


def _shown(written: GrantRow) -> GrantAnswer:
    grant = written.grant
    return {
        "id": written.number,
        "subject": grant.subject,
        **bounds(grant.span),
        **amount_of(grant.amount),
        "kind": grant.kind,
        "reason": grant.reason,
        "actor": grant.actor,
        "created": grant.created_ms,
        "group": grant.group.removeprefix(GROUP) or None,
    }
