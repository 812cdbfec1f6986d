"""Pods that are filtered one after the other are spread by prioritize."""

from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.worlds import node, percent
from tests.worlds import card


def test_two_pods_one_after_the_other_are_sent_to_two_nodes_and_filter_counts_neither(
    running: Running,
) -> None:
    for name in ("a", "b"):
        running.put_node(node(name, card(0)))
    first, second = (running.put_pod(percent(60, name)) for name in ("p", "q"))

    assert running.prioritize(first, "a", "b") == {"a": 10, "b": 9}
    assert running.filter(second, "a", "b")["NodeNames"] == ["a", "b"]
    assert running.prioritize(second, "a", "b") == {"a": 0, "b": 10}

    assert running.bind(first, "a") == ""
    assert running.bind(second, "b") == ""
