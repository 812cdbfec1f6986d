"""What the extender says is wrong with nodes: one thing wrong at a time."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler_ext.reports.findings import findings
from scheduler_ext.reports.metrics import ExtenderMetrics
from scheduler_ext.serving.read_port import ReadSources, create_app
from scheduler_ext.snapshot.snapshot import non_gpu_pod_deleted
from tests.reference.metrics import extender_sources
from tests.scheduler_ext.unit.test_node_locks import OFFERS
from tests.scheduler_ext.unit.test_rejections import T0_S, refused
from tests.scheduler_ext.worlds import Json, asking, bound, holders, node, percent, rebuilt
from tests.worlds import card, limits_of
from timekeeper.core.findings import RoleFinding, of_sources
from timekeeper.edge.source_health import STUCK_MS, SourceHealth

NOW_MS = 1000 * T0_S
NOW = datetime.fromtimestamp(T0_S, UTC)
LOCK = "hami.io/mutex.lock"


def bare(name: str = "n", capacity: Json | None = None, allocatable: Json | None = None) -> Json:
    """A node without an inventory."""
    there = capacity or {"cpu": "8"}
    status = {"capacity": there, "allocatable": there if allocatable is None else allocatable}
    return {"metadata": {"name": name, "annotations": {}}, "status": status}


def noted(raw: Json, **annotations: str) -> Json:
    """The node with these annotations of ours."""
    ours = {f"bursar.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    metadata = {**raw["metadata"], "annotations": {**raw["metadata"]["annotations"], **ours}}
    return {**raw, "metadata": metadata}


def agent(where: str = "n") -> Json:
    """The node agent's pod, which runs there."""
    containers = [{"name": "main", "resources": {"requests": {"cpu": "5m"}}}]
    return {
        "metadata": {"name": f"agent-{where}", "uid": f"agent-{where}", "namespace": "bursar-node"},
        "spec": {"nodeName": where, "containers": containers},
        "status": {"phase": "Running"},
    }


def by_nri(enforced: bool) -> Json:
    """A node whose cards come by NRI."""
    nri = {"plugins": ["bursar"], "enforced": enforced}
    return noted(node(), inventory=json.dumps({"version": 1, "cards": [card(0)], "nri": nri}))


def locked(minutes: float) -> Json:
    """A node of HAMi's that has been locked for so long."""
    raw = bare("n", {OFFERS[LOCK]: "10"})
    written = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    raw["metadata"]["annotations"] = {
        "hami.io/node-nvidia-register": "GPU-a,10,16000,100,T4,0,true:",
        LOCK: f"{written},team-a,first",
    }
    return raw


def waiting_at(where: str, phase: str = "Pending") -> Json:
    """The pod that `locked` nodes name."""
    raw = asking(limits_of("main", nvidia_com__gpu="1"), name="first")
    raw["metadata"]["annotations"] = {"hami.io/bind-phase": "allocating"}
    return bound(raw, where, None, phase)


def found(nodes: list[Json], pods: list[Json], now_ms: int = NOW_MS) -> dict[str, str]:
    """Code -> sentence, of what is no praise."""
    listed = list(findings(rebuilt(nodes, pods, now_ms), now_ms))
    return {each.code: each.sentence for each in listed if each.kind.level != "ok"}


PERCENT, WHOLE, NONE = {"bursar.dev/gpu-percent": "100"}, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "0"}
CASES: dict[str, tuple[list[Json], list[Json], dict[str, str]]] = {
    "sound": ([node()], [agent()], {}),
    "a node without GPUs beside it": ([node(), bare("cpu")], [agent()], {}),
    "whole cards that are counted need no inventory": ([bare("w", WHOLE), node()], [agent()], {}),
    "no GPU": ([bare()], [], {"no-gpu-nodes": "no node advertises GPUs"}),
    "no inventory": (
        [bare("n", {**PERCENT, **WHOLE}, PERCENT), node("m")],
        [],
        {"no-agent": "no inventory on n: no agent runs there"},
    ),
    "an agent that reads nothing": (
        [bare()],
        [agent()],
        {"silent-agent": "no inventory on n: its agent has not read the cards"},
    ),
    "cards by an agent that was removed": (
        [by_nri(True)],
        [],
        {"agent-is-needed": "no agent runs on n, and their inventory says that cards come by it"},
    ),
    "cards by an agent that is required": ([by_nri(True)], [agent()], {}),
    "a validator that is off": (
        [by_nri(False)],
        [agent()],
        {"no-validator": "NRI's validator is off on n: while the agent is away there"},
    ),
    "a closed node": (
        [noted(node(), holders=holders(closed="the default runtime gives out all cards"))],
        [agent()],
        {"closed-node": "n is closed: its node agent has closed it: processes use its cards"},
    ),
    "a node that a placement closes": (
        [node()],
        [agent(), bound(percent(50), "n", '{"version":1,"containers":{}}')],
        {"closed-node": "n is closed: a pod's placement contradicts its request or the inventory"},
    ),
    "whole cards alone": (
        [bare("b", WHOLE), bare("a", WHOLE)],
        [],
        {"whole-cards": "no node gives out fractions: NVIDIA's plugin gives out whole cards on a, b"},
    ),
    "a node that is on its way": (
        [noted(node(capacity={**PERCENT, **NONE}), node_change="fractions")],
        [agent()],
        {"changing-node": "n is cordoned on its way to fractions"},
    ),
    "a plugin that is gone": (
        [node(capacity={**PERCENT, **NONE})],
        [agent()],
        {"left-over-name": "n keeps nvidia.com/gpu with 0 of a plugin that is gone"},
    ),
    "renamed replicas": (
        [node(capacity={"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"})],
        [agent()],
        {},
    ),
    "instances": ([node(capacity={"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "4"})], [agent()], {}),
    "a node whose kubelet refuses pods": (
        [node("a")],
        [agent("a"), *(refused(f"r{at}", at) for at in range(3))],
        {"demoted-node": "a: until 2026-11-20 10:02Z other nodes come first for GPU pods of namespace "},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_named(case: str) -> None:
    nodes, pods, wanted = CASES[case]

    said = found(nodes, pods)

    assert {code: said[code][: len(wanted.get(code, ""))] for code in said} == wanted


@pytest.mark.parametrize(
    ("minutes", "pods", "is_named"),
    [
        (6, [waiting_at("n")], True),
        (4, [waiting_at("n")], False),
        (6, [], False),
        (6, [waiting_at("n", "Running")], False),
        (6, [waiting_at("m")], False),
    ],
    ids=["it waits", "the lock is young", "no pod", "it runs", "it is elsewhere"],
)
def test_a_lock_is_named_while_its_pod_waits_for_its_devices_for_long(
    minutes: int, pods: list[Json], is_named: bool
) -> None:
    said = found([locked(minutes)], pods).get("locked-node", "")

    assert said.startswith("n is locked for team-a/first, which has waited" if is_named else "")
    assert bool(said) == is_named


def test_what_is_sound_is_counted() -> None:
    there = rebuilt([node("f"), bare("w", WHOLE), bare("cpu")], [agent("f")])

    said = {each.code: dict(each.figures) for each in findings(there, NOW_MS)}

    assert said == {
        "inventories": {"described": 2, "number": 2},
        "fractions": {"number": 1, "whole": 1},
    }


def test_a_demotion_that_is_over_is_no_finding() -> None:
    pods: list[Any] = [agent("a"), *(refused(f"r{at}", at) for at in range(3))]

    assert found([node("a")], pods, NOW_MS + 122_000) == {}


def test_an_agent_that_is_deleted_or_has_ended_is_there_no_more() -> None:
    offers = bare("n", {**PERCENT, **WHOLE}, PERCENT)
    there = rebuilt([offers], [agent()])
    gone = non_gpu_pod_deleted(there, "agent-n")

    assert "silent-agent" in {each.code for each in findings(there, NOW_MS)}
    assert "no-agent" in {each.code for each in findings(gone, NOW_MS)}
    assert "no-agent" in found([offers], [{**agent(), "status": {"phase": "Succeeded"}}])


def test_sources_that_do_not_get_on_and_objects_that_are_skipped_are_found() -> None:
    now_ms = 0
    health = SourceHealth("pods", lambda *_, **__: None, lambda: now_ms)
    health.failed("away")
    health.skip("u", {"kind": "Pod", "metadata": {"name": "a", "namespace": "n"}}, KeyError("x"))
    skipped = RoleFinding(
        "object-unread", {"kind": "Pod", "namespace": "n", "object": "a", "error": "KeyError: 'x'"}
    )

    assert list(of_sources([health])) == [skipped]
    now_ms = STUCK_MS
    stuck = RoleFinding("watch-fails", {"source": "pods", "since": 0, "error": "away"})
    assert list(of_sources([health])) == [stuck, skipped]
    assert skipped.sentence == "Pod n/a is skipped, and counts as it was read last: KeyError: 'x'"


def test_a_restored_etcd_is_one_finding_of_all_that_is_followed() -> None:
    now_ms = 60_000
    sources = [
        SourceHealth(name, lambda *_, **__: None, lambda: now_ms) for name in ("nodes", "pods", "jobs")
    ]
    for source in sources[:2]:
        source.went_back()
        now_ms += 1_000

    (restored,) = of_sources(sources)

    assert restored == RoleFinding("etcd-restored", {"since": 60_000, "sources": "nodes, pods"})
    assert restored.sentence.startswith(
        "etcd was restored from a backup, seen at 1970-01-01 00:01Z by older versions of nodes, pods: "
    )


def test_codes_and_numbers_are_in_readyz_and_metrics_without_names() -> None:
    wrong = {"closed-node": 2, "locked-node": 1}
    metrics = ExtenderMetrics(replace(extender_sources(), wrong=lambda: wrong))
    client = create_app(ReadSources(metrics, str, str, bytes, lambda: wrong)).test_client()

    assert client.get("/readyz").text == "ok\nextender finds closed-node: 2\nextender finds locked-node: 1\n"
    assert 'bursar_findings{code="closed-node",role="extender"} 2.0' in client.get("/metrics").text
    away = create_app(
        ReadSources(metrics, str, lambda: "the list is not in", bytes, lambda: wrong)
    ).test_client()
    assert (away.get("/readyz").status_code, away.get("/readyz").text) == (503, "the list is not in\n")
