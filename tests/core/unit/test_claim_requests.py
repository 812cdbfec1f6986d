"""What a pod asks for by device claims: the GPUs that it may get at most, and what is not known."""

from dataclasses import replace
from typing import Any

import pytest

from tests.worlds import Json, container, pod
from timekeeper.core.request.claims import EXPLICIT, TOO_LONG, KnownClaims, PodClaims, read_requests
from timekeeper.core.request.device_classes import ClassSettings, DeviceClass
from timekeeper.core.request.metered import metered_request
from timekeeper.core.request.request import containers, parse, parse_new

CLASSES = {
    each.name: each
    for each in (
        DeviceClass("gpu", "gpu.nvidia.com"),
        DeviceClass("nic", "nic.example.com"),
        DeviceClass("odd", "odd.example.com"),
    )
}
SETTINGS = ClassSettings(other_drivers=frozenset({"nic.example.com"}))


def request(name: str = "gpu", **fields: Any) -> Json:
    """One request of a claim."""
    return {"exactly": {"deviceClassName": name, **fields}}


def either(*names: str, **fields: Any) -> Json:
    """A request with alternatives."""
    return {"firstAvailable": [{"name": "x", "deviceClassName": each, **fields} for each in names]}


def known(*requests: Json, **changed: Any) -> KnownClaims:
    """A claim and a template, both named ``it`` in namespace a, with these requests."""
    spec = read_requests({"devices": {"requests": list(requests)}})
    there = {("a", "it"): spec}
    return replace(KnownClaims(CLASSES, there, there, SETTINGS), **changed)


def claiming(*entries: Json, **limits: str) -> Json:
    """A pod with these entries of claims, and one container with limits of these classes."""
    resources = {f"{EXPLICIT}{name}": amount for name, amount in limits.items()}
    return pod(container() | {"resources": {"limits": resources}}, resourceClaims=list(entries))


TEMPLATE = {"name": "c", "resourceClaimTemplateName": "it"}
CLAIM = {"name": "c", "resourceClaimName": "it"}


def asked(raw: Json, objects: KnownClaims, namespace: str = "a") -> PodClaims | None:
    """What the pod asks for in this namespace."""
    return objects.asked_by(raw, namespace, containers(raw))


@pytest.mark.parametrize("entry", [TEMPLATE, CLAIM])
@pytest.mark.parametrize(
    ("requests", "devices"),
    [
        ([request()], 1),
        ([request(count=8)], 8),
        ([request(count=2), request(), request("nic", count=4)], 3),
        ([either("nic", "gpu")], 1),
        (
            [
                {
                    "firstAvailable": [
                        *either("gpu", count=4)["firstAvailable"],
                        *either("gpu")["firstAvailable"],
                    ]
                }
            ],
            4,
        ),
        ([request(adminAccess=True)], 0),
        ([request("nic", allocationMode="All")], 0),
        ([], 0),
    ],
)
def test_the_costliest_alternative_of_each_request_counts(
    entry: Json, requests: list[Json], devices: int
) -> None:
    assert asked(claiming(entry), known(*requests)) == PodClaims(devices)


def test_claims_and_limits_add_up_and_init_containers_count_where_they_are_more() -> None:
    raw = claiming(TEMPLATE, CLAIM, gpu="2")
    sidecar = container("s") | {"restartPolicy": "Always", "resources": {"limits": {f"{EXPLICIT}gpu": "1"}}}
    first = container("i") | {"resources": {"limits": {f"{EXPLICIT}gpu": "9"}}}

    assert asked(raw, known(request())) == PodClaims(4)
    raw["spec"]["initContainers"] = [sidecar]
    assert asked(raw, known(request())) == PodClaims(5)
    raw["spec"]["initContainers"] = [sidecar, first]
    assert asked(raw, known(request())) == PodClaims(12)


def test_what_is_not_there_is_named_and_makes_the_number_unknown() -> None:
    raw = claiming(TEMPLATE, {"name": "d", "resourceClaimName": "else"}, lost="1")

    found = asked(raw, known(request(), request("gone")))

    assert found == PodClaims(1, ("DeviceClass gone", "ResourceClaim else", "DeviceClass lost"))
    assert asked(claiming(TEMPLATE), known(request()), "b") == PodClaims(0, ("ResourceClaimTemplate it",))
    parsed = parse_new(raw, "refuse", known(request()), "a")
    assert parsed.request is not None
    assert (parsed.request.dialect, parsed.request.asks, parsed.violations) == ("claims", (), ())


def test_a_class_of_which_nobody_knows_what_it_allocates_is_refused_or_free_by_a_setting() -> None:
    denied = asked(claiming(TEMPLATE), known(request("odd"), request()))
    free = known(request("odd"), request(), settings=ClassSettings(unknown="free"))

    assert denied is not None
    (violation,) = denied.violations
    assert (violation.rule, violation.path) == (
        "device-claim",
        "spec.resourceClaims[0].resourceClaimTemplateName",
    )
    assert "driver odd.example.com is not known" in violation.sentence()
    assert asked(claiming(TEMPLATE), free) == PodClaims(1)
    assert parse_new(claiming(TEMPLATE), "refuse", known(request("odd")), "a").request is None


@pytest.mark.parametrize("fields", [{"allocationMode": "All"}, {"count": 33}])
def test_more_than_a_claim_can_be_allocated_is_a_violation_and_counts_as_the_most(fields: Json) -> None:
    parsed = parse_new(claiming(TEMPLATE), "refuse", known(request(**fields)), "a")

    assert [each.rule for each in parsed.violations] == ["claim-size"]
    assert parsed.request is not None
    assert [each.ask.devices for each in parsed.request.asks] == [32]


@pytest.mark.parametrize(
    ("requests", "is_read"),
    [
        ([either("gpu", "nic")] * 32, True),
        ([either(*["gpu"] * 3)] * 22, False),
        ([either(*("a" * 200 + f"-{number}" for number in range(8)))] * 4, True),
        ([request("a" * 200 + f"-{number}") for number in range(21)], False),
    ],
)
def test_of_a_claim_with_too_many_alternatives_nothing_is_kept_and_its_pod_waits(
    requests: list[Json], is_read: bool
) -> None:
    """It would fill the memory of a worker, if there were many like it."""
    found = asked(claiming(CLAIM), known(*requests))

    assert found is not None
    assert (read_requests({"devices": {"requests": requests}}) is not TOO_LONG) == is_read
    assert (found.missing == ("DeviceClass (its claim has too many alternatives)",)) != is_read


@pytest.mark.parametrize(("number", "rules"), [(256, []), (257, ["device-claim"])])
def test_a_pod_with_very_many_claims_is_refused_also_if_they_are_not_known(
    number: int, rules: list[str]
) -> None:
    entries = [{"name": f"c{each}", "resourceClaimName": f"c{each}"} for each in range(number)]
    parsed = parse_new(claiming(*entries), "refuse", known(), "a")

    assert [each.rule for each in parsed.violations] == rules


@pytest.mark.parametrize("amount", ["-1Gi", "-1"])
def test_a_claim_on_less_than_nothing_of_a_capacity_is_a_violation(amount: str) -> None:
    fields: Json = {"capacity": {"requests": {"cores": "1", "memory": amount}}}
    for each in (request(**fields), either("nic", "gpu", **fields)):
        parsed = parse_new(claiming(TEMPLATE), "refuse", known(each), "a")

        assert [each.rule for each in parsed.violations] == ["device-claim"]
        assert parsed.request is None
    assert asked(claiming(TEMPLATE), known(request("nic", **fields))) == PodClaims()


def test_cards_of_a_dialect_beside_claims_of_gpus_are_refused_and_beside_others_are_not() -> None:
    raw = claiming(TEMPLATE)
    raw["spec"]["containers"].append(container("share", gpu_percent="50"))

    assert [each.rule for each in parse_new(raw, "refuse", known(request()), "a").violations] == [
        "several-dialects"
    ]
    beside = parse_new(raw, "refuse", known(request("nic")), "a")
    assert (beside.violations, beside.request) == ((), parse(raw).request)
    unknown = parse_new(raw, "refuse", known(), "b").violations
    assert "not known: ResourceClaimTemplate it" in unknown[0].sentence()


def test_where_claims_are_not_served_pods_with_them_are_refused() -> None:
    parsed = parse_new(claiming(TEMPLATE), "refuse", known(request(), is_served=False), "a")

    assert [each.rule for each in parsed.violations] == ["device-claim"]
    assert parse_new(claiming(), "refuse", known(is_served=False), "a").violations == ()


@pytest.mark.parametrize(
    ("recorded", "devices"), [("3", [3]), ("0", [0]), ("unknown", []), ("-1", []), ("99999999", [])]
)
def test_the_number_that_admission_recorded_is_the_request_of_a_governed_pod(
    recorded: str, devices: list[int]
) -> None:
    raw = claiming(TEMPLATE)
    raw["metadata"]["annotations"] = {"bursar.dev/claims": recorded}

    assert parse(raw).request is None, "not governed"
    raw["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    request = parse(raw).request
    assert request is not None
    assert (request.dialect, [each.ask.devices for each in request.asks]) == ("claims", devices)
    assert metered_request(raw, parse(raw)) is None, (
        "admission's word, which counts nothing where pods are metered"
    )


@pytest.mark.parametrize(
    "spec",
    [{}, {"devices": None}, {"devices": {"requests": [1, {}, {"exactly": 7}, {"firstAvailable": [None]}]}}],
)
def test_a_claim_of_any_form_is_read(spec: Json) -> None:
    found = KnownClaims(CLASSES, {("a", "it"): read_requests(spec)}).asked_by(claiming(CLAIM), "a", ())

    assert found is not None
    assert found.devices == 0


def test_the_drivers_of_the_settings_count_before_everything_else() -> None:
    rules = {"odd.example.com": True, "gpu.nvidia.com": False}
    objects = known(request("odd", count=3), request(), drivers=lambda: rules)

    assert asked(claiming(TEMPLATE), objects) == PodClaims(3)
