"""`audit --cluster`: what is held and not charged, and the reverse, by the API server's pods."""

import json
from pathlib import Path

import pytest

from tests import worlds
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node
from timekeeper.__main__ import main
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.cluster import ClusterComparison, read_compared_pod
from timekeeper.store.engine.upgrade import snapshot


def governed(raw: Json) -> Json:
    raw["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    return raw


def ended(name: str, ended_ms: int) -> Json:
    return governed(gpu_pod(name, started_ms=T0, ended_ms=ended_ms))


def compared(town: Town, *pods: Json) -> ClusterComparison:
    cluster = ClusterComparison([pod for raw in pods if (pod := read_compared_pod(raw))], town.clock(), {})
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
    reasons = {each.pod: each.reason for each in cluster.listed}
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
    assert "--cluster: pods and Leases cannot be listed: " in capsys.readouterr().err
