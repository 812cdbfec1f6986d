"""The laws of pods that are made to leave: by the evictor for a budget, by the preemptor for a pod."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.story.balances import GROUP
from tests.story.law import Law
from tests.story.people import Facts
from tests.story.pods import SimPod
from tests.story.simulation import GRACE_MS, PDB_GRACE_MS, STEP_MS
from tests.timekeeper.worlds import MINUTE
from timekeeper.core.decisions import EVICTED, PREEMPTED, RECLAIMED, Decision

# from when a namespace has spent its budget, until the last of its pods has left, but for their number
LATEST_MS = GRACE_MS + PDB_GRACE_MS + 6 * MINUTE
Budgets = tuple[Facts, Facts | None]
AGAIN_MS = 60_000  # an evictor leaves a pod alone for so long after an attempt


@dataclass
class LeavingLaws(Law):
    """``acted`` follows each step of the evictor, ``preempted`` each of the preemptor."""

    _decided: int = 0  # records that were looked at
    _evicted_ms: dict[str, int] = field(default_factory=dict)  # account -> its last eviction
    # beneficiaries that have to run, since when, and the budgets of namespace and group at that time
    _owed: list[tuple[SimPod, int, Budgets]] = field(default_factory=list)

    def stepped(self) -> None:
        """A step of all has ended."""
        self._owed = [each for each in self._owed if self._is_owed(*each)]
        self._in_the_end_all_leave()
        self._no_pod_in_budget_has_a_notice()

    def acted(self, asked: Sequence[tuple[SimPod, str]]) -> None:
        """The evictor's step has just ended."""
        it, made = self.simulation, self.simulation.timekeeper.decisions
        decided = [each for each in made[self._decided :] if each.kind == EVICTED]
        self._decided = len(made)
        for pod, how in asked:
            self.kinds[how] += 1
            self._it_had_a_reason(pod, how)
            self._it_was_the_lowest(pod)
            mine = [each for each in decided if each.uid == pod.uid]
            if not mine and (it.clock() < it.faults.api_ms or it.was_killed):
                continue  # no answer came: it may have left or not
            (decision,) = mine
            self._it_has_its_figures(pod, decision)

    def _spent_account(self, pod: SimPod) -> str:
        """The account that was spent and evicts; fails where there is none."""
        it, now_ms = self.simulation, self.simulation.ticked_ms
        facts = it.in_force[pod.namespace]
        assert not facts.observes
        accounts = [pod.namespace, *([GROUP + facts.group] if facts.group else [])]
        found = [
            each
            for each in accounts
            if it.in_force[each].mode == "evict" and it.accounts.is_spent(each, now_ms, it.leases)
        ]
        assert found, f"{pod.namespace} has not spent its budget, or does not evict"
        return found[-1]

    def _it_had_a_reason(self, pod: SimPod, how: str) -> None:
        """Its account evicts and was spent by the oracle's sums; it had its notice, its turn, and its
        disruption budget was respected."""
        account, now_ms = self._spent_account(pod), self.simulation.clock()
        assert pod.first_notice_ms is not None
        assert now_ms - pod.first_notice_ms >= GRACE_MS
        if pod.work.protects:
            assert how == "deleted"
            assert pod.first_refusal_ms is not None
            assert now_ms - pod.first_refusal_ms >= PDB_GRACE_MS - 1_000
        last_ms = self._evicted_ms.get(account)
        assert last_ms is None or now_ms - last_ms >= 60_000 // self.simulation.size.rate
        self._evicted_ms[account] = now_ms

    def _it_was_the_lowest(self, pod: SimPod) -> None:
        """None stayed that was due, ranks lower, and is not protected."""
        order, now_ms = (pod.priority, -(pod.bound_ms or 0)), self.simulation.clock()
        for other in self.simulation.server.pods.values():
            due_ms = other.evict_after_ms
            if other.namespace != pod.namespace or not other.runs or other.is_leaving or other.work.protects:
                continue
            if due_ms is None or due_ms > now_ms or now_ms - other.tried_ms < AGAIN_MS:
                continue
            assert (other.priority, -(other.bound_ms or 0)) >= order

    def _it_has_its_figures(self, pod: SimPod, decision: Decision) -> None:
        it, figures = self.simulation, decision.figures
        account, now_ms = str(figures["account"]), it.ticked_ms
        assert account in (pod.namespace, GROUP + it.in_force[pod.namespace].group)
        assert figures["granted"] == it.accounts.granted(account, now_ms)
        assert figures["spent"] == it.accounts.spent(account, now_ms, it.leases)
        assert figures["priority"] == pod.priority
        assert decision.namespace == pod.namespace

    def preempted(self, asked: Sequence[tuple[SimPod, str]]) -> None:
        """Each has its two records, and its beneficiary runs, unless the world has changed meanwhile."""
        it = self.simulation
        for pod, how in asked:
            made = [e for e in it.extender.decisions if e.uid == pod.uid and e.kind in (RECLAIMED, PREEMPTED)]
            if not made and it.clock() < it.faults.api_ms:
                continue
            decision, figures = made[-1], made[-1].figures
            self.kinds[decision.kind] += 1
            (other,) = [e for e in it.extender.decisions if e.figures.get("otherPod") == pod.name][-1:]
            beneficiary = it.server.pods[other.uid]
            assert figures["otherPod"] == beneficiary.name
            assert (figures["victimPriority"], figures["podPriority"]) == (pod.priority, beneficiary.priority)
            assert figures["how"] == how or how == "deleted"
            known = it.known[pod.namespace]
            group = it.known.get(GROUP + known.group, known)
            if decision.kind == RECLAIMED:
                self.kinds["reclaimed idle"] += pod.is_reclaimable
                assert pod.is_reclaimable or "reclaim" in (known.mode, group.mode)
                assert pod.is_reclaimable or not known.observes
            else:
                assert pod.priority < beneficiary.priority
            assert figures["podStanding"] != "OVER_BUDGET"
            self._owed.append((beneficiary, it.clock(), self._budgets(beneficiary)))

    def _budgets(self, pod: SimPod) -> Budgets:
        """Of the pod's namespace and group, as of the last poll."""
        own = self.simulation.known[pod.namespace]
        return own, self.simulation.known.get(GROUP + own.group)

    def _is_owed(self, pod: SimPod, since_ms: int, budgets: Budgets) -> bool:
        """Whether it waits still; fails where it waits for too long. It need not run where its namespace went
        over budget, where namespace or group got another budget, where it was deleted, or while calls and
        polls fail."""
        it, now_ms = self.simulation, self.simulation.clock()
        if pod.bound_ms is not None:
            self.kinds["served"] += 1
            return False
        is_over = it.extender.standings().of(pod.namespace).status != "IN_BUDGET"
        if pod.is_leaving or pod.gone_ms or self._budgets(pod) != budgets or is_over:
            self.kinds["let go"] += 1
            return False
        late_ms = 60_000 + PDB_GRACE_MS + 3 * MINUTE
        assert now_ms - since_ms <= late_ms, f"{pod.name} does not run, though others have left for it"
        return True

    def _in_the_end_all_leave(self) -> None:
        """Of a namespace that evicts and has spent its budget no pod runs any more after a bounded time; one
        that was released before, and found a node later, leaves within that time of its binding."""
        it = self.simulation
        made = it.timekeeper.held_view.statements
        if made is None:
            return  # a settler has just started
        for name in it.names:
            mine, facts = made.namespaces.get(name), it.in_force[name]
            is_so = (
                mine is not None
                and not facts.observes
                and mine.standing == "OVER_BUDGET"
                and mine.deciding.in_force.budget.on_exhausted == "evict"
                and mine.is_spent
            )
            lasts_ms = self.lasts("leave", name, is_so)
            number = it.size.pods * max(STEP_MS // it.size.sub_steps, 60_000 // it.size.rate)
            if lasts_ms > LATEST_MS + number:
                self.kinds["all have left"] += 1
                last_ms = it.clock() - LATEST_MS - number
                mine_run = (p for p in it.server.pods.values() if p.runs and p.namespace == name)
                assert all((p.bound_ms or 0) >= last_ms for p in mine_run), name

    def _no_pod_in_budget_has_a_notice(self) -> None:
        """A namespace back in budget has lost its notices soon, unless calls fail."""
        it = self.simulation
        made = it.timekeeper.held_view.statements
        if made is None:
            return  # a settler has just started
        for pod in it.server.pods.values():
            mine = made.namespaces.get(pod.namespace)
            is_in = mine is None or mine.standing != "OVER_BUDGET"
            is_so = pod.evict_after_ms is not None and not pod.is_leaving and is_in
            lasts_ms = self.lasts("notice", pod.uid, is_so and not it.faults.last(it.clock()))
            assert lasts_ms <= 40_000
