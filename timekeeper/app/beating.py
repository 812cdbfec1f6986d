"""Heartbeats are written in groups: one transaction, one write to the disk, for all that wait at that
moment."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread

from timekeeper.app.ledger import Served
from timekeeper.store import beats
from timekeeper.store.beats import Answered, Post
from timekeeper.store.engine import ConflictError, Connection, Store, UnavailableError

_MOST_AT_ONCE = 256
_WRITTEN_WITHIN_S = 15.0


class Beating:
    """One per process, made after the fork; its thread begins with the first heartbeat."""

    def __init__(self, store: Store, standings: Callable[[Connection], Served]) -> None:
        self._store = store
        self._standings = standings
        self._waiting: SimpleQueue[tuple[Post, Future[tuple[Answered, str]]]] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None

    def record(self, post: Post) -> tuple[Answered, str]:
        """Write a post, or find that it was written, and tell the standing of its namespace.

        Returns once it is safe on the disk. Raises UnavailableError.
        """
        written: Future[tuple[Answered, str]] = Future()
        self._waiting.put((post, written))
        self._begin()
        try:
            return written.result(_WRITTEN_WITHIN_S)
        except TimeoutError as error:
            raise UnavailableError("the heartbeat could not be written in time") from error

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._write_all, name="beats", daemon=True)
                self._thread.start()

    def _write_all(self) -> None:
        while True:
            group = [self._waiting.get()]
            while len(group) < _MOST_AT_ONCE and not self._waiting.empty():
                group.append(self._waiting.get())
            self._write([post for post, _ in group], [written for _, written in group])

    def _write(self, posts: list[Post], written: list["Future[tuple[Answered, str]]"]) -> None:
        try:
            with self._store.writing() as connection:
                answers = beats.record(connection, posts)
                served = self._standings(connection)
        except ConflictError as error:
            _fail(written, UnavailableError(str(error)))
        except Exception as error:  # every request that waits raises it as its own
            _fail(written, error)
        else:
            for each, answer in zip(written, answers, strict=True):
                each.set_result((answer, served.word(answer.namespace)))


def _fail(written: list["Future[tuple[Answered, str]]"], error: Exception) -> None:
    for each in written:
        each.set_exception(error)
