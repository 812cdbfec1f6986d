"""Puts the extender together in the process that serves: the books, those who fill them, those who act."""

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from flask import Flask

from scheduler_ext import log
from scheduler_ext.api import Api
from scheduler_ext.app import create_app
from scheduler_ext.binder import Binder
from scheduler_ext.books import Books
from scheduler_ext.metrics import Metrics
from scheduler_ext.settings import Settings
from scheduler_ext.verbs import Policies, Verbs
from scheduler_ext.view import ClusterView, cluster
from scheduler_ext.waiting import Waiter
from scheduler_ext.waker import Waker
from scheduler_ext.watching import Kind, follow, kinds

V = TypeVar("V")

TICK_S = 0.2


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Extender:
    """The running extender. ``app`` answers; `start` begins to watch; `stop` asks the threads to end; ``die``
    ends the process at once."""

    def __init__(
        self,
        settings: Settings,
        api: Api,
        say: log.Log = log.to_stderr,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        self._settings, self._api, self._say, self._die = settings, api, say, die
        self._stop = threading.Event()
        self._heard: dict[str, float] = {}
        self.books = Books(now_ms, lambda names: self.waker.freed(names))
        self.waker = Waker(api, self.books, settings.scheduler_name, say)
        self._policies = Policies(
            settings.policy, lambda word: say("policy", asked=word, acts_as="binpack", why="not built yet")
        )
        self.binder = Binder(
            api,
            self.books,
            self._policies,
            say,
            timeout_s=settings.bind_timeout_ms / 1000,
            most_grace_ms=settings.most_grace_ms,
            ended=self.waker.tried,
        )
        verbs = Verbs(self.books, self._policies, self.waker, self.binder)
        metrics = Metrics(lambda: self.books.snapshot, lambda: len(self.waker.waiting()), self._silent_s)
        self.app: Flask = create_app(verbs, self._view, metrics, say)

    def start(self) -> None:
        """Begin to watch; the books are complete some time later."""
        pods, nodes = kinds(self.books, self._settings.most_grace_ms)
        for name, work in {
            "pods": lambda: self._follow(pods),
            "nodes": lambda: self._follow(nodes),
            "waker": lambda: self.waker.run(self._stop),
            "settler": self._settle_doubts,
            "ticker": self._tick,
        }.items():
            threading.Thread(target=self._must_not_end, args=(name, work), name=name, daemon=True).start()

    def stop(self) -> None:
        """The threads end when they next look; they are daemons, so nobody needs to wait for them."""
        self._stop.set()

    def _follow(self, kind: Kind[V]) -> None:
        def heard() -> None:
            self._heard[kind.path] = time.monotonic()

        follow(self._api, kind, heard, self._say, self._stop)

    def _tick(self) -> None:
        while not self._stop.is_set() and not self.books.complete:
            self._stop.wait(TICK_S / 10)
        self._ready()
        while not self._stop.wait(TICK_S):
            self.books.expire()

    def _ready(self) -> None:
        snapshot = self.books.snapshot
        waiting = [pod for pod in snapshot.pods.values() if not pod.node and pod.request is not None]
        self.waker.seed(Waiter(p, self._policies(p.request), None) for p in waiting if p.request is not None)
        self._say("complete", nodes=len(snapshot.nodes), pods=len(snapshot.pods), waiting=len(waiting))
        gc.collect()
        gc.freeze()  # what is known at the start mostly stays: the collector need not look at it again

    def _settle_doubts(self) -> None:
        while not self._stop.wait(TICK_S):
            for uid in self.books.in_doubt():
                self.binder.settle(uid)

    def _must_not_end(self, name: str, work: Callable[[], None]) -> None:
        """A thread that dies would leave books that follow nothing, and look well: the process ends with it,
        and starts anew from the objects."""
        try:
            work()
        except BaseException:
            self._say("died", thread=name)
            traceback.print_exc()
            self._die(1)

    def _silent_s(self) -> dict[str, float]:
        now = time.monotonic()
        return {path.rpartition("/")[2]: now - heard for path, heard in self._heard.items()}

    def _view(self) -> ClusterView:
        return cluster(self.books.snapshot, self.waker.waiting())
