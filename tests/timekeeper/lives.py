"""The history of one ledger: the true state of the cluster, the updates that reach the settler, and what the
oracle computes from them.

The events are in machine.py.
"""

import copy
import itertools
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine
from sqlalchemy import event

from tests.support.clock import Clock
from tests.timekeeper import truth
from tests.timekeeper.clocks import at_ms
from tests.timekeeper.faults import Fuse, KilledError
from tests.timekeeper.oracle import Known, Terms, Word
from tests.timekeeper.oracle_accounts import Books, Budget
from tests.timekeeper.versions import Versions
from tests.timekeeper.worlds import READ, Json, Town, budgets, lease
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import ConflictError

NODES = ("n1", "n2")
LEASELESS = "n3"  # it never has a Lease
ALL_NODES = (*NODES, LEASELESS)
MINORS = {"n1": 37, "n2": 30, LEASELESS: 31}  # of their kubelets
CARDS = 64
TEAMS = ("team-a", "team-b")

GPU_HOUR = 3_600_000_000
BUDGETS: tuple[tuple[str | None, Budget | None], ...] = (
    ("gpuHours: 1\nperiod: hour", Budget(GPU_HOUR, "hour")),
    ("gpuHours: 3.5\nperiod: day", Budget(7 * GPU_HOUR // 2, "day")),
    ("gpuHours: 0.25\nperiod: day", Budget(GPU_HOUR // 4, "day")),
    ("gpuHours: 100\nperiod: month", Budget(100 * GPU_HOUR, "month")),
    ("gpuHours: 2\nperiod: once", Budget(2 * GPU_HOUR, "once")),
    ("gpuHours: unlimited\nplacement: off", Budget(None)),
    ("gpuHours: 3.5\nperiod: day\nmode: meter", Budget(7 * GPU_HOUR // 2, "day", "meter")),
    ("gpuHours: 1\nperiod: hour\nmode: enforce", Budget(GPU_HOUR, "hour", "enforce")),
    ("gpuHours: unlimited\nmode: observe", Budget(None, mode="observe")),
    (None, None),
)
MODES = ("enforce", "observe", "meter")
LABELS = (*MODES, "off", "")  # a word that is no mode says nothing, as no label
SETTINGS: tuple[tuple[str | None, Terms], ...] = (
    (None, Terms()),
    (
        "weights: {A100: 1.0, H100: 2.5, T4: 0.35}\nchargeBy: memory\ntimeZone: Europe/Berlin",
        Terms(
            "memory",
            weights=(("A100", Fraction(1)), ("H100", Fraction(5, 2)), ("T4", Fraction(7, 20))),
            zone="Europe/Berlin",
        ),
    ),
    (
        "chargeBy: mean\nweights: {A100: 2, A100 SXM4 80GB: 0.333}\ntimeZone: Asia/Kolkata",
        Terms(
            "mean",
            weights=(("A100", Fraction(2)), ("A100 SXM4 80GB", Fraction(333, 1000))),
            zone="Asia/Kolkata",
        ),
    ),
    (
        "chargeBy: compute\nmaxGracePeriod: 30s\ntimeZone: America/New_York",
        Terms("compute", most_grace=30_000, zone="America/New_York"),
    ),
    ("settleAfter: 2h\nplacement: off", Terms(settle_after=7_200_000)),
    ("mode: meter\nweights: {H100: 2.5}", Terms(weights=(("H100", Fraction(5, 2)),), governs=False)),
    ("mode: observe\nchargeBy: mean", Terms("mean", governs=False)),
    (
        "mode: meter\nchargeBy: dominant-host\nweights: {T4: 0.333}",
        Terms(weights=(("T4", Fraction(333, 1000)),), governs=False),
    ),
    (
        "chargeBy: dominant-host\nweights: {H100: 2.5, T4: 0.333}",
        Terms(weights=(("H100", Fraction(5, 2)), ("T4", Fraction(333, 1000)))),
    ),
)
Url = Callable[[ExitStack], str]
# a namespace's budget, or the mode that its label names, or with "" the time zone, from a moment on
Change = tuple[str, Any, int]


@dataclass(frozen=True)
class Said:
    """The content of a node's object: the kubelet's boot ID, and the agent's ``text``, decoded as the pods
    that are there (None: nothing can be concluded) and whether unlisted pods are absent."""

    boot: str
    text: str | None = None
    there: frozenset[str] | None = None
    knows: bool = False


def _in_no_hurry(connection: Any, *_: object) -> None:
    """The tests need no durability: SQLite does not wait for the disk."""
    connection.execute("PRAGMA synchronous = OFF")


def _change(books: Books, changes: list[Change]) -> None:
    for name, value, now in changes:
        if isinstance(value, str):
            books.label(name, value, now) if name else books.move(value, now)
        else:
            books.change(name, value, now)


class Life(RuleBasedStateMachine):
    """Whatever may happen to a ledger over real HTTP and SQL, compared with the oracle.

    ``heard``: the oracle fed with what the settler observed, ``written``: with what the database contains;
    ``log``: the pods' events, of which the first ``told`` have been delivered; ``spoke``: when each node last
    renewed its Lease; ``said``: what each node's object says, also while it is ``absent``; ``unready``: nodes
    whose condition Ready is Unknown; ``wrong``: by how much our clock is ahead of the true time.

    ``ahead``: by how much the clocks of nodes are, whose Leases show it; ``odd``: UIDs of pods of which such
    a clock or a restored etcd says what is not so; ``ends_are_right``: of those, which are right to 12 s;
    ``ghosts``: objects of such pods that are back; ``backup``: etcd's version, its pods and Leases.
    """

    url: Url

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.heard, self.written = Known(leaseless=LEASELESS), Known(leaseless=LEASELESS)
        self.beats: dict[str, int] = {}
        self.runs: dict[tuple[str, str], int] = {}
        self.books = Books()
        self.budget_texts: dict[str, tuple[str | None, Budget | None]] = {}
        self.labels = dict.fromkeys(TEAMS, "")
        self.settings_text: tuple[str | None, Terms] = SETTINGS[0]
        self.pods: list[truth.Pod] = []
        self.log: list[tuple[Json, bool]] = []
        self.told = 0
        self.connected, self.away, self.late, self.wrong = True, False, 0, 0
        self.numbers = itertools.count()
        self.delivered: dict[str, tuple[Json, bool]] = {}
        self.memory = Books()
        self.silent: set[str] = set()
        self.spoke: dict[str, int] = {}
        self.said = dict.fromkeys(ALL_NODES, Said("boot-0"))
        self.absent: set[str] = set()
        self.unready: set[str] = set()
        self.ahead: dict[str, int] = {}
        self.odd: set[str] = set()
        self.ends_are_right: set[str] = set()
        self.ghosts: dict[str, Json] = {}
        self.backup: tuple[int, dict[str, Json], dict[str, Json]] | None = None
        self.versions = Versions(READ["pods"])
        self.config: list[dict[str, Any]] = []
        self.failed = True
        self.looked, self.is_fresh = 0, False
        self.asleep: Settler | None = None

    def open(self, began: int) -> None:
        """An empty cluster with two nodes."""
        self.town = Town(type(self).url(self.stack), Clock(began))
        self.stack.callback(self.town.close)
        if self.town.store.engine.dialect.name == "sqlite":
            event.listen(self.town.store.engine, "checkout", _in_no_hurry)
        self.fuse = Fuse(self.town.store)
        for name in ALL_NODES:
            self.town.objects["nodes"][f"/{name}/"] = self.node(name)

    # -- time and truth

    @property
    def now(self) -> int:
        """True time."""
        return self.town.clock() - self.wrong

    def living(self) -> list[truth.Pod]:
        """Pods whose objects exist."""
        return [pod for pod in self.pods if pod.there]

    def pod(self, which: int) -> truth.Pod:
        """One of the existing pods."""
        there = self.living()
        return there[which % len(there)]

    def tell(self, pod: truth.Pod) -> None:
        """The API server stores the pod and notifies watchers."""
        raw = self.versions.stamp(pod.raw())
        key = f"{pod.namespace}/{pod.name}/{pod.uid}"
        if pod.there:
            self.town.objects["pods"][key] = raw
        else:
            self.town.objects["pods"].pop(key)
        self.log.append((raw, not pod.there))
        self.catches_up()

    def catches_up(self) -> None:
        """The watch delivers the pending events, in order."""
        while self.connected and self.told < len(self.log):
            self.hears(*self.log[self.told])
            self.told += 1

    def hears(self, raw: Json, deleted: bool) -> None:
        self.delivered[raw["metadata"]["uid"]] = raw, deleted
        item = READ["pods"](raw)
        assert item is not None
        now = self.town.clock()
        self.versions.sends(raw, deleted)
        self.town.settler.apply(WatchUpdate("pods", now, ObjectChanged(item, deleted)))
        (self.heard.goes if deleted else self.heard.sees)(raw, now)

    def nodes_are_heard(self) -> None:
        for name in NODES:
            if name not in self.silent:
                self.renews(name, 0)
        self.watch_is_alive()

    def watch_is_alive(self) -> None:
        if self.connected:
            self.town.quiet()
            self.heard.heard = max(self.heard.heard, self.town.clock())

    def renews(self, name: str, skew: int) -> None:
        renewed, ahead = self.now + skew, self.ahead.get(name)
        self.spoke[name] = self.now
        if ahead is not None:
            renewed = self.now
        raw = lease(renewed + (ahead or 0), name, None if ahead is None else self.now)
        self.town.hear("leases", raw, unheard=not self.connected)
        if self.connected:
            self.heard.renews(name, renewed)
        for pod in self.living():
            if pod.node == name:
                pod.slack, pod.seen = max(pod.slack, skew), self.now

    def passes(self, span: int, tick: bool = True) -> None:
        """True time passes."""
        self.town.clock.turn(max(0, span))
        self.is_fresh = False
        self.mistrust()
        if tick:
            self.tick()

    def mistrust(self) -> None:
        for pod in self.pods:
            if pod.end is None or pod.there:
                pod.slack = max(pod.slack, self.wrong)

    def node(self, name: str) -> Json:
        """The Node object."""
        raw, said = truth.node(name, CARDS), self.said[name]
        ready = "Unknown" if name in self.unready else "True"  # its Lease is the stronger sign
        conditions = [{"type": "Ready", "status": ready}]
        info = {"bootID": said.boot, "kubeletVersion": f"v1.{MINORS[name]}.2"}
        raw["status"] = {"nodeInfo": info, "conditions": conditions}
        if said.text is not None:
            raw["metadata"]["annotations"]["bursar.dev/holders"] = said.text
        return raw

    def words(self, boot: str, there: frozenset[str], knows: bool) -> str:
        """The agent's annotation."""
        listed: dict[str, list[str]] = {uid: [] for uid in sorted(there)}
        return json.dumps({"version": 1, "boot": boot, "known": knows, "closed": "", "pods": listed})

    def speaks(self, name: str, there: frozenset[str], knows: bool, ticks: bool) -> None:
        """A node's agent lists these pods in its present boot."""
        boot = self.said[name].boot
        self.says(name, Said(boot, self.words(boot, there, knows), there, knows), ticks)

    def says(self, name: str, said: Said, ticks: bool) -> None:
        """A node's object changes; if the node is absent, the change shows when it returns."""
        self.said[name] = said
        if name in self.absent:
            return
        self.town.hear("nodes", self.node(name), unheard=not self.connected)
        if self.connected:
            self.heard.says(name, self.word(name))
        if ticks:
            self.tick()

    def word(self, name: str) -> Word:
        """The current report about a node."""
        said = self.said[name]
        return Word(
            at=self.town.clock(),
            boot=said.boot,
            there=said.there,
            knows=said.knows,
            is_ready=name not in self.unready,
            minor=MINORS[name],
        )

    def put_config(self) -> None:
        texts = {name: text for name, (text, _) in self.budget_texts.items()} | {
            "_settings": self.settings_text[0]
        }
        entries = {name.replace("-", "_"): text for name, text in texts.items() if text is not None}
        self.town.hear("configmaps", budgets(**entries), unheard=not self.connected)
        if self.connected:
            self._hear_config()

    def put_label(self, team: str, word: str) -> None:
        """The namespace has another label, or none any more."""
        self.labels[team] = word
        labels = {"bursar.dev/mode": word} if word else {}
        namespace = {"metadata": {"name": team, "labels": labels}}
        self.town.hear("namespaces", namespace, unheard=not self.connected)
        if self.connected:
            self._hear_config()

    def _hear_config(self) -> None:
        named = {team: word if word in MODES else "" for team, word in self.labels.items()}
        self.config = [dict(self.budget_texts), {"_settings": self.settings_text}, named]

    def lists(self, sign: str = "") -> None:
        """Everything is listed as it is now. ``sign``: of a restored etcd (`versions`)."""
        self.connected = True
        self.list_pods(list(self.town.objects["pods"].values()), self.town.clock(), sign)
        self.told = len(self.log)
        self.list_others()

    def list_pods(self, raws: list[Json], asked: int, sign: str = "") -> None:
        items = self.versions.listed(raws, sign)
        self.town.settler.apply(WatchUpdate("pods", asked, ObjectsListed(items)))
        self.heard.lists(raws, asked)
        self.delivered.clear()

    def list_others(self) -> None:
        """Lists of everything except pods."""
        for source in READ:
            if source != "pods":
                read = (READ[source](raw) for raw in self.town.objects[source].values())
                self.town.settler.apply(
                    WatchUpdate(
                        source,
                        self.town.clock(),
                        ObjectsListed(tuple(item for item in read if item is not None)),
                    )
                )
        here = {name: self.word(name) for name in ALL_NODES if name not in self.absent}
        self.heard.nodes_listed(here, self.town.clock())
        leases = self.town.objects["leases"].values()
        self.heard.leases.clear()
        for raw in leases:
            self.heard.renews(raw["metadata"]["name"], at_ms(raw["spec"]["renewTime"]))
        self._hear_config()

    def begin_anew(self, known: Known) -> None:
        """A new settler, which reads the database and lists the cluster."""
        self.written = known.copy()
        self.heard = known.copy()
        self.heard.restarts()
        self.memory = copy.deepcopy(self.books)
        self.asleep = self.town.settler
        self.town.store.engine.dispose()
        self.town.start_anew()
        self.versions.begin_anew()
        self.lists()

    def tick(self) -> None:
        """The settler decides, unless it is superseded or cannot."""
        if self.away:
            return
        if self.late:
            self.late -= 1
            return
        is_ahead = self.memory.newest >= self.town.clock()  # no two changes take effect at one moment
        known, changes = self._decided()
        done = self._ticks()
        if done is None:
            written = self.fuse.written
            self.fuse.out()
            if written:
                _change(self.books, changes)
            self.begin_anew(known if written else self.written)
            self.is_fresh = False
            return
        if done or self.fuse.written:
            self.written = known.copy()
            _change(self.books, changes)
        if done:
            self.heard = known
            _change(self.memory, changes)
        self.is_fresh = done and not is_ahead
        self.fuse.out()

    def _ticks(self) -> bool | None:
        """One tick; None if the settler ended in it.

        Its exception is dropped here: a dead process has no open statement that would keep SQLite locked.
        """
        try:
            return self.town.tick()
        except (KilledError, ConflictError):
            # a conflict: it had not heard of a commit; so it ends, and another one goes on from there
            return None

    def _decided(self) -> tuple[Known, list[Change]]:
        """What the settler should know after a tick, and which entries take effect by it."""
        known = self.heard.copy()
        now = max(self.town.clock(), self.memory.newest + 1)
        changes: list[Change] = [
            (team, budget, now)
            for team, (_, budget) in self.config[0].items()
            if self.memory.latest(team) != budget
        ]
        changes += [
            (team, word, now)
            for team, word in self.config[2].items()
            if self.memory.labels.get(team, "") != word
        ]
        terms = self.config[1]["_settings"][1]
        if terms != known.terms:
            known.terms = terms
            changes.append(("", terms.zone, now))
        after = copy.deepcopy(self.memory)
        _change(after, changes)
        known.modes = {team: after.mode(team) for team in TEAMS}
        known.tick(now, self.beats, {name: truth.cards(CARDS) for name in ALL_NODES})
        return known, changes
