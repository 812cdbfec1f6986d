"""Pods with device claims before they are bound: they reserve what admission counted, and those of which it
did not know what they ask for are judged once that is known. Real database and settler, a clock by hand."""

from typing import Any

import pytest

from tests import worlds
from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_holding import GATE, HOLD, LOOKAHEAD, Holding, balance
from tests.timekeeper.worlds import GPU, HOUR, SECOND, T0, Json, Town, budgets, gpu_pod
from timekeeper.accounts.pods import charged_pods, read_charged_pod
from timekeeper.edge.reflector import ObjectChanged
from timekeeper.settler.cluster.cluster_state import WatchUpdate

ONE_DATABASE = "decisions about values; test_holding stores the same"

SPENT = HOLD.format(hours=0)


def claiming(
    name: str = "p", *, claims: str = "2", how: str = "budget", node: str = "", **fields: Any
) -> Json:
    """A pod as the webhook makes it, with a claim of template ``it``, behind the gate unless it is bound."""
    raw = worlds.pod(worlds.container(), resourceClaims=[{"name": "c", "resourceClaimTemplateName": "it"}])
    raw["metadata"] |= {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "creationTimestamp": iso(T0 - HOUR),
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {
            "bursar.dev/claims": claims,
            "bursar.dev/standing": "OVER_BUDGET",
            "bursar.dev/held": how,
        },
    }
    raw["spec"] |= {"schedulerName": "default-scheduler", **fields}
    raw["spec"] |= {"nodeName": node} if node else {"schedulingGates": [GATE]}
    return raw


def device_class(name: str, driver: str) -> Json:
    """A DeviceClass."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": name, "uid": name}, "spec": {"selectors": [selector]}}


def template(device: str = "gpu", count: int = 2) -> Json:
    """The template ``it``."""
    one = {"name": "r", "exactly": {"deviceClassName": device, "count": count}}
    metadata = {"name": "it", "namespace": "team-a", "uid": "it"}
    return {"metadata": metadata, "spec": {"spec": {"devices": {"requests": [one]}}}}


def settings(**data: str) -> Json:
    """What an administrator says of device classes."""
    return {"metadata": {"name": "bursar-device-classes", "uid": "classes"}, "data": data}


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


def begin(holding: Holding, *pods: Json, entry: str) -> Town:
    """The classes are there, and no template."""
    holding.begin(*pods, team_a=entry)
    holding.town.hear("deviceclasses", device_class("gpu", "gpu.nvidia.com"))
    holding.town.hear("deviceclasses", device_class("nic", "nic.example.com"))
    holding.town.change("configmaps", settings(noGPUDrivers="nic.example.com"))
    return holding.town


def test_a_held_pod_waits_for_the_budget_and_reserves_its_gpus_until_it_is_bound(holding: Holding) -> None:
    town = begin(holding, claiming(), entry=SPENT)
    assert holding.step() == []

    town.change("configmaps", budgets(team_a=HOLD.format(hours=1)))
    assert holding.step() == ["p"]
    town.tick()
    reserved = balance(town)["reserved"]
    town.change("pods", claiming(node="n1"))

    assert reserved == 2 * GPU * LOOKAHEAD
    assert balance(town)["reserved"] == 0
    town.advance(HOUR)
    assert balance(town)["pending"] == balance(town)["posted"] == 0, "its claims are charged, not the pod"
    assert charged_pods(town.settler.cluster.pods) == []


@pytest.mark.parametrize("known", ["2", "unknown"])
def test_a_pod_with_a_gangs_mark_is_released_alone_for_its_own_scheduler_starts_the_gang(
    holding: Holding, known: str
) -> None:
    """The extender has no card for it, and would be asked without success."""
    raw = claiming(claims=known)
    raw["metadata"]["annotations"] |= {"bursar.dev/gang": "g", "bursar.dev/gang-size": "2"}
    town = begin(holding, raw, entry=SPENT)
    town.hear("resourceclaimtemplates", template())
    assert holding.step() == []
    town.tick()
    assert [each.gang for each in town.settler.view.held.pods.values()] == [""], "people see a pod of its own"

    town.change("configmaps", budgets(team_a=HOLD.format(hours=1)))

    assert holding.step() == ["p"]
    town.tick()
    assert dict(town.settler.view.held.gangs) == {}


@pytest.mark.parametrize("how", ["budget", "turn"])
def test_an_unknown_pod_is_judged_when_its_template_arrives(holding: Holding, how: str) -> None:
    town = begin(holding, claiming(claims="unknown", how=how), entry=HOLD.format(hours=1))
    assert (holding.step(), balance(town)["reserved"]) == ([], 0)

    town.change("resourceclaimtemplates", template())

    assert holding.step() == ["p"]
    town.tick()
    assert balance(town)["reserved"] == (2 * GPU * LOOKAHEAD if how == "budget" else 0)
    assert recorded(holding) == "2"


def recorded(holding: Holding) -> str:
    """For how many GPUs the pod was judged, by its record."""
    (raw,) = holding.pods()
    return str(raw["metadata"]["annotations"]["bursar.dev/claims"])


@pytest.mark.parametrize(("reuses", "number"), [(True, "4"), (False, "5")])
def test_devices_of_an_init_container_count_as_this_kube_scheduler_allocates_them(
    holding: Holding, reuses: bool, number: str
) -> None:
    raw = claiming(claims="unknown")
    limits = {"deviceclass.resource.kubernetes.io/gpu": "2"}
    raw["spec"]["initContainers"] = [worlds.of_resources(limits, "first")]
    raw["spec"]["containers"][0]["resources"]["limits"] = dict.fromkeys(limits, "1")
    town = begin(holding, raw, entry=HOLD.format(hours=1))
    town.settler.cluster.pods.claim_requests.reuses = reuses

    town.change("resourceclaimtemplates", template())

    assert holding.step() == ["p"]
    assert recorded(holding) == number


def test_an_unknown_pod_of_a_spent_budget_waits_on_if_it_asks_for_gpus(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown", how="turn"), entry="gpuHours: 0\nonExhausted: deny")

    town.change("resourceclaimtemplates", template())

    assert holding.step() == []


@pytest.mark.parametrize("mode", ["hold", "deny", "deprioritize"])
def test_an_unknown_pod_that_asks_for_no_gpu_is_released_whatever_the_budget(
    holding: Holding, mode: str
) -> None:
    town = begin(holding, claiming(claims="unknown", how="turn"), entry=f"gpuHours: 0\nonExhausted: {mode}")
    assert holding.step() == []

    town.change("resourceclaimtemplates", template("nic"))

    assert holding.step() == ["p"]
    town.tick()
    assert balance(town)["reserved"] == 0
    assert recorded(holding) == "0"
    assert dict(town.settler.view.held.pods) == {}, "it would be released again"


def test_a_pod_of_an_undecided_class_waits_until_an_administrator_decides(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown", how="turn"), entry=HOLD.format(hours=1))
    town.hear("deviceclasses", device_class("odd", "odd.example.com"))
    town.change("resourceclaimtemplates", template("odd"))
    assert holding.step() == []

    said = [each.message for each in town.pod_notices if each.reason == "WaitsForClaims"]
    assert "ResourceClaimTemplate it is not there" in said[0]
    assert "driver odd.example.com is not known" in said[-1]

    town.change("configmaps", settings(unknownClasses="free"))

    assert holding.step() == ["p"]


def test_what_was_judged_once_stays_so_when_the_template_is_gone_and_a_restart_forgets_no_pod(
    holding: Holding,
) -> None:
    town = begin(holding, claiming(claims="unknown"), entry=SPENT)
    town.change("resourceclaimtemplates", template())
    town.change("resourceclaimtemplates", template(), deleted=True)
    town.change("pods", claiming(claims="unknown", priority=7))
    assert [(each.rate_milli, each.priority) for each in town.settler.view.held.pods.values()] == [
        (2 * GPU, 7)
    ]

    holding.restart()
    assert dict(town.settler.view.held.pods) == {}, "nobody knows it any more"
    town.change("resourceclaimtemplates", template())
    assert [each.rate_milli for each in town.settler.view.held.pods.values()] == [2 * GPU]


def test_a_pod_that_is_deleted_while_it_waits_is_forgotten(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown"), entry=SPENT)
    town.change("resourceclaimtemplates", template())
    town.change("pods", claiming(claims="unknown"), deleted=True)

    assert dict(town.settler.view.held.pods) == {}
    town.change("resourceclaimtemplates", template(count=3))
    assert dict(town.settler.view.held.pods) == {}
    town.advance(SECOND)
    assert town.settler.cluster.pods.unknown == set()


def test_where_pods_are_metered_what_admission_recorded_counts_for_nothing(holding: Holding) -> None:
    town = begin(holding, claiming(claims="8"), entry="gpuHours: 1\nmode: meter")

    assert charged_pods(town.settler.cluster.pods) == []
    town.change("pods", claiming(claims="8", node="n1"))
    town.advance(HOUR)
    assert balance(town)["pending"] == balance(town)["posted"] == 0


def bound(name: str, **more: Any) -> Json:
    """The pod on its node, with the time of its binding."""
    raw = claiming(name, node="n1", **more)
    raw["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(T0)}]
    }
    return raw


def test_the_claim_of_a_pod_that_waited_for_its_budget_goes_on_reserving(holding: Holding) -> None:
    town = begin(holding, claiming(claims="1"), entry=HOLD.format(hours=1))
    town.change("resourceslices", device_slice("gpu-0"))
    assert holding.step() == ["p"]
    town.tick()
    before = balance(town)["reserved"]

    town.hear("pods", bound("p", claims="1"))
    town.change("resourceclaims", device_claim("c", allocated(), at_ms=T0, pods=("uid-p",)))

    assert before == balance(town)["reserved"] == GPU * LOOKAHEAD


def test_a_cap_counts_what_is_allocated(holding: Holding) -> None:
    entry = "gpuHours: 1000\nmaxGPUs: 1"
    town = begin(holding, claiming(claims="1", how="turn"), bound("first"), entry=entry)
    town.hear("resourceslices", device_slice("gpu-0"))
    town.change("resourceclaims", device_claim("c", allocated(), at_ms=T0, pods=("uid-first",)))
    assert holding.step() == []

    town.change("resourceclaims", device_claim("c"))

    assert holding.step() == ["p"]


def test_the_drivers_of_the_settings_decide_what_a_class_allocates(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown", how="turn"), entry=SPENT)
    town.hear("deviceclasses", device_class("odd", "odd.example.com"))
    town.change("resourceclaimtemplates", template("odd"))
    assert holding.step() == []
    assert dict(town.settler.view.held.pods) == {}

    rules = "drivers:\n  odd.example.com: {gpus: %s}"
    town.change("configmaps", budgets(_settings=rules % "all", team_a=SPENT))
    town.tick()
    assert [each.rate_milli for each in town.settler.view.held.pods.values()] == [2 * GPU]
    assert "odd.example.com" in town.settler.view.cluster.classes.gpu_drivers()

    town.change("configmaps", budgets(_settings=rules % "none", team_a=SPENT))
    town.tick()
    assert "odd.example.com" not in town.settler.view.cluster.classes.gpu_drivers()


def test_events_that_were_read_while_the_pod_waited_open_no_session(holding: Holding) -> None:
    town = begin(holding, claiming(), entry=HOLD.format(hours=1))
    assert holding.step() == ["p"]
    town.tick()
    read = [read_charged_pod(claiming(node="n1"), town.settler.view.is_known) for _ in range(2)]

    for each in read:
        assert each is not None
        town.settler.apply(WatchUpdate("pods", town.clock(), ObjectChanged(each, deleted=False)))
    town.advance(SECOND)

    assert charged_pods(town.settler.cluster.pods) == []
    assert town.get("/v1/sessions").get_json()["sessions"] == []


def beside(name: str = "p", claims: str = "unknown", node: str = "", **fields: Any) -> Json:
    """A pod with four whole cards of NVIDIA's plugin beside a claim of template ``it``."""
    raw = claiming(name, claims=claims, how="turn", node=node, **fields)
    raw["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    raw["metadata"]["annotations"]["bursar.dev/standing"] = "IN_BUDGET"
    return raw


def test_cards_of_a_plugin_wait_until_their_claims_are_known_and_are_charged_by_their_spec(
    holding: Holding,
) -> None:
    town = begin(holding, beside(), entry=HOLD.format(hours=100))
    assert (holding.step(), balance(town)["reserved"]) == ([], 0)

    town.change("resourceclaimtemplates", template("nic"))

    assert holding.step() == ["p"]
    assert recorded(holding) == "0"
    town.change("pods", beside(claims="0", node="n1"))
    (session,) = town.get("/v1/sessions").get_json()["sessions"]
    assert (session["kind"], session["rateMilli"]) == ("pod", 4_000)


def test_cards_beside_claims_that_turn_out_to_be_of_gpus_are_never_released(holding: Holding) -> None:
    town = begin(holding, beside(), entry=HOLD.format(hours=100))
    town.change("resourceclaimtemplates", template())

    assert holding.step() == []
    (notice,) = [notice for notice in town.pod_notices if notice.reason == "WaitsForClaims"][-1:]
    assert "they ask for 2 GPUs, and its containers for cards of a device plugin" in notice.message
    town.change("resourceclaimtemplates", template("nic"))
    assert holding.step() == ["p"], "its template is another one now"


def test_what_was_known_once_of_claims_beside_cards_stays_so(holding: Holding) -> None:
    town = begin(holding, beside(), entry=HOLD.format(hours=100))
    town.change("resourceclaimtemplates", template("nic"))
    town.change("resourceclaimtemplates", template(), deleted=True)
    town.change("pods", beside(priority=7))

    assert holding.step() == ["p"]


def waits(name: str = "p", *, claims: str = "2", names: tuple[str, ...] = ("c",), **fields: Any) -> Json:
    """A pod in budget without a gate and a node, with claims of these names; "": one is not made yet."""
    raw = claiming(name, claims=claims, how="turn", **fields)
    del raw["spec"]["schedulingGates"]
    raw["metadata"] |= {"creationTimestamp": iso(T0)}
    raw["metadata"]["annotations"]["bursar.dev/standing"] = "IN_BUDGET"
    template = "resourceClaimTemplateName"
    raw["spec"]["resourceClaims"] = [{"name": f"c{at}", template: "it"} for at in range(len(names))]
    made = [{"name": f"c{at}", "resourceClaimName": claim} for at, claim in enumerate(names) if claim]
    raw["status"] = {"resourceClaimStatuses": made}
    return raw


def claim(name: str, *devices: str, pods: tuple[str, ...] = (), **request: Any) -> Json:
    """A claim that holds these devices for these pods; ``request``: what it asks for."""
    found = device_claim(name, *map(allocated, devices), at_ms=T0, pods=pods)
    found["spec"]["devices"]["requests"] = [{"name": "r0", **request}]
    return found


EITHER = {
    "firstAvailable": [
        {"name": "large", "deviceClassName": "gpu", "count": 1},
        {"name": "small", "deviceClassName": "gpu", "count": 2},
    ]
}


@pytest.mark.parametrize(
    ("pod", "claims", "before", "while_allocated"),
    [
        (waits(claims="1"), [claim("c", "gpu-0", pods=("uid-p",))], 1, 1),
        (waits(claims="2", names=("c", "")), [claim("c", "gpu-0", pods=("uid-p",))], 2, 2),
        (waits(claims="2"), [claim("c", "gpu-0", pods=("uid-p",), **EITHER)], 2, 1),
        (waits(claims="1"), [claim("c", "gpu-0", pods=("uid-other",))], 1, 0),
        (waits(claims="2", names=("c", "d")), [claim("c", "gpu-0"), claim("d", "gpu-1")], 2, 0),
        (waits(claims="1"), [device_claim("c", allocated(adminAccess=True), pods=("uid-p",))], 1, 1),
    ],
    ids=["the whole pod", "one of two claims", "of two devices one", "held by another pod", "two", "admin"],
)
def test_what_a_claim_holds_counts_once_while_its_pod_has_no_node(
    holding: Holding, pod: Json, claims: list[Json], before: int, while_allocated: int
) -> None:
    """kube-scheduler allocates first, and binds once the binding conditions of the devices are met."""
    town = begin(holding, pod, entry=HOLD.format(hours=10))
    town.change("resourceslices", device_slice("gpu-0", "gpu-1", "gpu-2"))
    assert balance(town)["reserved"] == before * GPU * LOOKAHEAD

    for each in claims:
        town.hear("resourceclaims", each)
    town.tick()

    assert balance(town)["reserved"] == while_allocated * GPU * LOOKAHEAD
    for each in claims:
        town.hear("resourceclaims", {**each, "status": {}})
    town.tick()
    assert balance(town)["reserved"] == before * GPU * LOOKAHEAD, "kube-scheduler tries another node"


def test_an_extended_resource_counts_once_while_the_pod_that_its_claim_serves_has_no_node(
    holding: Holding,
) -> None:
    raw = gpu_pod(node="", labels={"bursar.dev/governed": "true"})
    limits = {"nvidia.com/gpu": "1"}
    raw["spec"]["containers"] = [worlds.of_resources(limits, name) for name in ("main", "second")]
    town = begin(holding, raw, entry=HOLD.format(hours=10))
    town.change("resourceslices", device_slice("gpu-0"))
    assert balance(town)["reserved"] == 2 * GPU * LOOKAHEAD

    mappings = [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r0"}]
    raw["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c", "requestMappings": mappings}
    town.hear("resourceclaims", claim("c", "gpu-0", pods=("uid-p",)))
    town.change("pods", raw)

    assert balance(town)["reserved"] == 2 * GPU * LOOKAHEAD


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_cap_counts_a_claim_once_while_its_pod_has_no_node(holding: Holding, is_shared: bool) -> None:
    """Also where the held pod shares the claim, which takes nothing more."""
    entry = f"gpuHours: 1000\nmaxGPUs: {1 if is_shared else 2}"
    held = claiming("second", claims="1", how="turn")
    if is_shared:
        held["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    town = begin(holding, waits(claims="1"), held, entry=entry)
    town.hear("resourceslices", device_slice("gpu-0"))

    town.change("resourceclaims", claim("c", "gpu-0", pods=("uid-p",)))

    assert holding.step() == ["second"]


def test_a_floor_counts_a_claim_once_and_the_rest_of_its_pod(holding: Holding) -> None:
    protect = "\nprotect: {labels: {tier: serving}, cards: 2}"
    pods = [waits("p", names=("c", "")), waits("q", claims="1", names=("d",))]
    for each in pods:
        each["metadata"]["labels"]["tier"] = "serving"
    town = begin(holding, *pods, entry=HOLD.format(hours=10) + protect)
    town.hear("resourceslices", device_slice("gpu-0"))

    town.change("resourceclaims", claim("c", "gpu-0", pods=("uid-p",)))

    assert set(town.settler.ledger.protected["team-a"].uids) == {"uid-p"}


def deleted(town: Town) -> list[str]:
    """The pods that were recorded as deleted."""
    return [each.name for each in town.recorded if each.kind == "deleted"]


@pytest.mark.parametrize("how", ["by the watch", "by a list", "by the next timekeeper"])
@pytest.mark.parametrize("claims", ["2", "unknown"])
def test_a_held_pod_that_was_bound_is_never_recorded_as_deleted(
    holding: Holding, how: str, claims: str
) -> None:
    """It is released and bound before the next tick, or while no watch runs."""
    town = begin(holding, claiming(claims=claims), claiming("gone"), entry=SPENT)
    town.change("resourceclaimtemplates", template())
    town.hear("resourceclaimtemplates", template(), deleted=True)
    assert len(town.settler.view.held.pods) == 2

    town.hear("pods", bound("p"), unheard=how != "by the watch")
    town.hear("pods", claiming("gone"), deleted=True, unheard=how != "by the watch")
    if how == "by a list":
        town.hear_all("pods")
    elif how == "by the next timekeeper":
        holding.town.restart()
    town.tick()
    town.tick()

    assert deleted(town) == ["gone"]


def test_a_held_pod_of_which_the_next_timekeeper_does_not_know_what_it_asks_for_is_not_deleted(
    holding: Holding,
) -> None:
    town = begin(holding, claiming(claims="unknown"), entry=SPENT)
    town.change("resourceclaimtemplates", template())
    assert len(town.settler.view.held.pods) == 1

    town.hear("resourceclaimtemplates", template(), deleted=True)
    town.resume()

    assert (dict(town.settler.view.held.pods), deleted(town)) == ({}, [])


def test_a_claim_counts_once_also_while_an_earlier_one_of_its_name_ends(holding: Holding) -> None:
    """The earlier one was deleted in use; its last pod ends in the tick that sees the new one."""
    town = begin(holding, waits(claims="1"), bound("other"), entry=HOLD.format(hours=10))
    town.hear("resourceslices", device_slice("gpu-0", "gpu-1"))
    earlier = claim("c", "gpu-0", pods=("uid-other",))
    town.change("resourceclaims", earlier)
    town.change("resourceclaims", earlier, deleted=True)
    assert balance(town)["reserved"] == 2 * GPU * LOOKAHEAD

    later = claim("c", "gpu-1", pods=("uid-p",))
    later["metadata"]["uid"] = "claim-later"
    town.hear("resourceclaims", later)
    town.hear("pods", bound("other"), deleted=True)
    town.clock.turn(31 * SECOND)
    town.tick()

    assert town.settler.ledger.without_node.rates == {}
