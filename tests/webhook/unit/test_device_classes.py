"""Which DeviceClasses count as no GPU: by the driver that their selectors require."""

import pytest

from tests.worlds import Json
from timekeeper.core.request.device_classes import (
    ClassParameters,
    DeviceClass,
    kind_of,
    mistakes,
    parameters,
    read_class,
    read_settings,
    required_driver,
    served_resources,
)

NVIDIA = 'device.driver == "gpu.nvidia.com"'
NIC = 'device.driver == "nic.example.com"'


def device_class(name: str, *selectors: str, resource: str = "") -> Json:
    """A DeviceClass with these CEL selectors."""
    spec: Json = {"selectors": [{"cel": {"expression": each}} for each in selectors]}
    return {
        "metadata": {"name": name},
        "spec": spec | ({"extendedResourceName": resource} if resource else {}),
    }


@pytest.mark.parametrize(
    ("selectors", "driver"),
    [
        ([NVIDIA], "gpu.nvidia.com"),
        ([" device.driver=='gpu.nvidia.com' \n"], "gpu.nvidia.com"),
        (['"gpu.nvidia.com" == device.driver'], "gpu.nvidia.com"),
        ([f"{NIC} && (device.attributes['nic.example.com'].fast || true)"], "nic.example.com"),
        ([f"device.attributes['x'].type == 'a || b' && {NIC}"], "nic.example.com"),
        (["device.capacity['x'].memory > 1", NIC], "nic.example.com"),
        ([f"{NIC} || true"], ""),
        ([f"{NIC} && true || true"], ""),
        ([f"true ? true : {NIC}"], ""),
        ([f"!({NIC})"], ""),
        (['device.driver != "nic.example.com"'], ""),
        (['device.driver == "nic.example.com" == false'], ""),
        (['device.driver.startsWith("nic")'], ""),
        ([f"true || '''x''' == ''' && {NIC} && '''"], ""),
        ([f"true // && {NIC}\n || true"], ""),
        (['device.driver == r"nic.example.com"'], ""),
        (["device.attributes['x'].type == 'nic'"], ""),
        ([], ""),
    ],
)
def test_a_driver_counts_only_where_every_device_of_the_class_has_it(
    selectors: list[str], driver: str
) -> None:
    assert required_driver(device_class("c", *selectors)["spec"]) == driver


CLASSES = tuple(
    map(
        read_class,
        [
            device_class("h100", NVIDIA),
            device_class("card", NVIDIA, resource="acme.com/card"),
            device_class("whole", NVIDIA, resource="nvidia.com/gpu"),
            device_class("gpu-nic", NIC, resource="acme.com/nic"),
            device_class("example", 'device.driver == "gpu.acme.com"'),
            device_class("unknown", 'device.driver == "other.example.com"', resource="acme.com/other"),
            device_class("any"),
            device_class("listed", "device.attributes['x'].type == 'nic'"),
            device_class("h200", NVIDIA),
            device_class("channel", 'device.driver == "compute-domain.nvidia.com"'),
        ],
    )
)
SETTINGS = {
    "noGPUDrivers": "nic.example.com, gpu.nvidia.com",
    "otherNoGPUClasses": "listed\nh200",
    "gpuDrivers": "gpu.acme.com",
}


def test_a_class_is_judged_by_its_driver_and_by_the_settings_and_never_by_its_name() -> None:
    settings = read_settings(SETTINGS)

    assert {each.name: kind_of(each, settings) for each in CLASSES} == {
        **dict.fromkeys(("h100", "card", "whole", "h200", "example"), "gpu"),
        **dict.fromkeys(("gpu-nic", "listed", "channel"), "other"),
        **dict.fromkeys(("unknown", "any"), "unknown"),
    }
    assert {kind_of(each, read_settings({})) for each in CLASSES[3:5]} == {"unknown"}


def test_the_policies_refuse_resources_that_the_webhook_does_not_see() -> None:
    unknown = (
        ("any", "no selector requires one driver"),
        ("unknown", "driver other.example.com is not known"),
    )
    no_gpu = ("channel", "gpu-nic", "listed")
    denied = parameters(CLASSES, read_settings(SETTINGS))
    free = parameters(CLASSES, read_settings(SETTINGS | {"unknownClasses": "free"}))

    assert denied == ClassParameters(no_gpu, ("acme.com/card", "acme.com/other"), unknown)
    assert free == ClassParameters(("any", *no_gpu, "unknown"), ("acme.com/card",), unknown)


def test_what_is_not_valid_in_a_setting_is_named_and_has_no_effect() -> None:
    settings = {
        "noGPUDrivers": "a.example.com  B\n*.example.com,gpu.amd.com,b",
        "gpuDrivers": "gpu.nvidia.com C",
        "unknownClasses": "allow",
    }

    assert [each[:2] for each in mistakes(settings)] == [
        *(("noGPUDrivers", each) for each in ("B", "*.example.com", "gpu.amd.com")),
        ("gpuDrivers", "C"),
        ("unknownClasses", "allow"),
    ]
    read = read_settings(settings)
    assert read.other_drivers == {"compute-domain.nvidia.com", "a.example.com", "b"}
    assert read.gpu_drivers == {"gpu.example.com", "gpu.nvidia.com"}
    assert read.unknown == "deny"


def test_of_two_classes_with_one_resource_the_newest_serves_it_then_the_first_by_name() -> None:
    old, new = "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"
    classes = [
        DeviceClass("a", resource="x/y", created=old),
        DeviceClass("c", resource="x/y", created=new),
        DeviceClass("b", resource="x/y", created=new),
        DeviceClass("d"),
    ]

    assert {name: each.name for name, each in served_resources(classes).items()} == {"x/y": "b"}
