"""The laws of budgets that act (`tests.story.laws`), over simulated clusters (`tests.story.simulation`)."""

from collections import Counter
from random import Random

import pytest

from tests.story.laws import Laws
from tests.story.people import DEBTORS, LARGE, Size, small
from tests.story.simulation import Simulation
from tests.support.profile import examples

pytestmark = pytest.mark.untraced

STEPS = 390  # of 10 s: an hour's period ends within
LARGE_STEPS = 120
BATCH = examples(20, 20)  # runs of one test
# what the runs of a batch must have contained, so that no law is kept for want of a case
CONTAINED = (
    *("balances", "evicted", "deleted", "reclaimed", "preempted", "served", "all have left", "held"),
    *("capped", "waits for a cap", "waits over budget", "waits for debtors", "equals", "refused"),
    "refused by the extender",
)


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

    if first == 0 and BATCH == 20:
        assert {kind for kind in CONTAINED if not contained[kind]} == set()


@pytest.mark.parametrize("seed", range(examples(6, 500)))
def test_debtors_give_up_their_cards(seed: int) -> None:
    run(seed, Random(seed), DEBTORS, STEPS // 2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_five_thousand_pods_keep_them_too(seed: int) -> None:
    run(seed, Random(seed), LARGE, LARGE_STEPS)
