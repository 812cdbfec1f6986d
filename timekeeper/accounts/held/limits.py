"""What bounds the release of held pods: the accounts of their namespace and its group, and `maxWaiting`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, History
from timekeeper.accounts.held.declared import MAX_PERIODS, LaterPeriod
from timekeeper.accounts.held.gangs import BrokenGang, WaitingGang
from timekeeper.accounts.held.order import FairOrder, HeldPod, Limit, in_order
from timekeeper.accounts.statements import Statements
from timekeeper.core.budgets.policy import Budget
from timekeeper.core.ledger.metering import FOREVER_MS, period_at

# While the account is over budget, these modes of `onExhausted` keep pods behind the gate.
KEEPING = ("hold", "evict", "deny")


@dataclass(frozen=True, slots=True)
class HeldView:
    """Everything that releases depend on, of one tick of the settler. A pod is either among ``pods``, or, if
    its gate is gone and it has no node, in the reservations of ``statements`` and in ``waiting``."""

    pods: Mapping[str, HeldPod] = field(default_factory=dict)  # by UID
    # namespace -> the rate of its pods that are released, or were never held, and have no node
    waiting: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, int] = field(default_factory=dict)  # namespace -> number of these pods
    statements: Statements | None = None
    history: History | None = None
    at_ms: int = 0
    # namespace -> what its pods hold of cards, and what released pods of other schedulers may: for the
    # namespaces whose caps such a held pod must keep
    cards_milli: Mapping[str, int] = field(default_factory=dict)
    # UIDs of held pods that have reserved their declared time: the statements contain it
    reserved: Set[str] = frozenset()
    # namespace or group -> later periods, for the accounts of held pods that declare their time
    later: Mapping[str, tuple[LaterPeriod, ...]] = field(default_factory=dict)
    untried: int = 0  # pods without gate that our scheduler has not tried yet to place
    protected: Set[str] = frozenset()  # UIDs of held pods that the budget protects: no account keeps them
    gangs: Mapping[str, WaitingGang] = field(default_factory=dict)  # by key
    broken: tuple[BrokenGang, ...] = ()  # of which a member was preempted
    fair: FairOrder | None = None  # of the namespaces of ``pods``; None: they take turns


@dataclass(slots=True)
class ReleaseLimits:
    """The limits of each namespace by one view; each is computed once."""

    view: HeldView
    _known: dict[tuple[str, bool, bool], tuple[Limit, ...]] = field(default_factory=dict)
    _groups: dict[str, int] | None = None

    def of(self, pod: HeldPod) -> tuple[Limit, ...]:
        """The limits of the pod's namespace; none in observe mode, and without an account that keeps pods
        while it is over budget. A pod that declares its time is kept by every account, also of later
        periods."""
        if pod.by_other and not pod.rate_milli and not pod.cards_milli:
            return ()  # its claims turned out to be of no GPU
        key = (pod.namespace, pod.needs_budget, pod.length_ms > 0)
        if key not in self._known:
            self._known[key] = tuple(self._limits(pod.namespace, pod.length_ms > 0))
        alone = self._caps(pod) if pod.by_other else ()
        never = pod.is_gang and any(each.can_never_pay(pod) for each in self._known[key])
        if never or (pod.length_ms and not self._is_payable(pod)):
            return (Limit(f"whole cost of {pod.uid}", 0, is_cap=True),)
        return (*self._known[key], *alone)

    def of_protected(self, pod: HeldPod) -> tuple[Limit, ...]:
        """The limits of a pod that the budget protects: no account's, but `maxWaiting` and the caps."""
        turn = () if self._observes(pod.namespace) else self._turn(pod.namespace)
        return (*turn, *(self._caps(pod) if pod.by_other else ()))

    def _turn(self, namespace: str) -> Iterator[Limit]:
        history, now_ms = self.view.history, self.view.at_ms
        most = history.budget(namespace, now_ms).budget.max_waiting if history else None
        if most is not None:
            yield Limit(f"{namespace}/waiting", most - self.view.seen.get(namespace, 0), each=1)

    def _is_payable(self, pod: HeldPod) -> bool:
        """Whether the declared time of the pod can ever be paid by the present budgets. One that cannot waits
        alone: it holds no other back."""
        history, made, now_ms = self.view.history, self.view.statements, self.view.at_ms
        if history is None or made is None or self._observes(pod.namespace):
            return True
        mine = made.namespaces.get(pod.namespace, made.default)
        for account in (mine, mine.group):
            if account is not None and account.balance.granted is not None:
                most = max(account.balance.granted, account.in_force.budget.amount or 0)
                if pod.rate_milli * min(pod.length_ms, account.account.span.length_ms) > most:
                    return False
        group = GROUP + history.group(pod.namespace, now_ms)
        return all(self._pays_later(pod, self.view.later.get(each, ())) for each in (pod.namespace, group))

    def _pays_later(self, pod: HeldPod, periods: Sequence[LaterPeriod]) -> bool:
        is_far = len(periods) >= MAX_PERIODS and self.view.at_ms + pod.length_ms > periods[-1].span.end_ms
        costs = ((pod.rate_milli * min(pod.length_ms, each.span.length_ms), each.amount) for each in periods)
        return not is_far and all(cost <= amount for cost, amount in costs)

    def _caps(self, pod: HeldPod) -> Iterator[Limit]:
        """The caps of a pod that another scheduler places. A pod that a cap can never allow waits alone: its
        limit is its own."""
        history, now_ms = self.view.history, self.view.at_ms
        if history is None or self._observes(pod.namespace) or not pod.cards_milli:
            return
        budget = history.budget(pod.namespace, now_ms).budget
        subjects: list[tuple[str, Budget, tuple[str, ...]]] = [(pod.namespace, budget, (pod.namespace,))]
        if budget.group:
            members = tuple(
                each for each in self.view.cards_milli if history.group(each, now_ms) == budget.group
            )
            subjects.append(
                (GROUP + budget.group, history.budget(GROUP + budget.group, now_ms).budget, members)
            )
        for subject, its, namespaces in subjects:
            most = [each for each in (its.max_gpus_milli, its.max_gpus_per_pod_milli) if each is not None]
            if most and pod.cards_milli > min(most):
                yield Limit(f"cap of {subject} for {pod.uid}", 0, is_cap=True)
            elif its.max_gpus_milli is not None:
                held = sum(self.view.cards_milli.get(each, 0) for each in namespaces)
                left = its.max_gpus_milli - held
                yield Limit(f"cap of {subject}", left, is_cap=True, is_shared=subject.startswith(GROUP))

    def _observes(self, namespace: str) -> bool:
        history = self.view.history
        return history is not None and history.is_metered(namespace, self.view.at_ms)

    def _limits(self, namespace: str, declares: bool) -> list[Limit]:
        history, made, now_ms = self.view.history, self.view.statements, self.view.at_ms
        if history is None or made is None:
            return []
        if self._observes(namespace):
            return []
        budget = history.budget(namespace, now_ms).budget
        mine = made.namespaces.get(namespace, made.default)
        keeps = declares or budget.reserve == "declared"
        limits = self._account(namespace, mine, 0, keeps)
        limits += self._turn(namespace)
        if mine.group is not None:
            group = GROUP + budget.group
            limits += self._account(group, mine.group, self._waiting_of(budget.group), keeps)
        subjects = (namespace, GROUP + budget.group) if declares else ()
        return limits + [each for subject in subjects for each in self._later(subject)]

    def _later(self, subject: str) -> Iterator[Limit]:
        """The limits of the account's later periods."""
        for each in self.view.later.get(subject, ()):
            name = f"{subject} from {each.span.start_ms}"
            shared = subject.startswith(GROUP)
            yield Limit(name, each.left, left_ms=each.span.length_ms, is_shared=shared)

    def _account(self, subject: str, mine: Statement, waiting_milli: int, keeps: bool) -> list[Limit]:
        """The limit of one account. ``waiting_milli``: the rate of waiting pods that its statement leaves
        out; ``keeps``: it keeps pods whatever its ``onExhausted`` is."""
        remaining, granted = mine.balance.remaining, mine.balance.granted
        if (
            remaining is None
            or granted is None
            or not (keeps or mine.in_force.budget.on_exhausted in KEEPING)
        ):
            return []
        span_ms, left_ms = self._span_ms(mine), mine.ends_ms - whole_seconds(self.view.at_ms)
        left = remaining - waiting_milli * span_ms
        return [
            Limit(
                subject,
                left,
                span_ms,
                left_ms=left_ms,
                most=granted,
                is_shared=subject.startswith(GROUP),
                attainable=granted - mine.balance.spent,
            )
        ]

    def _span_ms(self, mine: Statement) -> int:
        """How far ahead a pod reserves: the lookahead, at most to the end of the account's period."""
        history, now_ms = self.view.history, self.view.at_ms
        lookahead_ms = history.settings(now_ms).lookahead_ms if history else 0
        return max(0, min(lookahead_ms, mine.ends_ms - now_ms))

    def _waiting_of(self, group: str) -> int:
        """The rate of the group's waiting pods, which its own statement leaves out."""
        if self._groups is None:
            history = self.view.history
            self._groups = waiting_by_group(history, self.view.waiting, self.view.at_ms) if history else {}
        return self._groups.get(group, 0)


def waiting_by_group(history: History, waiting: Mapping[str, int], now_ms: int) -> dict[str, int]:
    """The rates of the namespaces' waiting pods, by group: the statement of a group leaves them out. Those of
    namespaces without a group are under ""."""
    groups: dict[str, int] = {}
    for name, rate in waiting.items():
        group = history.group(name, now_ms)
        groups[group] = groups.get(group, 0) + rate
    return groups


def whole_seconds(at_ms: int) -> int:
    """The moment, as the API server dates what happens then: without fractions of a second."""
    return at_ms // 1000 * 1000


_MAX_PERIODS = 120  # a later release is not predicted


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A held pod and its place. ``earliest_ms``: when it is released at the earliest by the present budget,
    if no running pod uses any of it; None: not by this budget."""

    pod: HeldPod
    ahead: int  # held pods of its namespace that are released before it
    earliest_ms: int | None


def queue_of(
    pods: Iterable[HeldPod], statement: Statement, lookahead_ms: int, now_ms: int, waiting_milli: int
) -> list[QueuedPod]:
    """The held pods of one namespace, in the order of their release. ``waiting_milli``: the rate of the
    group's pods without gate and node, which the statement of the group leaves out."""
    accounts = [_Account(statement, lookahead_ms, now_ms)]
    if statement.group is not None:
        left_ms = max(0, min(lookahead_ms, statement.group.ends_ms - now_ms))
        accounts.append(_Account(statement.group, lookahead_ms, now_ms, waiting_milli * left_ms))
    queue = []
    for ahead, pod in enumerate(in_order(pods)):
        moments = [each.earliest_ms(pod) for each in accounts]
        known = [each for each in moments if each is not None]
        queue.append(QueuedPod(pod, ahead, max(known) if len(known) == len(moments) else None))
    return queue


@dataclass(slots=True)
class _Account:
    """One account, and what the pods of the queue so far reserve of it, if they begin together. ``present``:
    with what waiting pods reserve that its statement leaves out."""

    statement: Statement
    lookahead_ms: int
    now_ms: int
    present: int = 0  # of the present period, from now on
    whole: int = 0  # of a whole period

    def earliest_ms(self, pod: HeldPod) -> int | None:
        """Add the pod. From when the account can reserve what it and those before it need: now, or from the
        beginning of a later period, each of which adds its amount. A gang and a pod that declares its time go
        only if one period's amount pays its part."""
        span, length_ms = self.statement.account.span, pod.length_ms or self.lookahead_ms
        alone = pod.rate_milli * min(length_ms, span.length_ms)
        self.present += pod.rate_milli * min(length_ms, span.end_ms - self.now_ms)
        self.whole += alone
        remaining, budget = self.statement.balance.remaining, self.statement.in_force.budget
        keeps = budget.on_exhausted in KEEPING or budget.reserve == "declared" or pod.length_ms > 0
        if remaining is None or budget.amount is None or not keeps:
            return self.now_ms
        if (pod.length_ms or pod.is_gang) and alone > max(budget.amount, remaining):
            return None
        if remaining > 0 and self.present <= remaining:
            return self.now_ms
        return self._later_ms(-(-self.whole // budget.amount) if budget.amount else _MAX_PERIODS + 1)

    def _later_ms(self, periods: int) -> int | None:
        """The beginning of the last of ``periods`` periods after the present one."""
        account = self.statement.account
        if account.kind == "once" or periods > _MAX_PERIODS:
            return None
        at_ms = account.span.end_ms
        for _ in range(max(1, periods) - 1):
            at_ms = period_at(account.kind, account.zone, at_ms).end_ms
        return at_ms if at_ms < FOREVER_MS else None
