"""Writes heartbeats in groups: one transaction and one disk flush for all that wait at that moment."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread

from timekeeper.api.ledger.intervals import interval_ms
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.store import heartbeats
from timekeeper.store.engine.engine import (
    ConflictError,
    Store,
    UnavailableError,
    commit_together,
    read_together,
)
from timekeeper.store.heartbeats import HeartbeatPost, PostResult
from timekeeper.store.ledger import NEWEST_STANDINGS

_MAX_AT_ONCE = 256
_WRITTEN_WITHIN_S = 15.0
_COUNTED_INTERVAL_MS = 5_000


@dataclass(frozen=True, slots=True)
class WrittenPost:
    """A post that is stored, now or by an earlier call: its outcome, the standing of its namespace, and the
    time until the sidecar's next heartbeat."""

    answered: PostResult
    standing: str
    interval_ms: int


# Called in the writing thread; it must neither wait nor raise.
Callback = Callable[[WrittenPost | Exception], None]


class HeartbeatWriter:
    """One per process, made after the fork; its thread begins with the first heartbeat, and holds this writer
    and its store until `close`.

    ``least_interval_ms``: how often sidecars beat while they are few.
    """

    def __init__(self, store: Store, ledger: LedgerReader, least_interval_ms: int) -> None:
        self._store = store
        self._ledger = ledger
        self._pace = _Pace(least_interval_ms)
        self._waiting: SimpleQueue[tuple[HeartbeatPost, Callback] | None] = SimpleQueue()  # None: the end
        self._lock = Lock()
        self._thread: Thread | None = None

    def record(self, post: HeartbeatPost) -> WrittenPost:
        """Store a post, unless it is stored already, and return the standing of its namespace.

        Returns once the transaction is committed. Raises UnavailableError.
        """
        written: Future[WrittenPost] = Future()
        self.submit(post, lambda outcome: _settle(written, outcome))
        try:
            return written.result(_WRITTEN_WITHIN_S)
        except TimeoutError as error:
            raise UnavailableError("the heartbeat could not be written in time") from error

    def submit(self, post: HeartbeatPost, callback: Callback) -> None:
        """As `record`, without waiting: ``callback`` is called with what it returns or raises."""
        self._waiting.put((post, callback))
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._write_all, name="beats", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what waits, and end the thread. Nothing is submitted afterwards."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _write_all(self) -> None:
        while group := self._next_group():
            for (_, callback), outcome in zip(
                group, self._outcomes([post for post, _ in group]), strict=True
            ):
                callback(outcome)

    def _next_group(self) -> list[tuple[HeartbeatPost, Callback]]:
        """Waits for a post, and takes those that wait behind it; empty at the end."""
        group: list[tuple[HeartbeatPost, Callback]] = []
        while (post := self._waiting.get()) is not None:
            group.append(post)
            if len(group) == _MAX_AT_ONCE or self._waiting.empty():
                return group
        if group:
            self._waiting.put(None)  # the end again, once these are written
        return group

    def _outcomes(self, posts: list[HeartbeatPost]) -> list[WrittenPost | Exception]:
        """On PostgreSQL two round trips: all that is read, and all that is written."""
        now_ms, known = posts[-1].received_ms, self._ledger.known
        try:
            with self._store.writing() as connection:
                asked = [
                    *heartbeats.questions(connection, posts),
                    (NEWEST_STANDINGS, {"known": known.revision}),
                ]
                if self._pace.is_due(now_ms):
                    asked.append((heartbeats.LIVE, {}))
                sessions, runs, standings, *live = read_together(connection, *asked)
                each_ms = self._pace.at(now_ms, live[0][0].live) if live else self._pace.interval_ms
                answers, changes = heartbeats.decide(posts, sessions, runs, each_ms)
                commit_together(connection, changes)
            served = self._ledger.newest(standings, known)
        except ConflictError as error:
            return [UnavailableError(str(error))] * len(posts)
        except Exception as error:  # each waiting request raises it
            return [error] * len(posts)
        return [WrittenPost(answer, served.word(answer.namespace), each_ms) for answer in answers]


class _Pace:
    """The heartbeat interval: every worker counts the sessions again every few seconds."""

    def __init__(self, least_ms: int) -> None:
        self._least_ms = least_ms
        self.interval_ms = least_ms
        self._counted_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        return self._counted_ms is None or abs(now_ms - self._counted_ms) >= _COUNTED_INTERVAL_MS

    def at(self, now_ms: int, sessions: int) -> int:
        self.interval_ms, self._counted_ms = interval_ms(sessions, self._least_ms), now_ms
        return self.interval_ms


def _settle(written: "Future[WrittenPost]", outcome: WrittenPost | Exception) -> None:
    if isinstance(outcome, Exception):
        written.set_exception(outcome)
    else:
        written.set_result(outcome)
