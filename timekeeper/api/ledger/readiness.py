"""Whether this process can serve: read again and again beside the requests, so that no probe waits for a
database that is far away."""

import time
from collections.abc import Callable
from threading import Event, Thread

import msgspec

from timekeeper.accounts.failing_watches import read_watches
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.api.ledger.outages import OutageLog
from timekeeper.core.findings import counted
from timekeeper.core.texts import moment
from timekeeper.log import log_exception
from timekeeper.store import role_findings
from timekeeper.store.engine.engine import UnavailableError

OLDEST_S = 10.0
_PAUSE_S = 2.0


class ReadinessWatch:
    """One per process, made after the fork. ``clock``: milliseconds since 1970; ``damage``: what is wrong
    with the database's file, ``clock_fault``: with this machine's clock, "" if nothing is; ``seconds``: a
    monotonic clock."""

    def __init__(
        self,
        ledger: LedgerReader,
        clock: Callable[[], int],
        damage: Callable[[], str],
        clock_fault: Callable[[], str],
        outages: OutageLog,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._clock, self._damage, self._clock_fault = ledger, clock, damage, clock_fault
        self._outages, self._seconds = outages, seconds
        self._stop = Event()
        self._looked: tuple[float, bool, list[str]] | None = None  # when it began, and what it found

    def start(self) -> None:
        """Look from now on, in a thread."""
        Thread(target=self._run, name="readiness", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception as error:  # the last look grows too old
                log_exception("internal-error", error, thread="readiness")
            self._stop.wait(_PAUSE_S)

    def answer(self) -> tuple[bool, list[str]]:
        """Whether it is ready as of the last look, and its lines."""
        if self._looked is None:
            return False, ["database: it has not been read yet"]
        began_s, is_ready, lines = self._looked
        age_s = self._seconds() - began_s
        if age_s >= OLDEST_S:
            return False, [f"database: it was read last {int(age_s)} s ago"]
        return is_ready, lines

    def look(self) -> None:
        """Look once."""
        began_s = self._seconds()
        problems, more = self._found()
        if not problems:
            fault = self._clock_fault()  # it is corrected, so this process can serve
            more = [*more, fault] if fault else more
        self._looked = began_s, not problems, [*(problems or ["ok"]), *more]

    def _found(self) -> tuple[list[str], list[str]]:
        """The reasons not to be ready; and the number of what the settler finds, by code, and its watches
        that fail: no names, for the route needs no token."""
        try:
            pulse = self._ledger.pulse()
            with self._ledger.store.reading() as connection:
                lists = role_findings.lists(connection, "settler")
            self._ledger.store.check_writable()
        except UnavailableError as error:
            return [f"database: {self._damage() or error}"], []
        self._outages.worked("read")
        if damage := self._damage():
            return [f"database: {damage}"], []
        wrong = counted(msgspec.to_builtins(lists["settler"][1])) if "settler" in lists else {}
        lines = [f"settler finds {code}: {number}" for code, number in sorted(wrong.items())]
        lines += [
            f"watch of {each}: it fails; GET /v1/doubts says why" for each in read_watches(pulse.watches)
        ]
        now_ms, silent_ms = self._clock(), self._ledger.silent_ms
        if abs(now_ms - pulse.tick_ms) > silent_ms:
            since = f" since {moment(pulse.tick_ms)}" if pulse.tick_ms else " yet"
            return [f"settler: it has written nothing{since}"], lines
        has_decided = abs(now_ms - pulse.decided_ms) <= silent_ms
        return [f"settler: it {pulse.state}"] if pulse.state and not has_decided else [], lines
