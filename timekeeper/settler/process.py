"""The settler as a process: its watches, its wheel, and its end."""

import signal
from queue import Queue
from threading import Event

from timekeeper import metrics
from timekeeper.api_server import connect
from timekeeper.clock import now_ms
from timekeeper.log import say
from timekeeper.settings import Settings
from timekeeper.settler.announce import Announcer
from timekeeper.settler.run import Settler, turn
from timekeeper.settler.watching import sources, start_watching
from timekeeper.settler.world import Heard
from timekeeper.store.engine import ConflictError, UnavailableError, open_store

# What may wait to be taken in: a full queue makes the watches wait, and the API server buffers.
_MOST_HEARD = 10_000


def settle(settings: Settings) -> int:
    """Run until SIGTERM; the exit code. Raises UnusableError with a sentence where the settings cannot be
    followed."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    store = open_store(settings.database)
    api = connect(settings.kubeconfig)
    announcer = Announcer(api, settings.namespace, now_ms)
    try:
        settler = Settler(store, now_ms, announcer.tell)
    except UnavailableError as error:
        say("settler cannot read the ledger", error=error)
        return 1
    heard: Queue[Heard] = Queue(_MOST_HEARD)
    for source in sources(settings.namespace):
        start_watching(source, api, heard, now_ms, stop, _failed)
    say("settler started", sessions=len(settler.book.sessions))
    try:
        turn(settler, heard, stop)
    except ConflictError as error:
        # Another settler wrote to this database. To start anew from what it wrote is all that is right.
        say("settler ends", reason="another writes what only one may write", error=error)
        return 1
    store.close()
    return 0


def _failed(source: str, sentence: str) -> None:
    metrics.WATCH_FAILURES.labels(source).inc()
    say("watch failed", source=source, error=sentence)
