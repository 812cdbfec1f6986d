"""A cluster in memory, with a clock turned by hand: the rules that decide (accounts, notices, evictions,
releases, ranks) are Bursar's own; the ledger's sums, kube-scheduler, controllers and the API server are
models.

A run is a function of its seed: budgets, grants, workloads, PodDisruptionBudgets, calls that fail, and
settlers that are killed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.precedence import outranks, rank_of
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, gpu_pod
from timekeeper.accounts.balance import BalanceFigures, Rates, Statement, statement, untouched
from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.accounts.exhaustion.evictions import (
    BudgetEviction,
    BudgetEvictionMemory,
    EvictionNotice,
    plan,
    protected_notice,
)
from timekeeper.accounts.exhaustion.terms import evicting, terms_of
from timekeeper.accounts.held.limits import HeldView, ReleaseLimits
from timekeeper.accounts.held.order import HeldPod, next_released, queues_of
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.accounts.statements import Statements

STEP_MS = 10 * SECOND
CARD = 1_000  # milli-GPU
MODES = ("evict", "evict", "hold", "deny", "deprioritize", "reclaim")
SETTINGS = "lookahead: 5m\nevictGrace: 2m\nevictRate: 12\npdbGrace: 3m"
GRACE_MS, PDB_GRACE_MS, SPACING_MS, LOOKAHEAD_MS = 2 * MINUTE, 3 * MINUTE, 5 * SECOND, 5 * MINUTE

_read = read_pod(gpu_pod())
assert isinstance(_read, LedgerPod)
_BASE: LedgerPod = _read


@dataclass
class SimPod:
    """``ledger``: the pod as the timekeeper sees it."""

    ledger: LedgerPod
    workload: "Workload"
    rate: int
    preempts: bool = True
    is_idle: bool = False
    card: int = -1
    first_notice_ms: int | None = None
    first_refusal_ms: int | None = None
    gone_ms: int | None = None

    @property
    def uid(self) -> str:
        return self.ledger.uid

    @property
    def namespace(self) -> str:
        return self.ledger.namespace

    @property
    def priority(self) -> int:
        return self.ledger.priority

    @property
    def bound_ms(self) -> int | None:
        return self.ledger.hold.bound_ms if self.ledger.node else None


@dataclass(frozen=True)
class Workload:
    """A controller that keeps so many pods. ``protects``: its PodDisruptionBudget allows no eviction."""

    name: str
    namespace: str
    rate: int
    priority: int
    replicas: int
    protects: bool


@dataclass(frozen=True)
class Left:
    """A pod that was made to leave."""

    pod: SimPod
    how: str  # evicted, deleted, reclaimed
    at_ms: int
    beneficiary: str = ""


@dataclass
class Simulation:
    random: Random
    now_ms: int = T0
    pods: dict[str, SimPod] = field(default_factory=dict)
    charges: list[tuple[str, int, int, int]] = field(default_factory=list)  # namespace, rate, from, to
    grants: list[tuple[str, int, int]] = field(default_factory=list)  # namespace, when, amount
    entries: list[BudgetEntry] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    restarts: list[int] = field(default_factory=list)
    made: int = 0
    refused: int = 0
    away: bool = False  # the API server does not answer

    def __post_init__(self) -> None:
        random = self.random
        self.cards = random.randint(2, 12)
        self.names = [f"team-{each}" for each in range(random.randint(2, 5))]
        self.entries.append(BudgetEntry("_settings", SETTINGS, 0))
        for name in self.names:
            self._write(name, 0)
        self.workloads = [
            Workload(
                f"w{each}",
                random.choice(self.names),
                random.choice((250, 500, 1_000)),
                random.choice((0, 0, 10)),
                random.choice((1, 2, 4, 8)),
                random.random() < 0.3,
            )
            for each in range(random.randint(3, 10))
        ]
        self.memory = BudgetEvictionMemory(0)
        self.statements_before: dict[str, str] = {}
        self._state()

    def _write(self, name: str, at_ms: int) -> None:
        random = self.random
        hours = random.choice(("0", "0.1", "0.3", "1", "3", "unlimited"))
        text = f"gpuHours: {hours}\nperiod: {random.choice(('hour', 'day'))}"
        text += f"\nonExhausted: {random.choice(MODES)}"
        text += "\nmode: observe" if random.random() < 0.1 else ""
        self.entries.append(BudgetEntry(name, text, at_ms))

    # the ledger: sums over all charges

    def spent(self, name: str, from_ms: int, to_ms: int) -> int:
        """What the namespace's pods used between, by their bindings and ends alone."""
        running = ((p.namespace, p.rate, p.bound_ms, self.now_ms) for p in self.pods.values())
        return sum(
            rate * max(0, min(to_ms, end) - max(from_ms, begin))
            for namespace, rate, begin, end in (*self.charges, *running)
            if namespace == name and begin is not None
        )

    def _state(self) -> None:
        """What a tick of the settler computes."""
        self.history: History = history_of(self.entries)
        self.statements = {name: self._statement(name) for name in self.names}

    def _statement(self, name: str) -> Statement:
        account = self.history.account(name, self.now_ms).span
        budget = self.history.budget(name, self.now_ms).budget
        mine = [each for each in self.pods.values() if each.namespace == name]
        in_budget = [each for each in mine if each.ledger.standing == "IN_BUDGET"]
        granted = (budget.amount or 0) + sum(
            amount
            for to, at_ms, amount in self.grants
            if to == name and account.start_ms <= at_ms < account.end_ms
        )
        rates = Rates(
            reserving_milli=sum(each.rate for each in in_budget if each.bound_ms is not None),
            running_milli=sum(each.rate for each in mine if each.bound_ms is not None),
            waiting_milli=sum(
                each.rate for each in in_budget if each.bound_ms is None and not each.ledger.is_gated
            ),
        )
        pending = self.spent(name, account.start_ms, account.end_ms)
        return statement(self.history, name, BalanceFigures(granted, 0, pending, rates), self.now_ms)

    def over(self, name: str) -> bool:
        return self.statements[name].standing == "OVER_BUDGET"

    def mode(self, name: str) -> str:
        budget = self.history.budget(name, self.now_ms).budget
        return "observe" if budget.mode == "observe" else budget.on_exhausted

    # one step of each part

    def step(self) -> None:
        self.now_ms += STEP_MS
        self._finish()
        self._happen()
        self._state()
        self._release()
        self._evict()
        self._create()
        self._schedule()
        self._state()

    def _happen(self) -> None:
        """People and faults."""
        random = self.random
        if random.random() < 0.02:
            self._write(random.choice(self.names), self.now_ms)
        if random.random() < 0.01:
            self.grants.append((random.choice(self.names), self.now_ms, random.randint(1, HOUR // 2) * CARD))
        if random.random() < 0.02:
            self.memory = BudgetEvictionMemory(self.now_ms)  # the settler was killed
            self.restarts.append(self.now_ms)
        self.away = random.random() < 0.05

    def _finish(self) -> None:
        """Pods that leave are gone with the next step, and some end by themselves."""
        for pod in list(self.pods.values()):
            ends = pod.ledger.hold.deletion_ms is not None
            if ends or (pod.bound_ms is not None and self.random.random() < 0.003):
                del self.pods[pod.uid]
                pod.gone_ms = self.now_ms
                if pod.bound_ms is not None:
                    self.charges.append((pod.namespace, pod.rate, pod.bound_ms, self.now_ms))

    def _evict(self) -> None:
        """The budget evictor, as `settler.evictions.budget_evictor` calls the rule."""
        self.statements_before = {name: each.standing for name, each in self.statements.items()}
        settings = self.history.settings(self.now_ms)
        exhausted = evicting(self.statements, settings, self.now_ms)
        found = plan(
            (each.ledger for each in self.pods.values()), exhausted, self.memory, self.now_ms, self.now_ms
        )
        self.memory = replace(self.memory, void=found.void)
        for due in found.evictions:
            now = terms_of(due.pod.namespace, self.statements[due.pod.namespace], settings, self.now_ms)
            if now is not None and now.is_spent and not now.is_observed:
                self._make_leave(due)
        for change in found.changes:
            if not self.away:
                self._note(self.pods[change.pod.uid], change.notice)

    def _make_leave(self, due: BudgetEviction) -> None:
        pod = self.pods[due.pod.uid]
        if self.away:
            self.memory = self.memory.after(pod.uid, due.terms.subject, "unclear", self.now_ms)
        elif pod.workload.protects and not due.deletes:
            self.memory = self.memory.after(pod.uid, due.terms.subject, "protected", self.now_ms)
            pod.first_refusal_ms = pod.first_refusal_ms or self.now_ms
            notice = self.memory.notice_of(pod.ledger, self.now_ms)
            self._note(pod, protected_notice(notice, due.terms, self.now_ms))
        else:
            how = "deleted" if due.deletes else "evicted"
            self.memory = self.memory.after(
                pod.uid, due.terms.subject, "deleted" if due.deletes else "evicted", self.now_ms
            )
            self._leave(pod, how)

    def _note(self, pod: SimPod, notice: EvictionNotice) -> None:
        pod.ledger = replace(
            pod.ledger, evict_after_ms=notice.evict_after_ms, delete_after_ms=notice.delete_after_ms
        )
        self.memory = self.memory.after_writing(pod.uid, notice, self.now_ms)
        if notice.evict_after_ms is None:
            pod.first_notice_ms = pod.first_refusal_ms = None
        elif pod.first_notice_ms is None:
            pod.first_notice_ms = self.now_ms

    def _leave(self, pod: SimPod, how: str, beneficiary: str = "") -> None:
        pod.ledger = replace(pod.ledger, hold=replace(pod.ledger.hold, deletion_ms=self.now_ms))
        self.left.append(Left(pod, how, self.now_ms, beneficiary))

    def held(self) -> list[SimPod]:
        return [each for each in self.pods.values() if each.ledger.is_gated]

    def _release(self) -> None:
        held = [
            HeldPod(
                p.uid, p.namespace, p.ledger.name, p.priority, p.ledger.created_ms, p.rate, needs_budget=True
            )
            for p in self.held()
        ]
        waiting: Counter[str] = Counter()
        for each in self.pods.values():
            if each.bound_ms is None and not each.ledger.is_gated:
                waiting[each.namespace] += each.rate
        made = Statements(self.statements, untouched(self.history, self.now_ms, {}))
        view = HeldView({each.uid: each for each in held}, waiting, {}, made, self.history, self.now_ms)
        for next_one in next_released(queues_of(held), (), ReleaseLimits(view).of, self.served, 25):
            self.served[next_one.namespace] = max(self.served.values(), default=0) + 1
            pod = self.pods[next_one.uid]
            pod.ledger = replace(pod.ledger, is_gated=False, standing="IN_BUDGET")

    def _create(self) -> None:
        """Controllers replace what is missing; the webhook admits by the standings of the last tick."""
        for work in self.workloads:
            there = sum(each.workload is work for each in self.pods.values())
            for _ in range(work.replicas - there):
                self._admit(work)

    def _admit(self, work: Workload) -> None:
        over, mode = self.over(work.namespace), self.mode(work.namespace)
        waits = any(each.namespace == work.namespace for each in self.held())
        gated = mode in ("hold", "evict") and (over or waits)
        if over and mode == "deny":
            self.refused += 1
            return
        self.made += 1
        lower = over and not gated and mode != "observe"
        ledger = replace(
            _BASE,
            uid=f"uid-{self.made:05}",
            name=f"p{self.made}",
            namespace=work.namespace,
            node="",
            created_ms=self.now_ms,
            standing="" if gated else "OVER_BUDGET" if over else "IN_BUDGET",
            hold=replace(_BASE.hold, bound_ms=None),
            priority=-5 if lower else work.priority,
            is_gated=gated,
        )
        self.pods[ledger.uid] = SimPod(ledger, work, work.rate, preempts=not lower)

    def free(self, card: int) -> int:
        return CARD - self.used[card]

    def on_cards(self) -> Counter[int]:
        """Card -> what its pods hold."""
        found: Counter[int] = Counter()
        for each in self.pods.values():
            if each.card >= 0:
                found[each.card] += each.rate
        return found

    def _schedule(self) -> None:
        waiting = [p for p in self.pods.values() if p.bound_ms is None and not p.ledger.is_gated]
        standings = self._published()
        self.used = self.on_cards()
        for pod in sorted(waiting, key=lambda p: (-p.priority, p.ledger.created_ms, p.uid)):
            if standings.of(pod.namespace).refuses:
                continue
            card = next((each for each in range(self.cards) if self.free(each) >= pod.rate), None)
            if card is None and not self.away:
                card = self._reclaim(pod, standings)
            if card is not None:
                pod.card = card
                self.used[card] += pod.rate
                hold = replace(pod.ledger.hold, bound_ms=self.now_ms)
                pod.ledger = replace(pod.ledger, node="n1", hold=hold)

    def _published(self) -> NamespaceStandings:
        def of(name: str) -> NamespaceStanding:
            mode = self.mode(name)
            word = "IN_BUDGET" if mode == "observe" else self.statements[name].standing
            spent = self.statements[name].is_spent
            return NamespaceStanding(cast(Any, word), on_exhausted=mode, spent=spent)

        return NamespaceStandings({name: of(name) for name in self.names})

    def _reclaim(self, pod: SimPod, standings: NamespaceStandings) -> int | None:
        """The card on which the pod fits once pods of lower rank have left, if any."""
        for card in range(self.cards):
            there = [each for each in self.pods.values() if each.card == card]
            lower = [each for each in there if outranks(cast(Any, pod), cast(Any, each), standings)]
            lower.sort(key=lambda each: rank_of(cast(Any, each), standings))
            free, chosen = self.free(card), list[SimPod]()
            for each in lower:
                if free < pod.rate:
                    chosen.append(each)
                    free += each.rate
            if free >= pod.rate:
                for each in chosen:
                    self.used[card] -= each.rate
                    self._leave(each, "reclaimed", pod.uid)
                    each.card = -1
                return card
        return None


def running(simulation: Simulation, steps: int) -> Iterator[Simulation]:
    """The simulation after each step."""
    for _ in range(steps):
        simulation.step()
        yield simulation
