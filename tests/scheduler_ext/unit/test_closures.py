"""Nodes that close and open again, told to whoever looks why none of their cards is given out."""

import pytest

from scheduler_ext.reports.closed_nodes import Closure, closures
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import Json, bound, node, on, percent, rebuilt
from tests.worlds import card


def broken(name: str) -> Json:
    """A node whose inventory cannot be read."""
    return node(name, annotations={"bursar.dev/inventory": "{"})


UNPLACED = bound(percent(100, "stranger"), "n", None)
FORGED = bound(percent(50, "forged"), "n", '{"version":1,"containers":{}}')


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (([], []), ([node()], []), []),
        (([node()], []), ([], []), []),
        (([], []), ([broken("n")], []), [Closure("n", "inventory")]),
        (([node()], []), ([broken("n")], []), [Closure("n", "inventory")]),
        (([broken("n")], []), ([node()], []), [Closure("n", "")]),
        (([broken("n")], []), ([], []), []),
        (([node()], [UNPLACED]), ([], [UNPLACED]), []),
        (([node()], []), ([node()], [UNPLACED]), [Closure("n", "unplaced", ("team-a/stranger",))]),
        (([node()], []), ([node()], [FORGED]), [Closure("n", "placement", ("team-a/forged",))]),
        (([node()], [UNPLACED]), ([node()], []), [Closure("n", "")]),
        (([node()], []), ([node()], [on(percent(50), "n", "GPU-0")]), []),
        (([broken("n")], []), ([broken("n"), node("m")], []), []),
        (([], []), ([broken("m"), broken("n")], []), [Closure("m", "inventory"), Closure("n", "inventory")]),
    ],
)
def test_what_is_reported_is_what_has_changed(
    before: tuple[list[Json], list[Json]], after: tuple[list[Json], list[Json]], told: list[Closure]
) -> None:
    found = closures(rebuilt(*after).nodes, rebuilt(*before).nodes)

    assert sorted(found, key=lambda each: each.node) == told


def test_the_sentence_names_the_pods_but_not_hundreds() -> None:
    few, many = Closure("n", "unplaced", ("a/p", "a/q")), Closure("n", "unplaced", ("a", "b", "c", "d"))

    assert few.sentence() == (
        "No GPU pods are placed on the node: a GPU pod was bound to it without a placement (a/p, a/q)."
    )
    assert many.sentence().endswith("(a, b, c and others).")
    assert Closure("n", "inventory").sentence() == (
        "No GPU pods are placed on the node: its card inventory cannot be read."
    )


def test_a_node_that_closes_and_opens_has_an_event_and_a_line_for_each(running: Stepped) -> None:
    running.put_node(node("a", card(0)))
    running.put_node(broken("b"))

    running.passes()
    running.put_node(node("b", card(0)))

    running.passes()
    told = [
        (each["regarding"]["kind"], each["regarding"]["name"], each["reason"], each["type"])
        for each in running.api.made("event")
    ]
    assert told == [("Node", "b", "CardsClosed", "Warning"), ("Node", "b", "CardsOpen", "Normal")]
    assert [line for line in running.lines if line.startswith(("closed", "opened"))] == [
        "closed node=b why=No GPU pods are placed on the node: its card inventory cannot be read.",
        "opened node=b",
    ]
