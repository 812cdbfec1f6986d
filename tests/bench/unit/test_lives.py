"""A simulated week: nothing is lost, and the figures by hand."""

from dataclasses import replace

import pytest

from scheduler_ext.scoring.typical_pods import TypicalPod
from tests.bench.experiment import Experiment, NodeRow, PodRow
from tests.bench.lifetimes import NAMES, Case, cluster, drifted, placer, published, simulated, told
from tests.bench.lives import DAY_S, END_S, WARM_S, Arrival, Life, Week, arrivals, by_day, live, size_of
from tests.bench.served import Served

pytestmark = pytest.mark.untraced

HOUR_S = 3_600
NODE = NodeRow("n", 8_000, 8_000, 2, "T4")


def gpus(count: int, hours: int, at_s: int, is_high: bool = False) -> Arrival:
    """A pod of whole GPUs."""
    return Arrival(at_s, Life(PodRow(1_000, 1_000, count, 1000, ()), hours * HOUR_S), is_high)


def week(name: str, *coming: Arrival) -> Week:
    """On one node of two GPUs."""
    listed = tuple(each.life.pod for each in coming)
    return live([NODE], coming, placer(name, Experiment((NODE,), listed, (), 1)))


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_waits_until_one_before_it_ends(name: str) -> None:
    found = week(name, gpus(2, 24, WARM_S), gpus(1, 12, WARM_S + HOUR_S), gpus(1, 24 * 30, WARM_S + HOUR_S))

    # one day of both, half a day of one, and one until the end
    assert found.allocation == pytest.approx(100 * (2 * 24 + 12 + 6 * 24) / (2 * 7 * 24))
    assert found.by_size == pytest.approx(
        {"share": 0, "1": 100 * (12 + 6 * 24) / (2 * 7 * 24), "2-4": 100 * 2 * 24 / (2 * 7 * 24), "8": 0}
    )
    assert found.waits_s == {"share": [], "1": [23 * HOUR_S, 23 * HOUR_S], "2-4": [0], "8": []}
    assert found.left == {"arrived": 3, "ended": 2, "running": 1, "waiting": 0}
    assert found.preempted == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_of_high_priority_preempts_the_fewest_and_they_run_on_later(name: str) -> None:
    coming = gpus(1, 10, WARM_S), gpus(1, 20, WARM_S + 1), gpus(1, 4, WARM_S + HOUR_S + 1, is_high=True)

    found = week(name, *coming)

    assert found.preempted == 1
    assert found.waits_s["1"] == [0, 0, 0]
    assert found.left == {"arrived": 3, "ended": 3, "running": 0, "waiting": 0}
    # all 34 hours were run, none twice
    assert found.allocation == pytest.approx(100 * 34 / (2 * 7 * 24), abs=0.01)


def test_the_first_day_does_not_count() -> None:
    assert week("FGD", gpus(2, 24, 0), gpus(1, 24, 0)).waits_s["1"] == []
    assert week("FGD", gpus(2, 24, 0)).allocation == 0


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "Random" else pytest.mark.soak) for name in NAMES]
)
def test_no_pod_is_lost_and_no_card_too_full(name: str) -> None:
    """The books of the simulation refuse a seat that is taken, whoever chose it."""
    case = Case(name, 95, drift=True, seed=1, nodes=3)

    found = simulated(case)

    assert found.left["arrived"] == sum(found.left[kind] for kind in ("ended", "running", "waiting"))
    assert found.left["arrived"] > 500
    assert 30 < found.allocation <= 100
    assert told([case], [found])[0]["policy"] == name


def test_policies_are_compared_on_the_same_clusters() -> None:
    cases = [Case(name, 95, drift=False, seed=seed, nodes=2) for name in ("FGD", "Random") for seed in (1, 2)]
    plain = week("FGD", gpus(2, 24, WARM_S))
    weeks = [replace(plain, allocation=allocation) for allocation in (80.0, 90.0, 79.0, 87.0)]

    fgd, chance = told(cases, weeks)

    assert (fgd["beside_first"], chance["beside_first"]) == ((0, 0), (-2, 1))


def test_typical_pods_are_counted_whatever_their_memory() -> None:
    shapes = [PodRow(1_000, memory, 1, 500, ()) for memory in (1_000, 2_000)]
    experiment = Experiment((NODE,), (PodRow(1_000, 1_000, 1, 1000, ()),), (), 1)
    served = Served(experiment, "fragmentation")

    served.learn({shapes[0]: 15, shapes[1]: 15, PodRow(2_000, 1_000, 1, 1000, ()): 20})

    assert served.typical_pods.counts[0] == (TypicalPod(1_000, 1, 500), 30)


def test_as_much_gpu_time_arrives_as_the_load_says_whatever_the_mix() -> None:
    nodes, lives = cluster(60, 1), published()
    mixes = by_day(lives, drifted(lives), 1)

    coming = arrivals(nodes, mixes, 80, 1)

    asked = sum(each.life.pod.asked_milli * each.life.lasts_s for each in coming)
    capacity = 1000 * sum(node.gpus for node in nodes) * END_S
    assert 0.72 < asked / capacity < 0.88
    shares = [
        [size_of(each.life.pod) == "share" for each in coming if each.at_s // DAY_S == day] for day in (0, 7)
    ]
    assert sum(shares[1]) / len(shares[1]) > 1.3 * sum(shares[0]) / len(shares[0])
