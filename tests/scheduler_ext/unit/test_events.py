"""Events of binds that are taken back."""

from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.store import Fault
from tests.scheduler_ext.worlds import node, percent


def test_a_bind_that_is_taken_back_is_reported_on_the_pod(running: Stepped) -> None:
    running.put_node(node("a"))
    raw = running.put_pod(percent(100))
    running.api.faults.append(Fault("bind", obeyed=False, how="silent"))

    assert "does not answer" in running.bind(raw, "a")

    running.settles()
    (event,) = running.api.made("event")
    assert (event["regarding"]["uid"], event["reason"], event["type"]) == (
        "uid-p",
        "BindTakenBack",
        "Warning",
    )
    assert "binding to node a did not happen" in event["note"]


def test_a_bind_that_was_lost_and_is_found_done_is_not_reported(running: Stepped) -> None:
    running.put_node(node("a"))
    raw = running.put_pod(percent(100))
    running.api.faults.append(Fault("bind", obeyed=True, how="silent"))
    running.bind(raw, "a")

    running.settles()

    assert [line for line in running.lines if line.startswith("settled")]
    assert running.api.made("event") == []
