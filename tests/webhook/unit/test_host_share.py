"""How much CPU and memory a pod may request beside its part of a card: the rule host-share."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import orjson
import pytest

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.rule_examples import ROOMY
from tests.webhook.unit.test_templates import template, workload
from tests.webhook.worlds import POLICY, admitted, governed, object_review, review, violations_of
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.budgets.policy import Budget, BudgetSettings
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.request.host import CardHost
from webhook.admission.pods import mutate
from webhook.admission.workloads import judge
from webhook.dryrun import inputs
from webhook.dryrun.flags import CommonFlags
from webhook.dryrun.judge.assumed_cluster import AssumedCluster
from webhook.dryrun.run import judge_all
from webhook.standings import decode

GIB = 1024**3


def asking(cpu: str, memory: str = "1Gi", **gpu: str) -> Json:
    """A pod with one container."""
    return admitted(container(requests={"cpu": cpu, "memory": memory}, **gpu))


def beside_init(cpu: str) -> Json:
    """A pod of one card, with a sidecar of one before an init container of two."""
    sidecar = container("side", gpu_count="1") | {"restartPolicy": "Always"}
    main = container(requests={"cpu": cpu, "memory": "1Gi"}, gpu_count="1")
    return admitted(main, init=[sidecar, container("last", gpu_count="2")])


def broken(raw: Json, policy: AdmissionPolicy = ROOMY) -> list[str]:
    return [each.path for each in violations_of(raw, policy) if each.rule == "host-share"]


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (asking("640m", gpu_percent="1"), []),  # 2 x 1 % of 32 CPUs
        (asking("641m", gpu_percent="1"), ["cpu"]),
        (asking("64", gpu_count="1"), []),
        (asking("1", "512Gi", gpu_percent="100"), []),
        (asking("1", "513Gi", gpu_percent="100"), ["memory"]),
        (asking("65", "513Gi", gpu_percent="100"), ["cpu", "memory"]),
        (asking("32", gpu_memory="8000"), []),  # half of the smallest card
        (asking("33", gpu_memory="8000"), ["cpu"]),
        (asking("65", gpu_memory="64000"), ["cpu"]),  # more than the smallest card: one card
        (beside_init("192"), []),  # three cards at one time
        (beside_init("193"), ["cpu"]),
    ],
)
def test_a_pod_may_request_twice_the_part_that_goes_with_its_cards(raw: Json, fields: list[str]) -> None:
    assert broken(raw) == [f"spec.containers[0].resources.requests.{each}" for each in fields]


def test_containers_count_together_and_the_sidecar_of_bursar_does_not() -> None:
    raw = asking("640m", gpu_percent="1")
    assert broken(governed(raw)) == []

    raw["spec"]["containers"].append({"name": "web", "image": "x", "resources": {"limits": {"cpu": "1"}}})
    assert broken(raw) == ["spec.containers[1].resources.requests.cpu"]


def test_the_message_names_field_amount_what_is_allowed_and_an_example() -> None:
    (found,) = violations_of(asking("62", gpu_percent="1"), ROOMY)

    assert found.sentence() == (
        "spec.containers[0].resources.requests.cpu: with 0.01 cards the pod's containers together may "
        "request 2 times that part of a node's cpu, and the node with the least has 32 for each card "
        "(hostShare), "
        'got "62"; allowed: at most 640m together; for example cpu: 640m, or a larger part of a card'
    )


def test_it_is_off_by_default_and_says_nothing_of_pods_without_cards() -> None:
    hog, web = (
        asking("62", gpu_percent="1"),
        admitted({"name": "web", "image": "x", "resources": {"requests": {"cpu": "62"}}}),
    )

    assert broken(hog, replace(ROOMY, rules={})) == []
    assert broken(web) == []


def test_cluster_and_namespace_set_mode_and_factor() -> None:
    document = standings(
        team_a=entry(hostShare=100_000), team_b=entry(rules={"host-share": "off"}), team_c=entry()
    )
    document["settings"] |= {
        "rules": {"host-share": "enforce"},
        "host": {"cpuMilli": 32_000, "memoryBytes": 256 * GIB, "leastCardMib": 16_000, "timesMilli": 2_000},
    }
    table, hog = decode(orjson.dumps(document), "e", 0), asking("31", gpu_percent="1")

    found = {
        name: broken(hog, effective_policy(POLICY, table, namespace=name)) for name in document["namespaces"]
    }

    assert {name for name, paths in found.items() if paths} == {"team-c"}
    assert read_entry("_settings", "hostShare: 1.5") == BudgetSettings(host_share_milli=1_500)
    assert read_entry("team-a", "gpuHours: 1\nhostShare: 4") == Budget(3_600_000_000, host_share_milli=4_000)
    wrong = read_entry("team-a", "gpuHours: 1\nhostShare: 0")
    assert "hostShare" in str(wrong)
    assert "a number above 0" in str(wrong)


def test_while_no_node_with_cards_is_known_a_pod_is_admitted_with_a_warning() -> None:
    blind = replace(ROOMY, card_host=None)
    asked = review(asking("62", gpu_percent="1"))

    answer = mutate(asked, lambda _: Standing("IN_BUDGET"), blind)

    assert answer.refusal == ""
    assert [each for each in answer.warnings if "host-share" in each]


def test_a_workload_whose_pods_would_be_refused_is_refused() -> None:
    def refusal(cpu: str) -> str:
        made = template(container(requests={"cpu": cpu}, gpu_percent="1"))
        return judge(object_review(workload("Deployment", made)), ROOMY).refusal

    assert "spec.template.spec.containers[0].resources.requests.cpu" in refusal("62")
    assert refusal("500m") == ""


def test_review_compares_with_the_nodes_among_its_files(tmp_path: Path) -> None:
    card = {"uuid": "GPU-0", "index": 0, "model": "T4", "memory_mib": 16_000, "healthy": True}
    listed = json.dumps({"version": 1, "cards": [card]})
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": "n", "annotations": {"bursar.dev/inventory": listed}},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi"}},
    }
    (tmp_path / "nodes").write_text(json.dumps(node))
    (tmp_path / "pod").write_text(
        json.dumps({"kind": "Pod", "apiVersion": "v1", **asking("62", gpu_percent="1")})
    )
    world = inputs.world(CommonFlags(), BytesIO())
    world = replace(world, flags=replace(world.flags, rules={"host-share": "enforce"}))

    def verdicts(*names: str, over: AssumedCluster = world) -> list[str]:
        texts = [inputs.read(str(tmp_path / name), BytesIO()) for name in names]
        return [each.outcome.verdict for each in judge_all(texts, over)]

    assert verdicts("nodes", "pod") == ["not-reviewed", "refused"]
    assert verdicts("pod") == ["admitted"]
    assert CardHost(32_000, 256 * GIB, 16_000) == ROOMY.card_host
