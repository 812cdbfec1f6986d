"""Sends notifications of decisions to the URLs that budgets name. Runs in a thread of the settler.

Decisions are read from the database in the order of their numbers. Each destination has a place in that
order, which moves only once the server has answered with 2xx: every notification is sent at least once, also
across restarts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import orjson

from timekeeper import metrics
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.decisions.notifications import (
    Destination,
    Notification,
    all_destinations,
    destinations,
    is_sent,
    payload,
)
from timekeeper.log import log, log_exception
from timekeeper.runtime.recording.signed_post import FAILURES, post
from timekeeper.store import decisions, fencing
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.fencing import Epoch, EpochOverError

INTERVAL_S = 1.0
_READ = 1_000  # decisions at a time
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 300.0
_GIVEN_UP_MS = 7 * 86_400_000  # an older notification is not sent any more
_AFTER_ERROR_S = 30.0
_KEEP_INTERVAL_S = 60.0  # how often a place is stored that moved without a post

Post = Callable[[str, bytes, bytes], int]


@dataclass(slots=True)
class _Place:
    """How far a destination is. ``stored``: the number in the database."""

    number: int
    stored: int
    pause_s: float = 0.0
    not_before_s: float = 0.0
    stored_s: float = field(default=0.0)


class Notifier:
    """Used by one thread. ``history``: the budgets; ``key_file``: holds the key of the signatures, and is
    read before each post."""

    def __init__(
        self,
        store: Store,
        epoch: Epoch,
        history: Callable[[], History],
        key_file: Path,
        clock: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
        send: Post = post,
    ) -> None:
        self._store, self._epoch, self._history, self._key_file = store, epoch, history, key_file
        self._clock, self._seconds, self._send = clock, seconds, send
        self._places: dict[str, _Place] = {}

    def keep(self, stop: Event) -> None:
        """Send until ``stop``, or until the epoch is over. No other error ends it."""
        pause_s = INTERVAL_S
        while not stop.wait(pause_s):
            pause_s = INTERVAL_S
            try:
                self.step()
            except EpochOverError:
                return
            except (UnavailableError, ConflictError) as error:
                log("notifications-wait", level="warning", error=error)
            except Exception as error:
                log_exception("notifications-wait", error)
                pause_s = _AFTER_ERROR_S

    def step(self) -> None:
        """Send to each destination what it has not been sent yet. Raises UnavailableError, ConflictError, or
        EpochOverError if another settler has started."""
        history, now_ms = self._history(), self._clock()
        at_ms = max(now_ms, history.newest_ms())
        wanted = all_destinations(history, at_ms)
        if not wanted and not self._places:
            return
        self._follow({each.key for each in wanted})
        for each in sorted(wanted, key=lambda each: (each.url, each.form)):
            place = self._places[each.key]
            if self._seconds() >= place.not_before_s:
                self._serve(each, place, history, at_ms)

    def _follow(self, keys: set[str]) -> None:
        """Begin with what is decided from now on where a destination is new; forget those that no
        budget names."""
        if keys == self._places.keys():
            return
        with fencing.writing(self._store, self._epoch) as connection:
            known, newest = decisions.notified(connection), decisions.newest(connection)
            for key in keys - known.keys():
                decisions.notify_after(connection, key, newest)
            for key in known.keys() - keys:
                decisions.forget_destination(connection, key)
        before = self._places
        self._places = {
            key: before.get(key) or _Place(known.get(key, newest), known.get(key, newest)) for key in keys
        }

    def _serve(self, to: Destination, place: _Place, history: History, at_ms: int) -> None:
        with self._store.reading() as connection:
            rows = decisions.after(connection, place.number, _READ)
        due: list[Notification] = []
        number = place.number
        for row in rows:
            decision = row.run.decision
            if is_sent(decision) and to in destinations(history, decision.namespace, at_ms):
                if at_ms - decision.at_ms > _GIVEN_UP_MS:
                    metrics.NOTIFICATIONS.labels("given up").inc()
                else:
                    due.append(Notification(row.number, decision))
            number = row.number
            if len(due) == to.max_together:
                break
        name = history.settings(at_ms).cluster_name
        if due and not self._sent(to, payload(to.form, due, at_ms, name), len(due), place):
            return
        place.number = number
        now_s = self._seconds()
        if number != place.stored and (due or now_s - place.stored_s >= _KEEP_INTERVAL_S):
            with fencing.writing(self._store, self._epoch) as connection:
                decisions.notify_after(connection, to.key, number)
            place.stored, place.stored_s = number, now_s

    def _sent(self, to: Destination, body: dict[str, Any], count: int, place: _Place) -> bool:
        try:
            key = self._key_file.read_bytes().strip()
            if not key:
                raise ValueError(f"{self._key_file} is empty")
            status = self._send(to.url, orjson.dumps(body), key)
            error = "" if 200 <= status < 300 else f"the server answered {status}"
        except FAILURES as failure:
            error = f"{type(failure).__name__}: {failure}"
        if not error:
            metrics.NOTIFICATIONS.labels("sent").inc(count)
            if place.pause_s:
                log("notifications-sent", host=_host(to.url))
            place.pause_s = 0.0
            return True
        metrics.NOTIFICATIONS.labels("failed").inc()
        if not place.pause_s:
            log("notifications-failed", level="warning", host=_host(to.url), error=error)
        place.pause_s = min(_LONGEST_PAUSE_S, 2 * place.pause_s or _FIRST_PAUSE_S)
        place.not_before_s = self._seconds() + place.pause_s
        return False


def _host(url: str) -> str:
    """Host and port alone: path and query may be a secret."""
    return url.split("/")[2].rpartition("@")[2]
