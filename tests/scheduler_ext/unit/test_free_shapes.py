"""Shapes of what is free on a node: one object for equal ones, and none that nothing uses."""

import gc

from scheduler_ext.snapshot.free import Free, FreeShape, shape_of
from tests.scheduler_ext.worlds import node, on, percent, rebuilt
from tests.worlds import card

UNLIKE_OTHERS = 7_919  # MiB, on cards of this test alone


def test_equal_shapes_are_one_object() -> None:
    free = (Free(500, 1_000, UNLIKE_OTHERS),)

    assert shape_of(free) is shape_of((Free(500, 1_000, UNLIKE_OTHERS),))


def test_shapes_of_former_states_of_a_node_are_forgotten() -> None:
    """A cluster meets new ones as long as pods come and go."""
    for share in range(1, 50):
        snapshot = rebuilt([node("n", card(0, UNLIKE_OTHERS))], [on(percent(share), "n", "GPU-0")])

    assert _shapes() == [snapshot.node("n").shape]


def _shapes() -> list[FreeShape]:
    gc.collect()
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, FreeShape) and any(free.card_mib == UNLIKE_OTHERS for free in each.free_by_card)
    ]
