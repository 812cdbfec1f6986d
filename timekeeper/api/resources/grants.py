"""``/v1/grants``: extra grants, corrections, and moves within a group. Rows are only added."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from urllib.parse import quote

from flask import Flask, Response

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.grants import MOST_GRANTED, Grant
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api.bodies.grants import AskedGrant, read_grant
from timekeeper.api.http.answers import GrantsAnswer, Subject, WrittenGrantsAnswer, answer
from timekeeper.api.http.body import read_body
from timekeeper.api.http.parameters import AFTER, IDEMPOTENCY_KEY, LIMIT, NAME, SUBJECT_GIVEN, cursor, shaped
from timekeeper.api.http.routes import JSON, Call, Form, Right, Route, admit, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import Ledger
from timekeeper.api.problem import Problem
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.names import DOMAIN
from timekeeper.runtime.log import log
from timekeeper.store.engine.engine import Connection
from timekeeper.store.writes import grants
from timekeeper.store.writes.grants import GrantFilter, GrantRow

_PAGE = 1_000

Amount = Annotated[int, Form(**{"not": {"const": 0}})]
Hours = Annotated[
    str | float,
    Form(anyOf=[{"type": "string", "pattern": r"^-?[0-9]{1,10}(\.[0-9]{1,8})?$"}, {"type": "number"}]),
]

_From = TypedDict("_From", {"from": NotRequired[Annotated[str, Form(pattern=f"^(?:{NAME})$")]]})


class NewGrant(_From):
    """Either `gpuHours`, decimal with at most 8 places, or `amount`. Negative only in a correction. With
    `from` it is moved from that namespace to `subject`, one of the same group."""

    subject: Subject
    gpuHours: NotRequired[Hours]
    amount: NotRequired[Amount]
    reason: Annotated[str, Form(minLength=1, maxLength=500)]
    kind: NotRequired[Literal["manual", "correction", "transfer"]]


_ONE_AMOUNT = Form(additionalProperties=False, oneOf=[{"required": ["gpuHours"]}, {"required": ["amount"]}])

GRANTS = Route(
    "GET",
    "/v1/grants",
    "everything that was granted, oldest first",
    Right("get", "grants"),
    {JSON: GrantsAnswer},
    (SUBJECT_GIVEN, LIMIT, AFTER),
)
CREATE = Right("create", "grants")
GIVE = Route(
    "POST",
    "/v1/grants",
    "grant something extra, correct, or move what is left; once for each Idempotency-Key",
    None,
    {JSON: WrittenGrantsAnswer},
    (IDEMPOTENCY_KEY,),
    body=Annotated[NewGrant, _ONE_AMOUNT],
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
        return answer({"version": 1, "grants": [_shown(each) for each in given]})

    serve(app, services, GRANTS, list_all)
    serve(app, services, GIVE, give)


def _admit(services: Services, asked: AskedGrant) -> tuple[str, str]:
    """The caller's name, and the group within which he may move; empty for a grant. Who moves must be allowed
    to grant to the group that both are in; where they are in none together, to grant to everybody. Who may
    not is not told which group that is, nor whether there is one."""
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


def _group(ledger: Ledger, connection: Connection, asked: AskedGrant) -> str:
    """The group that giver and receiver are in now; empty where they are in none together."""
    now_ms, history = ledger.moment(connection)
    group = history.group(asked.giver, now_ms)
    return group if group == history.group(asked.subject, now_ms) else ""


def _give(services: Services, asked: AskedGrant, group: str, actor: str, key: str) -> tuple[GrantRow, ...]:
    """Make the grant, or the two of a move within this group, once for each key of a caller."""
    with services.ledger.store.writing(turn=grants.TURN) as connection:
        known = grants.known(connection, _key(0, actor, key), _key(1, actor, key))
        if known:
            _check_same(asked, known)
            return known
        giving = _Giving(services.ledger, connection, asked, group, actor, key)
        given = grants.give(connection, *(giving.moved() if asked.giver else (giving.added(),)))
    for each in given.grants:
        log(
            "granted",
            subject=each.subject,
            amount=each.amount,
            kind=each.kind,
            actor=actor,
            reason=each.reason,
        )
    return given.written


def _check_same(asked: AskedGrant, known: tuple[GrantRow, ...]) -> None:
    receiver = known[-1].grant
    giver = known[0].grant.subject if len(known) > 1 else ""
    before = AskedGrant(receiver.subject, giver, receiver.amount, receiver.reason, receiver.kind)
    if before != asked:
        raise Problem(422, "under this key another grant was made before", "Idempotency-Key")


@dataclass(frozen=True, slots=True)
class _Giving:
    """One grant, or a move, inside the transaction that makes it: what allows it is read there."""

    ledger: Ledger
    connection: Connection
    asked: AskedGrant
    group: str
    actor: str
    key: str

    def added(self) -> Grant:
        """What comes on top of the account, or is taken from it. Raises a Problem."""
        subject, amount = self.asked.subject, self.asked.amount
        account = self._account(subject, "subject")
        granted = account.balance.granted or 0
        if granted + amount < 0:
            raise Problem(409, f"only {gpu_hours(granted)} GPU-hours were granted to {subject}", "gpuHours")
        return self._grant(0, subject, account, amount)

    def moved(self) -> tuple[Grant, Grant]:
        """What leaves one account, and the same amount for the other. Raises a Problem."""
        giver, subject, amount = self.asked.giver, self.asked.subject, self.asked.amount
        group = _group(self.ledger, self.connection, self.asked)
        if not group:
            raise Problem(409, f"{giver} and {subject} are in no group together", "from")
        if group != self.group:  # the caller's right is to the one that they were in
            raise Problem(409, f"the group of {giver} and {subject} has just changed; ask again", "from")
        taken, given = self._account(giver, "from"), self._account(subject, "subject")
        left = max(0, taken.balance.remaining or 0)
        if amount > left:
            raise Problem(409, f"{giver} has only {gpu_hours(left)} GPU-hours left", "gpuHours")
        return self._grant(0, giver, taken, -amount), self._grant(1, subject, given, amount)

    def _account(self, subject: str, field: str) -> Statement:
        """The subject's account. Raises a Problem where there is no limit, or more than can be held."""
        account, _ = self.ledger.account(self.connection, subject)
        if account.balance.granted is None:
            raise Problem(409, f"{subject} has no budget: it is unlimited", field)
        if account.balance.granted + self.asked.amount > MOST_GRANTED:
            raise Problem(409, "with what was granted before it is more than the ledger can hold", "gpuHours")
        return account

    def _grant(self, place: int, subject: str, account: Statement, amount: int) -> Grant:
        now_ms, _ = self.ledger.moment(self.connection)
        key = _key(place, self.actor, self.key)
        span, asked = account.account.span, self.asked
        return Grant(subject, span, amount, asked.kind, asked.reason, self.actor, key, now_ms)


def _key(place: int, actor: str, key: str) -> str:
    """The key of a grant, or of the second of a move, in the ledger: a caller's keys are his own."""
    return f"grant/{place}/{quote(actor, safe='')}/{key}"


def _shown(written: GrantRow) -> dict[str, Any]:
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
    }
