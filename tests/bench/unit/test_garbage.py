"""What a call leaves behind is freed at once: the extender's garbage collector hardly ever runs."""

import gc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_any
from tests.bench.cost.operations import CARDS, ExtenderWorld, built
from tests.bench.extender import SIZES, body_of, node, pod

CALLS = 100  # a cycle in each would be as many objects at least; threads of other tests may leave a few


@pytest.mark.parametrize("name", ["mutate", "validate", "bind", "beat"])
def test_calls_leave_nothing_for_the_garbage_collector(name: str, tmp_path: Path) -> None:
    prepare = built(name, tmp_path)
    try:
        assert _left_by(prepare() for _ in range(CALLS)) < CALLS
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_lists_of_nodes_leave_nothing_for_the_garbage_collector(verb: str, tmp_path: Path) -> None:
    """Each call has the nodes in another order, as kube-scheduler's parallel filters leave them."""
    world = ExtenderWorld(tmp_path, CALLS)
    pods = [pod(f"p-{at}", SIZES[at % len(SIZES)]) for at in range(CALLS)]
    bodies = [
        body_of({"Pod": each, "NodeNames": world.names[at:] + world.names[:at]})
        for at, each in enumerate(pods)
    ]

    assert _left_by(partial(world.call, f"/{verb}", body) for body in bodies) < CALLS


def test_events_leave_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    world = ExtenderWorld(tmp_path, 50)
    nodes = [read_node(node(name, cards)) for name in world.names[:10] for cards in (1, CARDS)]
    pods = [read_any(next(world.more)) for _ in range(CALLS - len(nodes))]

    events = [partial(world.cache.node_updated, each) for each in nodes]
    events += [partial(world.cache.pod_updated, each) for each in pods]

    assert _left_by(events) < CALLS


def _left_by(calls: Iterable[Callable[[], object]]) -> int:
    """How many objects only the collector can free after these calls."""
    ready = list(calls)
    gc.collect()
    gc.disable()
    try:
        while ready:
            ready.pop(0)()
        return gc.collect()
    finally:
        gc.enable()
