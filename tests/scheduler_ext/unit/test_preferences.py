"""A pod's own soft preferences outweigh the placement policy in kube-scheduler's sum."""

from typing import Any

import numpy as np
import pytest

from scheduler_ext.model.preferences import has_preferences
from scheduler_ext.scoring.rank import level, ranks
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.worlds import Json, node, on, percent
from tests.worlds import container, pod

EIGHT = [f"n{at}" for at in range(8)]
SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
HARD = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = [{"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}]
POINTS, PREFERENCE = 100, 200  # of a rank, and of a preference that is met


def affinity(kind: str, when: str = SOFT) -> Json:
    return {"affinity": {kind: {when: TERM}}}


def spread(when: str) -> Json:
    return {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when}]}


WITH: list[Json] = [
    affinity("podAntiAffinity"),
    affinity("podAffinity"),
    affinity("nodeAffinity"),
    spread("ScheduleAnyway"),
]
WITHOUT: list[Json] = [
    {},
    affinity("podAntiAffinity", HARD),
    {"affinity": {"podAntiAffinity": {SOFT: []}}},
    {"affinity": None},
    spread("DoNotSchedule"),
    {"topologySpreadConstraints": [None, 7]},
]


@pytest.mark.parametrize(
    ("spec", "expected"), [*((each, True) for each in WITH), *((each, False) for each in WITHOUT)]
)
def test_what_is_a_preference(spec: Json, expected: bool) -> None:
    assert has_preferences(pod(container(), **spec)) is expected


@pytest.fixture
def world(running: Stepped) -> Stepped:
    """Eight nodes of one card, of which each is fuller than the one before."""
    for at, name in enumerate(EIGHT):
        running.put_node(node(name))
        if at:
            running.put_pod(on(percent(10 * at, f"u{at}"), name, f"{name}-GPU-0"))
    return running


def sums(world: Stepped, preferred: str, **spec: Any) -> dict[str, int]:
    """What kube-scheduler adds up for each node, one of which the pod prefers."""
    packed = {"bursar.dev/policy": "binpack"}
    given = world.prioritize(percent(10, annotations=packed, **spec), *EIGHT)
    return {name: POINTS * rank + PREFERENCE * (name == preferred) for name, rank in given.items()}


@pytest.mark.parametrize("spec", WITH)
@pytest.mark.parametrize("preferred", ["n0", "n3", "n7"])
def test_the_node_that_the_pod_prefers_wins_over_the_fullest(
    world: Stepped, preferred: str, spec: Json
) -> None:
    found = sums(world, preferred, **spec)

    assert max(found, key=lambda name: found[name]) == preferred


@pytest.mark.parametrize("spec", WITHOUT[:3])
def test_without_a_preference_the_fullest_wins_by_more(world: Stepped, spec: Json) -> None:
    found = sums(world, "n0", **spec)

    assert max(found, key=lambda name: found[name]) == "n7"


def test_where_the_pod_prefers_none_of_them_the_policys_best_node_wins(world: Stepped) -> None:
    found = sums(world, "", **WITH[0])

    assert found == dict.fromkeys(EIGHT, 900) | {"n7": 1000}


def test_a_node_on_which_the_pod_does_not_fit_gets_nothing_and_the_last_one_that_fits_does() -> None:
    scores = [-(2**62), *range(20)]
    given = ranks(scores[1:], np.arange(20))

    assert given.min() == 0
    assert level(np.array([0, *given]), scores).tolist() == [0, *[9] * 19, 10]


@pytest.mark.parametrize(("spec", "offered"), [(WITH[0], 4), (WITHOUT[0], 2)])
def test_a_pod_with_preferences_is_offered_all_nodes_that_fit(start: Start, spec: Json, offered: int) -> None:
    world, names = start("--policy", "binpack", "--most-offered", "2"), EIGHT[:4]
    for name in names:
        world.put_node(node(name))

    assert len(world.filter(percent(10, **spec), *names)["NodeNames"]) == offered
