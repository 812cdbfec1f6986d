"""The simulated week of gangs: jobs that need no luck, so that what each policy does with them is known."""

from collections import Counter

import pytest

from scheduler_ext.scoring.typical_pods import typical_pods_of
from tests.bench.experiment import WHOLE_MILLI, NodeRow, PodRow
from tests.bench.gang_lives import GangWeek, Job, Simulation
from tests.bench.lives import END_S, WARM_S, Life
from tests.bench.served import typical_of

NODES = [NodeRow(f"n{at}", 96_000, 500_000, 8, "A100") for at in range(2)]
ONE = PodRow(1_000, 1_000, 1, WHOLE_MILLI, ())
HOUR = 3_600
GANG = Job(WARM_S + 10 * HOUR, Life(ONE, HOUR), 16, 0)


def week(policy: str) -> GangWeek:
    """A single pod every five minutes, for an hour: twelve of sixteen cards. Then a gang of all cards."""
    singles = [Job(at, Life(ONE, HOUR), 1, 0) for at in range(0, END_S, 300)]
    jobs = sorted([*singles, GANG], key=lambda job: job.at_s)
    return Simulation(NODES, typical_pods_of(Counter([typical_of(ONE)])), policy).run(jobs)


@pytest.mark.soak
def test_a_gang_that_plain_backfill_never_starts_is_started_by_a_drain() -> None:
    plain, served = week("plain backfill"), week("Bursar")

    assert plain.waiting["gang of 16"] == 1
    assert (served.waiting["gang of 16"], served.drains["fit"]) == (0, 1)
    assert max(served.waits_s["gang of 16"]) < 12 * HOUR
    assert 0 < served.drained < 5
    assert plain.drained == 0
    singles, hours = (END_S - WARM_S) // 300, 16 * (END_S - WARM_S) / HOUR
    assert abs(plain.used - 100 * singles / hours) < 1
    assert abs(served.used - 100 * (singles + 16) / hours) < 1
