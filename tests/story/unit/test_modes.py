"""The laws of the modes of `onExhausted`, over simulated clusters (`tests.story.simulation`)."""

from collections import Counter
from random import Random

import pytest

from tests.story.simulation import (
    CARD,
    GRACE_MS,
    LOOKAHEAD_MS,
    PDB_GRACE_MS,
    SPACING_MS,
    STEP_MS,
    Left,
    SimPod,
    Simulation,
    running,
)
from tests.support.profile import examples

STEPS = 540  # an hour and a half: a period ends within
# from when a namespace has spent its budget, until the last of its pods has left, but for their number
LATEST_MS = GRACE_MS + PDB_GRACE_MS + 6 * 60_000
LATE_MS = 600_000


class Laws:
    """What every step of a run must keep."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.checked = 0
        self.spent_since: dict[str, int] = {}  # namespaces that evict and have spent their budget
        self.held_since: dict[str, int] = {}  # pods that the budget could pay all the time
        self.kinds: Counter[str] = Counter()

    def check(self) -> None:
        new = self.simulation.left[self.checked :]
        self.checked += len(new)
        for left in new:
            self.kinds[left.how] += 1
            if left.how == "reclaimed":
                self._a_reclaimed_pod_had_a_beneficiary_that_runs(left)
            else:
                self._an_eviction_had_a_reason(left)
        self._the_lowest_of_a_namespace_went_first(new)
        self._no_card_is_given_twice()
        self._no_pod_is_bound_behind_its_gate()
        self._in_the_end_all_leave()
        self._who_can_be_paid_is_not_held()
        self._nobody_in_budget_has_a_notice()

    def _an_eviction_had_a_reason(self, left: Left) -> None:
        """The namespace evicts and had spent its grant, by sums over all charges; the pod had its notice, and
        its disruption budget was respected."""
        it, pod = self.simulation, left.pod
        name = pod.namespace
        assert it.mode(name) == "evict"
        account = it.history.account(name, left.at_ms).span
        amount = it.history.budget(name, left.at_ms).budget.amount
        assert amount is not None
        granted = amount + sum(
            each for to, at, each in it.grants if to == name and account.start_ms <= at < account.end_ms
        )
        assert it.spent(name, account.start_ms, left.at_ms) >= granted
        assert pod.first_notice_ms is not None
        assert left.at_ms - pod.first_notice_ms >= GRACE_MS
        if pod.workload.protects:
            assert left.how == "deleted"
            assert pod.first_refusal_ms is not None
            assert left.at_ms - pod.first_refusal_ms >= PDB_GRACE_MS

    def _a_reclaimed_pod_had_a_beneficiary_that_runs(self, left: Left) -> None:
        beneficiary = self.simulation.pods[left.beneficiary]
        assert beneficiary.bound_ms == left.at_ms
        lower = left.pod.priority < beneficiary.priority
        assert lower or self.simulation.mode(left.pod.namespace) == "reclaim"

    def _the_lowest_of_a_namespace_went_first(self, new: list[Left]) -> None:
        """One in a step at most, and none stayed that was due, ranks lower and is not protected."""
        evicted = [each for each in new if each.how != "reclaimed"]
        assert max(Counter(each.pod.namespace for each in evicted).values(), default=0) <= 1
        for left in evicted:
            order = (left.pod.priority, -(left.pod.bound_ms or 0))
            for other in self.simulation.pods.values():
                if other.namespace == left.pod.namespace and self._is_due(other, left.at_ms):
                    assert (other.priority, -(other.bound_ms or 0)) >= order

    def _is_due(self, pod: SimPod, at_ms: int) -> bool:
        after_ms = pod.ledger.evict_after_ms
        leaves = pod.ledger.hold.deletion_ms is not None
        attempt = self.simulation.memory.attempts.get(pod.uid)
        return (
            after_ms is not None
            and after_ms <= at_ms
            and not leaves
            and not pod.workload.protects
            and attempt is None
        )

    def _no_card_is_given_twice(self) -> None:
        assert max(self.simulation.on_cards().values(), default=0) <= CARD

    def _no_pod_is_bound_behind_its_gate(self) -> None:
        assert not any(each.bound_ms is not None for each in self.simulation.held())

    def _in_the_end_all_leave(self) -> None:
        """Of a namespace that evicts and stays without budget nothing runs any more after a bounded time. A
        call that fails or a killed settler costs some of it."""
        it = self.simulation
        for name in it.names:
            mine = [each for each in it.pods.values() if each.namespace == name and each.bound_ms is not None]
            statement = it.statements[name]
            if it.mode(name) != "evict" or not statement.is_spent or not it.over(name):
                self.spent_since.pop(name, None)
                continue
            since_ms = self.spent_since.setdefault(name, it.now_ms)
            pods = 20 * max(SPACING_MS, STEP_MS)
            if it.now_ms - since_ms > LATEST_MS + pods:
                assert mine == []

    def _who_can_be_paid_is_not_held(self) -> None:
        """A held pod whose namespace has budget for all that waits is released within a step."""
        it = self.simulation
        for pod in it.held():
            balance = it.statements[pod.namespace].balance
            waiting = sum(each.rate for each in it.held() if each.namespace == pod.namespace)
            room = balance.remaining
            if room is None or room > waiting * LOOKAHEAD_MS:
                since_ms = self.held_since.setdefault(pod.uid, it.now_ms)
                assert it.now_ms - since_ms <= 2 * STEP_MS
            else:
                self.held_since.pop(pod.uid, None)

    def _nobody_in_budget_has_a_notice(self) -> None:
        """A namespace back in budget has lost its notices with the next step, unless the API server was
        away."""
        it = self.simulation
        for pod in it.pods.values():
            if pod.ledger.evict_after_ms is not None and not it.away:
                terms = it.statements_before.get(pod.namespace)
                assert terms == "OVER_BUDGET" or pod.ledger.hold.deletion_ms is not None


@pytest.mark.parametrize("seed", range(examples(24, 10_000)))
def test_every_mode_keeps_its_laws(seed: int) -> None:
    simulation = Simulation(Random(seed))
    laws = Laws(simulation)
    for _ in running(simulation, STEPS):
        laws.check()


def test_the_runs_contain_what_the_laws_are_about() -> None:
    kinds: Counter[str] = Counter()
    held = refused = 0
    for seed in range(8):
        simulation = Simulation(Random(seed))
        for _ in running(simulation, STEPS):
            held += bool(simulation.held())
        kinds.update(each.how for each in simulation.left)
        refused += simulation.refused

    assert min(kinds[each] for each in ("evicted", "deleted", "reclaimed")) > 3
    assert held > 100
    assert refused > 100
