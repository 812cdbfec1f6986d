"""The laws of budgets that act (`tests.story.laws`), over simulated clusters (`tests.story.simulation`)."""

import gc
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.story.laws import Laws
from tests.story.people import (
    CAPPED,
    DEBTORS,
    DECLARED,
    EVICTING,
    GROUPED,
    IDLE,
    LARGE,
    LOWERED,
    OVERTIME,
    PAUSING,
    STAYING,
    Size,
    small,
)
from tests.story.simulation import Simulation
from tests.support.profile import examples

pytestmark = pytest.mark.untraced

STEPS = 200  # of 10 s
LARGE_STEPS = 120
BATCH = examples(4, 20)  # runs of one test
# runs in which one law has many cases, and what they must have contained
CASES = {
    "debtors": (DEBTORS, {"reclaimed", "served", "waits for debtors", "waits over budget"}),
    "pods that stay": (STAYING, {"reclaimed", "waits over budget"}),
    "pods of lower priority": (LOWERED, {"waits over budget"}),
    "evictions": (EVICTING, {"evicted", "deleted", "all have left", "refused by the extender"}),
    "caps": (CAPPED, {"capped", "waits for a cap", "held", "equals"}),
    "a group's caps": (GROUPED, {"waits for a cap"}),
    "declared time": (DECLARED, {"reserved", "held"}),
    "overtime": (OVERTIME, {"outlived"}),
    "pauses": (PAUSING, {"paused", "released beside others", "held"}),
    "idle pods": (IDLE, {"idle: warned", "idle: reclaimable", "idle: evicted", "reclaimed idle"}),
}
# what the runs of the first batch must have contained, so that no law is kept for want of a case
CONTAINED = {"balances", "preempted", "served", "waits over budget", "equals", "refused", "held"}


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Runs make few cycles and many values: the collector took a thirteenth of their time."""
    gc.disable()
    yield
    gc.enable()


def run(seed: int, random: Random, size: Size, steps: int) -> Counter[str]:
    """One run, every step of which keeps every law; returns what it contained."""
    try:
        simulation = Simulation(random, size)
        laws = Laws(simulation)
        for _ in range(steps):
            simulation.step()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    laws.kinds["refused"] += simulation.refused
    return laws.kinds


@pytest.mark.parametrize("first", range(0, examples(BATCH, 10_000), BATCH))
def test_every_mode_keeps_its_laws(first: int) -> None:
    contained: Counter[str] = Counter()
    for seed in range(first, first + BATCH):
        random = Random(seed)
        contained += run(seed, random, small(random), STEPS)

    if first == 0:
        assert set(+contained) >= CONTAINED


def test_a_released_pod_that_is_bound_after_its_budget_was_spent_has_its_own_time_to_leave() -> None:
    seed = 3298  # it waits for a node for twenty minutes while the grant is reduced to nothing
    random = Random(seed)

    assert run(seed, random, small(random), STEPS)["all have left"]


def test_a_pod_waits_behind_one_that_a_later_period_cannot_pay_yet() -> None:
    seed = 3462  # the one in front reserves its declared time, and the period ends within it
    random = Random(seed)

    assert run(seed, random, small(random), STEPS)["held"]


def test_a_cap_is_the_reason_of_each_pod_that_it_keeps_waiting_beside_a_full_cluster() -> None:
    seed = 3958  # two equal pods wait; the second was said to wait for room alone, which no debtor leaves it
    random = Random(seed)

    assert run(seed, random, small(random), STEPS)["waits for a cap"]


def test_a_pod_that_others_have_left_for_does_not_run_above_a_cap_that_its_group_has_got_since() -> None:
    seed = 8289  # the group's largest pod is one card then, and the pod needs two
    random = Random(seed)

    assert run(seed, random, small(random), STEPS)["let go"]


@pytest.mark.parametrize("law", CASES)
def test_a_law_is_kept_in_many_cases(law: str) -> None:
    size, contains = CASES[law]
    contained: Counter[str] = Counter()
    for seed in range(examples(2, 300)):
        contained += run(seed, Random(seed), size, STEPS)

    assert set(+contained) >= contains


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_five_thousand_pods_keep_them_too(seed: int) -> None:
    run(seed, Random(seed), LARGE, LARGE_STEPS)
