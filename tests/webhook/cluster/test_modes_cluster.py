"""Modes, exempt users and budgets that refuse, on a real API server: what people read in kubectl."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.webhook.clusters import Registered
from tests.webhook.worlds import half, plain
from tests.worlds import Json, container, limits_of

RUNNER = "system:serviceaccount:ci:runner"
FROM_MAP = [{"configMapRef": {"name": "m", "optional": True}}]

DOCUMENT = standings(
    {"exempt": [RUNNER]},
    team_a=entry(rules={"host-pid": "warn", "grace-period": "off"}),
    team_b=entry("OVER_BUDGET", onExhausted="deny"),
    watched=entry("OVER_BUDGET", mode="observe", onExhausted="deny"),
)


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook behind an API server, with namespaces that have settled different things."""
    folder = tmp_path_factory.mktemp("modes")
    with Registered(control_plane, folder, document=DOCUMENT) as running:
        for namespace in ("watched", "unsettled"):
            running.cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        yield running


def manifest(name: str, *containers: Json, **spec: Any) -> Json:
    """A pod as a user writes it."""
    fields = {"containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fields}


def created(world: Registered, namespace: str, raw: Json, *flags: str) -> tuple[int, list[str]]:
    """kubectl's exit code, and the lines that it says."""
    code, said = world.said("create", "-n", namespace, "-f", "-", *flags, input=json.dumps(raw))
    return code, said.splitlines()


def test_a_warning_of_both_webhooks_is_read_once(world: Registered) -> None:
    code, said = created(world, "team-a", manifest("once", half(envFrom=FROM_MAP), hostPID=True))

    assert (code, said) == (
        0,
        [
            "Warning: spec.containers[0].envFrom[0]: it may set variables that change the isolation of "
            'cards, got "ConfigMap m"; admitted: admission does not see what it sets',
            "Warning: spec.hostPID: it exposes the processes of other tenants of a card; admitted",
        ],
    )
    assert world.reviews("validate") > 0


def test_the_same_pod_is_refused_where_the_namespace_has_settled_nothing(world: Registered) -> None:
    raw = manifest("strict", half(), hostPID=True, terminationGracePeriodSeconds=9_999)

    assert created(world, "team-a", raw)[0] == 0
    code, said = created(world, "unsettled", raw)

    assert code != 0
    assert "denied the request: 2 problems:" in said[0]
    assert [line.split(":")[0].strip() for line in said[1:]] == [
        "1. spec.terminationGracePeriodSeconds",
        "2. spec.hostPID",
    ]


def test_a_budget_that_denies_says_so_in_kubectl(world: Registered) -> None:
    code, said = created(world, "team-b", manifest("denied", half()))

    assert code != 0
    assert said[0].endswith(
        "Namespace team-b has used its GPU budget (onExhausted: deny). 1.00 GPU-hours are left; "
        "this pod asks for 0.5 cards. New GPU pods are refused until the budget is raised. Ask your budget "
        "administrator."
    )
    assert created(world, "team-b", manifest("without", plain())) == (0, [])


def test_a_namespace_that_is_watched_has_nothing_refused_and_reads_what_would_be(world: Registered) -> None:
    bad = manifest("bad", container(gpu_percent="150"), nodeSelector={"a": "b"})
    code, said = created(world, "watched", bad)
    good_code, told = created(world, "watched", manifest("good", half(), plain("bursar-sidecar")))

    assert (code, good_code) == (0, 0), told
    assert said[0] == (
        "Warning: The GPU request of this pod cannot be read; what it holds is charged as far as it is known."
    )
    assert said[1].startswith(
        "Warning: Observe mode: this would be refused: spec.containers[0].resources.limits["
    )
    assert len(said) == 2
    wanted = ("Namespace watched has used its GPU budget", "spec.containers[1].name: ")
    assert all(
        any(f"Observe mode: this would be refused: {each}" in line for line in told) for each in wanted
    )
    stored = world.get("/api/v1/namespaces/watched/pods/good")
    assert "labels" not in stored["metadata"]
    assert "initContainers" not in stored["spec"]


def test_a_namespace_that_is_watched_keeps_the_scheduler_that_ran_its_pods(world: Registered) -> None:
    """A node with NVIDIA's own plugin and without an inventory, where Bursar's scheduler finds no cards."""
    world.post("/api/v1/nodes", kwok_node("stock", capacity=nvidia_capacity(3)))
    world.cp.start_scheduler()
    given = {
        "defaulted": {},
        "explicit": {"schedulerName": "default-scheduler"},
        "foreign": {"schedulerName": "somebody"},
    }
    card = limits_of("main", nvidia_com__gpu="1")

    told = {name: created(world, "watched", manifest(name, card, **spec)) for name, spec in given.items()}
    enforced = created(world, "team-a", manifest("enforced", card, schedulerName="default-scheduler"))

    def pod(name: str, namespace: str = "watched") -> Json:
        return dict(world.get(f"/api/v1/namespaces/{namespace}/pods/{name}"))

    for name in ("defaulted", "explicit"):
        eventually(lambda name=name: pod(name)["spec"].get("nodeName") == "stock", "the pod's binding")  # type: ignore[misc]
        assert "labels" not in pod(name)["metadata"]
    assert [pod(name)["spec"]["schedulerName"] for name in given] == ["default-scheduler"] * 2 + ["somebody"]
    assert [line for line in told["foreign"][1] if "somebody" in line] == [
        'Warning: spec.schedulerName: only bursar-scheduler assigns cards, got "somebody"; would be replaced'
    ]
    assert not any("bursar-scheduler" in line for line in told["defaulted"][1] + told["explicit"][1])
    assert (enforced[0], pod("enforced", "team-a")["spec"]["schedulerName"]) == (0, "bursar-scheduler")


def test_an_exempt_service_account_is_warned_and_its_pod_governed(world: Registered) -> None:
    world.kubectl("create", "clusterrolebinding", "ci", "--clusterrole=edit", f"--user={RUNNER}")
    raw = manifest("by-ci", half(), hostPID=True)
    eventually(
        lambda: world.said("auth", "can-i", "create", "pods", "-n", "unsettled", f"--as={RUNNER}")[0] == 0,
        "the right to create pods",
    )

    refused, _ = created(world, "unsettled", raw)
    code, said = created(world, "unsettled", raw, f"--as={RUNNER}")

    assert refused != 0
    assert (code, said) == (
        0,
        [
            "Warning: spec.hostPID: it exposes the processes of other tenants of a card; admitted "
            "(you are exempt from this rule)"
        ],
    )
    stored = world.get("/api/v1/namespaces/unsettled/pods/by-ci")
    assert stored["metadata"]["annotations"]["bursar.dev/standing"] == "UNLIMITED"


def test_everything_that_can_be_wrong_at_once_stays_within_the_api_servers_limits(world: Registered) -> None:
    wrong = [container(f"c{number}", gpu_percent="150") for number in range(40)]

    code, said = created(world, "watched", manifest("everything", *wrong))

    assert code == 0
    assert len(said) > 10
    assert all(line.startswith("Warning: ") and len(line.encode()) <= len("Warning: ") + 256 for line in said)


def test_a_class_that_the_cluster_lacks_refuses_no_pod(world: Registered) -> None:
    lacking = {
        "inBudget": {"name": "gpu-default-priority", "value": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "overBudget": {"name": "typo", "value": None, "preemptionPolicy": None},
    }
    over = {"team_a": entry("OVER_BUDGET")}
    missing = 'Priority class "typo" does not exist in the cluster; it is not set.'
    raw = manifest("fresh", half())
    urgent = manifest("urgent", half(), priorityClassName="system-cluster-critical")
    world.timekeeper.document = standings({"priorityClasses": lacking}, revision="lacking", **over)
    try:
        eventually(
            lambda: missing in str(created(world, "team-a", raw, "--dry-run=server")),
            "the webhook to hear that the class is missing",
        )

        assert created(world, "team-a", raw) == (
            0,
            ["Warning: Namespace team-a has used its GPU budget.", f"Warning: {missing}"],
        )
        assert created(world, "team-a", urgent)[0] == 0
    finally:
        world.timekeeper.document = DOCUMENT

    specs = [world.get(f"/api/v1/namespaces/team-a/pods/{name}")["spec"] for name in ("fresh", "urgent")]
    assert [(each.get("priorityClassName"), each["priority"]) for each in specs] == [
        (None, 0),
        ("gpu-default-priority", 0),
    ]
