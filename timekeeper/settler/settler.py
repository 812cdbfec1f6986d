"""The settler's wheel: take in what is heard, and several times a second decide and write."""

import time
from collections.abc import Callable
from queue import Empty, Queue
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.budget_history import History, history_of
from timekeeper.accounts.changes import Changes, Pulse
from timekeeper.runtime.log import log
from timekeeper.settler.budget_entries import BudgetNotice, EntryChanges, read_entries
from timekeeper.settler.cluster.cluster_state import ClusterState, ItemChanged, WatchUpdate
from timekeeper.settler.decide.decide import PULSE_MS, TickDecision, TickInputs, decide, listed_namespaces
from timekeeper.settler.self_check import SelfCheck
from timekeeper.settler.state.database_totals import Database, read_grants
from timekeeper.settler.state.ledger_state import read_ledger_state
from timekeeper.settler.state.open_session_totals import OpenSessionTotals
from timekeeper.settler.tick_report import report
from timekeeper.store.engine.engine import Connection, Store, UnavailableError
from timekeeper.store.queries import ledger as reading
from timekeeper.store.writes import fencing as terms
from timekeeper.store.writes import settling

Clock = Callable[[], int]

TICK_MS = 250
_SOON_MS = 100  # between two ticks where a pod or a budget changed meanwhile
_TOGETHER_MS = 20  # what comes so soon after the first change is decided with it

# Beats are read by when they were received, and become visible a little later: so much later at most.
_BEAT_OVERLAP_MS = 5_000
_ALL_BEATS_EACH_MS = 60_000
_SLOW_S = 0.02  # a reading of beats that takes longer may take a fifth of the time, and no more


class Settler:
    """World and book, and the ticks between them. One thread uses it; there is one per database: the newest,
    for whoever settled before can write nothing more. ``holder`` names it; by ``seconds`` it tells how long
    it takes to read the beats."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tell: Callable[[BudgetNotice], None],
        holder: str = "settler",
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell
        self._seconds = seconds
        self._beats_ms = self._all_beats_ms = 0
        self._next_beats_s = 0.0
        self._failed = ""
        self._doubt = SelfCheck()
        self._calm: tuple[int, History, EntryChanges] | None = None
        self._names: tuple[History, int, int, tuple[str, ...]] | None = None
        self.world = ClusterState()
        self.has_decided = False  # before that, the book says what whoever settled before had heard
        with store.writing() as connection:
            self.term = terms.begin(connection, holder, clock())
        self.book = read_ledger_state(store)  # after that: what the one before us wrote last is in it
        for error in self.book.history.unread:
            log("stored-entry-unreadable", level="warning", entry=error.key, error=error.sentence())

    def hear(self, heard: WatchUpdate) -> None:
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
        ended = time.monotonic()
        metrics.TICK_SECONDS.set(ended - began)
        self._check(ended)
        return True

    def _check(self, began_s: float) -> None:
        """Sums that are kept may be wrong by a fault of ours alone: then it is told, and all is counted
        anew."""
        if not self.book.tally.is_whole:
            return
        for fault in self._doubt.look(self.book, began_s):
            metrics.WRONG_SUMS.inc()
            log("totals-wrong", level="error", error=fault)
            self.book.tally = OpenSessionTotals()  # what it knows of before may be wrong too
        self._doubt.rest(began_s, time.monotonic())

    def _say_failed(self, error: str) -> None:
        """Once for each error, and not four times a second."""
        if error and error != self._failed:
            log("tick-failed", level="error", error=error)
        if self._failed and not error:
            log("tick-recovered")
        self._failed = error

    def _tick(self) -> bool:
        awaited = self.world.awaited()
        if awaited:
            return self._wait_for(awaited)
        # Entries never take effect before one that did already, also where the clock was turned back.
        now_ms = max(self._clock(), self.book.history.newest_ms() + 1)
        read = self._entries(now_ms)
        with self._store.reading() as connection:
            before = reading.entries(connection) if read.entries else ()
            self._recall(connection)
            self._read_beats(connection, now_ms)
            read_grants(connection, self.book, now_ms)
        history = history_of((*before, *read.entries)) if read.entries else self.book.history
        facts = TickInputs(read, history, self._listed(history), Database(self._store), now_ms)
        decision = decide(self.world, self.book, facts)
        if decision.changes != Changes():
            with terms.writing(self._store, self.term) as connection:
                settling.apply(connection, decision.changes)
        self._report(decision, read)
        self._take_note(decision, history)
        return decision.changes != Changes()

    def _take_note(self, decision: TickDecision, history: History) -> None:
        """The changes are written: book and world go on from there."""
        may_forget = bool(decision.changes.changed or self.world.gone or self.world.relisted)
        self.book.merge(decision.changes, history, decision.kept)
        self.book.ranks = self.world.ranks
        if may_forget:
            self.book.forget(self.world.pods)
        self.world.written(decision.moved.deferred)
        self.has_decided = True

    def _wait_for(self, awaited: tuple[str, ...]) -> bool:
        """Before everything was heard once, only the pulse is written: nothing may be concluded from what is
        not there."""
        now_ms, last = self._clock(), self.book.pulse
        pulse = Pulse(now_ms, last.decided_ms, f"waits for {', '.join(awaited)}")
        if pulse.state == last.state and abs(now_ms - last.tick_ms) < PULSE_MS:
            return False
        with terms.writing(self._store, self.term) as connection:
            settling.apply(connection, Changes(pulse=pulse))
        self.book.pulse = pulse
        return True

    def _entries(self, now_ms: int) -> EntryChanges:
        """What the budgets say now. Where that was nothing new, it is not asked again before one of them
        changes."""
        book, budgets = self.book, self.world.budgets
        if self._calm is not None and self._calm[0] == budgets and self._calm[1] is book.history:
            return self._calm[2]
        read = read_entries(self.world.config_maps, book.history, book.errors, now_ms)
        is_calm = not read.entries and not read.notices and read.errors == book.errors
        self._calm = (budgets, book.history, read) if is_calm else None
        return read

    def _listed(self, history: History) -> tuple[str, ...]:
        """The namespaces to be listed, the same tuple while they are the same."""
        listing, known = self.world.listing, len(self.book.namespaces)
        if self._names is None or self._names[0] is not history or self._names[1:3] != (listing, known):
            names = listed_namespaces(history, self.world, self.book)
            same = self._names is not None and self._names[3] == names
            self._names = (history, listing, known, self._names[3] if same and self._names else names)
        return self._names[3]

    def _recall(self, connection: Connection) -> None:
        """Read the sessions of pods that were heard of and may have been settled before this settler
        began."""
        uids = {*self.world.touched, *self.world.gone}
        strange = [uid for uid in uids if self.book.session(uid) is None and uid not in self.book.folded]
        if strange:
            found = reading.sessions_of(connection, strange)
            for uid in found.folded:
                log("pod-ignored", level="warning", uid=uid, reason="its session was folded long ago")
            self.book.recall(found)

    def _read_beats(self, connection: Connection, now_ms: int) -> None:
        began_s = self._seconds()
        if began_s < self._next_beats_s:
            return
        since = self._beats_ms - _BEAT_OVERLAP_MS
        if now_ms - self._all_beats_ms >= _ALL_BEATS_EACH_MS or now_ms < self._beats_ms:
            since, self._all_beats_ms = 0, now_ms
        beats = self.book.beats
        for uid, beat in reading.beats(connection, max(0, since)).items():
            if beats.get(uid) != beat and self.book.session(uid):
                beats[uid] = beat
                self.book.heard_beats.add(uid)
        self._beats_ms = now_ms
        took_s = self._seconds() - began_s
        self._next_beats_s = began_s + 5 * took_s if took_s > _SLOW_S else 0.0

    def _report(self, decision: TickDecision, read: EntryChanges) -> None:
        report(self.world, self.book, decision, read, self._tell)


def turn(settler: Settler, heard: "Queue[WatchUpdate]", stop: Event) -> None:
    """Until ``stop``: take in what is heard, and tick: now and then, and soon where something changed. A slow
    tick makes the next one later, never the queue longer than it may be."""
    while not stop.is_set():
        began = time.monotonic()
        settler.tick()
        ended = time.monotonic()
        _take_in(settler, heard, ended, ended - began)


def _take_in(settler: Settler, heard: "Queue[WatchUpdate]", from_s: float, took_s: float) -> None:
    """At least for as long as the tick took, so that ticks never take more than half of the time."""
    until_s = from_s + max(TICK_MS / 1000 - took_s, took_s)
    soonest_s = from_s + max(_SOON_MS / 1000 - took_s, took_s)
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            each = heard.get(timeout=left_s)
        except Empty:
            return
        settler.hear(each)
        if isinstance(each.what, ItemChanged) and each.source != "leases":
            until_s = min(until_s, max(soonest_s, time.monotonic() + _TOGETHER_MS / 1000))
