"""Which devices are the same to the expressions that select devices."""

from dataclasses import replace

import pytest

from timekeeper.core.claims.devices import PublishedDevice
from timekeeper.core.claims.likeness import are_alike

DRIVER = "gpu.example.com"
ONE = PublishedDevice(
    "a",
    attributes=(("model", "A100"), ("uuid", "1"), ("example.com/numa", 0)),
    capacity=(("memory", 80),),
)
OTHER = replace(ONE, name="b", attributes=(("model", "A100"), ("uuid", "2"), ("example.com/numa", 1)))


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.example.com"',
        'device.attributes["gpu.example.com"].model == "A100" && device.driver != "x"',
        "device.attributes['gpu.example.com']['model'].startsWith('A')",
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
        "!device.allowMultipleAllocations",
        "true",
    ],
)
def test_devices_are_alike_if_all_that_is_read_is_the_same(expression: str) -> None:
    assert are_alike(DRIVER, ONE, OTHER, [expression])


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["gpu.example.com"].uuid != "3"',
        'device.attributes["example.com"].numa == 0',
        'device.attributes["gpu.example.com"].absent == 0',
        'device.attributes["example.com"].model == "A100"',
        'device.attributes["gpu.example.com"].all(k, true)',
        'device.attributes["gpu.example.com"]["uu" + "id"] != "3"',
        'device.attributes["gpu.example.com"].?model.orValue("") == ""',
        '"uuid" in device.attributes["gpu.example.com"]',
        "cel.bind(d, device, d.driver != '')",
        'device.attributes[r"gpu.example.com"].model == "A100"',
        "size(device.attributes) > 0",
    ],
)
def test_devices_are_not_known_to_be_alike_where_something_else_may_be_read(expression: str) -> None:
    assert not are_alike(DRIVER, ONE, OTHER, ['device.driver == "gpu.example.com"', expression])


def test_one_that_several_claims_may_hold_is_not_like_one_that_they_may_not() -> None:
    assert not are_alike(DRIVER, ONE, replace(OTHER, is_shared=True), [])
