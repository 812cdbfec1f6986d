"""Bursar's policy against its own formula, worked out a second time as `docs/placement.md` has it."""

import math
from bisect import bisect_right

import pytest

from tests.bench.experiment import Experiment, PodRow
from tests.bench.references import Cards, Reference, State, after, fragment, tightest, typical
from tests.bench.served import Served
from tests.bench.unit.test_placement import small


class Formula:
    """``docs/placement.md``, in its own words and in floats. Imports nothing of ours."""

    def __init__(self, experiment: Experiment) -> None:
        self._typical = typical(experiment.listed)
        asking = [each for each in self._typical if each.num_gpu]
        cpu = sum(each.part * each.cpu_milli for each in asking)
        gpu = sum(each.part * each.num_gpu * each.gpu_milli for each in asking)
        self._per_gpu = math.floor(1e-6 + 5 / 6 * 1000 * cpu / gpu)
        self._per_gpu_for_cpu_only = math.floor(1e-6 + 4 / 3 * 1000 * cpu / gpu)
        self._cpus = sorted({each.cpu_milli for each in self._typical})
        self._known: dict[tuple[int, tuple[int, ...], str], float] = {}

    def __call__(self, pod: PodRow, state: State) -> tuple[int, Cards]:
        ways: list[Cards] = [(at,) for at, left in enumerate(state.cards) if left >= pod.gpu_milli]
        if pod.num_gpu != 1:
            ways = [tightest(pod, state)]
        per_gpu = self._per_gpu if pod.num_gpu else self._per_gpu_for_cpu_only
        judged = [(self._score(state, after(pod, state, way), per_gpu), way) for way in ways]
        return max(judged, key=lambda each: (each[0], -sum(state.cards[at] for at in each[1]), -sum(each[1])))

    def _score(self, before: State, then: State, per_gpu: int) -> int:
        gained = self._lost(before, per_gpu) - self._lost(then, per_gpu)
        return int(100 / (1 + math.exp(-round(gained, 6) / 1800)))

    def _lost(self, state: State, per_gpu: int) -> float:
        return self._fragment(state) + max(0, state.idle_milli - state.cpu_milli * 1000 // per_gpu)

    def _fragment(self, state: State) -> float:
        key = bisect_right(self._cpus, state.cpu_milli), tuple(sorted(state.cards)), state.model
        if key not in self._known:
            self._known[key] = fragment(self._typical, state.cpu_milli, state.cards, state.model)
        return self._known[key]


@pytest.mark.parametrize("pods", ["default", "gpuspec10"])
def test_every_pod_goes_where_the_formula_sends_it(pods: str) -> None:
    experiment = small(pods, 16)
    served, oracle = Served(experiment, "fragmentation"), Reference(experiment, Formula(experiment))

    for number, pod in enumerate(experiment.arrivals):
        assert (served.place(pod) is None) == (oracle.place(pod) is None), number
        left = [oracle.state(at) for at in range(len(experiment.nodes))]
        assert served.left() == [(state.cpu_milli, tuple(sorted(state.cards))) for state in left], number
