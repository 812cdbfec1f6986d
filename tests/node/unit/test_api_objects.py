"""What the API server tells of node and pods, read at the door."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.state import api_objects
from sidecar.node.values import PodState

DEVICES = {
    "version": 1,
    "containers": {
        "main": [
            {"uuid": "GPU-a", "index": 0, "share_milli": 500, "memory_mib": 100},
            {"uuid": "GPU-b", "index": 1, "share_milli": 500, "memory_mib": 100},
        ],
        "helper": [{"uuid": "GPU-a", "index": 0, "share_milli": 100, "memory_mib": 30}],
    },
}


def raw(devices: str | None = None, **metadata: Any) -> dict[str, Any]:
    annotations = {} if devices is None else {"bursar.dev/devices": devices}
    return {
        "metadata": {"uid": "u", "name": "p", "namespace": "team-a", "annotations": annotations, **metadata}
    }


def test_a_pod_has_its_cards_together_and_by_container() -> None:
    assert api_objects.read_pod(raw(json.dumps(DEVICES))) == PodState(
        "u",
        "team-a",
        "p",
        ("GPU-a", "GPU-b"),
        False,
        (("main", ("GPU-a", "GPU-b")), ("helper", ("GPU-a",))),
    )


def test_a_pod_that_is_being_deleted_is_reported() -> None:
    assert api_objects.read_pod(raw(deletionTimestamp="2026-01-01T00:00:00Z")).deleted


def test_what_each_pod_was_given_of_a_card_is_the_sum_of_its_containers() -> None:
    listed = api_objects.read_all([raw(json.dumps(DEVICES)), raw(uid="other")])

    assert [each.uid for each in listed.pods] == ["other", "u"]
    assert dict(listed.shares) == {"u": (("GPU-a", 130), ("GPU-b", 100))}


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.sampled_from(["containers", "uuid", "a"]), each),
    ).map(json.dumps)
)
def test_a_placement_that_cannot_be_read_holds_no_card_and_harms_nothing(text: str) -> None:
    seen = api_objects.read_pod(raw(text))

    assert (seen.uid, seen.name) == ("u", "p")
    assert all(isinstance(each, str) for each in seen.cards)


def test_a_node_is_read_with_its_extended_resources_alone() -> None:
    node = api_objects.read_node(
        {
            "metadata": {
                "uid": "n",
                "resourceVersion": "5",
                "annotations": {"bursar.dev/inventory": "I", "bursar.dev/holders": "H", "other": "x"},
            },
            "status": {
                "capacity": {"cpu": "4", "nvidia.com/gpu": "0", "bursar.dev/gpu-percent": "8k"},
                "allocatable": {"cpu": "4", "bursar.dev/gpu-percent": "8k"},
                "nodeInfo": {"bootID": "boot"},
            },
        }
    )

    assert (node.uid, node.version, node.boot, node.inventory, node.holders) == ("n", "5", "boot", "I", "H")
    assert node.capacity == (("bursar.dev/gpu-percent", "8k"), ("nvidia.com/gpu", "0"))
    assert node.allocatable == (("bursar.dev/gpu-percent", "8k"),)


def test_a_bare_node_can_be_read() -> None:
    node = api_objects.read_node({"metadata": {"uid": "n", "resourceVersion": "5"}})

    assert (node.boot, node.inventory, node.holders, node.capacity) == ("", None, None, ())


@pytest.mark.parametrize("name", ["n1", "a.b-c"])
def test_only_the_own_node_and_its_pods_that_have_not_ended_are_listed(name: str) -> None:
    assert api_objects.node_path(name) == f"/api/v1/nodes?fieldSelector=metadata.name%3D{name}"
    assert api_objects.pods_path(name) == (
        f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"
        "%2Cstatus.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
    )
