"""An extender in front of `DirectApi`, moved step by step: nothing waits, and no thread runs."""

import threading
from collections.abc import Callable

import orjson

from scheduler_ext import settings
from scheduler_ext.assembly.extender import Extender
from scheduler_ext.model.node import read_node
from scheduler_ext.model.standing import UNHEARD
from scheduler_ext.model.standing_table import decode, standings_at
from scheduler_ext.serving.routes import verb_routes
from tests.scheduler_ext.conftest import Running, event_line
from tests.scheduler_ext.direct_api import DirectApi
from tests.scheduler_ext.store import Store
from tests.support.routed import client_of
from tests.worlds import Json
from timekeeper.edge.clock import now_ms
from timekeeper.edge.log_events import Level

STALE_MS = 60_000
MOST_TRIES = 100


class Turns(threading.Event):
    """Lets a thread's work go round so many times, and then asks it to end."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def wait(self, timeout: float | None = None) -> bool:
        """True once there are none left."""
        self._left -= 1
        return self._left < 0


class Stepped(Running):
    """``now_ms``: its clock, which `passes` alone turns. ``standings``: what the timekeeper has told."""

    def __init__(self, api: Store, *flags: str, wait: bool = True) -> None:
        lines: list[str] = []
        self._direct, self.now_ms = DirectApi(api, self._waits), now_ms()
        self.standings = UNHEARD

        def say(event: str, *, level: Level = "info", **fields: object) -> None:
            lines.append(event_line(event, fields))

        wanted = settings.read(list(flags), {})
        extender = Extender(
            wanted, self._direct, say, now_ms=lambda: self.now_ms, now_s=lambda: self.now_ms / 1000
        )
        extender.polling.standings = lambda: self.standings  # type: ignore[method-assign]
        extender.cache.await_published_gpus()
        extender.slices.unserved()
        self._followed = {
            kind.path: extender._watches.follow(kind, self._tries_again)
            for kind in extender._watches.kinds().values()
        }
        super().__init__(api, extender, client_of(extender.app, verb_routes(extender.calls, 4)), lines)
        if wait:
            self.begins()

    def begins(self) -> None:
        """The watches begin, and it leads."""
        self.catches_up()
        assert self.extender.cache.complete
        while not self.extender.leadership.leads():
            self.extender.leadership.step()
        self.extender._upkeep.tick(Turns(0))

    def catches_up(self) -> None:
        """Its watches show what there is to show."""
        self._tries = 0
        for path, followed in self._followed.items():
            self._direct.idle.discard(path)
            while path not in self._direct.idle:
                next(followed)

    def passes(self, seconds: float = 0.0, step_s: float = 0.05) -> None:
        """So much time passes, in steps: the watches go on, cards that are due are free, pods are woken."""
        for _ in range(max(1, round(seconds / step_s))):
            self.now_ms += round(1000 * min(seconds, step_s))
            self.catches_up()
            self.extender.cache.expire()
            self.extender._upkeep.closures.look(self.extender.cache.snapshot)
            self.extender.requeuer.step()
        self.posts_events()

    def posts_events(self) -> None:
        """It posts the Events that wait."""
        events = self.extender.events
        while (event := events._next()) is not None:
            events._send(event)

    def _tries_again(self, _ms: int) -> None:
        self._tries += 1
        assert self._tries < MOST_TRIES, "a watch is begun again and again"

    def _waits(self, seconds: float) -> None:
        self.now_ms += round(1000 * seconds)

    def settles(self) -> None:
        """It looks at the Bindings without an answer that are due."""
        self.extender._upkeep.settle(Turns(1))
        self.posts_events()

    def says(self, document: Json) -> None:
        """The timekeeper publishes these standings, and it has read them."""
        now = now_ms()
        self.standings = standings_at(decode(orjson.dumps(document), '"1"', now), now, STALE_MS)

    def hears_node(self, raw: Json) -> None:
        """It knows this node."""
        self.catches_up()
        assert self.extender.cache.snapshot.node(raw["metadata"]["name"]).node_object == read_node(raw)

    def _hears(self, uid: str, version: int) -> None:
        self.catches_up()
        assert self._knows(uid, version)

    def woken(self) -> list[str]:
        """The UIDs of the pods that it woke, in order."""
        return [sent["metadata"]["uid"] for sent in self.api.made("patch")]


Start = Callable[..., Stepped]
