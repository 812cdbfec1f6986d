"""`GET /v1/explain` of a device claim, of the pods that use it, and of those that wait for their claims."""

import pytest

from tests.timekeeper.claims import DRIVER, allocated, device_claim, device_slice
from tests.timekeeper.ledger.test_claim_reclaim import heir
from tests.timekeeper.ledger.test_claims import pod as pod_of
from tests.timekeeper.ledger.test_held_claims import begin, claiming, device_class, template, waits
from tests.timekeeper.ledger.test_holding import HOLD, Holding
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.core.decisions import DecisionRun
from timekeeper.core.object_names import timestamp
from timekeeper.store.decisions import SOURCE, record

BEGAN = T0 + MINUTE
WEIGHED = "gpuHours: 9"


@pytest.fixture
def shared(town: Town) -> Town:
    """Two pods share a claim on a device, one after the other."""
    claim, slices = "resourceclaims", ("resourceslices", device_slice("gpu-0", "gpu-1"))
    town.begin(slices, (claim, device_claim()), ("configmaps", budgets(team_a=WEIGHED)))
    town.clock.turn(MINUTE)
    town.change(claim, device_claim("c", allocated(), at_ms=BEGAN, pods=("p",)))
    town.change(claim, device_claim("c", allocated(), at_ms=BEGAN, pods=("p", "q")))
    town.change(claim, device_claim("c", allocated(), at_ms=BEGAN, pods=("q",)))
    user = pod_of("q")
    user["metadata"]["uid"] = "q"
    town.hear("pods", user)
    return town


def explained(town: Town, what: str) -> Json:
    found: Json = town.get(f"/v1/explain/team-a/{what}").get_json()
    return found


def sentences(town: Town, what: str) -> list[str]:
    return [each["sentence"] for each in explained(town, what)["charges"]]


def pass_time(town: Town, ms: int = HOUR) -> None:
    town.clock.turn(ms)
    town.quiet("resourceclaims")
    town.tick()


def test_a_claim_is_explained_by_its_devices_rate_payer_beginning_and_pods(shared: Town) -> None:
    pass_time(shared)

    answer = explained(shared, "claim/c")

    assert answer["subject"] == "ResourceClaim/c"
    assert [(each["pod"], each["claim"], each["node"], each["rateMilli"]) for each in answer["charges"]] == [
        ("", "c", "n1", 1000)
    ]
    assert answer["charges"][0]["sentence"] == (
        f"Charged 1 GPU-hours to namespace team-a: claim c holds {DRIVER} n1/gpu-0 (class gpu) of node n1"
        f" since {timestamp(BEGAN)}. Its rate is 1: 1 GPU of model A100. It was reserved for p, q. They pay"
        " once."
    )


@pytest.mark.parametrize("kind", ["claim", "claims", "resourceclaim", "ResourceClaims"])
def test_kubectls_names_of_claims_are_understood(shared: Town, kind: str) -> None:
    assert len(sentences(shared, f"{kind}/c")) == 1


@pytest.mark.parametrize("pod", ["p", "q"])
def test_each_pod_that_used_a_claim_is_explained_by_it(shared: Town, pod: str) -> None:
    pass_time(shared)
    shared.change("resourceclaims", device_claim())

    assert sentences(shared, pod) == sentences(shared, "claim/c")
    assert f"from {timestamp(BEGAN)} to {timestamp(BEGAN + HOUR)}" in sentences(shared, pod)[0]


def test_other_pods_are_not(shared: Town) -> None:
    shared.change("resourceclaims", device_claim("c", allocated(), at_ms=BEGAN, pods=("long-pod",)))
    assert [sentences(shared, each) for each in ("pp", "long", "pod", "ong-pod")] == [[], [], [], []]
    assert sentences(shared, "c") == [], "a pod of the claim's name"
    assert explained(shared, "claim/p")["charges"] == []


def test_a_pod_of_the_claims_name_is_no_claim(shared: Town) -> None:
    shared.change("nodes", node())
    shared.change("pods", gpu_pod("c", started_ms=BEGAN))

    assert len(sentences(shared, "claim/c")) == len(sentences(shared, "c")) == 1
    assert sentences(shared, "claim/c") != sentences(shared, "c")


def test_a_claim_that_is_reserved_for_no_pod_says_why_it_costs(shared: Town) -> None:
    shared.change("resourceclaims", device_claim("c", allocated(), at_ms=BEGAN))

    assert sentences(shared, "claim/c")[0].endswith(
        "It is reserved for no pod now, and charged until it is deleted, or a pod has used it."
    )


def test_a_part_of_a_weighted_device_says_its_part_and_its_weight(town: Town) -> None:
    share = allocated(shareID="s", consumedCapacity={"memory": "20Gi"})
    town.begin(
        ("resourceslices", device_slice("gpu-0", allowMultipleAllocations=True)),
        ("resourceclaims", device_claim()),
        ("configmaps", budgets(_settings="weights: {A100: 2}", team_a=WEIGHED)),
    )
    town.change("resourceclaims", device_claim("c", share, allocated("gone"), at_ms=T0))
    pass_time(town, MINUTE)

    told = sentences(town, "claim/c")[0]

    assert f"a share of {DRIVER} n1/gpu-0 (class gpu), {DRIVER} n1/gone (class gpu)" in told
    assert "Its rate is 1.5: 0.25 + 1 GPUs of model A100, times the weight of the model." in told
    assert "The rate is not certain: no ResourceSlice has its device" in told


def test_a_claim_without_an_allocation_says_so(town: Town) -> None:
    town.begin(("resourceclaims", device_claim()))

    assert explained(town, "claim/c")["waitsFor"] == [
        "no allocation of claim c is known: it is charged once it holds GPUs"
    ]


@pytest.fixture
def holding(town: Town) -> Holding:
    return Holding(town)


def write_decisions(town: Town) -> None:
    """What the settler has recorded goes to the database, as its thread does."""
    with town.store.writing() as connection:
        record(connection, SOURCE, [DecisionRun(each, 1, each.at_ms) for each in town.recorded])
    town.recorded.clear()


MISSING = "waits for its claims: ResourceClaimTemplate it is not there"


def test_a_pod_that_waits_for_its_claims_says_what_is_missing(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown"), entry=HOLD.format(hours=0))
    write_decisions(town)

    answer = explained(town, "p")

    assert answer["waitsFor"][0] == MISSING
    assert [(each["kind"], each["reason"]) for each in answer["steps"]][-1] == ("waiting", "WaitsForClaims")


def test_a_pod_for_whose_claims_no_node_has_devices_says_which_drivers_and_pools_were_looked_at(
    town: Town,
) -> None:
    """And no longer once it has some; a second claim is on a class of which nobody knows the driver."""
    odd = device_claim("odd")
    odd["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "odd"
    waiting = heir()
    waiting["spec"]["resourceClaims"].append({"name": "d", "resourceClaimName": "odd"})
    town.begin(
        *(
            ("resourceslices", device_slice("gpu-0", "gpu-1")),
            ("resourceslices", device_slice("x", node="n2")),
        ),
        *(("resourceclaims", device_claim("of-heir")), ("resourceclaims", odd)),
        *(("deviceclasses", device_class("gpu", DRIVER)), ("deviceclasses", device_class("odd", ""))),
        ("configmaps", budgets(team_a=WEIGHED)),
        ("pods", waiting),
    )
    write_decisions(town)

    assert explained(town, "heir")["waitsFor"][0] == (
        "no node has the devices that its claims ask for: class gpu: driver gpu.example.com, pools n1"
        " (2 devices), n2 (1 device); class odd: no selector requires one driver"
    )
    given = device_claim("of-heir", allocated(), at_ms=T0, pods=("uid-heir",))
    given["status"]["reservedFor"][0]["name"] = "heir"
    town.change("resourceclaims", given)
    assert explained(town, "heir")["waitsFor"] == []


def test_once_they_are_known_it_waits_for_the_budget_alone(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown"), entry=HOLD.format(hours=0))
    town.change("resourceclaimtemplates", template())
    write_decisions(town)

    waits = explained(town, "p")["waitsFor"]

    assert MISSING not in waits
    assert "GPU-hours at once" in waits[0]


def test_a_pod_whose_claim_is_allocated_waits_no_more(holding: Holding) -> None:
    town = begin(holding, claiming(claims="unknown"), entry=HOLD.format(hours=1))
    town.hear("resourceslices", device_slice("gpu-0"))
    town.hear("resourceclaims", device_claim())
    write_decisions(town)
    claim = device_claim("c", allocated(), at_ms=T0, pods=("uid-p",))
    claim["status"]["reservedFor"][0]["name"] = "p"
    town.change("resourceclaims", claim)

    assert explained(town, "p")["waitsFor"] == []


def refused(message: str) -> Json:
    """The status of a pod with a claim for which kube-scheduler finds no node."""
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    made = [{"name": "c0", "resourceClaimName": "c"}]
    return {"conditions": [said | {"lastTransitionTime": timestamp(T0)}], "resourceClaimStatuses": made}


@pytest.mark.parametrize(
    ("names", "status", "why"),
    [
        (
            ("",),
            {},
            "none is made from ResourceClaimTemplate it; the pod's Events say why"
            " (FailedResourceClaimCreation)",
        ),
        (
            ("c",),
            refused("0/3 nodes are available: 3 resourceclaim in use."),
            "kube-scheduler says: 0/3 nodes are available: 3 resourceclaim in use",
        ),
        (("c",), None, "kube-scheduler has not tried it yet"),
    ],
    ids=["a quota refused its claim", "256 pods share it", "no kube-scheduler runs"],
)
def test_a_pod_in_budget_that_is_not_placed_says_what_its_claim_lacks(
    holding: Holding, names: tuple[str, ...], status: Json | None, why: str
) -> None:
    raw = waits(names=names)
    town = begin(holding, raw | ({} if status is None else {"status": status}), entry=HOLD.format(hours=10))
    town.advance(SECOND)
    assert town.recorded == []
    town.advance(5 * SECOND)
    town.advance(MINUTE)
    assert len(town.recorded) == 1, "once, while nothing else is known"
    write_decisions(town)

    answer = explained(town, "p")

    assert answer["steps"][-1]["sentence"] == f"Admitted at {timestamp(T0)}; waits for its claim: {why}."
    assert answer["waitsFor"] == [f"waits for its claim: {why}"]
    town.change("pods", claiming(node="n1"))
    town.advance(MINUTE)
    assert town.recorded == []
