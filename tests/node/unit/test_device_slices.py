"""Which cards the devices of claims are, by the ResourceSlices of a node."""

from typing import Any

import pytest

from sidecar.node.state.device_slices import (
    ClaimedDevice,
    ClaimingPod,
    cards_by_pod,
    cards_of,
    slices_path,
)
from tests.worlds import Json


def device(name: str, uuid: str = "", **attributes: Any) -> Json:
    """A device with this UUID."""
    named = {"uuid": {"string": uuid}} if uuid else {}
    return {"name": name, "attributes": named | attributes}


def listed(*devices: Json, driver: str = "gpu.nvidia.com") -> Json:
    """A list of the slices of node n1."""
    spec = {"driver": driver, "nodeName": "n1", "pool": {"name": "n1", "generation": 1}}
    empty = {"spec": {**spec, "driver": "nic.example.com"}}
    return {"items": [{"spec": {**spec, "devices": list(devices)}}, empty]}


def of(name: str) -> ClaimedDevice:
    return ClaimedDevice("gpu.nvidia.com", "n1", name)


def test_a_device_is_the_card_with_its_uuid_and_a_part_that_of_its_parent() -> None:
    attributes: Json = {"gpu.nvidia.com/uuid": {"string": "MIG-1"}, "parentUUID": {"string": "GPU-2"}}
    part = device("mig", **attributes)
    slices = listed(device("gpu-0", "GPU-1", index={"int": 0}), part, device("gpu-1"), {"name": "bare"})

    found = cards_of(slices)

    assert found == {
        of("gpu-0"): {"GPU-1"},
        of("mig"): {"MIG-1", "GPU-2"},
        of("gpu-1"): set(),
        of("bare"): set(),
    }
    pods = [ClaimingPod("a", "p", (of("gpu-0"), of("mig"), of("gone"))), ClaimingPod("a", "q", (of("bare"),))]
    assert cards_by_pod(pods, found) == {("a", "p"): {"GPU-1", "MIG-1", "GPU-2"}, ("a", "q"): set()}


def test_the_slices_of_the_node_alone_are_asked_for() -> None:
    path = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn1"

    assert slices_path("n1") == path


@pytest.mark.parametrize("answer", [None, {}, {"items": [{}]}, {"items": [{"spec": {"devices": [{}]}}]}])
def test_what_is_no_list_of_slices_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="no list of ResourceSlices"):
        cards_of(answer)
