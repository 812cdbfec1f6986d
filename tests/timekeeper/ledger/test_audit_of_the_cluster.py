"""`audit --cluster`: what is held and not charged, and the reverse, by the API server's pods."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import worlds
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.claims import EXTENDED, allocated, device_claim, device_slice
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.ledger.test_held_claims import settings as class_settings
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.__main__ import main
from timekeeper.core.claims.allocation import read_claim
from timekeeper.core.claims.devices import read_slice
from timekeeper.core.request.device_classes import read_settings
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.claims import ClaimComparison
from timekeeper.operations.audit.cluster import ClusterComparison, read_compared_pod
from timekeeper.store.engine.upgrade import snapshot

BOTH_DATABASES = "the command opens either database and reads the ledger's rows"


def governed(raw: Json) -> Json:
    raw["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    return raw


def ended(name: str, ended_ms: int) -> Json:
    return governed(gpu_pod(name, started_ms=T0, ended_ms=ended_ms))


def compared(town: Town, *pods: Json, claims: ClaimComparison | None = None) -> ClusterComparison:
    found = [pod for raw in pods if (pod := read_compared_pod(raw))]
    cluster = ClusterComparison(found, town.clock(), {}, claims)
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), lambda _: None, cluster)
    return cluster


def gaps(cluster: ClusterComparison) -> dict[str, tuple[int, int, int]]:
    return {gap.pod: (gap.held_ms, gap.not_charged_ms, gap.not_held_ms) for gap in cluster.gaps}


def test_it_counts_what_is_held_and_not_charged_and_the_reverse(town: Town) -> None:
    town.begin(("nodes", node()))
    running, early = (governed(gpu_pod(name, started_ms=T0)) for name in ("running", "early"))
    proved, refunded = ended("proved", T0 + MINUTE), ended("refunded", T0 + MINUTE)
    for raw in (running, early, proved, refunded):
        town.hear("pods", raw)
    town.advance(2 * MINUTE)
    town.clock.turn(7 * SECOND)  # nobody has been heard since
    ends_before = governed(gpu_pod("early", started_ms=T0, ended_ms=T0 + 90 * SECOND))
    ends_later = ended("refunded", T0 + 70 * SECOND)
    strange = governed(gpu_pod("unseen", bound_ms=T0 + MINUTE))
    unbound = governed(gpu_pod("unbound", bound_ms=None))

    cluster = compared(town, running, ends_before, proved, ends_later, strange, unbound)

    assert gaps(cluster) == {
        "team-a/running": (127 * SECOND, 7 * SECOND, 0),
        "team-a/early": (90 * SECOND, 0, 30 * SECOND),  # charged while its end is not known to the ledger
        "team-a/refunded": (70 * SECOND, 10 * SECOND, 0),
        "team-a/unseen": (67 * SECOND, 67 * SECOND, 0),
    }
    assert cluster.compared == 5
    assert cluster.listed == []


def test_what_cannot_be_compared_is_listed(town: Town) -> None:
    town.begin(("nodes", node()))
    by_request = governed(gpu_pod("by-request", started_ms=T0))
    del by_request["metadata"]["annotations"]["bursar.dev/devices"]
    town.change("pods", by_request)
    foreign, over = gpu_pod("foreign", started_ms=T0), gpu_pod("over", started_ms=T0, ended_ms=T0 + SECOND)
    unreadable = governed(gpu_pod("unreadable", started_ms=T0))
    unreadable["spec"]["containers"] = [worlds.container("main", gpu_percent="0.5")]

    cluster = compared(town, by_request, foreign, over, unreadable)

    assert (cluster.compared, cluster.gaps) == (0, [])
    reasons = {each.name: each.reason for each in cluster.listed}
    assert reasons.pop("team-a/unreadable").startswith("it has no session: its request cannot be read: ")
    assert reasons == {
        "team-a/by-request": "charged by its request: it has no placement",
        "team-a/foreign": "it has no session, and is not governed",
    }


def test_the_command_lists_the_pods_of_the_api_server(
    town: Town, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town.begin(("nodes", node()))
    town.change("pods", ended("refunded", T0 + MINUTE))
    api = FakeApiServer()
    api.put("pods", ended("refunded", T0 + 70 * SECOND))
    for name, ahead_ms in {"ahead": MINUTE, "behind": -6 * SECOND, "right": 5 * SECOND}.items():
        api.put("leases", lease(T0 + ahead_ms, name, noted_ms=T0))
    capsys.readouterr()
    with serving(api) as url:
        arguments = [
            "audit",
            "--cluster",
            f"--kubeconfig={kubeconfig(tmp_path, url)}",
            "--database",
            town.url,
        ]
        assert main(arguments) == 0
        assert capsys.readouterr().out.splitlines()[:4] == [
            "pod uid-refunded (team-a/refunded): held 70.000 s, of which 10.000 s not charged;"
            " charged but not held 0.000 s",
            "node ahead: its clock is 60.000 s ahead of the API server's",
            "node behind: its clock is 6.000 s behind the API server's",
            "1 pods compared with the API server: held but not charged 10.000 s,"
            " charged but not held 0.000 s; 0 not compared",
        ]
        assert main([*arguments, "-o", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert document["cluster"]["pods"][0]["notChargedMs"] == 10 * SECOND
    assert document["cluster"]["clocks"] == [
        {"node": "ahead", "aheadMs": MINUTE},
        {"node": "behind", "aheadMs": -6 * SECOND},
    ]
    assert main(arguments) == 2
    assert "--cluster: pods, claims and Leases cannot be listed: " in capsys.readouterr().err


# Claims


SLICE = device_slice(*(f"gpu-{place}" for place in range(8)))


def claim(name: str, device: str = "gpu-0", at_ms: int = T0, **more: Any) -> Json:
    return device_claim(name, allocated(device), at_ms=at_ms, **more)


def claims_compared(
    town: Town,
    *claims: Json,
    slices: tuple[Json, ...] = (SLICE,),
    serving: str = "",
    lists: dict[str, str] | None = None,
) -> tuple[list[tuple[str, str, str, str]], dict[str, str], int]:
    """The differences between the ledger and these claims, what was not compared, and the number of those
    that were. ``serving``: the name of the one that serves an extended resource; ``lists``: what an
    administrator says of drivers."""
    served = {("team-a", serving)}
    found = ClaimComparison(
        map(read_claim, claims), map(read_slice, slices), town.clock(), served, read_settings(lists or {})
    )
    compared(town, claims=found)
    differences = [(each.claim, each.what, each.stored, each.cluster) for each in found.differences]
    return differences, {each.name: each.reason for each in found.listed}, found.compared


def test_a_driver_that_device_classes_list_is_compared_by_that(town: Town) -> None:
    lists, slices = {"gpuDrivers": "odd.example.com"}, device_slice("d", driver="odd.example.com")
    odd = device_claim("odd", allocated("d", driver="odd.example.com"), at_ms=T0)
    town.begin(("nodes", node()), ("resourceslices", slices), ("configmaps", class_settings(**lists)))
    town.change("resourceclaims", odd)
    town.clock.turn(MINUTE)

    assert claims_compared(town, odd, slices=(slices,), lists=lists) == ([], {}, 1)


def test_claims_that_hold_what_they_are_charged_for_do_not_differ(town: Town) -> None:
    """Neither does one that has ended, holds no GPU, or holds nothing."""
    nic = device_claim("nic", allocated("nic-0", driver="compute-domain.nvidia.com"), at_ms=T0)
    watching = device_claim("w", allocated("gpu-1", adminAccess=True), at_ms=T0)
    held = (claim("c"), nic, watching, device_claim("free"))
    town.begin(("nodes", node()), ("resourceslices", SLICE))
    for each in (*held, claim("ended", "gpu-2")):
        town.change("resourceclaims", each)
    town.change("resourceclaims", device_claim("ended"))
    town.clock.turn(MINUTE)

    assert claims_compared(town, *held, device_claim("ended")) == ([], {}, 2)


def test_a_claim_that_holds_a_gpu_and_is_not_charged_differs_and_so_does_the_reverse(town: Town) -> None:
    town.begin(("nodes", node()), ("resourceslices", SLICE))
    for name, device in (("released", "gpu-0"), ("again", "gpu-1"), ("gone", "gpu-2")):
        town.change("resourceclaims", claim(name, device))
    town.clock.turn(MINUTE)
    again = claim("again", "gpu-1", at_ms=T0 + 30 * SECOND)

    differences, listed, number = claims_compared(
        town, device_claim("released"), again, claim("new", "gpu-3")
    )

    missing, extra = "held but not charged", "charged but not held"
    nothing = "nothing is allocated to it so"
    assert differences == [
        ("team-a/again", extra, "charged at 1 GPU", nothing),
        ("team-a/again", missing, "no open session", "1 GPU for 30.000 s"),
        ("team-a/gone", extra, "charged at 1 GPU", nothing),
        ("team-a/new", missing, "no open session", "1 GPU for 60.000 s"),
        ("team-a/released", extra, "charged at 1 GPU", nothing),
    ]
    assert (listed, number) == ({}, 5)


def test_another_payer_rate_or_device_differs(town: Town) -> None:
    """The rate is that of the weights when the allocation was made."""
    weights = budgets(_settings="weights: {A100: 2}")
    town.begin(("nodes", node()), ("configmaps", weights), ("resourceslices", SLICE))
    for name, device in (("c", "gpu-0"), ("d", "gpu-1"), ("e", "gpu-2"), ("f", "gpu-3")):
        town.change("resourceclaims", claim(name, device))
    town.clock.turn(MINUTE)
    town.change("configmaps", budgets(_settings="weights: {A100: 3}"))
    half = {"consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "40Gi"}}}]}
    parted = device_slice(*(f"gpu-{place}" for place in range(8)))
    parted["spec"]["sharedCounters"] = [{"name": "s", "counters": {"memory": {"value": "80Gi"}}}]
    parted["spec"]["devices"][1] |= half
    town.clock.turn(MINUTE)

    differences, _, number = claims_compared(
        town,
        claim("c", namespace="team-b"),
        claim("d", "gpu-1"),
        claim("e", "gpu-5"),
        claim("f", "gpu-3"),
        slices=(parted,),
    )

    assert differences == [
        ("team-b/c", "payer", "team-a", "team-b"),
        ("team-a/d", "rate", "2 GPUs", "1 GPU"),
        ("team-a/e", "devices", "gpu.example.com/n1/gpu-2", "gpu.example.com/n1/gpu-5"),
    ]
    assert number == 4


def test_claims_that_cannot_be_compared_are_listed(town: Town) -> None:
    """One whose object went while it was allocated, one of a driver without a rule, and one that serves a pod
    that pays by its cards."""
    user = gpu_pod("p", started_ms=T0)
    user["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "stripped"}]
    town.begin(("nodes", node()), ("resourceslices", SLICE), ("pods", user))
    stripped = claim("stripped", pods=("uid-p",))
    town.change("resourceclaims", stripped)
    town.change("resourceclaims", stripped, deleted=True)
    town.clock.turn(MINUTE)
    odd = device_claim("odd", allocated("odd-0", driver="odd.example.com"), at_ms=T0)
    served = claim("served", "gpu-1", pods=("uid-p",), annotations=EXTENDED)
    forged = claim("forged", "gpu-2", pods=("uid-p",), annotations=EXTENDED)

    assert claims_compared(town, odd, served, forged, serving="served") == (
        [("team-a/forged", "held but not charged", "no open session", "1 GPU for 60.000 s")],
        {
            "team-a/stripped": "its object is gone, and it is charged until the pods that used it have ended",
            "team-a/odd": "there is no rule for odd.example.com",
            "team-a/served": "its pod pays for the extended resources by its cards",
        },
        1,
    )


def test_the_command_lists_the_claims_of_the_api_server(
    town: Town, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town.begin(("nodes", node()))
    api = FakeApiServer()
    lists = {"resourceclaims": [claim("new")], "resourceslices": [SLICE]}

    def served(_method: str, path: str, _body: Json) -> tuple[int, Json] | None:
        found = path.partition("?")[0].removeprefix("/apis/resource.k8s.io/v1").lstrip("/")
        if not path.startswith("/apis/resource.k8s.io/v1"):
            return None
        return 200, {"items": lists[found]} if found else {"resources": []}

    api.others = served
    capsys.readouterr()
    with serving(api) as url:
        shared = ["--cluster", f"--kubeconfig={kubeconfig(tmp_path, url)}", "--database", town.url]
        assert main(["audit", *shared]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert main(["audit", *shared, "-o", "json"]) == 0
        document = json.loads(capsys.readouterr().out)["cluster"]["claims"]
    assert "claim claim-new (team-a/new): held but not charged: stored no open session" in lines[1]
    assert lines[2] == "1 claims compared with the API server: 1 differences; 0 not compared"
    assert (document["compared"], document["differences"][0]["claim"]) == (1, "team-a/new")
