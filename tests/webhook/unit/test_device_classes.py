"""Which DeviceClasses count as no GPU: by the driver that their selectors require."""

import pytest

from tests.worlds import Json
from timekeeper.core.admission.rules.device_classes import JudgedClasses, entries, judge, required_driver

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


def test_a_class_is_judged_by_its_driver_and_by_the_settings_and_never_by_its_name() -> None:
    classes = [
        device_class("h100", NVIDIA),
        device_class("card", NVIDIA, resource="acme.com/card"),
        device_class("whole", NVIDIA, resource="nvidia.com/gpu"),
        device_class("gpu-nic", NIC, resource="acme.com/nic"),
        device_class("unknown", 'device.driver == "other.example.com"', resource="acme.com/other"),
        device_class("any"),
        device_class("listed", "device.attributes['x'].type == 'nic'"),
        device_class("h200", NVIDIA),
    ]
    settings = {"noGPUDrivers": "nic.example.com, gpu.nvidia.com", "otherNoGPUClasses": "listed\nh200"}

    assert judge(classes, settings) == JudgedClasses(
        no_gpu=("gpu-nic", "listed"),
        charged=("whole",),
        refused=("acme.com/card", "acme.com/other"),
        unjudged=(
            ("any", "no selector requires one driver"),
            ("h200", "it is listed as no GPU, but driver gpu.nvidia.com allocates GPUs"),
            ("unknown", "driver other.example.com is not known"),
        ),
    )
    assert judge(classes, {}).no_gpu == ()


def test_an_entry_of_a_setting_that_is_no_name_is_given_back() -> None:
    settings = {"noGPUDrivers": "a.example.com  B\n*.example.com,gpu.amd.com,b"}

    assert entries(settings, "noGPUDrivers") == (
        ("a.example.com", "b"),
        ("B", "*.example.com", "gpu.amd.com"),
    )
