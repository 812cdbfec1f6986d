"""A settler without a database, driven by random events. After each tick all its cached totals are compared
with totals computed from scratch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.timekeeper import one_by_one
from tests.timekeeper.listed import Listed
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, READ, SECOND, T0, Json, budgets, gpu_pod, lease, node
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import BudgetEntry, history_of, protected_span
from timekeeper.accounts.grants import Grant, GrantSums
from timekeeper.accounts.laws import Charged, LedgerFacts, breaches
from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.session import Session, admitted_in_budget
from timekeeper.accounts.statements import AccountKey, Part, statements
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.tables import Table
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchProgress
from timekeeper.settler.budget_entries import EntryChanges, read_entries
from timekeeper.settler.cluster.cluster_state import ClusterState, WatchUpdate
from timekeeper.settler.decide.decide import TickDecision, TickInputs, decide, listed_namespaces
from timekeeper.settler.decide.withheld_accounts import NOTHING
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.totals import GrantCache

NODES = ("n1", "n2", "n3")
TEAMS = ("team-a", "team-b", "team-c", "other")
SPANS = (0, 1, 250, 7 * SECOND, 40 * SECOND, 9 * MINUTE, 11 * MINUTE, HOUR, 5 * HOUR, DAY)
# a pod that reserves two hours
DECLARED = {"bursar.dev/held": "budget", "bursar.dev/declared": "7200"}
SERVING = '"tier":"serving"'
PROTECTING = 5  # of BUDGETS
ALWAYS = Interval(0, T0 + 1000 * DAY)
BUDGETS: tuple[dict[str, str], ...] = (
    {"team_a": "gpuHours: 1\nperiod: hour", "team_b": "gpuHours: 3\nperiod: day"},
    {"team_a": "gpuHours: 2\nperiod: hour", "team_b": "gpuHours: 3\nperiod: day\ncarryOver: 0.5"},
    {"team_a": "gpuHours: unlimited", "_defaults": "gpuHours: 1\nperiod: month"},
    {"team_a": "gpuHours: 1\nperiod: hour\ngroup: all", "_group.all": "gpuHours: 2\nperiod: day"},
    {
        "team_a": "gpuHours: 1\nperiod: day\ngroup: all",
        "team_b": "gpuHours: 1\nperiod: hour\ngroup: all",
        "_group.all": "gpuHours: 1\nperiod: hour",
        "_defaults": "gpuHours: 1\nperiod: day\ngroup: rest",
        "_group.rest": "gpuHours: 1\nperiod: day",
    },
    {
        "team_a": "gpuHours: 1\nperiod: day\nprotect: {labels: {tier: serving}, hours: 0.5}",
        "team_b": "gpuHours: 1\nperiod: hour\nprotect: {labels: {tier: serving}, cards: 2}",
    },
    {"team_a": "gpuHours: 1", "_settings": "settleAfter: 5m\nlookahead: 1m\nweights: {A100: 2}"},
    {"team_a": "gpuHours: 1", "_settings": "settleAfter: 5m\ntimeZone: Asia/Kolkata"},
)


@dataclass
class Shelf:
    """A database in lists: every posting and grant ever written."""

    postings: list[Posting] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)

    def posted_by_pods(self, namespace: str, span: Interval) -> list[tuple[str, str, int]]:
        """Posted amounts with the pod's controller and labels, one for each posting."""
        mine = (each for each in self.postings if each.namespace == namespace)
        pods = ((self.sessions[each.session_uid], amount_within((each,), span)) for each in mine)
        return [(session.owner, session.labels, amount) for session, amount in pods]

    def charges_since(self, names: Sequence[str], since_ms: int) -> list[tuple[str, Interval, float]]:
        """Of these namespaces, one for each posting."""
        mine = (posting for posting in self.postings if posting.namespace in names)
        return [(new.namespace, new.interval, new.rate_milli) for new in mine if new.to_ms > since_ms]

    def posted(self, parts: Iterable[Part]) -> dict[Part, int]:
        """Posted amounts, summed from single postings."""
        return {part: self._sum(*part) for part in parts}

    def _sum(self, namespace: str, start: int, end: int) -> int:
        mine = (each for each in self.postings if each.namespace == namespace)
        return amount_within(mine, Interval(start, end))

    def granted(self, keys: Iterable[AccountKey]) -> dict[AccountKey, GrantSums]:
        return {key: each for key, each in self.all().items() if key in set(keys)}

    def last_granted(self, before_ms: int) -> dict[str, Interval]:
        """The latest ended account of each subject."""
        ended = sorted((end, start, name) for name, start, end in self.all() if end <= before_ms)
        return {name: Interval(start, end) for end, start, name in ended}

    def all(self) -> dict[AccountKey, GrantSums]:
        """The grants of every account."""
        found: dict[AccountKey, GrantSums] = {}
        for each in self.grants:
            key = (each.subject, each.span.start_ms, each.span.end_ms)
            found[key] = found.get(key, GrantSums()).plus(each)
        return found


def timeless(told: Mapping[str, Statement]) -> dict[str, Statement]:
    """Statements without forecasts: those depend on the moment of the request."""
    return {
        name: replace(
            each, own_exhausted_ms=None, group=each.group and replace(each.group, own_exhausted_ms=None)
        )
        for name, each in told.items()
    }


class Life:
    """A settler without a database: cluster, ledger, ticks, and a clock that can be set both ways."""

    def __init__(self) -> None:
        self.now = T0
        self.cluster = ClusterState()
        self.ledger = LedgerState(
            history=history_of(()),
            errors={},
            sessions=Table(),
            posted={},
            beats={},
            watermarks={},
            namespaces=set(),
            waiting={},
        )
        self.shelf = Shelf()
        self.entries: list[BudgetEntry] = []
        self.pods: dict[str, Json] = {}
        self.made = 0
        for source, items in (("nodes", [node(name, cards=4) for name in NODES]), ("pods", [])):
            self.list_all(source, items)
        for source in ("leases", "configmaps", "priorityclasses"):
            self.list_all(source, [])

    def list_all(self, source: str, raw: Iterable[Json]) -> None:
        items = tuple(item for item in map(READ[source], raw) if item is not None)
        self.cluster.apply(WatchUpdate(source, self.now, ObjectsListed(items)))

    def hear(self, source: str, raw: Json, deleted: bool = False) -> None:
        item = READ[source](raw)
        self.cluster.apply(
            WatchUpdate(source, self.now, WatchProgress() if item is None else ObjectChanged(item, deleted))
        )

    def tick(self, is_written: bool = True) -> TickDecision:
        """One tick; if it is not written, it has no effect."""
        ledger = self.ledger
        now = max(self.now, ledger.history.newest_ms() + 1)
        read = read_entries(self.cluster.config_maps, ledger.history, ledger.errors, now)
        history = history_of((*self.entries, *read.entries)) if read.entries else ledger.history
        names = listed_namespaces(history, self.cluster, ledger)
        decision = decide(self.cluster, ledger, TickInputs(read, history, names, self.shelf, now))
        assert decision.withheld == NOTHING
        if is_written:
            self.write(decision, read)
            ledger.protected = decision.protected
            ledger.apply_changes(decision.changes, history, decision.statement_cache, decision.accounts)
            ledger.forget(self.cluster.pods)
            self.cluster.mark_written(decision.sessions.all.deferred)
            self.check(names, now)
        return decision

    def write(self, decision: TickDecision, read: EntryChanges) -> None:
        self.entries += read.entries
        self.shelf.postings += decision.changes.postings
        self.shelf.grants += decision.changes.grants
        changed = (*decision.changes.opened, *decision.changes.changed)
        self.shelf.sessions |= {each.uid: each for each in changed}

    def check(self, names: tuple[str, ...], now: int) -> None:
        """Compare all cached totals with totals computed from scratch."""
        ledger = self.ledger
        sessions = ledger.sessions.values()
        held = [ledger.unsettled(each, ledger.watermarks.get(each.node)) for each in sessions]
        by_namespace = {name: [each for each in held if each.session.namespace == name] for name in TEAMS}
        for name in TEAMS:
            owed = sum(one_by_one.pending(each, ALWAYS, now) for each in by_namespace[name])
            assert ledger.table.pending(name, ALWAYS) == owed
            reserved = sum(one_by_one.declared(each, ALWAYS, now) for each in by_namespace[name])
            assert ledger.table.declared(name, ALWAYS) == reserved
        assert len(ledger.table) == len(held)
        assert list(breaches(self.facts())) == []
        waiting = self.waiting(now)
        assert ledger.without_node.rates == waiting
        listed = Listed(self.shelf.all(), self.shelf.posted(ledger.totals), by_namespace, waiting, (), now)
        assert ledger.statement_cache is not None
        made = statements(ledger.history, names, ledger.namespaces, listed, now)
        said = ledger.statement_cache.statements
        assert timeless({"": said.default}) == timeless({"": made.default})
        assert timeless(said.namespaces) == timeless(made.namespaces)
        assert timeless(said.groups) == timeless(made.groups)
        self.check_protected(now)
        self.note_grants(now)

    def facts(self) -> LedgerFacts:
        """The whole ledger, as its laws read it."""
        of: dict[str, list[Posting]] = {}
        for posting in self.shelf.postings:
            of.setdefault(posting.session_uid, []).append(posting)
        charged = [Charged(session, of.get(uid, ())) for uid, session in self.shelf.sessions.items()]
        published = self.ledger.totals
        return LedgerFacts(charged=charged, published=published, stored=self.shelf.posted(published))

    def check_protected(self, now: int) -> None:
        """Of each floor no more is given out than there is; what selected pods used, from single sessions."""
        ledger = self.ledger
        assert ledger.protected.keys() == ledger.history.protections.keys()
        for name, chosen in ledger.protected.items():
            known = {**self.shelf.sessions, **ledger.sessions}
            mine = {uid for uid, each in known.items() if each.namespace == name and SERVING in each.labels}
            held = sum(known[uid].requested_milli for uid in chosen.uids & known.keys())
            assert all(uid in mine or uid not in known for uid in chosen.uids)
            if chosen.protection.cards_milli is not None:
                assert held + chosen.left <= chosen.protection.cards_milli
                continue
            span = protected_span(ledger.history, name, now)
            used = amount_within((each for each in self.shelf.postings if each.session_uid in mine), span)
            for uid in mine & ledger.sessions.keys():
                session = ledger.sessions[uid]
                open_session = ledger.unsettled(session, ledger.watermarks.get(session.node))
                used += one_by_one.pending(open_session, span, now)
            assert chosen.used == used

    def note_grants(self, now: int) -> None:
        """What the settler reads in its next tick."""
        living = {key: each for key, each in self.shelf.all().items() if key[2] > now}
        before = self.ledger.grants.now
        keys = living.keys() | before.keys()
        self.ledger.changed_grants |= {key[0] for key in keys if living.get(key) != before.get(key)}
        self.ledger.grants = GrantCache((len(self.shelf.grants), 0), 0, living)

    def waiting(self, now: int) -> dict[str, int]:
        """The rates of admitted pods without a node, summed from all pods."""
        terms = self.ledger.history.settings(now)
        cards = tuple(card for node in self.cluster.nodes.values() for card in node.cards)
        most = sum(weight_of(card.model, terms.weights) for card in cards)
        rates: dict[str, int] = {}
        for pod in self.cluster.pods.values():
            is_young = now - pod.created_ms < terms.lookahead_ms
            is_waiting = not pod.node and pod.ended_ms is None
            if is_young and is_waiting and admitted_in_budget(pod.standing, terms):
                rate = rated(Demand(request=pod.request), NodeCards(cards), terms).rate_milli
                rates[pod.namespace] = min(most, rates.get(pod.namespace, 0) + rate)
        return {name: rate for name, rate in rates.items() if rate}

    def statement(self, namespace: str) -> Statement:
        """The namespace's cached statement."""
        assert self.ledger.statement_cache is not None
        return self.ledger.statement_cache.statements.namespaces[namespace]

    # what may happen

    def bind(self, which: int, span: int, more: int) -> None:
        name = f"p{self.made}"
        self.made += 1
        bound = self.now - span
        self.pods[name] = {
            "namespace": TEAMS[more % 4],
            "node": NODES[which % 3] if more % 7 else "",
            "percent": 1 + more,
            "card": which % 4,
            "grace_s": (0, 30, 3600)[more % 3],
            "standing": ("IN_BUDGET", "OVER_BUDGET")[more % 5 == 0],
            "bound_ms": bound,
            "created_ms": bound,
            "started_ms": bound + span // 2 if more % 3 and more % 7 else None,
            "ended_ms": None,
            "annotations": DECLARED if more % 7 and more % 4 == 1 else None,
            "labels": {"tier": "serving"} if which % 2 else None,
        }
        self.tell(name)

    def start(self, which: int, span: int, more: int) -> None:
        name = self.pod(which)
        if name and self.pods[name]["node"]:
            self.pods[name]["started_ms"] = self.pods[name]["bound_ms"] + span
            self.tell(name)

    def place(self, which: int, span: int, more: int) -> None:
        name = self.pod(which)
        if name and not self.pods[name]["node"]:
            self.pods[name] |= {"node": NODES[more % 3], "bound_ms": self.now}
            self.tell(name)

    def end(self, which: int, span: int, more: int) -> None:
        name = self.pod(which)
        if name and self.pods[name]["started_ms"] is not None:
            self.pods[name]["ended_ms"] = self.pods[name]["started_ms"] + span
            self.tell(name)

    def delete(self, which: int, span: int, more: int) -> None:
        name = self.pod(which)
        if name:
            self.hear("pods", gpu_pod(name, **self.pods.pop(name)), deleted=True)

    def lose(self, which: int, span: int, more: int) -> None:
        """A pod is deleted, and a list is the first to show it."""
        name = self.pod(which)
        if name:
            self.pods.pop(name)
        self.list_all("pods", [gpu_pod(each, **true) for each, true in self.pods.items()])

    def beat(self, which: int, span: int, more: int) -> None:
        """A heartbeat is read; a session's latest may be old, or from a clock that was set back."""
        uids = list(self.ledger.sessions)
        if uids:
            uid = uids[which % len(uids)]
            self.ledger.beats[uid] = max(self.ledger.beats.get(uid, 0), self.now - span)
            self.ledger.new_beats.add(uid)

    def node_lives(self, which: int, span: int, more: int) -> None:
        self.now += span
        self.hear("leases", lease(self.now - (0, 0, SECOND, HOUR)[more % 4], NODES[which % 3]))
        if more % 5:
            self.cluster.apply(WatchUpdate("pods", self.now, WatchProgress()))

    def time_passes(self, which: int, span: int, more: int) -> None:
        self.now += span

    def clock_is_turned_back(self, which: int, span: int, more: int) -> None:
        self.now -= span

    def budget(self, which: int, span: int, more: int) -> None:
        self.hear("configmaps", budgets(**BUDGETS[more % len(BUDGETS)]))

    def cards_change(self, which: int, span: int, more: int) -> None:
        self.hear("nodes", node(NODES[which % 3], cards=4 + more % 3, model=("A100", "T4")[more % 2]))

    def database_is_away(self, which: int, span: int, more: int) -> None:
        """A tick decides but cannot write."""
        self.tick(is_written=False)

    def given(self, which: int, span: int, more: int) -> None:
        """A manual grant."""
        account = self.ledger.history.account(TEAMS[which], self.now)
        key = f"by-hand/{len(self.shelf.grants)}"
        grant = Grant(TEAMS[which], account.span, 1 + more, "manual", "", "admin", key, self.now)
        self.shelf.grants.append(grant)
        self.note_grants(self.now)

    def pod(self, which: int) -> str:
        names = list(self.pods)[-6:]
        return names[which % len(names)] if names else ""

    def tell(self, name: str) -> None:
        self.hear("pods", gpu_pod(name, **self.pods[name]))
