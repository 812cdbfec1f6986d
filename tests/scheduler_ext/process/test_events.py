"""Events of binds that are taken back."""

from collections.abc import Callable

import pytest

from tests.scheduler_ext.apiserver import Fault
from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.worlds import node, percent
from tests.support.waiting import eventually


@pytest.fixture
def running(start: Callable[..., Running]) -> Running:
    """One whose binds soon give up an API server that does not answer."""
    return start("--bind-timeout", "1s")


def test_a_bind_that_is_taken_back_is_reported_on_the_pod(running: Running) -> None:
    running.put_node(node("a"))
    raw = running.put_pod(percent(100))
    running.api.faults.append(Fault("bind", obeyed=False, how="silent"))

    assert "does not answer" in running.bind(raw, "a")

    eventually(lambda: running.api.made("event"))
    (event,) = running.api.made("event")
    assert (event["regarding"]["uid"], event["reason"], event["type"]) == (
        "uid-p",
        "BindTakenBack",
        "Warning",
    )
    assert "binding to node a did not happen" in event["note"]


def test_a_bind_that_was_lost_and_is_found_done_is_not_reported(running: Running) -> None:
    running.put_node(node("a"))
    raw = running.put_pod(percent(100))
    running.api.faults.append(Fault("bind", obeyed=True, how="silent"))
    running.bind(raw, "a")
    running.put_pod(percent(50, "q"))

    eventually(lambda: any(line.startswith("settled") for line in running.lines) or heard(running, "uid-p"))

    assert running.api.made("event") == []


def heard(running: Running, uid: str) -> bool:
    """Whether the watch has shown the pod bound."""
    allocation = running.extender.cache.snapshot.allocation(uid)
    return allocation is not None and allocation.state == "bound"
