"""Every route of the extender that takes a body, with the table of hostile values: each is answered, and a
refusal has its sentence."""

import pytest

from scheduler_ext.simulation.simulator import read_simulation
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import node, percent
from tests.support.hostile_json import spoilt_in_turn
from tests.worlds import Json
from timekeeper.runtime.http.problem_details import Problem

POD = percent(60, "asks")
NODES: Json = {"Pod": POD, "NodeNames": ["a", "b"], "Nodes": {"items": [node("a")]}}
VICTIMS: Json = {"a": {"Pods": [percent(50, "victim")], "NumPDBViolations": 0}}
META: Json = {"a": {"Pods": [{"UID": "uid-victim"}], "NumPDBViolations": 0}}
BODIES: dict[str, Json] = {
    "/filter": NODES,
    "/dryrun": NODES,
    "/prioritize": NODES,
    "/preempt": {"Pod": POD, "NodeNameToVictims": VICTIMS, "NodeNameToMetaVictims": META},
    "/bind": {"PodName": "asks", "PodNamespace": "team-a", "PodUID": "uid-asks", "Node": "a"},
}


def test_each_verb_has_its_body(running: Stepped) -> None:
    assert running.extender.calls.keys() == BODIES.keys()


@pytest.mark.parametrize("path", BODIES)
def test_a_hostile_body_is_answered_and_a_refusal_has_its_sentence(running: Stepped, path: str) -> None:
    running.put_node(node("a"))
    seen = set()
    for label, body in spoilt_in_turn(BODIES[path]):
        answer = running.client.post(path, data=body)
        assert answer.status_code in (200, 400), label
        assert answer.data.strip(), label
        seen.add(answer.status_code)

    assert seen == {200, 400}


def answered(body: bytes) -> tuple[int, str]:
    """Status and sentence of a simulation."""
    try:
        read_simulation(body)
    except Problem as problem:
        return problem.status, problem.detail
    return 200, "it is simulated"


def test_a_hostile_simulation_is_read_or_refused_with_a_sentence() -> None:
    bodies = spoilt_in_turn({"version": 1, "pods": [POD], "protected": ["uid-asks"]}, rounds=3)

    seen = {label: answered(body) for label, body in bodies}

    assert {status for status, _ in seen.values()} == {200, 400}
    assert all(sentence for _, sentence in seen.values())
