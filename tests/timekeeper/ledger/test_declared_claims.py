"""Pods with device claims that reserve the whole time that they declare, as pods with cards do. Real database
and settler, an API server of dicts, a clock turned by hand."""

import copy
from collections.abc import Callable
from itertools import permutations

import pytest

from tests.timekeeper.claims import EXTENDED, allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_claims import served
from tests.timekeeper.ledger.test_declared import DECLARED, GRACE, balance, ended, there
from tests.timekeeper.ledger.test_held_claims import claiming
from tests.timekeeper.ledger.test_holding import LOOKAHEAD, Holding, held_pod
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, Json, Town, gpu_pod

Arrival = Callable[[Town, int], None]
WHOLE = GPU * (HOUR + GRACE)
CLAIMS = "resourceclaims"


def declaring(name: str, seconds: int = 3_600, devices: int = 1) -> Json:
    raw = claiming(name, claims=str(devices))
    if seconds:
        raw["metadata"]["annotations"]["bursar.dev/declared"] = str(seconds)
    return raw


def bound(raw: Json, at_ms: int) -> Json:
    after = copy.deepcopy(raw)
    after["spec"]["nodeName"] = "n1"
    after["status"] = gpu_pod(bound_ms=at_ms)["status"]
    return after


def held(*pods: str, at_ms: int | None = None, name: str = "c", device: str = "gpu-0") -> Json:
    """The claim, which holds a device for these pods."""
    return device_claim(name, allocated(device), at_ms=at_ms, pods=tuple(f"uid-{each}" for each in pods))


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


def devices_are_there(town: Town) -> None:
    """And a claim that holds none."""
    town.hear("resourceslices", device_slice("gpu-0", "gpu-1"))
    town.hear(CLAIMS, device_claim())
    town.hear_all(CLAIMS)


def begin(holding: Holding, *pods: Json, hours: float = 1.5, released: str = "p") -> int:
    """Some pods are released; the second of the first one's allocation and binding."""
    holding.begin(*pods, team_a=DECLARED.format(hours=hours, period="month"))
    devices_are_there(holding.town)
    assert holding.step() == list(released)
    holding.town.tick()
    holding.town.clock.turn(1000 - holding.town.clock() % 1000)
    return holding.town.clock()


def claim_comes(town: Town, start_ms: int) -> None:
    town.change(CLAIMS, held("p", at_ms=start_ms))


def pod_comes(town: Town, start_ms: int) -> None:
    town.change("pods", bound(there(town, "p"), start_ms))


@pytest.mark.parametrize(
    "arrivals", list(permutations([claim_comes, pod_comes])), ids=["claim first", "pod first"]
)
def test_one_of_three_runs_and_two_wait_whichever_watch_is_ahead(
    holding: Holding, arrivals: tuple[Arrival, ...]
) -> None:
    """Of 1.5 GPU-hours; what the first has not used is the next one's."""
    town = holding.town
    start_ms = begin(holding, *map(declaring, ("p", "q", "r")))
    for arrive in arrivals:
        arrive(town, start_ms)
        now = balance(town)
        assert (now["spent"] + now["reserved"], town.standing()) == (WHOLE, "IN_BUDGET")
        assert holding.step() == []

    for _ in range(20):
        town.clock.turn(MINUTE)
        town.quiet(CLAIMS)
        town.tick()
        now = balance(town)
        assert (now["spent"] + now["reserved"], holding.step()) == (WHOLE, [])
    holding.restart()
    town.hear("resourceslices", device_slice("gpu-0", "gpu-1"))
    assert (balance(town)["spent"] + balance(town)["reserved"], holding.step()) == (WHOLE, [])

    end_ms = town.clock() // 1000 * 1000
    town.change("pods", ended(there(town, "p"), start_ms, end_ms))
    town.change(CLAIMS, device_claim())
    assert balance(town)["reserved"] == 0
    assert holding.step() == ["q"]


def test_a_claim_that_two_pods_use_reserves_the_longer_time_and_then_what_is_left(holding: Holding) -> None:
    town = holding.town
    start_ms = begin(holding, declaring("p", 1_800), declaring("q", 3_600), hours=3, released="pq")
    town.change(CLAIMS, held("p", at_ms=start_ms))
    town.change("pods", bound(there(town, "p"), start_ms))
    town.change(CLAIMS, held("p", "q", at_ms=start_ms))
    town.change("pods", bound(there(town, "q"), start_ms))
    assert balance(town)["spent"] + balance(town)["reserved"] == WHOLE

    town.change("pods", ended(there(town, "q"), start_ms, start_ms + SECOND))
    town.change(CLAIMS, held("p", at_ms=start_ms))
    assert balance(town)["spent"] + balance(town)["reserved"] == GPU * (HOUR // 2 + GRACE)


def test_a_pod_with_two_claims_reserves_for_both(holding: Holding) -> None:
    town = holding.town
    start_ms = begin(holding, declaring("p", devices=2), declaring("q"), hours=2.5)
    town.change(CLAIMS, held("p", at_ms=start_ms))
    town.change(CLAIMS, held("p", at_ms=start_ms, name="d", device="gpu-1"))
    town.change("pods", bound(there(town, "p"), start_ms))

    assert balance(town)["spent"] + balance(town)["reserved"] == 2 * WHOLE
    assert holding.step() == []


def test_a_pod_that_declares_no_time_reserves_the_lookahead(holding: Holding) -> None:
    town = holding.town
    start_ms = begin(holding, declaring("p", seconds=0))
    town.change(CLAIMS, held("p", at_ms=start_ms))
    town.change("pods", bound(there(town, "p"), start_ms))

    assert balance(town)["reserved"] == GPU * LOOKAHEAD


@pytest.mark.parametrize("is_claim_first", [True, False])
def test_a_claim_that_serves_a_pods_cards_reserves_the_pods_time(
    holding: Holding, is_claim_first: bool
) -> None:
    town = holding.town
    pods = [declaring_cards(name) for name in "pq"]
    holding.begin(*pods, team_a=DECLARED.format(hours=1.5, period="month"))
    devices_are_there(town)
    assert holding.step() == ["p"]
    town.tick()
    start_ms = town.clock() // 1000 * 1000
    claim = held("p", at_ms=start_ms)
    claim["metadata"]["annotations"] = EXTENDED
    raw = there(town, "p")
    raw["spec"]["nodeName"] = "n1"
    raw["status"] = served("p")["status"] | gpu_pod(bound_ms=start_ms)["status"]

    for kind, value in [(CLAIMS, claim), ("pods", raw)][:: 1 if is_claim_first else -1]:
        town.change(kind, value)
        assert holding.step() == []
    town.advance(10 * SECOND)

    assert balance(town)["spent"] + balance(town)["reserved"] == WHOLE
    assert holding.step() == []


def declaring_cards(name: str) -> Json:
    raw = held_pod(name)
    raw["metadata"]["annotations"]["bursar.dev/declared"] = "3600"
    raw["spec"] |= {"activeDeadlineSeconds": 3_600, "schedulerName": "default-scheduler"}
    raw["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return raw


def test_where_pods_are_metered_nothing_is_reserved(holding: Holding) -> None:
    town = holding.town
    holding.begin(declaring("p"), team_a="gpuHours: 3\nmode: meter\nreserve: declared")
    town.hear("resourceslices", device_slice("gpu-0"))
    town.change("pods", bound(there(town, "p"), town.clock()))
    town.change(CLAIMS, held("p", at_ms=town.clock()))

    assert [each.reserves_until_ms for each in town.settler.ledger.sessions.values()] == [None]
