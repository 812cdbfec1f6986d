"""The memory of answers changes no answer; and what the answers become as kube-scheduler's numbers."""

import gc
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit import refusal
from scheduler_ext.fit.card_sets import MAX_STEPS
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import NonGPUPod
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.load import CardLoads, load
from scheduler_ext.scoring.policy import BINPACK, RANDOM, SPREAD, Policy
from scheduler_ext.scoring.rank import places, ranks
from scheduler_ext.scoring.typical_pods import BUILT_IN, TypicalPod, TypicalPods
from scheduler_ext.snapshot.node_info import NodeInfo, is_short
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    node_deleted,
    node_updated,
    non_gpu_pod_updated,
    pod_updated,
    release,
)
from scheduler_ext.verbs.fit_cache import CALL_STEPS, FitCache, fit_key
from tests.scheduler_ext.worlds import (
    Json,
    asking,
    bound,
    mib,
    node,
    on,
    percent,
    place,
    read,
    rebuilt,
    with_used,
)
from tests.support.profile import examples
from tests.worlds import card, container

SHAPES = [
    percent(30),
    percent(100),
    mib(5000),
    asking(
        container("a", gpu_percent="40"), container("b", gpu_percent="40"), container("c", gpu_percent="70")
    ),
    asking(container(gpu_count="2")),
    percent(50, annotations={"bursar.dev/gpu-models": "T4"}),
]


def asked_of(
    answers: FitCache, raw: Json, snapshot: Snapshot, policy: Policy, names: list[str]
) -> dict[str, str]:
    """Node -> its refusal, "" where the pod fits."""
    pod = read(raw)
    assert pod.request is not None
    found = answers.partition(fit_key(pod.request, policy, pod.amounts), snapshot.nodes, names)
    assert found.fits == [name for name in names if name in found.fits]
    refused = {name: each.sentence for name, each in (found.short | found.refused).items()}
    return refused | dict.fromkeys(found.fits, "")


def scores_of(
    answers: FitCache, raw: Json, snapshot: Snapshot, policy: Policy, names: list[str]
) -> list[int]:
    """What the nodes are ranked by."""
    pod = read(raw)
    assert pod.request is not None
    asked = fit_key(pod.request, policy, pod.amounts)
    found: list[int] = answers.scored(asked, snapshot.nodes, names)[0].tolist()
    return found


CHOOSY = FragmentationModel(
    TypicalPods(
        (*BUILT_IN.counts, (TypicalPod(1_000, 1, 300, 0, ("T4",)), 20), (TypicalPod(3_000, 1, 0, 6_000), 9))
    )
)
POLICIES = {
    "binpack": BINPACK,
    "spread": SPREAD,
    "random": RANDOM,
    "fragmentation": fragmentation(FragmentationModel(BUILT_IN), 2_000),
    "fragmentation that minds models": fragmentation(CHOOSY, 2_000),
    "load": load(
        CardLoads({f"n{at}-GPU-{index}": 100 * at + 7 * index for at in range(4) for index in range(3)})
    ),
}


@pytest.mark.untraced
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([*POLICIES]))
def test_remembered_answers_are_those_of_fit_whatever_has_changed(seed: int, word: str) -> None:
    rng, answers, snapshot, policy = random.Random(seed), FitCache(), EMPTY, POLICIES[word]
    names = [f"n{at}" for at in range(4)]
    for step in range(40):
        name = rng.choice(names)
        match rng.randrange(6):
            case 5:
                other = NonGPUPod(f"other-{rng.randrange(3)}", name, rng.choice([0, 500, 9_000]))
                snapshot = non_gpu_pod_updated(snapshot, other)
            case 0:
                cards = [
                    card(at, rng.choice([8000, 16000]), rng.choice(["A100", "T4"]))
                    for at in range(rng.randint(1, 3))
                ]
                snapshot = node_updated(snapshot, read_node(node(name, *cards)))
            case 1:
                snapshot = node_deleted(snapshot, name)
            case 2 if len(snapshot.allocated_on):
                snapshot = release(snapshot, rng.choice([uid for uid, _ in snapshot.allocated_on.items()]))
            case _:
                raw = {**rng.choice(SHAPES)}
                raw["metadata"] = {**raw["metadata"], "uid": f"uid-{step}", "name": f"p{step}"}
                taken = place(snapshot, raw, name)
                if taken is not None:
                    snapshot = pod_updated(snapshot, read(taken))
        raw = rng.choice(SHAPES)
        said = asked_of(answers, raw, snapshot, policy, names)
        alone = [scores_of(FitCache(), raw, snapshot, policy, [each]) for each in names]
        assert scores_of(answers, raw, snapshot, policy, names) == [score for (score,) in alone]
        for each in names:
            answer = fit(read(raw).request or pytest.fail("malformed"), snapshot.node(each), policy)
            assert said[each] == (answer.sentence if isinstance(answer, Refusal) else "")


def test_pods_of_one_shape_share_one_question_whatever_their_containers_are_called() -> None:
    one, other = (
        read(asking(container("a", gpu_percent="50"))),
        read(asking(container("b", gpu_percent="50"))),
    )
    assert one.request is not None
    assert other.request is not None

    assert fit_key(one.request, BINPACK, one.amounts) == fit_key(other.request, BINPACK, other.amounts)
    assert fit_key(one.request, SPREAD, one.amounts) != fit_key(one.request, BINPACK, one.amounts)


def test_more_shapes_than_are_remembered_are_answered_all_the_same() -> None:
    answers, snapshot = (
        FitCache(),
        rebuilt([node("n", card(0, 100_000))], [on(mib(50_000, "u"), "n", "GPU-0")]),
    )

    for memory in [*range(49_950, 50_050), *range(49_950, 50_050)]:
        said = asked_of(answers, mib(memory), snapshot, BINPACK, ["n"])
        assert said == {"n": "" if memory <= 50_000 else f"no card has {memory} MiB free"}


def test_other_nodes_of_the_same_number_are_not_taken_for_those_that_filter_answered() -> None:
    answers, snapshot = FitCache(), with_used(a=[100], b=[50])
    pod = read(percent(30))
    assert pod.request is not None
    asked = fit_key(pod.request, SPREAD, pod.amounts)

    assert answers.partition(asked, snapshot.nodes, ["a"]).fits == ["a"]
    scores = [answers.scored(asked, snapshot.nodes, [name])[0].tolist() for name in ("a", "b")]

    assert scores[0] > scores[1]


def test_of_the_nodes_only_the_last_version_is_kept_whatever_the_age_of_a_fit() -> None:
    answers, snapshot = FitCache(), rebuilt([node("kept-once")], [])

    for share in (10, 20, 30):
        pod = read(percent(share))
        assert pod.request is not None
        answers.partition(fit_key(pod.request, BINPACK, pod.amounts), snapshot.nodes, ["kept-once"])
        snapshot = non_gpu_pod_updated(snapshot, NonGPUPod("other", "kept-once", share))
    gc.collect()

    kept = [each for each in gc.get_objects() if isinstance(each, NodeInfo) and each.name == "kept-once"]
    assert sorted(each.non_gpu.cpu_milli for each in kept) == [20, 30]


def test_a_search_over_many_hard_nodes_is_bounded_and_goes_on_in_the_next_call() -> None:
    sizes = [331 + 7 * at % 13 for at in range(23)]
    raw = asking(*(container(f"c{at}", gpu_memory=str(10 * size)) for at, size in enumerate(sizes)))
    names = [f"n{at}" for at in range(12)]
    nodes = [node(name, *(card(at, 10_000 + number) for at in range(8))) for number, name in enumerate(names)]
    answers, snapshot = FitCache(), rebuilt(nodes, [])

    first = list(asked_of(answers, raw, snapshot, BINPACK, names).values())
    second = list(asked_of(answers, raw, snapshot, BINPACK, names).values())

    assert CALL_STEPS == 4 * MAX_STEPS
    assert first.count(refusal.GIVEN_UP.sentence) == 4
    assert first.count(refusal.NOT_TRIED.sentence) == 8
    assert second.count(refusal.NOT_TRIED.sentence) == 4


# FailedNodes or FailedAndUnresolvableNodes


def test_only_what_kube_scheduler_finds_short_too_is_left_to_its_preemption() -> None:
    fragmented = rebuilt(
        [node("n", card(0), card(1))],
        [on(percent(60, "a"), "n", "GPU-0"), on(percent(60, "b"), "n", "GPU-1")],
    )
    full = rebuilt([node("n", card(0))], [on(percent(60, "a"), "n", "GPU-0")])

    def short(snapshot: Snapshot, raw: Json) -> bool:
        return is_short(snapshot.node("n"), read(raw).amounts)

    assert not short(fragmented, percent(50))
    assert short(full, percent(50))
    assert short(fragmented, percent(90))
    assert not short(full, percent(200))  # more than there will ever be
    assert not short(full, asking(container(gpu_count="1")))  # not counted by kube-scheduler
    found = FitCache().partition(question_of(percent(90)), fragmented.nodes, ["n"])
    assert (found.fits, found.short, found.refused) == (
        [],
        {"n": Refusal("no card has 90 percent free", "full")},
        {},
    )


def test_what_pods_take_of_cards_memory_in_one_unit_is_short_as_in_kube_scheduler() -> None:
    def by_number(name: str, **limits: object) -> Json:
        raw = asking(container(gpu_count="1"), name=name)
        raw["spec"]["containers"][0]["resources"]["limits"] |= limits
        return raw

    unit = {"cards.bursar.dev/millionths": "1M"}
    advertised = node("n", capacity={"bursar.dev/gpu-percent": "100", "bursar.dev/gpu-count": "1k", **unit})
    snapshot = rebuilt([advertised], [on(by_number("a", **unit), "n", "GPU-0")])

    assert read(by_number("b", **unit)).request == read(by_number("b")).request
    assert read(by_number("b", **unit)).amounts == (("cards.bursar.dev/millionths", 1_000_000),)
    assert dict(snapshot.node("n").left)["cards.bursar.dev/millionths"] == 0
    assert is_short(snapshot.node("n"), read(by_number("b", **unit)).amounts)
    known = snapshot.node("n").node_object
    assert known
    assert known.fault == "", "a name that it knows"


def question_of(raw: Json):  # type: ignore[no-untyped-def]
    pod = read(raw)
    assert pod.request is not None
    return fit_key(pod.request, BINPACK, pod.amounts)


def test_kube_schedulers_own_sum_counts_init_containers_as_it_does() -> None:
    sidecar = {**container("s", gpu_percent="10"), "restartPolicy": "Always"}
    raw = asking(
        container("a", gpu_percent="20"),
        container("b", gpu_percent="30"),
        init=[sidecar, container("i", gpu_percent="55")],
    )

    assert read(raw).amounts == (("bursar.dev/gpu-percent", 65),)
    assert read(
        asking(container("a", gpu_percent="20"), init=[container("i", gpu_percent="45")])
    ).amounts == (("bursar.dev/gpu-percent", 45),)


def test_an_orphaned_pod_is_not_counted_as_in_kube_scheduler() -> None:
    from scheduler_ext.snapshot.snapshot import pod_deleted

    raw = on(percent(60, "a"), "n", "GPU-0")
    snapshot = pod_deleted(rebuilt([node("n")], [raw]), read(raw), 0)

    assert dict(snapshot.node("n").left)["bursar.dev/gpu-percent"] == 100
    assert not is_short(snapshot.node("n"), read(percent(50)).amounts)


def test_a_closed_node_is_no_shortage() -> None:
    snapshot = rebuilt([node("n")], [bound(percent(100, "other"), "n", None)])

    found = FitCache().partition(question_of(percent(50)), snapshot.nodes, ["n", "unknown"])

    assert found.short == {}
    assert found.refused == {
        "n": refusal.closed("unplaced"),
        "unknown": refusal.UNKNOWN_NODE,
    }


# ranks


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], []),
        ([5], [10]),
        ([1, 2, 2, 0], [8, 10, 9, 7]),
        ([7, 7, 7], [10, 9, 9]),
        (list(range(11)), list(range(11))),
        (list(range(12)), [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_the_best_gets_ten_and_the_rest_their_rank(scores: list[int], expected: list[int]) -> None:
    assert ranks(scores, np.arange(len(scores))).tolist() == expected


def test_of_equally_good_nodes_the_first_by_name_gets_ten() -> None:
    assert ranks([3, 3, 1, 3], places(["c", "b", "a", "d"])).tolist() == [9, 10, 8, 9]


@given(
    st.lists(st.integers(-50, 50), min_size=1), st.sampled_from([1, 10**9]), st.randoms(use_true_random=False)
)
def test_ranks_keep_the_order_and_one_alone_has_ten(scores: list[int], step: int, rng: random.Random) -> None:
    scores = [step * each for each in scores]
    names = [f"n{at}" for at in range(len(scores))]
    rng.shuffle(names)

    given_ranks = ranks(scores, places(names)).tolist()

    winner = min((-score, name) for score, name in zip(scores, names, strict=True))[1]
    assert given_ranks.count(10) == 1
    assert given_ranks[names.index(winner)] == 10
    assert all(0 <= rank <= 10 for rank in given_ranks)
    others = [each for each in zip(scores, given_ranks, strict=True) if each[1] < 10]
    for score, rank in others:
        assert all(score > other or rank <= its_rank for other, its_rank in others)
        assert all(score != other or rank == its_rank for other, its_rank in others)


def test_nodes_are_ordered_by_name_whichever_was_added_last() -> None:
    cache, pod = FitCache(), read(percent(30))
    assert pod.request is not None
    key, orders = fit_key(pod.request, BINPACK, pod.amounts), []

    for names in (["n2", "n1"], ["n2", "n3", "n1", "n0"]):
        _, by_name = cache.scored(key, with_used(**{name: [100] for name in names}).nodes, names)
        orders.append(by_name.argsort().tolist())

    assert orders == [[1, 0], [3, 2, 0, 1]]
