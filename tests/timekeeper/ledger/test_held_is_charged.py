"""What is held is charged, what is charged is held: random histories of pods, told to the ledger and to the
extender's snapshot, and an oracle that imports nothing of ours (`tests.timekeeper.histories`).

Once all evidence is in, a pod's session has the parts of cards that the oracle computes, and its postings
are the rate of these parts through the time from its binding to its end; until then the extender holds
exactly these parts.
"""

import os
import random

import pytest

from tests.support.profile import IS_SOAK, examples
from tests.timekeeper.histories import Batch, History
from tests.timekeeper.worlds import Town

pytestmark = pytest.mark.untraced

HISTORIES = examples(100, soak=20_000)
TOGETHER = 300


def test_each_pod_is_charged_for_exactly_the_cards_and_the_time_that_it_holds(town: Town) -> None:
    town.begin()
    first = int(os.environ.get("BURSAR_SEED") or (random.SystemRandom().randrange(10**9) if IS_SOAK else 0))
    for number in range(first, first + HISTORIES, TOGETHER):
        batch = Batch(town, random.Random(number))
        histories = [History(batch, each) for each in range(number, number + min(TOGETHER, HISTORIES))]
        try:
            batch.live(histories)
            batch.settle(histories)
        except AssertionError as error:
            raise AssertionError(f"BURSAR_SEED={number}") from error
