"""A node that closes and opens, as users see it."""

from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.unit.test_closures import broken
from tests.scheduler_ext.worlds import node
from tests.support.waiting import eventually
from tests.worlds import card


def test_a_node_that_closes_and_opens_has_an_event_and_a_line_for_each(running: Running) -> None:
    running.put_node(node("a", card(0)))
    running.put_node(broken("b"))

    eventually(lambda: len(running.api.made("event")) == 1)
    running.put_node(node("b", card(0)))

    eventually(lambda: len(running.api.made("event")) == 2)
    told = [
        (each["regarding"]["kind"], each["regarding"]["name"], each["reason"], each["type"])
        for each in running.api.made("event")
    ]
    assert told == [("Node", "b", "CardsClosed", "Warning"), ("Node", "b", "CardsOpen", "Normal")]
    assert [line for line in running.lines if line.startswith(("closed", "opened"))] == [
        "closed node=b why=No GPU pods are placed on the node: its card inventory cannot be read.",
        "opened node=b",
    ]
