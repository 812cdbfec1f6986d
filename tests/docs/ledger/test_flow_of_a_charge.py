"""A heartbeat and its charge pass the functions of docs/architecture.md in that order."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from deploy.local.limits import LONGEST_S
from tests.docs.flows import missing, steps, traced
from tests.timekeeper.worlds import CA, HOUR, MINUTE, T0, Town, gpu_pod, node, pod_status, token
from timekeeper.api.create_app import create_services
from timekeeper.api.resources.heartbeats import HeartbeatHandler
from timekeeper.runtime.auth.gate import Gate


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    made.close()


def test_the_functions_of_the_page_are_called_in_order(town: Town) -> None:
    pod = gpu_pod(percent=50, started_ms=T0 + MINUTE)
    town.begin(("nodes", node()), ("pods", pod))
    town.clock.turn(HOUR)
    mine = token(pod["metadata"]["uid"])
    town.reviews.tokens[mine] = pod_status(pod)
    gate = Gate(town.reviews.post, "bursar", town.clock)
    handler = HeartbeatHandler(create_services(town.store, gate, town.clock, lambda: CA, 5_000))
    beats = {"version": 1, "boot": "run-1", "sequence": 1, "beats": [{"age_ms": 0, "devices": []}]}
    answered = Event()

    with traced() as calls:
        sent = handler.pod(f"Bearer {mine}")
        handler.submit(sent, json.dumps(beats).encode(), town.clock(), lambda _: answered.set())
        assert answered.wait(LONGEST_S)
        town.change("pods", gpu_pod(percent=50, started_ms=T0 + MINUTE, ended_ms=T0 + HOUR))

    assert [kind for *_, kind in town.postings()] == ["settled"]
    assert missing(steps("a heartbeat becomes a charge"), calls) == []
