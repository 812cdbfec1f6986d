"""Devices for claims on a cluster without a kubelet."""

from copy import deepcopy

from deploy.local.kwok_nodes import EXAMPLE_DRIVER, device_pool
from tests.kubelet import recorded
from tests.worlds import Json


def shape(slice_: Json) -> Json:
    """What a slice says, but for the UUIDs of its devices, which each node has others of."""
    spec: Json = deepcopy(slice_["spec"])
    for each in spec["devices"]:
        assert each["attributes"].pop("uuid")["string"].startswith("gpu-")
    return spec


def test_a_pool_without_a_driver_is_as_the_driver_publishes_it() -> None:
    (published,) = recorded.read("slices")[EXAMPLE_DRIVER]
    devices = len(published["spec"]["devices"])

    assert shape(device_pool("real", devices)) == shape(published)
