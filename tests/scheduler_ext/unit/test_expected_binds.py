"""A pod on its way to a node counts in the ranks of those that ask next, and nowhere else."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import NonGPUPod, Pod
from scheduler_ext.scoring.policy import BINPACK, CardOrder
from scheduler_ext.snapshot.free import Free
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    assume,
    node_updated,
    non_gpu_pod_updated,
    pod_updated,
)
from scheduler_ext.verbs.expected_binds import LASTS_S, MAX_OF_A_NODE, MOST, ExpectedBinds
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import node, percent, read, request_of
from tests.support.clock import SecondsClock
from tests.support.profile import examples
from tests.worlds import card
from timekeeper.core.values import Placement, Slice


class World:
    """A node of one card, and pods that wait."""

    def __init__(self, *names: str, share: int = 60) -> None:
        self.clock = SecondsClock(100.0)
        self.intents = ExpectedBinds(self.clock)
        self.pods = {name: read(percent(share, name)) for name in names}
        snapshot = node_updated(EMPTY, read_node(node("a", card(0))))
        for pod in self.pods.values():
            snapshot = pod_updated(snapshot, pod)
        self.snapshot: Snapshot = snapshot

    def note(self, name: str) -> None:
        """This one was told that the node is the best."""
        self.intents.note(self.pods[name], BINPACK, "a")

    def free(self, name: str) -> int:
        """Thousandths of the card that a pod is told of."""
        nodes = self.intents.over(self.snapshot, self.pods[name].uid)
        assert isinstance(nodes, Map)
        there = nodes.get("a")
        assert there is not None
        assert there.free_by_card[0] is not None
        return there.free_by_card[0].share_milli


def test_others_see_the_card_as_it_will_be_and_the_pod_itself_as_it_is() -> None:
    world = World("p", "q", "r", share=30)
    world.note("p")
    world.note("q")

    assert [world.free(name) for name in "pqr"] == [700, 700, 400]


def test_one_that_would_not_fit_any_more_takes_nothing() -> None:
    world = World("p", "q", "r")
    world.note("p")
    world.note("q")

    assert world.free("r") == 400


def test_prioritize_sees_the_very_nodes_that_filter_saw_while_nothing_has_changed() -> None:
    world = World("p", "q", "r")
    world.note("p")
    seen = world.intents.over(world.snapshot, "uid-q")

    assert world.intents.over(world.snapshot, "uid-q") is seen
    world.note("r")
    assert world.intents.over(world.snapshot, "uid-q") is not seen


@pytest.mark.parametrize("how", ["time", "drop", "seat", "gone", "crowd"])
def test_a_pod_is_forgotten_when_it_has_an_allocation_or_never_comes(how: str) -> None:
    world = World("p", "q")
    world.note("p")
    assert world.free("q") == 400

    if how == "time":
        world.clock.s += LASTS_S
    elif how == "drop":
        world.intents.drop(world.pods["p"].uid)
    elif how == "seat":
        slices = (Slice("a-GPU-0", 0, 600, 9600),)
        placement = Placement((("main", slices),))
        world.snapshot = assume(world.snapshot, world.pods["p"], "elsewhere", placement)
    elif how == "gone":
        pods = world.snapshot.pods.without(world.pods["p"].uid)
        world.snapshot = Snapshot(
            pods=pods, non_gpu_pods=world.snapshot.non_gpu_pods, nodes=world.snapshot.nodes
        )
    else:
        for at in range(MOST):
            world.intents.note(read(percent(60, f"other-{at}")), BINPACK, "nowhere")

    assert world.free("q") == 1000


def test_a_further_pod_is_fitted_upon_those_that_are_known_and_these_are_not_fitted_again() -> None:
    world = World("p", "q", "r", "s", share=10)
    fitted: list[int] = []

    def order(before: Free, after: Free, at: int) -> CardOrder:
        fitted.append(at)
        return BINPACK.order(before, after, at)

    counting = replace(BINPACK, order=order)
    for name, free in (("p", 900), ("q", 800), ("r", 700)):
        fitted.clear()
        world.intents.note(world.pods[name], counting, "a")
        assert (world.free("s"), len(fitted)) == (free, 1)

    world.intents.drop("uid-p")
    assert world.free("s") == 800


def test_once_a_bind_is_made_those_behind_it_are_not_fitted_again() -> None:
    world = World("p", "q", "s", share=10)
    fitted: list[int] = []

    def order(before: Free, after: Free, at: int) -> CardOrder:
        fitted.append(at)
        return BINPACK.order(before, after, at)

    for name in ("p", "q"):
        world.intents.note(world.pods[name], replace(BINPACK, order=order), "a")
    assert (world.free("s"), len(fitted)) == (800, 2)

    slices = (Slice("a-GPU-0", 0, 100, 1600),)
    world.snapshot = assume(world.snapshot, world.pods["p"], "a", Placement((("main", slices),)))

    assert (world.free("s"), len(fitted)) == (800, 2)


CHANGES = st.tuples(
    st.sampled_from(["note", "drop", "bind", "bind elsewhere", "cpu", "node"]), st.integers(0, 5)
)


@example([("note", 0), ("node", 1)])
@given(st.lists(CHANGES, max_size=14))
@settings(max_examples=examples(100), deadline=None)
def test_a_node_is_seen_as_if_all_expected_binds_were_fitted_anew(changes: list[tuple[str, int]]) -> None:
    shares = [30, 30, 60, 10, 45, 100]
    pods = [read(percent(share, f"p{at}")) for at, share in enumerate(shares)]
    snapshot = node_updated(EMPTY, read_node(node("a", card(0), card(1))))
    for pod in pods:
        snapshot = pod_updated(snapshot, pod)
    intents, noted = ExpectedBinds(lambda: 100.0), list[Pod]()

    for number, (change, at) in enumerate(changes):
        pod = pods[at]
        match change:
            case "note":
                intents.note(pod, BINPACK, "a")
                noted = [each for each in noted if each is not pod] + [pod]
            case "drop":
                intents.drop(pod.uid)
                noted = [each for each in noted if each is not pod]
            case "cpu":
                snapshot = non_gpu_pod_updated(snapshot, NonGPUPod(f"other-{number}", "a", 100 * at))
            case "node":
                snapshot = node_updated(snapshot, read_node(node("a", card(0), card(1, model=f"M{at}"))))
            case _:
                where = "a" if change == "bind" else "b"
                found = fit(request_of(percent(shares[at])), snapshot.node("a"))
                if isinstance(found, Placement):
                    snapshot = assume(snapshot, pod, where, found)
        fresh = ExpectedBinds(lambda: 100.0)
        for each in noted:
            fresh.note(each, BINPACK, "a")

        seen, as_fresh = (each.over(snapshot, "someone").get("a") for each in (intents, fresh))

        assert seen is not None
        assert as_fresh is not None
        assert (seen.free_by_card, seen.cpu_left) == (as_fresh.free_by_card, as_fresh.cpu_left)
        assert seen.node_object is as_fresh.node_object


def test_of_a_crowd_on_its_way_to_one_node_the_first_count() -> None:
    names = [f"p{number}" for number in range(MAX_OF_A_NODE + 1)]
    world = World("q", *names, share=1)
    for name in names:
        world.note(name)

    assert world.free("q") == 1000 - 10 * MAX_OF_A_NODE


def test_a_card_that_fills_meanwhile_is_filled_anew() -> None:
    world = World("p", "q", "r", share=30)
    world.note("p")
    assert world.free("q") == 700

    placement = Placement((("main", (Slice("a-GPU-0", 0, 300, 4800),)),))
    world.snapshot = assume(world.snapshot, world.pods["r"], "a", placement)

    assert world.free("q") == 400


def test_two_pods_one_after_the_other_are_sent_to_two_nodes_and_filter_counts_neither(
    running: Stepped,
) -> None:
    for name in ("a", "b"):
        running.put_node(node(name, card(0)))
    first, second = (running.put_pod(percent(60, name)) for name in ("p", "q"))

    assert running.prioritize(first, "a", "b") == {"a": 10, "b": 9}
    assert running.filter(second, "a", "b")["NodeNames"] == ["a", "b"]
    assert running.prioritize(second, "a", "b") == {"a": 0, "b": 10}

    assert running.bind(first, "a") == ""
    assert running.bind(second, "b") == ""
