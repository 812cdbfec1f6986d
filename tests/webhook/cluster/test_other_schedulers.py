"""Pods that the schedulers of other systems place, on a real API server with webhook, policies, extender and
ledger: each scheduler is played by its account, with a Binding and what it writes on the pod."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from tests.scheduler_ext.processes import Process as Extender
from tests.support.control_plane import apply, apply_files, refused
from tests.support.simulated_timekeeper import entry, standings
from tests.support.waiting import eventually
from tests.timekeeper.processes import Process as Timekeeper
from tests.timekeeper.processes import prepared
from tests.webhook.clusters import MANIFESTS, Registered
from tests.webhook.process.test_audit import audit
from tests.webhook.worlds import half
from tests.worlds import Json, of_resources

PODS = "/api/v1/namespaces/team-a/pods"
POLICY = "'bursar-placed-by-others'"
KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
OURS = "system:serviceaccount:bursar-system:bursar-scheduler"
CLUSTERS = "system:kube-scheduler"
# by the vendors' documents, as pods request them
DEVICES = (
    *("amd.com/cpx_nps4", "amd.com/spx_nps1", "amd.com/gpu", "metax-tech.com/gpu", "mthreads.com/vgpu"),
    *("hygon.com/dcunum", "huawei.com/Ascend910", "huawei.com/Ascend310P-2c", "cambricon.com/mlu370"),
    *("google.com/tpu", "habana.ai/gaudi", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"),
    *(
        "nvidia.com/a100",
        "nvidia.com/RTX-4090",
        "nvidia.com/H100_94GB",
        "npu.intel.com/accel",
        "amd.com/MI300X",
    ),
)
# what vendors advertise beside them, or others under similar names
NEIGHBOURS = (
    *("nvidia.com/hostdev", "amd.com/nic", "intel.com/sriov", "qat.intel.com/generic"),
    *("hygon.com/dcumem", "huawei.com/Ascend910-memory", "huawei.com/roce", "vpc.amazonaws.com/efa"),
    *("google.com/tpus", "habana.ai/gaudinet", "example.com/gpu"),
    *("nvidia.com/bf3", "nvidia.com/a100-nic", "nvidia.com/a100-memory", "devices.kubevirt.io/kvm"),
)
GATE = {"name": "kueue.x-k8s.io/admission"}


@dataclass(frozen=True)
class Case:
    """A pod of one system. ``rate``: milli-GPU, by hand from the request and the node's cards."""

    node: str
    scheduler: str
    account: str
    rate: int
    limits: Json = field(default_factory=dict)
    annotations: Json = field(default_factory=dict)
    placed: Json = field(default_factory=dict)  # annotations that the account writes
    labels: Json = field(default_factory=dict)  # labels that it writes


KAI = "system:serviceaccount:kai-scheduler:binder"
DEVICE = '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"30"},"id":"GPU-1"}]}'
CASES = {
    "kai-fraction": Case(
        *("kai", "kai-scheduler", KAI, 500),  # 2 x 0.25
        annotations={"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"},
        placed={"received-resource-type": "Fraction"},
        labels={"runai-gpu-group/0-1": "0-1", "runai-gpu-group/0-2": "0-2"},
    ),
    "kai-memory": Case(
        *("kai", "kai-scheduler", KAI, 250),  # 10,000 of 40,000 MiB
        annotations={"gpu-memory": "10000"},
        placed={"received-resource-type": "Fraction"},
        labels={"runai-gpu-group": "0-1"},
    ),
    "koordinator": Case(
        *("koordinator", "koord-scheduler", "system:serviceaccount:koordinator-system:koord-scheduler"),
        500,  # 8 of 16 GiB is more than 30 per cent
        limits={"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "8Gi"},
        placed={"scheduling.koordinator.sh/device-allocated": DEVICE},
    ),
    "vgpu-manager": Case(
        *("vgpu", "vgpu-scheduler", "system:serviceaccount:kube-system:vgpu-manager-scheduler"),
        800,  # 2 x 40 per cent, which is more than 1500 of 15,000 MiB
        limits={
            "nvidia.com/vgpu-number": "2",
            "nvidia.com/vgpu-cores": "40",
            "nvidia.com/vgpu-memory": "1500",
        },
        placed={
            "nvidia.com/pre-allocated": "main[0_GPU-0_40_1500,1_GPU-1_40_1500]",
            "nvidia.com/predicate-node": "vgpu",
        },
        labels={"nvidia.com/assigned-phase": "allocating"},
    ),
    "volcano": Case(
        *("volcano", "volcano", "system:serviceaccount:volcano-system:volcano-scheduler", 2000),
        limits={"nvidia.com/gpu": "2"},
    ),
}
OF_OTHERS = [name for name, case in CASES.items() if case.placed]
GPUS = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "40000", "nvidia.com/gpu.product": "A100"}
KOORDINATOR = {
    "koordinator.sh/gpu": "200",
    "koordinator.sh/gpu-core": "200",
    "koordinator.sh/gpu-memory": "32Gi",
    "koordinator.sh/gpu-memory-ratio": "200",
}
REGISTERED = json.dumps(
    [{"id": n, "uuid": f"GPU-{n}", "type": "T4", "memory": 15_000, "healthy": True} for n in range(2)]
)


class World:
    """The cluster, and the ledger and the extender beside it."""

    def __init__(self, cluster: Registered, timekeeper: Timekeeper, extender: Extender) -> None:
        self.cluster, self.timekeeper, self.extender = cluster, timekeeper, extender

    def make(self, name: str, case: Case, **fields: Any) -> Json:
        """Creates the pod as its user does; it runs until `end`."""
        metadata = {"name": name, "annotations": case.annotations}
        spec = {
            "schedulerName": case.scheduler,
            "restartPolicy": "Never",
            "containers": [of_resources(case.limits)],
            **fields,
        }
        made: Json = self.cluster.post(PODS, {"metadata": metadata, "spec": spec})
        return made

    def end(self, name: str) -> None:
        """Its containers end by themselves, a second after their start or at once."""
        assert self.patched(name, "tess", annotations={"local.bursar.dev/run-for": "1s"}) == ""

    def get(self, name: str) -> Json:
        """The pod as it is."""
        found: Json = self.cluster.get(f"{PODS}/{name}")
        return found

    def patched(self, name: str, user: str, **metadata: Json) -> str:
        """What a change of the pod by this user is refused with; empty where it is not."""
        return self.changed(name, user, {"metadata": metadata})

    def changed(self, name: str, user: str, patch: Json) -> str:
        """The same for any change."""
        return refused(self.cluster.cp, "PATCH", f"{PODS}/{name}", patch, user)

    def bound(self, name: str, node: str, user: str, **metadata: Json) -> str:
        """What a Binding by this user is refused with; empty where it is not."""
        whole = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **metadata},
            "target": {"kind": "Node", "name": node},
        }
        return refused(self.cluster.cp, "POST", f"{PODS}/{name}/binding", whole, user)

    def sessions(self) -> dict[str, tuple[int, int, int | None]]:
        """Rate, amount and time of settlement of each pod's session."""
        with closing(sqlite3.connect(self.timekeeper.database)) as connection:
            rows = connection.execute(
                "SELECT sessions.name, sessions.rate_milli, COALESCE(SUM(amount), 0), settled_ms"
                " FROM sessions LEFT JOIN postings ON session_uid = uid GROUP BY uid"
            )
            return {name: (rate, amount, settled) for name, rate, amount, settled in rows}

    def closed(self) -> dict[str, str]:
        """Why each node is closed."""
        begin = "node is closed for sharing: "
        nodes = self.cluster.cp.api.call("GET", "/api/v1/nodes")["items"]
        refused = self.extender.dry_run(*(node["metadata"]["name"] for node in nodes))
        return {node: why.removeprefix(begin) for node, why in refused.items() if why.startswith(begin)}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Nodes of each system, a tenant, tess, who may change pods, and the accounts of the systems."""
    flag = "--other-schedulers=kai-scheduler,koord-scheduler,vgpu-scheduler,volcano"
    folder = tmp_path_factory.mktemp
    with ExitStack() as stack:
        made = stack.enter_context(Registered(control_plane, folder("webhook"), flag))
        settings = {"metadata": {"name": "bursar-budgets"}, "data": {"_settings": "settleAfter: 2s"}}
        made.post("/api/v1/namespaces/bursar-system/configmaps", settings)
        _nodes(made)
        _rights(made)
        apply_files(made.cp, sorted(MANIFESTS.glob("admission-*.yaml")))
        timekeeper = stack.enter_context(prepared(folder("timekeeper"), control_plane.admin_kubeconfig))
        timekeeper.start_ready()
        extender = Extender(folder("extender"), f"--kubeconfig={control_plane.admin_kubeconfig}")
        stack.callback(extender.kill)
        extender.start_ready()
        world = World(made, timekeeper, extender)
        world.make("probe", Case("", "", "", 0), containers=[half()])
        forged = {"received-resource-type": "x"}
        eventually(lambda: POLICY in world.patched("probe", "tess", annotations=forged), POLICY)
        yield world


def _nodes(made: Registered) -> None:
    vgpu = kwok_node("vgpu", capacity={"nvidia.com/vgpu-number": "20"})
    vgpu["metadata"]["annotations"]["nvidia.com/node-device-register"] = REGISTERED
    for node in (
        kwok_node("kai", cards=2, memory_mib=40_000, capacity=nvidia_capacity(2)),
        kwok_node("koordinator", capacity=KOORDINATOR),
        vgpu,
        kwok_node("volcano", labels=GPUS, capacity=nvidia_capacity(2)),
        kwok_node("ours", cards=1, memory_mib=16_000),
        kwok_node("amd", capacity={"amd.com/cpx_nps4": "8", "amd.com/spx_nps1": "4"}),
    ):
        made.post("/api/v1/nodes", node)


def _rights(made: Registered) -> None:
    account = "/api/v1/namespaces/team-a/serviceaccounts/default"
    eventually(lambda: made.cp.api.answers(account), "the namespace's account")
    resources, verbs = ["pods", "pods/status", "pods/binding"], ["get", "create", "update", "patch"]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "pods"},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": verbs}],
    }
    apply(made.cp, role)
    users = {"tess", KUEUE, OURS, CLUSTERS, *(case.account for case in CASES.values())}
    subjects = [f"--user={each}" for each in sorted(users)]
    made.kubectl("create", "clusterrolebinding", "pods", "--clusterrole=pods", *subjects)


def proved_ms(raw: Json) -> int:
    """How long the pod held its cards, by its own status: from its Binding to the end of its last
    container."""
    conditions = {each["type"]: each["lastTransitionTime"] for each in raw["status"]["conditions"]}
    statuses = (*raw["status"].get("initContainerStatuses", ()), *raw["status"]["containerStatuses"])
    ends = [datetime.fromisoformat(each["state"]["terminated"]["finishedAt"]) for each in statuses]
    held = max(ends) - datetime.fromisoformat(conditions["PodScheduled"])
    return round(1000 * held.total_seconds())


def test_their_pods_are_governed_placed_by_their_accounts_alone_and_charged(world: World) -> None:
    for name, case in CASES.items():
        made = world.make(name, case)
        assert made["metadata"]["labels"]["bursar.dev/governed"] == "true", name
        assert made["spec"]["schedulerName"] == case.scheduler
        assert made["spec"]["priorityClassName"] == "gpu-default-priority"
        assert [each["name"] for each in made["spec"]["initContainers"]] == ["bursar-sidecar"]
        assert "bursar.dev/gpu-placement" not in json.dumps(made)

    for name in OF_OTHERS:
        case = CASES[name]
        for annotation, value in case.placed.items():
            said = world.patched(name, "tess", annotations={annotation: value})
            assert POLICY in said, (name, annotation)
            assert f"metadata.annotations[{annotation}]: only the accounts of " in said
            assert POLICY in world.bound(name, case.node, "tess", annotations={annotation: value})
        for label, value in case.labels.items():
            assert POLICY in world.patched(name, "tess", labels={label: value}), (name, label)
        assert world.patched(name, case.account, annotations=case.placed, labels=case.labels) == ""
        assert POLICY in world.patched(name, "tess", annotations=dict.fromkeys(case.placed)), "removed"
        for label in case.labels:
            assert POLICY in world.patched(name, "tess", labels={label: None}), "removed"
        assert world.patched(name, "tess", annotations={"team.example/note": "x"}) == ""
    assert POLICY in world.patched("kai-fraction", "tess", annotations={"gpu-fraction": "0.01"})
    assert POLICY in world.patched("kai-fraction", KAI, annotations={"gpu-fraction": "0.01"})
    assert POLICY in world.patched(
        "koordinator", KAI, annotations=CASES["koordinator"].placed | {"a": "b"}
    ) or (
        world.get("koordinator")["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"]
        == DEVICE
    )
    assert world.sessions() == {}, "charged before a Binding"

    for name, case in CASES.items():
        assert world.bound(name, case.node, case.account) == ""
    eventually(lambda: world.sessions().keys() == CASES.keys(), "the sessions")
    assert {name: rate for name, (rate, _, _) in world.sessions().items()} == {
        name: case.rate for name, case in CASES.items()
    }
    eventually(
        lambda: world.closed() == {"kai": "a GPU pod was bound to it without a placement"},
        "the node of KAI to be closed",
    )
    for name in CASES:
        world.end(name)
    eventually(lambda: all(settled for _, _, settled in world.sessions().values()), "the settlement")
    assert {name: amount for name, (_, amount, _) in world.sessions().items()} == {
        name: case.rate * proved_ms(world.get(name)) for name, case in CASES.items()
    }


def test_the_binder_of_kai_names_cards_and_limits_to_the_runtimes_plugin_on_its_own_pods(
    world: World,
) -> None:
    """As KAI from 0.18 on does in its mode NvFractions."""
    asked, whole = {"gpu-fraction": "0.5"}, {"nvidia.com/gpu": "1"}
    world.make("fractioned", Case("kai", "kai-scheduler", KAI, 500, annotations=asked))
    world.make("ours", Case("ours", "bursar-scheduler", OURS, 500, limits={"bursar.dev/gpu-percent": "50"}))
    world.make("volcanos", Case("volcano", "volcano", KAI, 1_000, limits=whole))
    ends = {"gpus.devices": "GPU-1", "gpu-memory.request": "20000Mi", "gpu-compute.portion": "0.5"}
    written = {f"nvidia.com/container.main.{end}": value for end, value in ends.items()}
    once = "ValidatingAdmissionPolicy 'bursar-written-once'"

    for user in ("tess", KUEUE):
        assert once in world.patched("fractioned", user, annotations=written)
    # the API server names one of the two policies that refuse it to the extender
    assert "ValidatingAdmissionPolicy 'bursar-" in world.patched("fractioned", OURS, annotations=written)
    for other in ("ours", "volcanos"):
        assert once in world.patched(other, KAI, annotations=written)
    for beside in ("cdi.k8s.io/mine", "bursar.dev/devices", "kai.scheduler/container.main.x"):
        assert once in world.patched("fractioned", KAI, annotations={**written, beside: "x"})
    assert world.patched("fractioned", KAI, annotations=written) == ""
    assert written.items() <= world.get("fractioned")["metadata"]["annotations"].items()
    more = {"nvidia.com/container.main.gpu-memory.limit": "40000Mi"}
    assert once in world.patched("fractioned", "tess", annotations=more)
    assert once in world.patched("fractioned", "tess", annotations=dict.fromkeys(written))
    for name in ("fractioned", "ours", "volcanos"):
        world.cluster.cp.api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def test_what_kais_webhook_repeats_of_a_request_is_admitted_and_no_more(world: World) -> None:
    """In its mode NvFractions it says a pod's `gpu-memory` once more, as a quantity."""
    name = "nvidia.com/container.main.gpu-memory.request"

    def said(*more: tuple[str, str], memory: str = "2048", scheduler: str = "kai-scheduler") -> str:
        case = Case("kai", scheduler, KAI, 0, annotations={"gpu-memory": memory, **dict(more)})
        try:
            world.make("repeated", case)
        except ApiError as error:
            return str(error)
        world.cluster.cp.api.call("DELETE", f"{PODS}/repeated?gracePeriodSeconds=0")
        return ""

    assert said((name, "2Gi")) == said((name, "2048Mi")) == said((name, str(2048 << 20))) == ""
    for value in ("3Gi", "2048", "2G", "all", ""):
        assert f"metadata.annotations[{name}]" in said((name, value)), value
    assert f"metadata.annotations[{name}]" in said((name, "2Gi"), scheduler="default-scheduler")
    assert f"metadata.annotations[{name}]" in said((name, "2Gi"), memory="2048.0")
    for end in ("gpus.devices", "gpu-memory.limit", "gpu-compute.mode"):
        other = f"nvidia.com/container.main.{end}"
        assert f"metadata.annotations[{other}]" in said((name, "2Gi"), (other, "2Gi"))


def test_their_requests_are_free_names_on_all_other_pods(world: World) -> None:
    made = {
        "metadata": {"name": "unrelated", "annotations": {"gpu-memory": "1"}},
        "spec": {"containers": [of_resources({})]},
    }
    world.cluster.post(PODS, made)

    assert world.patched("unrelated", "tess", annotations={"gpu-memory": "2", "gpu-fraction": "x"}) == ""


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"received-resource-type": "Fraction"}},
        {"annotations": {"nvidia.com/real-allocated": "x"}},
        {"labels": {"runai-gpu-group/0-1": "0-1"}},
    ],
)
def test_a_pod_without_a_request_takes_no_placement_at_its_creation(world: World, metadata: Json) -> None:
    made = {"metadata": {"generateName": "posing-", **metadata}, "spec": {"containers": [of_resources({})]}}

    created = world.cluster.post(PODS, made)

    for place, written in metadata.items():
        assert not written.keys() & created["metadata"].get(place, {}).keys()


def test_a_pod_that_kueue_holds_is_admitted_and_is_charged_from_its_binding(world: World) -> None:
    card = json.loads(
        world.cluster.get("/api/v1/nodes/ours")["metadata"]["annotations"]["bursar.dev/inventory"]
    )
    given = {"uuid": card["cards"][0]["uuid"], "index": 0, "share_milli": 500, "memory_mib": 8000}
    devices = {"bursar.dev/devices": json.dumps({"version": 1, "containers": {"main": [given]}})}
    case = Case("ours", "default-scheduler", OURS, 500, limits={"bursar.dev/gpu-percent": "50"})

    made = world.make("held", case, schedulingGates=[GATE])
    assert made["spec"]["schedulerName"] == "bursar-scheduler"
    world.make("free", case)
    assert world.bound("free", "ours", OURS, annotations=devices) == ""
    eventually(lambda: "free" in world.sessions(), "the session of the other pod")
    assert "held" not in world.sessions()

    opened = {"spec": {"schedulingGates": None, "nodeSelector": {"kubernetes.io/hostname": "ours"}}}
    assert world.changed("held", KUEUE, opened) == ""
    assert world.bound("held", "ours", OURS, annotations=devices) == ""
    world.end("held")

    eventually(lambda: world.sessions().get("held", (0, 0, None))[2] is not None, "the settlement")
    rate, amount, _ = world.sessions()["held"]
    assert (rate, amount) == (500, 500 * proved_ms(world.get("held")))


def test_a_job_that_kueue_suspends_is_checked_at_its_creation(world: World) -> None:
    def said(limits: Json) -> str:
        template = {"spec": {"restartPolicy": "Never", "containers": [of_resources(limits)]}}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job", "namespace": "team-a", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "spec": {"suspend": True, "template": template},
        }
        return world.cluster.said("create", "--dry-run=server", "-f", "-", input=json.dumps(job))[1]

    assert "bursar.dev/gpu-percent" in said({"bursar.dev/gpu-percent": "150"})
    assert "bursar.dev" not in said({"bursar.dev/gpu-percent": "50"})


def asking(name: str, limits: Json, **spec: Any) -> Json:
    """A pod of the cluster's own scheduler, with these limits."""
    spec = {"restartPolicy": "Never", "containers": [of_resources(limits)], **spec}
    return {"metadata": {"name": name}, "spec": spec}


def refusal(world: World, pod: Json) -> str:
    """What the creation of the pod is refused with, where nothing is stored; empty where it is not."""
    try:
        world.cluster.post(f"{PODS}?dryRun=All", pod)
    except ApiError as error:
        return str(error)
    return ""


def admits(world: World, setting: str, governed: bool) -> None:
    """The standings say so; waits until the webhook has read it."""
    told = standings({"unknownAccelerators": setting}, revision=setting, team_a=entry("IN_BUDGET"))
    world.cluster.timekeeper.document = told
    pod = asking("probe-setting", {"google.com/tpu": "4"})

    def labels() -> Json:
        try:
            made: Json = world.cluster.post(f"{PODS}?dryRun=All", pod)
        except ApiError:
            return {"refused": ""}
        return dict(made["metadata"].get("labels", {}))

    wanted = {"bursar.dev/governed": "true"} if governed else {}
    eventually(lambda: labels() == wanted, setting)


def test_accelerators_that_no_dialect_reads_are_refused_metered_or_passed(world: World) -> None:
    for resource in DEVICES:
        said = refusal(world, asking("d", {resource: "2"}))
        assert f"spec.containers[0].resources.limits[{resource}]: no dialect reads {resource} (" in said
        assert "an administrator may set unknownAccelerators: meter, or pass" in said
        assert "ValidatingAdmissionPolicy" not in said
    for resource in NEIGHBOURS:
        made = world.cluster.post(f"{PODS}?dryRun=All", asking("n", {resource: "2"}))
        assert "labels" not in made["metadata"], resource

    admits(world, "pass", governed=False)
    free = world.cluster.post(PODS, asking("passed", {"amd.com/cpx_nps4": "2"}))
    assert "labels" not in free["metadata"]
    assert "initContainers" not in free["spec"]
    assert world.bound("passed", "amd", CLUSTERS) == ""
    volumes = [{"name": "v", "hostPath": {"path": "/dev"}}]
    assert "[host-path]" in refusal(world, asking("d", {"amd.com/cpx_nps4": "2"}, volumes=volumes))
    found = {each["name"]: each for each in audited(world, "pass") if each["finding"] == "accelerators"}
    assert found.keys() == {"passed", "amd"}

    admits(world, "meter", governed=True)
    limits = {"amd.com/cpx_nps4": "2", "cpu": "1"}
    made = world.cluster.post(PODS, asking("metered", limits))
    assert made["metadata"]["labels"] == {"bursar.dev/governed": "true"}
    assert made["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["priorityClassName"] == "gpu-default-priority"
    assert made["spec"]["containers"][0]["resources"]["limits"] == limits
    for wrong, path in (
        ({"amd.com/cpx_nps4": "0.5"}, "limits[amd.com/cpx_nps4]: not a whole number"),
        ({"amd.com/cpx_nps4": "1e9"}, "limits[amd.com/cpx_nps4]: more than any node has"),
        ({"amd.com/cpx_nps4": "1", "amd.com/spx_nps1": "1"}, "limits[amd.com/spx_nps1]: the container"),
        ({"google.com/tpu": "1", "nvidia.com/gpu": "1"}, "limits[google.com/tpu]: the pod requests cards"),
    ):
        assert f"spec.containers[0].resources.{path}" in refusal(world, asking("d", wrong))
    assert "metered" not in world.sessions(), "charged before its Binding"
    assert world.bound("metered", "amd", CLUSTERS) == ""
    eventually(lambda: world.sessions().get("metered", (0, 0, None))[0] == 250, "its session")  # two eighths
    admits(world, "pass", governed=False)  # it stays what it was
    world.end("metered")
    eventually(lambda: world.sessions()["metered"][2] is not None, "the settlement")
    assert world.sessions()["metered"][1] == 250 * proved_ms(world.get("metered"))
    assert "passed" not in world.sessions()
    assert "amd" not in world.closed()


def audited(world: World, setting: str) -> list[Json]:
    """The findings of the command on this cluster, by budgets with this setting."""
    settings = {"metadata": {"name": "bursar-settings"}, "kind": "ConfigMap", "apiVersion": "v1"}
    settings["data"] = {"_settings": f"unknownAccelerators: {setting}"}
    config = f"--kubeconfig={world.cluster.cp.admin_kubeconfig}"
    done = audit(config, "--output=json", "--budgets=-", input=json.dumps(settings))
    found: list[Json] = json.loads(done.stdout)["items"]
    return found
