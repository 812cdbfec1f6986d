"""The settler's loop: apply watch updates, and several times a second decide and write."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from queue import Empty, Queue, SimpleQueue
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.budget_history import DAY_MS, EntryValue, History
from timekeeper.accounts.changes import Changes, Pulse
from timekeeper.accounts.claims.claim_sessions import SECOND_MS
from timekeeper.accounts.decisions.ledger_decisions import of_changes
from timekeeper.accounts.ends import ReportedEnd
from timekeeper.accounts.failing_watches import watches_text
from timekeeper.accounts.fair_shares import accounts_of
from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.held.limits import HeldView
from timekeeper.accounts.held.order import FairOrder, capped_namespaces, cards_held
from timekeeper.accounts.laws import LAWS, Breach, LedgerFacts, breaches
from timekeeper.accounts.pods import (
    LedgerPod,
    ReportedBinding,
    charged_pod,
    charged_pods,
    claim_user,
    metered_view,
    pod_of,
)
from timekeeper.accounts.reserved import reserved_uid
from timekeeper.accounts.session import CLAIMS_SEEN
from timekeeper.core.decisions import Record, record_nothing
from timekeeper.core.findings import CATALOGUE, WATCH_FAILS, RoleFinding, counted, of_sources, published
from timekeeper.core.ledger.metering import Interval
from timekeeper.edge.reflector import ObjectChanged
from timekeeper.edge.source_health import SourceHealth
from timekeeper.log import log
from timekeeper.settler import vetoes
from timekeeper.settler.budget_entries import (
    BudgetNotice,
    EntryChanges,
    MissingNamespaces,
    missed,
    read_entries,
)
from timekeeper.settler.claim_notices import ClaimNotice, OrphanNotices
from timekeeper.settler.cluster.cluster_state import ClusterState, WatchUpdate
from timekeeper.settler.cluster.metered_namespaces import metered_namespaces
from timekeeper.settler.decide.claim_changes import allocated_since, wanted_uids
from timekeeper.settler.decide.decide import PULSE_MS, TickDecision, TickInputs, decide, listed_namespaces
from timekeeper.settler.findings import (
    EVERY_MS,
    broken_laws,
    findings,
    given_early,
    of_clocks,
    of_sidecars,
)
from timekeeper.settler.pod_notices import PodNotice
from timekeeper.settler.state.fair_use import uses
from timekeeper.settler.state.gangs import GangTable
from timekeeper.settler.state.ledger_state import (
    DatabaseTotals,
    FutureHeadroom,
    read_grants,
    read_ledger_state,
)
from timekeeper.settler.state.tick_view import cluster_view, freed_devices, tick_view
from timekeeper.settler.tick_report import Notices, report
from timekeeper.settler.vetoes import Vetoes
from timekeeper.store import decisions, ends, fencing, news, postings, role_findings
from timekeeper.store import ledger as reading
from timekeeper.store.decisions import SOURCE
from timekeeper.store.engine import kinds
from timekeeper.store.engine.engine import (
    ConflictError,
    Connection,
    Store,
    UnavailableError,
    write_all,
)
from timekeeper.store.news import News

Clock = Callable[[], int]
# what changed claims may have in the database: see `wanted_uids`, `allocated_since`, and since when
_Allocated = tuple[dict[str, tuple[str, ...]], set[tuple[str, str]], int]

TICK_MS = 250
_SOON_MS = 100  # between two ticks if a pod or a budget changed meanwhile
_TOGETHER_MS = 20  # updates that arrive this soon after the first one share its tick

# Heartbeats are read by time of receipt, but their transaction may commit later, by at most this much.
_BEAT_OVERLAP_MS = 5_000
_ALL_BEATS_INTERVAL_MS = 60_000
# A binding counts once the watch has had this long to show its pod; it is looked at for as long again.
_BINDING_PATIENCE_MS = 10_000
_BINDINGS_INTERVAL_MS = 1_000
_ENDS_INTERVAL_MS = 1_000
# What a settler before this one saw for so long and did not charge is not charged for that time.
_ARREARS_MS = 3_600_000
_SLOW_S = 0.02  # if reading heartbeats takes longer than this, it is limited to a fifth of the time


class Settler:
    """Cluster state, ledger state, and the ticks between them. Used by one thread.

    Only one settler per database can write: the one that started last (`store.fencing`). ``holder``
    names it in the database; ``seconds`` is the monotonic clock that measures how long reading heartbeats
    takes. ``only_meter``: every namespace is metered, whatever its entry says.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        notify: Callable[[BudgetNotice], None],
        holder: str = "settler",
        seconds: Callable[[], float] = time.monotonic,
        notify_pod: Callable[[PodNotice], None] = lambda _: None,
        record: Record = record_nothing,
        only_meter: bool = False,
        notify_claim: Callable[[ClaimNotice], None] = lambda _: None,
        record_unmade: Record | None = None,
    ) -> None:
        self._store = store
        self.only_meter = only_meter
        self._metered_by: History | None = None
        self._clock = clock
        self._notices = Notices(notify, notify_pod, record, notify_claim, record_unmade or record)
        self._seconds = seconds
        self._beats_ms = self._all_beats_ms = self._beats_read_ms = self._all_beats_read_ms = 0
        self._bindings_ms = self._bindings_read_ms = 0
        self._ends_read_ms = 0
        self._next_beats_s = 0.0
        self._failed = ""
        self._broken: frozenset[Breach] = frozenset()  # laws, in the last tick
        for law in LAWS:
            metrics.LAWS_BROKEN.labels(law.__name__)  # so that the first is an increase from 0 for Prometheus
        self._missing_namespaces = MissingNamespaces()
        self._orphans = OrphanNotices()
        self._unchanged: tuple[Hashable, History, EntryChanges] | None = None
        self._values: tuple[EntryValue, ...] = ()  # of the last look, so that the next one parses what is new
        self._has_read = False
        self._reserved: SimpleQueue[Sequence[DeclaredReservation]] = SimpleQueue()
        self._later = FutureHeadroom()
        self._listed_names: tuple[str, ...] = ()
        self._listed_of: tuple[History | None, tuple[int, int]] = None, (0, 0)
        self.cluster = ClusterState()
        self.health: list[SourceHealth] = []  # of the sources that are followed
        if only_meter:
            self.cluster.listed_sources.add("priorityclasses")  # they are not watched
        self._gangs = GangTable()
        self.has_decided = False  # until then, the ledger reflects what the previous settler had observed
        with store.writing() as connection:
            before = fencing.current(connection)
            self.epoch = fencing.begin(connection, holder, clock())
            for breach in breaches(LedgerFacts(epochs=(before.number, self.epoch.number))):
                raise ConflictError(breach.text)
        self._since_ms: int | None = None  # when this ledger began, if that is in this epoch
        self._arrears_ms = 0
        # after fencing: includes the previous settler's last write
        kinds.fill(store)
        self.ledger = read_ledger_state(store, only_meter)
        self.cluster.nodes.had_lease |= self.ledger.watermarks.keys() - self.ledger.leaseless
        self._follow_modes(self.ledger.history, max(clock(), self.ledger.history.newest_ms()))
        # until when ends were read, in ticks that were written; the previous settler did so until it ended
        self._ends_ms = self.ledger.pulse.decided_ms
        self.view = tick_view(self.cluster, self.ledger, HeldView())  # of the last written tick
        self._found_ms = 0  # when findings were last written
        self.vetoes: Vetoes = {}  # evictions that somebody refuses; the thread for evictions writes it
        self.late_months: Callable[[], tuple[RoleFinding, ...]] = tuple  # see `MonthCloser.late`
        self.queues_not_held: Callable[[], tuple[RoleFinding, ...]] = tuple  # see `QueueHolder.findings`
        for error in self.ledger.history.unreadable_entries:
            log("stored-entry-unreadable", level="warning", entry=error.key, error=error.sentence())

    def apply(self, update: WatchUpdate) -> None:
        """Take in one update of a watch. The next tick decides with it."""
        self.cluster.apply(update)

    def reserve(self, written: Sequence[DeclaredReservation]) -> None:
        """What a release has written; the next tick counts it. Called by another thread."""
        self._reserved.put(written)

    def tick(self) -> bool:
        """Decide and write. Returns False if the database is unreachable: the updates are kept, and the next
        tick decides again.

        Raises ConflictError if another process wrote rows that only this settler may write.
        """
        began = time.monotonic()
        try:
            written = self._tick()
        except UnavailableError as error:
            metrics.TICKS.labels("database away").inc()
            self._log_failure(str(error))
            return False
        self._log_failure("")
        metrics.TICKS.labels("written" if written else "nothing new").inc()
        ended = time.monotonic()
        metrics.TICK_SECONDS.set(ended - began)
        return True

    def _log_failure(self, error: str) -> None:
        """Logs each error once, not four times a second."""
        if error and error != self._failed:
            log("tick-failed", level="error", error=error)
        if self._failed and not error:
            log("tick-recovered")
        self._failed = error

    def _tick(self) -> bool:
        while not self._reserved.empty():
            self.ledger.declared.add(self._reserved.get())
        missing = self.cluster.missing_sources()
        metrics.FINDINGS.labels("settler", WATCH_FAILS).set(sum(bool(each.stuck()) for each in self.health))
        if missing:
            return self._write_waiting(missing)
        # Entries take effect in order, even if the clock was set back.
        now_ms = max(self._clock(), self.ledger.history.newest_ms() + 1)
        self.cluster.pods.claim_requests.follow(self.ledger.history.settings(now_ms).drivers)
        self.cluster.pods.judge_again(now_ms)
        read = self._entries(now_ms)
        history = self.ledger.history.followed_by(read.entries) if read.entries else self.ledger.history
        if not self.has_decided:  # time zone data changes with the process alone
            with self._store.reading() as connection:
                newest = reading.newest_periods(connection)
            moved = history.moved_periods(newest)
            read = replace(read, entries=(*read.entries, *moved))
            history = history.followed_by(moved) if moved else history
        self._follow_modes(history, now_ms)
        wanted, allocated, absent = self._wanted(), self._allocated(), set(self._missing())
        with self._store.reading() as connection:
            new = self._read_news(connection, now_ms)
            self._load_sessions(connection, *wanted)
            self._load_claims(connection, allocated)
            if not self.has_decided:
                self._load_payments(connection)
            unseen = self._unseen(new.bindings)
            ended = self._ends(connection, new.ends, {pod.uid for pod in unseen} | absent)
            grants = read_grants(connection, self.ledger.grants, new.grants_mark, now_ms)
        self._take_beats(new.beats)
        self.ledger.take_grants(grants)
        if self._since_ms is None:
            decided_ms = self.ledger.pulse.decided_ms
            self._since_ms = 0 if decided_ms else now_ms
            self._arrears_ms = max(0, decided_ms - _ARREARS_MS)
        facts = TickInputs(
            read,
            history,
            self._listed(history),
            DatabaseTotals(self._store),
            now_ms,
            unseen,
            ended,
            self._since_ms,
            self._arrears_ms,
            self.epoch.number,
        )
        decision = decide(self.cluster, self.ledger, facts)
        found = None
        if abs(now_ms - self._found_ms) >= EVERY_MS:
            unread = (finding for finding in of_sources(self.health) if finding.code != WATCH_FAILS)
            running, claims = self.ledger.running_claims, self.cluster.claims.allocated.items()
            held = ((each, self.ledger.session(running.get(uid, ""))) for uid, each in claims)
            early = given_early(freed_devices(self.cluster, self.ledger), held)
            more = (*broken_laws(decision.withheld), *vetoes.findings(self.vetoes, self.view.charged, now_ms))
            waiting = of_sidecars(self.cluster.pods, self.view.charged, now_ms)
            more = (*more, *self.late_months(), *waiting, *early, *self.queues_not_held())
            own = findings(cluster_view(self.cluster), history.settings(now_ms), now_ms, more)
            clocks = of_clocks(self.cluster.nodes.wrong_clocks(), self.cluster.nodes.leaseless())
            found = published((*unread, *own, *clocks))
        if decision.changes != Changes() or found is not None:
            rows = postings.rows_of(decision.changes)
            if found is not None:
                rows.append(role_findings.replaced("settler", found, now_ms))
            runs = of_changes(decision.changes.entries, decision.changes.grants, self.ledger.history)
            made = decisions.rows_of(SOURCE, runs)
            turn = decisions.TURN if made else ""
            with fencing.writing(self._store, self.epoch, self.ledger.pulse.tick_ms, turn) as connection:
                write_all(connection, [*rows, *decisions.changes(connection, made)], is_last=True)
            if found is not None:
                self._found_ms, wrong = now_ms, counted(found)
                for code in {code for code, kind in CATALOGUE.items() if kind.level != "ok"} - {WATCH_FAILS}:
                    metrics.FINDINGS.labels("settler", code).set(wrong[code])  # an earlier one's, too
        for breach in set(decision.withheld.breaches) - self._broken:
            _tell_broken(breach)
        self._broken = frozenset(decision.withheld.breaches)
        self._report(decision, read, history, now_ms)
        self._commit(decision, history, now_ms)
        return decision.changes != Changes()

    def _follow_modes(self, history: History, now_ms: int) -> None:
        """Entries only ever take effect when they are read, so the modes change with the history alone."""
        if history is not self._metered_by:
            self.cluster.pods.follow(metered_namespaces(history, now_ms), now_ms)
            self._metered_by = history

    def _commit(self, decision: TickDecision, history: History, now_ms: int) -> None:
        """The changes are written: update ledger and cluster state accordingly."""
        pods = self.cluster.pods
        may_forget = bool(decision.changes.changed or pods.deleted or pods.relisted_ms is not None)
        self.ledger.protected = decision.protected
        withheld = decision.withheld.namespaces
        self.ledger.apply_changes(
            decision.changes,
            history,
            decision.statement_cache,
            decision.accounts,
            withheld,
            decision.fair,
        )
        self.ledger.classes_version = self.cluster.classes.version
        if not withheld:
            self._ends_ms, self._bindings_ms = self._ends_read_ms, self._bindings_read_ms
        if may_forget:
            self.ledger.forget(pods.may_change())
        sessions = decision.sessions
        self.cluster.mark_written(
            sessions.all.deferred, sessions.claims.sights, sessions.pods.served, withheld
        )
        self.has_decided = True
        waits, statements = self.ledger.without_node, decision.statement_cache.statements
        self._gangs.update(self.cluster, waits.held, history.settings(now_ms).scheduler_name)
        cards = self._cards_held(history, now_ms)
        later = self._later.of(self.ledger, statements, self.cluster.pods.namespaces, now_ms)
        reserved = frozenset(self.ledger.declared.rows.keys() & waits.held.keys())
        held = HeldView(
            waits.held,
            waits.rates,
            dict(waits.seen),
            statements,
            history,
            now_ms,
            cards,
            reserved,
            later,
            len(waits.untried),
            frozenset(uid for each in decision.protected.values() for uid in each.uids if uid in waits.held),
            self._gangs.waiting,
            self._gangs.broken,
            self._fair_order(history, now_ms),
        )
        self.view = tick_view(self.cluster, self.ledger, held)

    def _cards_held(self, history: History, now_ms: int) -> dict[str, int]:
        """See `HeldView.cards_milli`. Computed only while such a pod is held."""
        waits, cluster = self.ledger.without_node, self.cluster
        if not any(each.by_other for each in waits.held.values()):
            return {}
        names = capped_namespaces(waits.held.values(), cluster.pods.namespaces, history, now_ms)
        scheduler = history.settings(now_ms).scheduler_name
        found = cards_held(
            charged_pods(cluster.pods), names, scheduler, cluster.nodes.cards, waits.most_milli
        )
        for session in self.ledger.sessions.values():
            if session.is_static and not session.is_over and session.namespace in found:
                found[session.namespace] += session.requested_milli
        return {name: milli + self.ledger.claims_milli.get(name, 0) for name, milli in found.items()}

    def _fair_order(self, history: History, now_ms: int) -> FairOrder | None:
        """See `HeldView.fair`. Computed only while pods are held."""
        ledger, held = self.ledger, self.ledger.without_node.held
        if not held or not ledger.fair.standings or ledger.fair.making:
            return None
        layout = ledger.layout(history, now_ms)
        terms, namespaces = layout.terms, {pod.namespace for pod in held.values()}
        accounts = accounts_of(history, terms, namespaces, now_ms)
        wanted = {account for path in accounts.values() for account in path}
        reserving = ledger.reserving(ledger.declared.rows.values(), history, now_ms)
        found = uses(ledger.fair, layout, ledger.table, reserving, now_ms, wanted)
        weights = {account: terms[account].weight_milli for account in wanted}
        return FairOrder(accounts, weights, found, history.settings(now_ms).lookahead_ms)

    def _write_waiting(self, missing: tuple[str, ...]) -> bool:
        """Until every source has been listed once, write only the pulse: an absent object proves nothing
        yet."""
        now_ms, last = self._clock(), self.ledger.pulse
        state, watches = f"waiting for {', '.join(missing)}", watches_text(self.cluster.failing)
        pulse = Pulse(now_ms, last.decided_ms, state, watches=watches)
        is_same = (state, watches) == (last.state, last.watches)
        if is_same and abs(now_ms - last.tick_ms) < PULSE_MS:
            return False
        with fencing.writing(self._store, self.epoch, last.tick_ms) as connection:
            write_all(connection, postings.rows_of(Changes(pulse=pulse)))
        self.ledger.pulse = pulse
        return True

    def _entries(self, now_ms: int) -> EntryChanges:
        """The budgets as they are now. An unchanged result is reused until a ConfigMap, a namespace, the
        history or the day changes."""
        ledger, cluster, known = self.ledger, self.cluster, self._unchanged
        if not self._has_read:  # what ended while none looked, or how long ago, is not known
            cluster.gone_config_maps.update(missed(cluster.config_maps, ledger.history, now_ms))
        version, config_maps = cluster.budgets(now_ms)
        budgets = (version, cluster.existing_namespaces.version, now_ms // DAY_MS)
        if known is not None and known[0] == budgets and known[1] is ledger.history:
            return known[2]
        labels = cluster.mode_labels()
        read = read_entries(
            *(config_maps, ledger.history, ledger.errors, now_ms, labels), is_first=not self._has_read
        )
        self._has_read, self._values = True, read.values
        is_unchanged = not read.entries and not read.notices and read.errors == ledger.errors
        self._unchanged = (budgets, ledger.history, read) if is_unchanged else None
        return read

    def _listed(self, history: History) -> tuple[str, ...]:
        """The namespaces to list; the same tuple object while they are the same. With 10,000 of them an idle
        tick takes 4.0 ms, and would take 8.6 if it listed them anew."""
        of = self.cluster.pods.namespaces.version, len(self.ledger.namespaces)
        if self._listed_of[0] is not history or self._listed_of[1] != of:
            names = listed_namespaces(history, self.cluster, self.ledger)
            self._listed_names = self._listed_names if self._listed_names == names else names
            self._listed_of = history, of
        return self._listed_names

    def _wanted(self) -> tuple[set[str], set[str]]:
        """The UIDs of the sessions that changed pods may have; and those of them for reserved cards."""
        cluster = self.cluster
        uids = {*cluster.pods.changed, *cluster.pods.deleted}
        gone = (each.pod for each in (*cluster.pods.deleted.values(), *cluster.pods.deleted_waiting.values()))
        pods = (*(cluster.pods[uid] for uid in cluster.pods.changed), *gone)
        uids |= {pod.mirror_uid for pod in pods if pod.mirror_uid}
        reserved = {uid for uid in map(reserved_uid, pods) if uid}
        return uids | reserved, reserved

    def _load_sessions(self, connection: Connection, uids: Set[str], reserved: Set[str]) -> None:
        """Read these sessions from the database: they may have been settled before this settler started."""
        unknown = [uid for uid in uids if self.ledger.session(uid) is None and uid not in self.ledger.folded]
        if unknown:
            found = reading.sessions_of(connection, unknown)
            for uid in found.folded - reserved:
                log("pod-ignored", level="warning", uid=uid, reason="its session has already been rolled up")
            self.ledger.add_sessions(found)

    def _load_payments(self, connection: Connection) -> None:
        """When members of gangs that wait for cards were paid, by the settlers before this one."""
        waiting = (pod for pod in charged_pods(self.cluster.pods) if pod.can_be_bound)
        paid = [pod for pod in waiting if pod.gang is not None and not pod.is_gated]
        found = decisions.released(connection, {(pod.namespace, pod.name): pod.uid for pod in paid})
        self.ledger.without_node.paid_ms |= found

    def _allocated(self) -> _Allocated:
        claims, look_ms = self.cluster.claims, self.ledger.watermarks.get(CLAIMS_SEEN, 0) - SECOND_MS
        return {each[0]: each for each in wanted_uids(claims)}, allocated_since(claims, look_ms), look_ms

    def _load_claims(self, connection: Connection, allocated: _Allocated) -> None:
        """Which sessions of claims are in the database, where a claim or a pod that one serves changed."""
        cluster, ledger = self.cluster, self.ledger
        wanted, again, look_ms = allocated
        first = reading.existing(connection, wanted.keys())  # nearly always there is none
        more = {uid for each in first for uid in wanted[each]}
        ledger.used_claims = reading.existing(connection, more) if more else frozenset()
        ledger.claim_ends = reading.ends_of_claims(connection, again, look_ms)
        uids = {*cluster.pods.changed, *cluster.pods.deleted}
        users = (claim_user(cluster.pods, uid) for uid in uids if ledger.session(uid) is None)
        names = {
            (pod.namespace, pod.uses.served_by) for pod in users if pod is not None and pod.uses.served_by
        }
        ledger.claim_names = reading.names_of_claims(connection, names)

    def _read_news(self, connection: Connection, now_ms: int) -> News:
        began_s, of_bindings, of_ends, beats_since_ms = self._seconds(), None, None, None
        if began_s >= self._next_beats_s:
            is_all = now_ms - self._all_beats_ms >= _ALL_BEATS_INTERVAL_MS or now_ms < self._beats_ms
            beats_since_ms = 0 if is_all else max(0, self._beats_ms - _BEAT_OVERLAP_MS)
            self._beats_read_ms, self._all_beats_read_ms = now_ms, now_ms if is_all else self._all_beats_ms
        if not 0 <= now_ms - self._bindings_read_ms < _BINDINGS_INTERVAL_MS:
            since_ms = max(0, min(self._bindings_ms, now_ms) - 2 * _BINDING_PATIENCE_MS)
            of_bindings = Interval(since_ms, now_ms - _BINDING_PATIENCE_MS)
            self._bindings_read_ms = now_ms
        self._ends_read_ms = self._ends_ms
        if not 0 <= now_ms - self._ends_ms < _ENDS_INTERVAL_MS:
            of_ends = Interval(max(0, min(self._ends_ms, now_ms) - _BEAT_OVERLAP_MS), now_ms)
            self._ends_read_ms = now_ms
        found = news.read(connection, beats_since_ms, of_bindings, of_ends)
        if beats_since_ms is not None:
            took_s = self._seconds() - began_s
            self._next_beats_s = began_s + 5 * took_s if took_s > _SLOW_S else 0.0
        return found

    def _unseen(self, found: Iterable[ReportedBinding]) -> tuple[LedgerPod, ...]:
        """Pods that were bound and have no session: if none exists, it vanished while no watch ran."""
        pods = (pod_of(end) for end in found if not charged_pod(self.cluster.pods, end.uid))
        metered = self.cluster.pods.metered
        views = (metered_view(each, {}) if metered.meters(each.namespace) else each for each in pods)
        return tuple(each for each in views if each is not None)

    def _ends(
        self, connection: Connection, new: Mapping[str, ReportedEnd], missing: Set[str]
    ) -> tuple[ReportedEnd, ...]:
        """What extenders saw of removals that no process of the ledger saw: the reports that arrived, and
        those about pods that are missing since this tick."""
        found = {**(ends.of(connection, missing) if missing else {}), **new}
        settled = [uid for uid in found if self.ledger.session(uid) is None]
        if settled:
            self.ledger.add_sessions(reading.sessions_of(connection, settled))
        return tuple(found.values())

    def _missing(self) -> Iterator[str]:
        """UIDs of pods whose removal the watch missed."""
        cluster = self.cluster
        yield from (uid for uid, each in cluster.pods.deleted.items() if not each.seen)
        if cluster.pods.relisted_ms is not None:
            for uid, session in self.ledger.sessions.items():
                is_a_pods = session.charge not in ("claim", "host")
                if is_a_pods and not session.is_over and not charged_pod(cluster.pods, uid):
                    yield uid

    def _take_beats(self, found: Mapping[str, int]) -> None:
        self._beats_ms, self._all_beats_ms = self._beats_read_ms, self._all_beats_read_ms
        beats = self.ledger.beats
        for uid, beat in found.items():
            if beats.get(uid) != beat and self.ledger.session(uid):
                beats[uid] = beat
                self.ledger.new_beats.add(uid)

    def _report(self, decision: TickDecision, read: EntryChanges, history: History, now_ms: int) -> None:
        report(self.cluster, self.ledger, decision, read, self._notices, history, now_ms)
        for notice in self._missing_namespaces.notices(self.cluster):
            self._notices.budget(notice)
        for orphan in self._orphans.notices(self.cluster.orphans(self.ledger.running_claims, now_ms)):
            self._notices.claim(orphan)


def _tell_broken(breach: Breach) -> None:
    metrics.LAWS_BROKEN.labels(breach.law).inc()
    log("law-broken", level="error", law=breach.law, namespace=breach.namespace, error=breach.text)


def run(settler: Settler, updates: "Queue[WatchUpdate]", stop: Event) -> None:
    """Until ``stop``: apply watch updates and tick, regularly, and soon after a change. A slow tick delays
    the next one; the queue never grows beyond its limit."""
    while not stop.is_set():
        began = time.monotonic()
        settler.tick()
        ended = time.monotonic()
        _receive(settler, updates, ended, ended - began)


def _receive(settler: Settler, updates: "Queue[WatchUpdate]", from_s: float, took_s: float) -> None:
    """Lasts at least as long as the tick did, so ticks never take more than half of the time."""
    until_s = from_s + max(TICK_MS / 1000 - took_s, took_s)
    soonest_s = from_s + max(_SOON_MS / 1000 - took_s, took_s)
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            each = updates.get(timeout=left_s)
        except Empty:
            return
        settler.apply(each)
        if isinstance(each.change, ObjectChanged) and each.source != "leases":
            until_s = min(until_s, max(soonest_s, time.monotonic() + _TOGETHER_MS / 1000))
