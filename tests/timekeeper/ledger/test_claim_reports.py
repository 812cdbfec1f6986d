"""Reports of claims: by claim, device class, driver and device, and as rows of FOCUS."""

import csv
import io

import pytest

from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.rows import insert
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, T0, Json, Town, gpu_pod, node
from timekeeper.store.retention import roll_up_all

SLICE = ("resourceslices", device_slice("gpu-0", "gpu-1", "gpu-2"))
OTHER = ("resourceslices", device_slice("gpu-0", driver="gpu.amd.com", model="", node="n2"))
SPAN = f"from={T0}&to={T0 + 3 * HOUR}"


@pytest.fixture
def paid(town: Town) -> Town:
    """An hour of a claim on two devices, then of one on one of them and of another driver's, and of a pod."""
    town.begin(SLICE, OTHER, ("nodes", node("n1", cards=2)), ("resourceclaims", device_claim()))
    town.change("resourceclaims", device_claim("c", allocated("gpu-1"), allocated("gpu-0"), at_ms=T0))
    town.clock.turn(HOUR)
    town.change("resourceclaims", device_claim())
    amd = allocated(driver="gpu.amd.com", pool="n2")
    town.change("resourceclaims", device_claim("d", allocated("gpu-1"), amd, at_ms=T0 + HOUR))
    town.change("pods", gpu_pod("p", started_ms=T0 + HOUR))
    town.clock.turn(HOUR)
    town.change("resourceclaims", device_claim("d"))
    town.change("pods", gpu_pod("p", started_ms=T0 + HOUR, ended_ms=T0 + 2 * HOUR))
    return town


def grouped(town: Town, group: str, more: str = "") -> list[tuple[object, ...]]:
    """The rows' columns, and their GPU-hours."""
    rows: list[Json] = town.get(f"/v1/usage?{SPAN}&group={group}{more}").get_json()["rows"]
    figures = ("posted", "pending", "amount", "gpuHours", "requested", "measured", "used", "usedBy")
    return [(*(row[name] for name in row if name not in figures), row["gpuHours"]) for row in rows]


BOTH = f"gpu.amd.com,{DRIVER}"
POD = "1"
EXPECTED = {
    "claim": [("team-a", "", POD), ("team-a", "c", "2"), ("team-a", "d", "2")],
    "class": [("", POD), ("gpu", "4")],
    "driver": [("", POD), (BOTH, "2"), (DRIVER, "2")],
    "device": [("", "", POD), (BOTH, "n1/gpu-1,n2/gpu-0", "2"), (DRIVER, "n1/gpu-0,n1/gpu-1", "2")],
}


@pytest.mark.parametrize("group", EXPECTED)
def test_reports_are_grouped_by_what_a_claim_holds(paid: Town, group: str) -> None:
    assert grouped(paid, group) == EXPECTED[group]
    assert grouped(paid, group, "&use=true") == EXPECTED[group]


@pytest.mark.parametrize("group", EXPECTED)
def test_they_are_the_same_once_old_sessions_are_folded(paid: Town, group: str) -> None:
    paid.clock.turn(2 * HOUR)
    total = roll_up_all(paid.store, paid.clock, HOUR)

    assert total.sessions == 3
    assert grouped(paid, group) == EXPECTED[group]
    assert grouped(paid, group, "&use=true") == EXPECTED[group]


def test_measured_use_of_a_claim_stands_with_its_devices(paid: Town) -> None:
    hour, uid = T0 - T0 % HOUR, f"claim-c:claim:{T0}"
    insert(paid.store, "figures", session_uid=uid, hour_ms=hour, covered_ms=HOUR, used_milli_ms=7)
    expected = [(DRIVER, "n1/gpu-0,n1/gpu-1", 7)]

    assert used(paid) == expected
    paid.clock.turn(2 * HOUR)
    roll_up_all(paid.store, paid.clock, HOUR)
    assert used(paid) == expected


def used(town: Town) -> list[tuple[str, str, int]]:
    rows = town.get(f"/v1/usage?{SPAN}&group=device&use=true").get_json()["rows"]
    return [(row["drivers"], row["devices"], row["used"]) for row in rows if row["used"]]


def test_a_running_claim_is_grouped_too(town: Town) -> None:
    town.begin(SLICE, ("resourceclaims", device_claim()))
    town.change("resourceclaims", device_claim("c", allocated("gpu-2"), at_ms=T0))
    town.clock.turn(30 * MINUTE)
    town.quiet("resourceclaims")
    town.tick()

    assert grouped(town, "claim,device") == [("team-a", "c", DRIVER, "n1/gpu-2", "0.5")]


def test_a_sheet_has_the_columns_too(paid: Town) -> None:
    text = paid.get(f"/v1/usage?{SPAN}&group=claim,class&format=csv").get_data(as_text=True)

    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["claim"], row["classes"], row["amount"]) for row in rows][1:] == [
        ("c", "gpu", str(2 * HOUR * GPU)),
        ("d", "gpu", str(2 * HOUR * GPU)),
    ]


def test_focus_rows_name_the_claim_and_their_sku_the_driver_and_model(paid: Town) -> None:
    rows = paid.get(f"/v1/usage?{SPAN}&format=focus").get_json()["rows"]

    names = ("ResourceId", "ResourceName", "ResourceType", "SkuId", "ChargeDescription")
    more = ("x_DeviceClasses", "x_Drivers", "x_Devices")
    shown = {row["ResourceName"]: tuple(row[name] for name in (*names, *more)) for row in rows}
    assert shown == {
        "c": (
            *(f"claim-c:claim:{T0}", "c", "ResourceClaim", f"{DRIVER}/A100", "GPU time of claim c"),
            *("gpu", DRIVER, "n1/gpu-0,n1/gpu-1"),
        ),
        "d": (
            *(f"claim-d:claim:{T0 + HOUR}", "d", "ResourceClaim", f"{BOTH}/A100", "GPU time of claim d"),
            *("gpu", BOTH, "n1/gpu-1,n2/gpu-0"),
        ),
        "p": ("uid-p", "p", "Pod", "gpu/A100", "GPU time of pod p", None, None, None),
    }
