"""Several extenders over one API server, all in this process and in one thread, so that a history can stop
any of them between any two calls, let others go on, and come back to it.

The books, the binder, the watches and the taking over are the real ones. What is played is the API server
(with the semantics of `apiserver.Store`), what becomes of each call, when each watch delivers, who believes
that it should lead, and the clock.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from scheduler_ext.binding.binder import Binder
from scheduler_ext.binding.outcome import sentence
from scheduler_ext.binding.values import BindingArgs
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.cache.informers import apply, kinds
from scheduler_ext.leadership.fencing import marker, toucher
from scheduler_ext.leadership.takeover import Leadership
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext import readback
from tests.scheduler_ext.apiserver import Store
from tests.support.api_server import PlayedStream, initial_lines
from tests.support.sources import unnoted
from tests.worlds import Json
from timekeeper.edge.http_client import HttpStream
from timekeeper.edge.list_watch import inform
from timekeeper.edge.reflector import ExpiredError, UnreachableError
from timekeeper.runtime.api_server import Answered, Lost, Reply, Unsent

HOME = "bursar-system"
GRACE_MS = 600_000
LOOKS = 6  # at the election, of a replica that takes over as far as it gets

# what becomes of a call that changes something
FINE, UNSENT, LOST_DONE, LOST_UNDONE, LATE, BROKEN_DONE, BROKEN_UNDONE, BUSY = (
    "fine",
    "unsent",
    "lost-done",
    "lost-undone",
    "late",
    "500-done",
    "500-undone",
    "429",
)
FAULTS = (UNSENT, LOST_DONE, LOST_UNDONE, LATE, BROKEN_DONE, BROKEN_UNDONE, BUSY)


class Cluster(Store):
    """The API server. ``fate`` says what becomes of each changing call of a replica; ``before`` is called
    before each call, so that others may go on there. ``late``: calls whose caller has given up, and that the
    server has yet to see. ``bindings``: UID to node of every Binding that was obeyed, ``bound_at``: to its
    version; ``told``: which replica was told of whose."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_800_000_000_000
        self.fate: Callable[[str, str], str] = lambda _replica, _verb: FINE
        self.before: Callable[[str, str], None] = lambda _replica, _verb: None
        self.late: list[Callable[[], object]] = []
        self.bindings: dict[str, str] = {}
        self.bound_at: dict[str, int] = {}
        self.told: set[tuple[str, str]] = set()
        self.orphaned: list[Vanished] = []
        self.obeyed: Callable[[str, str], None] = lambda _replica, _uid: None

    def ask(self, replica: str, method: str, path: str, body: Json | None) -> Reply:
        """One call of a replica's."""
        parts = path.split("/")
        verb = "bind" if parts[-1] == "binding" else method.lower()
        self.before(replica, verb)
        if method == "GET":
            fate = self.fate(replica, verb)
            return (
                self._reply(self.get(parts[4], parts[6]))
                if fate == FINE
                else self._end(fate, lambda: (200, {}))
            )

        def act() -> tuple[int, Json]:
            if verb == "patch":
                return self.patch(parts[4], parts[6], body or {})
            status, answer = self.bind(parts[4], parts[6], body or {})
            if status < 300:
                uid = self.pod(parts[6], parts[4])["metadata"]["uid"]
                self.bindings[uid], self.bound_at[uid] = (body or {})["target"]["name"], self.version
                self.obeyed(replica, uid)
            return status, answer

        reply = self._end(self.fate(replica, verb), act)
        if verb == "bind" and isinstance(reply, Answered) and reply.status < 300:
            self.told.add((replica, str((body or {})["metadata"]["uid"])))
        return reply

    def _end(self, fate: str, act: Callable[[], tuple[int, Json]]) -> Reply:
        if fate == LATE:
            self.late.append(act)  # of a read nothing comes but the time it took
        if fate in (FINE, LOST_DONE, BROKEN_DONE):
            done = act()
            if fate == FINE:
                return self._reply(done)
        if fate == UNSENT:
            return Unsent("refused")
        if fate == BUSY:
            return Answered(429, {"message": "too many requests"})
        return Answered(500, {"message": "500"}) if fate.startswith("500") else Lost("no answer")

    @staticmethod
    def _reply(answer: tuple[int, Json]) -> Reply:
        return Answered(*answer)

    def skipped(self, replica: str, since: int) -> None:
        """A replica lists anew: of pods that were bound and forced away since then it can know nothing."""
        for each in self.orphaned:
            if self.bound_at.get(each.raw["metadata"]["uid"], 0) > since:
                each.unknown.add(replica)

    def remove(self, name: str) -> None:
        """Force the deletion of a pod; one that held cards goes on running for its grace period."""
        raw = self.pod(name)
        self.delete("pods", name, "team-a")
        if readback.holds(raw):
            grace_ms = 1000 * int(raw["spec"].get("terminationGracePeriodSeconds", 30))
            self.orphaned.append(Vanished(raw, self.version, self.now_ms + grace_ms))


@dataclass
class Vanished:
    """A pod whose object went while it held cards: in which version, and until when it may run. ``unknown``:
    the processes that could not see it bound."""

    raw: Json
    version: int
    until_ms: int
    unknown: set[str] = field(default_factory=set)


class Api:
    """One replica's way to the API server. ``broken``: what its next list or watch meets instead."""

    def __init__(self, cluster: Cluster, replica: str) -> None:
        self._cluster, self._replica = cluster, replica
        self.broken: dict[str, list[Exception]] = {"pods": [], "nodes": []}
        self.at = {"pods": -1, "nodes": -1}

    def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "",
        timeout_s: float,
    ) -> Reply:
        """As `timekeeper.runtime.api_server.Api.call`."""
        return self._cluster.ask(self._replica, method, path, body)

    def decode(self, text: bytes, /) -> object:
        """Events of a watch stand for themselves."""
        return json.loads(text) if isinstance(text, bytes) else text

    def page(self, _path: str) -> Json:
        """No list comes in pages here."""
        raise NotImplementedError

    def _listed(self, kind: str) -> Json:
        self._meet(kind)
        if kind == "pods":
            self._cluster.skipped(self._replica, self.at[kind])
        self.at[kind] = self._cluster.version
        metadata = {"resourceVersion": str(self._cluster.version)}
        return {"items": list(self._cluster.objects[kind].values()), "metadata": metadata}

    def stream(self, path: str, silence_s: float) -> HttpStream:
        """As `Api.stream`; a bookmark without a version where there is nothing to tell."""
        path, _, query = path.partition("?")
        kind, asked = path.rpartition("/")[2], dict(parse_qsl(query))
        if "sendInitialEvents" in asked:
            return PlayedStream(initial_lines(self._listed(kind)))
        return PlayedStream(self._events(kind, int(asked["resourceVersion"])))

    def _events(self, kind: str, at: int) -> Iterator[Json]:
        while True:
            self._meet(kind)
            if at < self._cluster.oldest:
                raise ExpiredError
            news = [each for each in self._cluster.log if each[0] > at and each[1] == kind]
            if not news:
                yield {"type": "BOOKMARK", "object": {}}
                continue
            at = self.at[kind] = news[0][0]
            yield news[0][2]

    def _meet(self, kind: str) -> None:
        if self.broken[kind]:
            raise self.broken[kind].pop(0)


class SteppedCache(ClusterCache):
    """A cache that waits by letting their watch deliver."""

    deliver: Callable[[], None]

    def wait_for(self, true: Callable[[Snapshot], bool], timeout_s: float) -> bool:
        """As `ClusterCache.wait_for`, without a clock."""
        if not true(self.snapshot):
            self.deliver()
        return true(self.snapshot)


class SteppedElection:
    """An election that says what the history says."""

    every_s = 1.0

    def __init__(self) -> None:
        self.wanted: bool | None = False

    def look(self) -> bool | None:
        """What this replica believes."""
        return self.wanted

    def give_back(self) -> None:
        """Nobody asks."""


class Replica:
    """One process in the pod of this name: it starts with empty books. ``word`` names the process."""

    def __init__(self, cluster: Cluster, name: str, word: str) -> None:
        self.cluster, self.name, self.word = cluster, name, word
        self.api, self.belief = Api(cluster, word), SteppedElection()
        self.cache = SteppedCache(lambda: cluster.now_ms, lambda _names: None)
        self.cache.deliver = self.deliver
        api: Any = self.api
        self.leadership = Leadership(
            self.belief,
            self.cache,
            marker(api, HOME, name, mute),
            toucher(api, self.cache, GRACE_MS, mute, map),
            mute,
            patience_s=0.0,
            now_s=lambda: cluster.now_ms / 1000,  # a slow machine must not change what happens
        )
        self.binder = Binder(
            api,
            self.cache,
            lambda _request: BINPACK,
            mute,
            timeout_s=600.0,
            most_grace_ms=GRACE_MS,
            ended=lambda _uid: None,
            turn=self.leadership,
        )
        self.kinds: dict[str, Any] = dict(
            zip(("pods", "nodes"), kinds(self.cache, GRACE_MS, self.leadership, HOME), strict=True)
        )
        self.streams: dict[str, Iterator[Any]] = {
            word: inform(api, kind.path, kind.read, lambda _ms: None, unnoted(word))
            for word, kind in self.kinds.items()
        }
        self.busy: set[str] = set()

    def hear(self, kind: str) -> bool:
        """Its watch delivers one event; False where there was nothing new."""
        before = self.api.at[kind]
        event = next(self.streams[kind])
        apply(self.kinds[kind], event, lambda: None, mute)
        return self.api.at[kind] != before

    def deliver(self) -> None:
        """Its watches deliver all there is."""
        for kind in ("nodes", "pods"):
            self.hear(kind)
            while self.hear(kind):
                pass

    def step(self) -> None:
        """One step of its leadership, unless it is in one."""
        if "step" not in self.busy:
            self._within("step", self.leadership.step)

    def bind(self, raw: Json, node: str) -> str | None:
        """kube-scheduler asks it to bind; None where this very pod is being bound by it already."""
        metadata = raw["metadata"]
        order = BindingArgs(metadata["namespace"], metadata["name"], metadata["uid"], node)
        if order.uid in self.busy:
            return None
        said: list[str] = []
        self._within(order.uid, lambda: said.append(sentence(self.binder.bind(order))))
        return said[0]

    def settle(self) -> None:
        """It asks after those that are in doubt."""
        for uid in self.cache.uncertain():
            if uid not in self.busy:
                self._within(uid, lambda uid=uid: self.binder.resolve_uncertain(uid))  # type: ignore[misc]

    def take_over(self) -> None:
        """It believes that it should lead, and goes as far as it gets."""
        self.belief.wanted = True
        for _ in range(LOOKS):
            self.deliver()
            self.step()

    def _within(self, word: str, work: Callable[[], object]) -> None:
        self.busy.add(word)
        try:
            work()
        finally:
            self.busy.discard(word)


def mute(event: str, **fields: object) -> None:
    """A log that nobody reads."""


def broken(how: str) -> Exception:
    """What a list or a watch may meet."""
    return ExpiredError() if how == "expired" else UnreachableError(how)
