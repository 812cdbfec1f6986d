"""The hashes of what a month held, over a canonical form that every reader can compute again.

Each hash is the SHA-256 of lines of JSON without blanks, in UTF-8, each with a line feed at its end:

- charges: ``[uid,namespace,amount]`` for each session with a charge in the month, in the order of the UIDs'
  bytes; ``amount``: what its postings charge inside the month, or of a session that still runs, its charge;
- grants: ``[id,subject,from,to,amount,kind,reason,actor,created]`` for each grant that was made in the month,
  in the order of the numbers;
- prices: ``[namespace,from,to,group,price,currency]`` for each namespace with a charge, in order, cut where
  one changed.

Amounts are milli-GPU x milliseconds, times milliseconds since 1970.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from timekeeper.core.ledger.metering import Interval, calendar_name
from timekeeper.core.ledger.period_rules import PeriodRule, account_at

_FORTNIGHT_S = 14 * 86_400


@dataclass(frozen=True, slots=True)
class MonthHash:
    """The hashes of a month, and how many sessions and grants it has. ``amount``: of its charges."""

    sessions: int
    amount: int
    grants: int
    charges_sha256: str
    grants_sha256: str
    prices_sha256: str

    @property
    def sha256(self) -> str:
        """Of the three, in this order, a line each."""
        return digest((self.charges_sha256, self.grants_sha256, self.prices_sha256))


@dataclass(frozen=True, slots=True)
class ClosedMonth:
    """A month as it was closed. ``month``: as 2026-10."""

    month: str
    from_ms: int
    to_ms: int
    closed_ms: int
    hashes: MonthHash

    def differs(self, now: MonthHash) -> tuple[str, ...]:
        """What is not as it was: charges, grants, prices."""
        names = ("charges", "grants", "prices")
        return tuple(
            each for each in names if getattr(self.hashes, f"{each}_sha256") != getattr(now, f"{each}_sha256")
        )


@dataclass(frozen=True, slots=True, eq=False)
class Months:
    """The months of a ledger, or of a time zone: they leave no gap and do not overlap, and one that has ended
    keeps its bounds, whatever the time zone becomes. ``closed``: by name."""

    rules: Sequence[PeriodRule]
    closed: Mapping[str, Interval] = field(default_factory=dict)

    def at(self, at_ms: int) -> Interval:
        """The one that contains the moment."""
        return account_at(self.rules, at_ms).span

    def named(self, first: date) -> Interval:
        """The one with this first day."""
        middle_s = datetime(first.year, first.month, 1, tzinfo=UTC).timestamp() + _FORTNIGHT_S
        return self.closed.get(f"{first:%Y-%m}") or self.at(int(middle_s) * 1000)


def months_of(zone: str) -> Months:
    """Those of a time zone's calendar."""
    return Months((PeriodRule(0, "month", zone),))


def month_name(span: Interval) -> str:
    """Of a month, as 2026-10: that of its middle, which is in it whatever time zones cut its ends."""
    return calendar_name("month", "UTC", (span.start_ms + span.end_ms) // 2)


def digest(lines: Iterable[str]) -> str:
    """The SHA-256 of the lines."""
    found = hashlib.sha256()
    for each in lines:
        found.update(f"{each}\n".encode())
    return found.hexdigest()


def line(*values: str | int) -> str:
    """A line of the canonical form."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class CorrectedPart:
    """What a correction changes of what was charged in one group at one price. ``from_ms``, ``to_ms``: when
    that was; ``of``: what all of it has in common, by a report's columns and ``labels``."""

    amount: int
    from_ms: int
    to_ms: int
    of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChargeCorrection:
    """What a person corrects of a bill, beside the charges, which stay. ``at_ms``: when the wrong charge
    began; ``amount``: in milli-GPU x milliseconds, negative where it takes back; ``pod``, ``uid``: "" for
    none in particular; ``parts``: none where nothing was charged, and of an earlier release; ``number`` 0:
    not stored yet."""

    namespace: str
    pod: str
    at_ms: int
    amount: int
    reason: str
    actor: str
    idempotency_key: str
    created_ms: int
    number: int = 0
    uid: str = ""
    parts: tuple[CorrectedPart, ...] = ()

    def answers(self, asked: "ChargeCorrection") -> bool:
        """Whether it was written for this request, at whatever time: its pod may be named by its UID, its
        name, or both."""
        names = ("namespace", "amount", "reason", "actor", "idempotency_key")
        is_same_pod = asked.uid in (self.uid, "") and asked.pod in (self.pod, "" if asked.uid else self.pod)
        return is_same_pod and all(getattr(self, name) == getattr(asked, name) for name in names)
