"""Reports of claims: by claim, device class, driver and device, and as rows of FOCUS."""

import csv
import io

import pytest
from sqlalchemy import update

from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.rows import insert
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.store.engine.schema import SESSIONS
from timekeeper.store.retention import roll_up_all

BOTH_DATABASES = "reports are SQL"
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
    figures = {"posted", "pending", "amount", "gpuHours", "requested", "measured", "used", "unused", "usedBy"}
    return [(*(row[name] for name in row if name not in figures), row["gpuHours"]) for row in rows]


BOTH = f"gpu.amd.com,{DRIVER}"
POD = "1"
EXPECTED = {
    "claim": [("team-a", "", POD), ("team-a", "c", "2"), ("team-a", "d", "2")],
    "class": [("", POD), ("gpu", "4")],
    "driver": [("", POD), ("gpu.amd.com", "1"), (DRIVER, "3")],
    "device": [
        ("", "", POD),
        ("gpu.amd.com", "n2/gpu-0", "1"),
        (DRIVER, "n1/gpu-0", "1"),
        (DRIVER, "n1/gpu-1", "2"),
    ],
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


def test_measured_use_of_a_claim_stands_with_its_first_device(paid: Town) -> None:
    hour, uid = T0 - T0 % HOUR, f"claim-c:claim:{T0}"
    insert(paid.store, "figures", session_uid=uid, hour_ms=hour, covered_ms=HOUR, used_milli_ms=7)
    expected = [(DRIVER, "n1/gpu-1", 7)]

    assert used(paid) == expected
    parts, (whole,) = (
        paid.get(f"/v1/usage?{SPAN}&group={group}&use=true").get_json()["rows"]
        for group in ("device", "namespace")
    )
    assert all(0 <= row["unused"] <= row["measured"] for row in parts)
    assert abs(whole["unused"] - sum(row["unused"] for row in parts)) < len(parts), "to the unit of each"
    assert whole["unused"] == whole["measured"] - 7
    paid.clock.turn(2 * HOUR)
    roll_up_all(paid.store, paid.clock, HOUR)
    assert used(paid) == expected


def used(town: Town) -> list[tuple[str, str, int]]:
    rows = town.get(f"/v1/usage?{SPAN}&group=device&use=true").get_json()["rows"]
    return [(row["drivers"], row["devices"], row["used"]) for row in rows if row["used"]]


Figures = list[tuple[str, int, int]]


def by_device(town: Town) -> Figures:
    """Amount and requested milli-GPU x ms of each device; with measured use the amounts are the same."""
    rows: list[Json] = town.get(f"/v1/usage?{SPAN}&group=device&use=true").get_json()["rows"]
    plain: list[Json] = town.get(f"/v1/usage?{SPAN}&group=device").get_json()["rows"]
    assert [row["amount"] for row in plain] == [row["amount"] for row in rows]
    return [(row["devices"], row["amount"], row["requested"]) for row in rows]


def summed(figures: Figures) -> list[int]:
    return [sum(amount for _, amount, _ in figures), sum(requested for _, _, requested in figures)]


def test_the_devices_of_a_claim_share_its_charge_to_the_unit(town: Town) -> None:
    """Two that are weighed differently, a share, and one that only is looked at; while the claim is held,
    after it, once it is folded, and in a report that a changed price cuts."""
    shared = device_slice("gpu-0", "gpu-1", allowMultipleAllocations=True)
    weighed = "weights: {A100: 1.7}\nlookahead: 0s"
    entries = budgets(_settings=weighed, team_a="price: 2")
    published = (("resourceslices", shared), OTHER)
    town.begin(("configmaps", entries), *published, ("resourceclaims", device_claim()))
    part = allocated("gpu-1", shareID="s", consumedCapacity={"memory": "27Gi"})
    others = (allocated(driver="gpu.amd.com", pool="n2"), allocated("gpu-1", adminAccess=True))
    town.change("resourceclaims", device_claim("c", allocated("gpu-0"), part, *others, at_ms=T0))
    town.clock.turn(HOUR)
    town.quiet("resourceclaims")
    town.change("configmaps", budgets(_settings=weighed, team_a="price: 3"))
    town.clock.turn(1_234_567)
    town.quiet("resourceclaims")
    town.tick()
    ms = HOUR + 1_234_567
    expected = [("n1/gpu-0", 1700 * ms, 1000 * ms), ("n1/gpu-1", 575 * ms, 338 * ms)]
    expected += [("n2/gpu-0", 1000 * ms, 1000 * ms)]

    running = by_device(town)
    assert [device for device, *_ in sorted(running)] == [device for device, *_ in expected]
    (whole,) = town.get(f"/v1/usage?{SPAN}&group=claim&use=true").get_json()["rows"]
    assert summed(running) == [whole["amount"], whole["requested"]]
    town.change("resourceclaims", device_claim("c"))
    assert sorted(by_device(town)) == expected
    town.clock.turn(2 * HOUR)
    assert roll_up_all(town.store, town.clock, HOUR).sessions == 1
    assert sorted(by_device(town)) == expected


def test_devices_that_do_not_add_up_to_the_rate_of_their_claim_stay_together(paid: Town) -> None:
    """As of a session that says no rate of each device."""
    with paid.store.writing() as connection:
        rates = SESSIONS.c.rate_milli
        connection.execute(update(SESSIONS).where(SESSIONS.c.name == "c").values(rate_milli=rates + 1))

    assert (DRIVER, "n1/gpu-0,n1/gpu-1", "2") in grouped(paid, "device")


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
