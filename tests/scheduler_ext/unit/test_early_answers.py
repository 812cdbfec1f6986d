"""What is computed between two calls: the next filter finds it, and it is what that filter would compute."""

import threading
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.refusal import NOT_TRIED
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BINPACK, CardOrder, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN
from scheduler_ext.snapshot.free import Free
from scheduler_ext.snapshot.snapshot import Snapshot, pod_updated
from scheduler_ext.verbs.early_answers import QUIET_S, EarlyAnswers
from scheduler_ext.verbs.fit_cache import (
    MAX_EARLY,
    MAX_EARLY_NODES,
    FilterResult,
    FitCache,
    FitKey,
    fit_key,
)
from scheduler_ext.verbs.name_lists import NameList
from tests.scheduler_ext.worlds import Json, asking, on, percent, read, with_used
from tests.support.profile import examples
from tests.support.waiting import eventually
from tests.worlds import container

NAMES = NameList(f"n{at}" for at in range(3))


class World:
    """Nodes of two cards, and how often a card was weighed for a pod."""

    def __init__(self, names: NameList = NAMES) -> None:
        self.now_s, self.weighed = 100.0, 0
        self.names = names
        self.snapshot: Snapshot = with_used(**{name: [100, 100] for name in names})
        self.cache = FitCache()
        self.early = EarlyAnswers(self.cache, lambda: self.snapshot.nodes, lambda: self.now_s, self.breathe)
        self.policy, self.policy_order = replace(BINPACK, order=self._order), BINPACK.order
        self.breaths = Counter[str]()

    def _order(self, before: Free, after: Free, at: int) -> CardOrder:
        self.weighed += 1
        return self.policy_order(before, after, at)

    def breathe(self) -> None:
        self.breaths["all"] += 1

    def key(self, raw: Json) -> FitKey:
        pod = read(raw)
        assert pod.request is not None
        return fit_key(pod.request, self.policy, pod.amounts)

    def filter(self, raw: Json) -> list[str]:
        """What fits, by a filter that begins now."""
        self.early.called()
        return self.cache.partition(self.key(raw), self.snapshot.nodes, self.names).fits

    def bind(self, name: str, used: int, number: int = 0) -> None:
        """A pod takes so many percent of the node's first card."""
        pod = on(percent(used, f"bound-{number}"), name, f"{name}-GPU-0")
        self.snapshot = pod_updated(self.snapshot, read(pod))

    def look(self, later_s: float = 2 * QUIET_S) -> int:
        """How many cards are weighed by a look, so much later."""
        self.now_s += later_s
        before = self.weighed
        self.early.look()
        return self.weighed - before


def test_a_filter_computes_nothing_that_was_computed_since_the_node_changed() -> None:
    world = World()
    world.filter(percent(60))
    world.bind("n1", 30)

    assert world.look() > 0
    before = world.weighed
    assert world.filter(percent(60)) == ["n0", "n1", "n2"]
    assert world.weighed == before


def test_a_node_that_changes_after_the_look_is_computed_by_the_filter() -> None:
    world = World()
    world.filter(percent(60))
    world.bind("n1", 30, 1)
    world.look()
    world.bind("n1", 20, 2)
    world.snapshot = pod_updated(world.snapshot, read(on(percent(50, "third"), "n1", "n1-GPU-1")))

    assert world.filter(percent(60)) == ["n0", "n2"]


def test_nothing_is_computed_while_calls_come() -> None:
    world = World()
    world.filter(percent(60))
    world.bind("n1", 30)

    assert world.look(later_s=QUIET_S / 2) == 0
    assert world.look() > 0


def test_it_looks_after_calls_until_it_is_stopped() -> None:
    world, stop = World(), threading.Event()
    world.early = EarlyAnswers(world.cache, lambda: world.snapshot.nodes)
    thread = threading.Thread(target=world.early.run, args=(stop,), daemon=True)
    thread.start()
    world.filter(percent(60))
    before = world.weighed
    world.bind("n1", 30)

    eventually(lambda: world.weighed > before)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_a_call_ends_a_look_after_the_shape_that_it_is_at() -> None:
    world = World()
    for share in (50, 60, 70):
        world.filter(percent(share))
    world.bind("n1", 35)
    world.early = EarlyAnswers(
        world.cache, lambda: world.snapshot.nodes, lambda: world.now_s, lambda: world.early.called()
    )

    looks = [world.look() for _ in range(4)]

    assert [each > 0 for each in looks] == [True, True, True, False]


@pytest.mark.parametrize(
    "raw",
    [
        asking(container("a", gpu_percent="60"), container("b", gpu_percent="30")),
        percent(60, annotations={"bursar.dev/gpu-models": "A100"}),
    ],
    ids=["two containers", "by model"],
)
def test_requests_that_may_need_a_search_are_left_to_their_filters(raw: Json) -> None:
    world = World()
    world.filter(raw)
    world.bind("n1", 30)

    assert world.look() == 0
    before = world.weighed
    world.filter(raw)
    assert world.weighed > before


def test_nodes_that_a_namespace_had_no_time_left_for_are_left_to_its_filters() -> None:
    world = World()
    nodes = world.snapshot.nodes
    found = world.cache.partition(world.key(percent(60)), nodes, world.names, Steps(0))
    world.bind("n1", 30)

    assert set(found.refused.values()) == {NOT_TRIED}
    assert world.look() == 0


def test_the_bytes_of_the_answers_are_made_early_too() -> None:
    world = World()
    world.filter(percent(60))
    world.bind("n1", 50)
    world.snapshot = pod_updated(world.snapshot, read(on(percent(50, "other"), "n1", "n1-GPU-1")))

    (result,) = world.cache.early(world.snapshot.nodes)

    assert result.fits == ["n0", "n2"]
    assert "sentences" in vars(result)
    assert {"end", "scores"} <= vars(result.fits).keys()


def test_while_nothing_changes_no_shape_is_looked_at() -> None:
    world = World()
    world.filter(percent(60))
    looked_at = []
    early = world.cache.early
    world.cache.early = lambda nodes: looked_at.append(nodes) or early(nodes)  # type: ignore[method-assign, func-returns-value]

    for _ in range(3):
        world.look()
    world.bind("n1", 30)
    world.look()

    assert len(looked_at) == 2


def test_many_changed_nodes_are_left_to_the_filter() -> None:
    names = NameList(f"n{at}" for at in range(MAX_EARLY_NODES + 1))
    world = World(names)
    world.filter(percent(60))
    for at, name in enumerate(names[:-1]):
        world.bind(name, 30, at)
    assert world.look() > 0
    world.filter(percent(60))
    for at, name in enumerate(names):
        world.bind(name, 10, 100 + at)

    assert world.look() == 0


def test_an_exception_ends_only_the_thread_and_the_next_filter_computes_for_itself(
    capfd: pytest.CaptureFixture[str],
) -> None:
    world = World()
    world.filter(percent(60))
    world.bind("n1", 50)
    world.bind("n1", 50, 1)

    def broken(*_: object) -> CardOrder:
        raise RuntimeError("a fault")

    world.policy_order = broken
    world.now_s += 2 * QUIET_S
    thread = threading.Thread(target=world.early.run, args=(threading.Event(),))
    thread.start()
    thread.join(10.0)

    assert not thread.is_alive()
    assert capfd.readouterr().err.count("event=early-answers-ended") == 1
    world.policy_order = BINPACK.order
    before = world.weighed
    world.filter(percent(60))
    assert world.weighed > before


def test_of_more_nodes_than_are_offered_only_the_refusals_are_written_early() -> None:
    key = World().key(percent(60))
    names = NameList([*NAMES, "unknown"])

    def result(most_offered: int) -> FilterResult:
        cache = FitCache(most_offered)
        cache.partition(key, with_used(n0=[100, 100], n1=[100, 100], n2=[100, 100]).nodes, names)
        (found,) = cache.early(with_used(n0=[100, 100], n1=[100, 100], n2=[50, 50]).nodes)
        return found

    few, all_of_them = result(1), result(0)

    assert isinstance(few.fits, NameList)
    assert "sentences" in vars(few)
    assert vars(few.fits).keys().isdisjoint({"end", "scores"})
    assert {"end", "scores"} <= vars(all_of_them.fits).keys()
    offered = few.offering(["n0"])
    assert offered == FilterResult(["n0"], few.short, few.refused)
    assert offered.sentences is few.sentences


def test_only_the_shapes_asked_last_are_computed() -> None:
    world = World()
    for share in range(50, 50 + MAX_EARLY + 1):
        world.filter(percent(share))
    world.bind("n1", 35)

    world.look()

    assert world.breaths["all"] == MAX_EARLY


@pytest.mark.parametrize("policy", [BINPACK, fragmentation(FragmentationModel(BUILT_IN), 2_000)])
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 5), st.integers(0, 2), max_size=6), st.booleans(), st.booleans()
        ),
        max_size=8,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_what_is_computed_early_is_what_the_filter_would_compute(
    policy: Policy, steps: list[tuple[dict[int, int], bool, bool]]
) -> None:
    """Nodes change, and between the changes there are looks and filters, or neither."""
    names = NameList(f"n{at}" for at in range(6))
    pods = [read(percent(60)), read(percent(25))]
    keys = [fit_key(pod.request, policy, pod.amounts) for pod in pods if pod.request is not None]
    cache, free = FitCache(), {name: [100, 100] for name in names}

    for change, looks, filters in [({}, False, True), *steps, ({}, True, True)]:
        free |= {names[at]: [[100, 100], [30, 30], [30, 20]][state] for at, state in change.items()}
        nodes = with_used(**free).nodes
        early = list(cache.early(nodes)) if looks else []
        found = [cache.partition(key, nodes, names) for key in keys] if filters else []
        fresh = [FitCache().partition(key, nodes, [*names]) for key in keys]
        fresh_scores = [FitCache().scored(key, nodes, [*names])[0].tolist() for key in keys]
        assert all(each in fresh for each in early)
        if filters:
            assert found == fresh
            assert [cache.scored(key, nodes, names)[0].tolist() for key in keys] == fresh_scores
            assert all(any(one is other for other in found) for one in early)
