"""The settler's wheel: take in what is heard, and several times a second decide and write."""

import time
from collections.abc import Callable
from queue import Empty, Queue
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.changes import Changes, Pulse
from timekeeper.accounts.history import Entry, History, history_of
from timekeeper.core.ledger import Interval
from timekeeper.log import say
from timekeeper.settler.book import AccountKey, read_book
from timekeeper.settler.decide import PULSE_MS, Decision, Sums, account_key, decide, listed_namespaces
from timekeeper.settler.entries import Notice, Read, read_entries
from timekeeper.settler.world import Heard, World
from timekeeper.store import reading, settling
from timekeeper.store.engine import Connection, Store, UnavailableError

Clock = Callable[[], int]

TICK_MS = 250

# Beats are read by when they were received, and become visible a little later: so much later at most.
_BEAT_OVERLAP_MS = 5_000
_ALL_BEATS_EACH_MS = 60_000


class Settler:
    """World and book, and the ticks between them. One thread uses it; there is one per database."""

    def __init__(self, store: Store, clock: Clock, tell: Callable[[Notice], None]) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell
        self._beats_ms = self._all_beats_ms = 0
        self._failed = ""
        self.world = World()
        with store.reading() as connection:
            self.book = read_book(connection)
        for error in self.book.history.unread:
            say("stored entry not read", entry=error.key, error=error.sentence())

    def hear(self, heard: Heard) -> None:
        """Take in what a watch brought."""
        self.world.apply(heard)

    def tick(self) -> bool:
        """Decide and write. False where the database could not be reached: what was heard stays, and the next
        tick decides anew.

        Raises ConflictError where another has written what only this settler may write.
        """
        began = time.monotonic()
        try:
            written = self._tick()
        except UnavailableError as error:
            metrics.TICKS.labels("database away").inc()
            self._say_failed(str(error))
            return False
        self._say_failed("")
        metrics.TICKS.labels("written" if written else "nothing new").inc()
        metrics.TICK_SECONDS.set(time.monotonic() - began)
        return True

    def _say_failed(self, error: str) -> None:
        """Once for each error, and not four times a second."""
        if error and error != self._failed:
            say("tick failed", error=error)
        if self._failed and not error:
            say("ticks go on")
        self._failed = error

    def _tick(self) -> bool:
        awaited = self.world.awaited()
        if awaited:
            return self._wait_for(awaited)
        # Entries never take effect before one that did already, also where the clock was turned back.
        now_ms = max(self._clock(), self.book.history.newest_ms() + 1)
        read = read_entries(self.world.config_maps, self.book.history, self.book.errors, now_ms)
        with self._store.reading() as connection:
            history = self._history(connection, read)
            names = listed_namespaces(history, self.world, self.book)
            sums = self._sums(connection, history, names, now_ms)
            self._recall(connection)
            self._read_beats(connection, now_ms)
        decision = decide(self.world, self.book, read, history, names, sums, now_ms)
        if decision.changes != Changes():
            with self._store.writing() as connection:
                settling.apply(connection, decision.changes)
        self._report(decision, read)
        self.book.merge(decision.changes, history)
        self.book.forget(self.world.pods)
        self.world.written(decision.moved.deferred)
        return decision.changes != Changes()

    def _wait_for(self, awaited: tuple[str, ...]) -> bool:
        """Before everything was heard once, only the pulse is written: nothing may be concluded from what is
        not there."""
        now_ms, last = self._clock(), self.book.pulse
        pulse = Pulse(now_ms, last.decided_ms, f"waits for {', '.join(awaited)}")
        if pulse.state == last.state and abs(now_ms - last.tick_ms) < PULSE_MS:
            return False
        with self._store.writing() as connection:
            settling.apply(connection, Changes(pulse=pulse))
        self.book.pulse = pulse
        return True

    def _history(self, connection: Connection, read: Read) -> History:
        """The history with the new entries in it; as it was where there are none."""
        if not read.entries:
            return self.book.history
        before: tuple[Entry, ...] = reading.entries(connection)
        return history_of((*before, *read.entries))

    def _sums(self, connection: Connection, history: History, names: tuple[str, ...], now_ms: int) -> Sums:
        """The sums of the accounts that are due. What was posted is kept, and read only for accounts that are
        new."""
        keys = [account_key(history, name, now_ms) for name in names]
        self.book.totals = {key: self._posted(connection, key) for key in keys}
        return Sums(reading.granted(connection, now_ms), self.book.totals)

    def _posted(self, connection: Connection, key: AccountKey) -> int:
        if key in self.book.totals:
            return self.book.totals[key]
        namespace, start, end = key
        return reading.posted_within(connection, namespace, Interval(start, end))

    def _recall(self, connection: Connection) -> None:
        """Read the sessions of pods that were heard of and may have been settled before this settler
        began."""
        uids = {*self.world.touched, *self.world.gone}
        strange = [uid for uid in uids if self.book.session(uid) is None]
        if strange:
            self.book.recall(reading.sessions_of(connection, strange))

    def _read_beats(self, connection: Connection, now_ms: int) -> None:
        since = self._beats_ms - _BEAT_OVERLAP_MS
        if now_ms - self._all_beats_ms >= _ALL_BEATS_EACH_MS or now_ms < self._beats_ms:
            since, self._all_beats_ms = 0, now_ms
        found = reading.beats(connection, max(0, since))
        self.book.beats.update({uid: beat for uid, beat in found.items() if self.book.session(uid)})
        self._beats_ms = now_ms

    def _report(self, decision: Decision, read: Read) -> None:
        """Log and count what was written."""
        for notice in read.notices:
            self._tell(notice)
        changes = decision.changes
        for session in changes.opened:
            doubt = decision.moved.doubts.get(session.uid)
            metrics.SESSIONS_OPENED.labels("request" if doubt else "placement").inc()
            more = {"by_request_because": doubt} if doubt else {}
            say(
                "session opened",
                namespace=session.namespace,
                pod=session.name,
                uid=session.uid,
                node=session.node,
                rate_milli=session.rate_milli,
                **more,
            )
        for posting in changes.postings:
            metrics.POSTINGS.labels(posting.kind).inc()
            say(
                "posted",
                namespace=posting.namespace,
                uid=posting.session_uid,
                kind=posting.kind,
                from_ms=posting.from_ms,
                to_ms=posting.to_ms,
                amount=posting.amount,
                reason=posting.reason,
            )
        for grant in changes.grants:
            say("granted", namespace=grant.subject, amount=grant.amount, kind=grant.kind, reason=grant.reason)
        for pod in self.world.unreadable.values():
            metrics.UNREADABLE_PODS.inc()
            say("pod not charged", namespace=pod.namespace, pod=pod.name, problem=pod.problem)
        if self.world.lost:
            metrics.LOST_ENDS.inc(self.world.lost)
            say("ends of pods forgotten", count=self.world.lost, reason="the database was away for too long")
            self.world.lost = 0
        self._report_standings(decision)

    def _report_standings(self, decision: Decision) -> None:
        for name, standing in decision.standings.items():
            if self.book.standings.get(name, standing) != standing:
                say("standing", namespace=name, now=standing, before=self.book.standings[name])
        self.book.standings = dict(decision.standings)
        for word in ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED"):
            metrics.STANDINGS.labels(word).set(sum(each == word for each in decision.standings.values()))
        metrics.EVIDENCE.set(len(self.book.sessions))
        metrics.BROKEN.set(len(self.book.errors))


def turn(settler: Settler, heard: "Queue[Heard]", stop: Event) -> None:
    """Until ``stop``: take in what is heard, and tick. A slow tick makes the next one later, never the queue
    longer than it may be."""
    while not stop.is_set():
        began = time.monotonic()
        settler.tick()
        took_s = time.monotonic() - began
        _take_in(settler, heard, until=time.monotonic() + max(TICK_MS / 1000 - took_s, took_s))


def _take_in(settler: Settler, heard: "Queue[Heard]", until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        try:
            settler.hear(heard.get(timeout=left))
        except Empty:
            return
