"""The policy `fragmentation`: by hand, and against an oracle that knows nothing of ours.

The oracle follows the text of `docs/placement.md` with fractions and sums over typical pods, one by one.
"""

import gc
import math
import random
import weakref
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.node import read_node
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel, idle_milli
from scheduler_ext.scoring.policy import NO_FIT
from scheduler_ext.scoring.typical_pods import BUILT_IN, TypicalPod, TypicalPods
from scheduler_ext.snapshot.free import Free
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo, node_info_of
from scheduler_ext.verbs.fit_cache import MANY, FitCache, FitKey, fit_key
from tests.scheduler_ext.worlds import Json, asking, mib, node, on, percent, read, rebuilt, with_cpu
from tests.support.profile import examples
from tests.worlds import card, container

MIB = 16_000


# the oracle


class Wants(NamedTuple):
    """A typical pod of the oracle's, with how many of it there are."""

    cpu: int
    cards: int
    milli: int
    models: tuple[str, ...]
    pods: int


def fragment(free: list[int], model: str, cpu: int, typical_pods: list[Wants]) -> Fraction:
    """F: what a pod drawn from the mix could not use, expected."""
    lost = 0
    for typical in typical_pods:
        enough = [left for left in free if left >= typical.milli]
        wrong_model = typical.models and model not in typical.models
        if typical.cards == 0 or wrong_model or cpu < typical.cpu or len(enough) < typical.cards:
            lost += typical.pods * sum(free)
        else:
            lost += typical.pods * sum(left for left in free if left < typical.milli)
    return Fraction(lost, sum(typical.pods for typical in typical_pods))


SERVED, SERVED_BESIDE = Fraction(5, 6), Fraction(4, 3)  # by pods with a GPU, and without


def without_cpu(free: list[int], cpu: int, part: Fraction, typical_pods: list[Wants]) -> int:
    """S: free GPU beyond what the CPU left would serve, at this part of the mix's CPU per GPU."""
    gpu = sum(typical.pods * typical.cards * typical.milli for typical in typical_pods)
    asked = sum(typical.pods * typical.cpu for typical in typical_pods if typical.cards)
    per_card = math.floor(part * asked * 1000 / gpu) if gpu else 0
    return max(0, sum(free) - cpu * 1000 // per_card) if per_card else 0


def worth(
    free: list[int],
    then: list[int],
    model: str,
    cpu: int,
    takes: int,
    typical_pods: list[Wants],
    part: Fraction = SERVED,
) -> int:
    """The score of a placement that leaves the cards as ``then``."""

    def lost(cards: list[int], left: int) -> Fraction:
        return fragment(cards, model, left, typical_pods) + without_cpu(cards, left, part, typical_pods)

    return int(100 / (1 + math.exp(-float(lost(free, cpu) - lost(then, cpu - takes)) / 1800)))


def best(
    free: list[int], model: str, cpu: int, ask: Wants, typical_pods: list[Wants]
) -> tuple[int, int] | None:
    """The greatest score, and what is free on the card that is chosen; None where the pod does not fit.

    Of a share, the card of the greatest score, of equal ones the fullest; whole cards are all alike.
    """
    if sum(left >= ask.milli for left in free) < ask.cards:
        return None
    if ask.milli == 1000:
        then = sorted(free)
        then[-ask.cards :] = [0] * ask.cards
        return worth(sorted(free), then, model, cpu, ask.cpu, typical_pods), 1000
    found = []
    for left in sorted(set(free)):
        if left >= ask.milli:
            then = [*free]
            then[then.index(left)] -= ask.milli
            found.append((-worth(free, then, model, cpu, ask.cpu, typical_pods), left))
    return -min(found)[0], min(found)[1]


# by hand


def rooms(*shares: int) -> list[tuple[Free, str]]:
    """Cards of 16,000 MiB with these thousandths free."""
    return [(Free(share, MIB * share // 1000, MIB), "") for share in shares]


HALVES_AND_PAIRS = TypicalPods(((TypicalPod(2_000, 1, 500), 3), (TypicalPod(16_000, 2, 1000), 1)))


@pytest.mark.parametrize(
    ("free", "cpu", "lost"),
    [
        ([1000, 300], 64_000, 3 * 300 + 1300),
        ([1000, 1000], 64_000, 0),
        ([1000, 1000], 15_999, 2000),
        ([1000, 1000], 1_999, 4 * 2000),
        ([400, 400], 64_000, 4 * 800),
        ([0, 0], 64_000, 0),
    ],
)
def test_a_fragment_is_what_typical_pods_cannot_use(free: list[int], cpu: int, lost: int) -> None:
    fragmentation_model = FragmentationModel(HALVES_AND_PAIRS)

    assert fragmentation_model.fragment(fragmentation_model.sum_of(rooms(*free)), cpu) == lost


def test_to_a_pod_without_a_gpu_every_free_gpu_is_a_fragment() -> None:
    fragmentation_model = FragmentationModel(
        TypicalPods(((TypicalPod(100, 1, 500), 1), (TypicalPod(100), 2)))
    )

    assert fragmentation_model.fragment(fragmentation_model.sum_of(rooms(500, 1000)), 64_000) == 2 * 1500


def test_a_card_of_another_model_is_a_fragment_to_those_who_mind() -> None:
    fragmentation_model = FragmentationModel(
        TypicalPods(((TypicalPod(100, 1, 500, 0, ("T4",)), 2), (TypicalPod(100, 1, 500, 0, (), ("T4",)), 1)))
    )
    spots = [(Free(500, 8000, MIB), "Tesla T4"), (Free(700, 11200, MIB), "A100")]

    assert fragmentation_model.fragment(fragmentation_model.sum_of(spots), 64_000) == 2 * 700 + 1 * 500


def test_memory_alone_and_cards_of_other_sizes_count_by_what_can_still_be_given_out() -> None:
    fragmentation_model = FragmentationModel(
        TypicalPods(((TypicalPod(100, 1, 0, 10_000), 1), (TypicalPod(100, 1, 500), 1)))
    )
    large, small, no_memory = Free(1000, 40_000, 80_000), Free(1000, 8_000, 8_000), Free(900, 0, 8_000)

    assert [idle_milli(room) for room in (large, small, no_memory)] == [500, 1000, 0]
    spots = [(large, ""), (small, ""), (no_memory, "")]
    assert fragmentation_model.fragment(fragmentation_model.sum_of(spots), 64_000) == 1000


@pytest.mark.parametrize(("cpu", "lost"), [(64_000, 0), (10_000, 0), (5_000, 1000), (0, 2000), (-5, 2001)])
def test_free_gpus_count_beyond_what_the_cpu_left_serves(cpu: int, lost: int) -> None:
    fragmentation_model = FragmentationModel(TypicalPods(((TypicalPod(6_000, 1, 1000), 1),)))

    assert (fragmentation_model.cpu_per_card, fragmentation_model.cpu_only_per_card) == (5_000, 8_000)
    assert fragmentation_model.without_cpu(fragmentation_model.sum_of(rooms(1000, 1000)), cpu) == lost


@pytest.mark.parametrize(
    ("gained", "score"), [(0, 50), (-1, 49), (73, 51), (71, 50), (-1000, 36), (-4000, 9), (20_000, 99)]
)
def test_the_score_is_a_percentage_cut_off(gained: int, score: int) -> None:
    fragmentation_model = FragmentationModel(TypicalPods(((TypicalPod(0, 1, 1000), 1),)))
    whole, none = fragmentation_model.sum_of(rooms()), fragmentation_model.sum_of(rooms())

    assert score == int(100 / (1 + math.exp(-gained / 1800)))
    assert fragmentation_model.score(whole._replace(idle=gained), none, 0, 0) == score


def test_a_model_goes_without_the_garbage_collector_once_another_takes_its_place() -> None:
    """With the spots that it has cached; the extender's collector hardly ever runs."""
    gc.disable()
    try:
        model = FragmentationModel(BUILT_IN)
        assert model.sum_of([(Free(1000, 80_000, 80_000), "")]).idle == 1_000
        here = weakref.ref(model)
        del model
        assert here() is None
    finally:
        gc.enable()


def test_without_any_typical_pod_no_node_is_better_than_another() -> None:
    fragmentation_model = FragmentationModel(TypicalPods(()))

    assert fragmentation_model.score(
        fragmentation_model.sum_of(rooms(1000)), fragmentation_model.sum_of(rooms(500)), 0, -5
    ) in (0, 99)
    assert scores(
        FragmentationModel(TypicalPods(())),
        percent(50),
        0,
        [cluster_node("a", [1000], 0), cluster_node("b", [500], 9)],
    )


# against the oracle


def cluster_node(name: str, free: list[int], cpu_left: int, model: str = "A100") -> NodeInfo:
    """A node whose cards have these thousandths free."""
    there = _without_cpu(name, tuple(free), model)
    return with_cpu(there, there.cpu_left - cpu_left)


@cache
def _without_cpu(name: str, free: tuple[int, ...], model: str) -> NodeInfo:
    raw = node(name, *(card(at, MIB, model) for at in range(len(free))))
    raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": "1000"}
    pods = [
        on(percent((1000 - left) // 10, f"{name}-{at}"), name, f"{name}-GPU-{at}")
        for at, left in enumerate(free)
        if left < 1000
    ]
    return rebuilt([raw], pods).node(name)


def scores(
    fragmentation_model: FragmentationModel, raw: dict[str, object], cpu_milli: int, nodes: list[NodeInfo]
) -> list[int]:
    """What prioritize would rank by."""
    pod = read(raw)
    assert pod.request is not None
    asked = fit_key(pod.request, fragmentation(fragmentation_model, cpu_milli), pod.amounts)
    listed: list[int] = (
        FitCache().scored(asked, Map({n.name: n for n in nodes}), [n.name for n in nodes])[0].tolist()
    )
    return listed


def some_wants(rng: random.Random) -> Wants:
    """A shape, with how many pods of it there are."""
    return Wants(
        rng.choice([0, 500, 4_000, 8_000, 40_000]),
        rng.choice([0, 1, 1, 1, 2, 4]),
        rng.choice([100, 250, 300, 500, 700, 1000]),
        rng.choice([(), (), ("A100",), ("T4",)]),
        rng.randint(1, 9),
    )


def some_cluster(rng: random.Random) -> list[tuple[list[int], int, str]]:
    """Of each node what is free on its cards, the CPU that is left, and the model."""
    shares = [0, 100, 250, 300, 500, 700, 1000]
    return [
        (rng.choices(shares, k=rng.randint(1, 4)), rng.randint(0, 60_000), rng.choice(["A100", "T4"]))
        for _ in range(rng.randint(1, MANY + 1))
    ]


def as_mix(typical_pods: list[Wants]) -> TypicalPods:
    """The oracle's mix as ours."""
    return TypicalPods(
        tuple(
            (TypicalPod(w.cpu, w.cards, w.milli, 0, w.models) if w.cards else TypicalPod(w.cpu), w.pods)
            for w in typical_pods
        )
    )


@pytest.mark.parametrize("seed", range(120))
def test_scores_and_cards_are_those_of_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    typical_pods, cluster = [some_wants(rng) for _ in range(rng.randint(1, 6))], some_cluster(rng)
    ask = some_wants(rng)
    ask = ask._replace(cards=max(1, ask.cards) if ask.milli == 1000 else 1)
    nodes = [cluster_node(f"n{at}", *each) for at, each in enumerate(cluster)]
    fragmentation_model = FragmentationModel(as_mix(typical_pods))
    amount: Json = (
        {"gpu_count": str(ask.cards)} if ask.milli == 1000 else {"gpu_percent": str(ask.milli // 10)}
    )
    raw = asking(container(**amount))
    expected = [best(free, model, cpu, ask, typical_pods) for free, cpu, model in cluster]

    found = scores(fragmentation_model, raw, ask.cpu, nodes)

    assert found == [NO_FIT if each is None else each[0] for each in expected]
    request = read(raw).request
    assert request is not None
    for there, (free, _, _), each in zip(nodes, cluster, expected, strict=True):
        placed = fit(request, there, fragmentation(fragmentation_model, ask.cpu))
        if each is None:
            assert isinstance(placed, Refusal)
            continue
        assert not isinstance(placed, Refusal)
        assert [free[part.index] for part in placed.containers[0][1]] == [each[1]] * ask.cards


@pytest.mark.parametrize("seed", range(40))
def test_a_pod_without_a_gpu_is_scored_by_the_cpu_it_takes(seed: int) -> None:
    rng = random.Random(seed)
    typical_pods, cluster = [some_wants(rng) for _ in range(rng.randint(1, 6))], some_cluster(rng)
    cpu = rng.randint(0, 9_000)
    nodes = {f"n{at}": cluster_node(f"n{at}", *each) for at, each in enumerate(cluster)}
    asked = FitKey(None, fragmentation(FragmentationModel(as_mix(typical_pods)), cpu), ())

    found = FitCache().scored(asked, Map(nodes), list(nodes))[0].tolist()

    assert found == [
        worth(free, free, model, left, cpu, typical_pods, SERVED_BESIDE) for free, left, model in cluster
    ]


# what only ours knows


@settings(max_examples=examples(25, soak=500), deadline=None)
@given(st.data())
def test_many_nodes_at_once_are_scored_as_each_alone(data: st.DataObject) -> None:
    fragmentation_model = FragmentationModel(
        TypicalPods((*BUILT_IN.counts, (TypicalPod(500, 1, 0, 6_000), 7), (TypicalPod(500, 2, 300), 3)))
    )
    raw = data.draw(
        st.sampled_from([percent(20), mib(7000), asking(container(gpu_count="2", gpu_percent="60"))])
    )
    sizes = st.lists(st.sampled_from([8_000, 16_000, 40_000]), min_size=1, max_size=3)
    nodes = []
    for at in range(MANY):
        cards = [card(i, size) for i, size in enumerate(data.draw(sizes))]
        node_object = read_node(node(f"n{at}", *cards))
        nodes.append(with_cpu(node_info_of(f"n{at}", node_object, {}), -data.draw(st.integers(0, 40_000))))

    together = scores(fragmentation_model, raw, 2_000, nodes)

    assert together == [scores(fragmentation_model, raw, 2_000, [each])[0] for each in nodes]


@pytest.mark.parametrize("amount", [{"gpu_percent": "30"}, {"gpu_count": "2"}])
def test_hundreds_of_nodes_at_once_are_scored_as_each_alone(amount: Json) -> None:
    rng = random.Random(1)
    raw, free = asking(container(**amount)), [0, 100, 300, 500, 1000]
    nodes = [
        cluster_node(f"n{at}", rng.choices(free, k=rng.choice([3, 8])), rng.randint(-9, 60_000))
        for at in range(200)
    ]

    together = scores(FragmentationModel(BUILT_IN), raw, 4_000, nodes)

    assert together == [scores(FragmentationModel(BUILT_IN), raw, 4_000, [each])[0] for each in nodes]


def test_more_cpu_than_matters_is_no_other_question() -> None:
    by = fragmentation(FragmentationModel(BUILT_IN), 4_000)
    answers, raw = FitCache(), read(percent(50))
    assert raw.request is not None
    asked = fit_key(raw.request, by, raw.amounts)
    roomy = cluster_node("a", [1000, 500], 900_000)

    answers.scored(asked, Map({"a": roomy}), ["a"])[0]
    known = dict(answers._known)
    answers.scored(asked, Map({"a": with_cpu(roomy, 5_000)}), ["a"])[0]

    assert len(known) == 1
    assert answers._known == known


HUGE = st.sampled_from([0, 1, 10**9 - 1, 10**9, 10**9 + 1, 2**53, 2**63 - 1, 2**63, 9 * 10**18, 10**30])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(HUGE, st.integers(1, 8_192)), min_size=1, max_size=4),
    st.lists(HUGE, min_size=MANY, max_size=MANY),
    HUGE,
    st.booleans(),
)
def test_no_amount_of_cpu_is_too_much_and_both_ways_of_counting_agree_on_it(
    typical_pods: list[tuple[int, int]], others: list[int], cpu: int, roomy: bool
) -> None:
    fragmentation_model = FragmentationModel(
        TypicalPods(
            tuple((TypicalPod(each, 1, 10 * (1 + at)), pods) for at, (each, pods) in enumerate(typical_pods))
        )
    )
    sign = -1 if roomy else 1
    nodes = [
        with_cpu(cluster_node(f"n{at}", [1000, 500], 4_000), sign * each) for at, each in enumerate(others)
    ]

    together = scores(fragmentation_model, percent(20), cpu, nodes)

    assert together == [scores(fragmentation_model, percent(20), cpu, [each])[0] for each in nodes]
    asked = FitKey(None, fragmentation(fragmentation_model, cpu), ())
    assert len(FitCache().scored(asked, Map({n.name: n for n in nodes}), [n.name for n in nodes])[0]) == MANY
