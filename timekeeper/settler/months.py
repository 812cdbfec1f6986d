"""Closes each month of the budgets' calendar once nothing of it can change: its hashes are kept."""

from collections.abc import Callable, Iterator
from threading import Event

from timekeeper.accounts.budget_history import DAY_MS, History
from timekeeper.core.findings import RoleFinding
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.months import ClosedMonth, Months, month_name
from timekeeper.log import log
from timekeeper.store import ledger, months
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.fencing import EpochOverError
from timekeeper.store.retention import Writable

_SOON_S, _INTERVAL_S = 1.0, 600.0
_AFTER_MS = 3_600_000  # a month is closed this long after its end at the earliest
_LATE_MS = 2 * DAY_MS  # from then on a month that is not closed is a finding
_READ_LOG = "see month-not-closed in the timekeeper's log"


class MonthCloser:
    """``history``: the budgets in force; None before the settler's first decision."""

    def __init__(
        self,
        store: Store,
        fenced: Writable,
        history: Callable[[], History | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._fenced, self._history, self._now_ms = store, fenced, history, now_ms
        self.late: tuple[RoleFinding, ...] = ()  # of months that are not closed in time

    def keep(self, stop: Event) -> None:
        """Look once the budgets are known, then every ten minutes, until ``stop``, or until the epoch is
        over."""
        pause_s = _SOON_S
        while not stop.wait(pause_s):
            try:
                pause_s = _INTERVAL_S if self.step() else _SOON_S
            except EpochOverError:
                return
            except UnavailableError as error:
                log("month-not-closed", level="warning", error=error)

    def step(self) -> bool:
        """Close what can be closed; False: the budgets are not known yet. Raises EpochOverError or
        UnavailableError."""
        history = self._history()
        if history is None:
            return False
        with self._store.reading() as connection:
            first_ms = ledger.first_ms(connection)
            calendar = months.calendar(connection, history, first_ms)
        if first_ms is None:
            return True
        now_ms, late = self._now_ms(), list[RoleFinding]()
        for month, span in ended(first_ms, now_ms - _AFTER_MS, calendar):
            try:
                why = None if month in calendar.closed else self._close(month, span)
            except EpochOverError:
                raise
            except (UnavailableError, ConflictError) as error:
                log("month-not-closed", level="warning", error=error)
                why = str(error), _READ_LOG
            if why is not None and (after := now_ms - span.end_ms) >= _LATE_MS:
                said = {"month": month, "why": why[0], "command": why[1]}
                late.append(RoleFinding("month-open", {**said, "after": after}))
        self.late = tuple(late)
        return True

    def _close(self, month: str, span: Interval) -> tuple[str, str] | None:
        """Returns what keeps it open, and what ends that; None: it is closed."""
        now_ms = self._now_ms()
        with self._store.reading() as connection:
            count, awaited = months.waits_for(connection, span, now_ms)
            if awaited:
                more = f", and {count - 1} more (page /months/{month})" if count > 1 else ""
                return f"{awaited[0][0]}{more}", awaited[0][1]
            number = months.newest_posting(connection)
            computed = months.hash_of(connection, span, now_ms)
        hashes = computed()
        with self._fenced.writing() as connection:
            if months.posted_since(connection, span, number):
                return "charges of it are still posted", _READ_LOG  # the next step counts them
            months.close(connection, ClosedMonth(month, span.start_ms, span.end_ms, now_ms, hashes))
        log("month-closed", month=month, sessions=hashes.sessions, amount=hashes.amount, sha256=hashes.sha256)
        return None


def ended(first_ms: int, now_ms: int, calendar: Months) -> Iterator[tuple[str, Interval]]:
    """The months that contain the first moment or a later one, and have ended."""
    span = calendar.at(first_ms)
    while span.end_ms <= now_ms:
        yield month_name(span), span
        span = calendar.at(span.end_ms)
