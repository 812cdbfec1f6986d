"""The running extender follows the node agent's survey of containers."""

from scheduler_ext.model.node import CLOSED
from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.unit.test_holders import NOT_THERE, THERE, P, told
from tests.scheduler_ext.worlds import (
    holders,
    percent,
)
from tests.support.waiting import eventually


def test_the_running_extender_follows_the_agent(running: Running) -> None:
    running.put_node(told(THERE))
    running.put_pod(P)
    running.api.delete("pods", "p", "team-a")
    eventually(lambda: running.extender.cache.snapshot.unsure == {"uid-p"})
    assert running.free("n") == [600]

    running.put_node(told(NOT_THERE))

    assert running.free("n") == [1000]
    assert 'held="orphaned"} 0' in running.client.get("/metrics").text


def test_a_container_that_closes_its_node_is_named(running: Running) -> None:
    running.put_node(told(holders({"uid-x": []}, closed="")))

    assert running.posted()["nodes"]["n"]["closed"] == CLOSED["lingering"]
    why = f"No GPU pods are placed on the node: {CLOSED['lingering']} (?/uid-x)."
    eventually(lambda: f"closed node=n why={why}" in running.lines)
    assert running.filter(percent(10), "n")["FailedAndUnresolvableNodes"] == {
        "n": f"node is closed for sharing: {CLOSED['lingering']}"
    }
