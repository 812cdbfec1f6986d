"""GPUs by DeviceClasses, on a real API server with the policies and the certificate process, which has the
rights of the manifests: a class counts by the driver that it requires."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.kwok_nodes import kwok_node
from deploy.local.tools import KUBERNETES
from tests.support.control_plane import apply_files
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.webhook.cases import a_pod, told
from tests.webhook.clusters import MANIFESTS, Cluster
from tests.webhook.replicas import Certificates
from tests.webhook.worlds import plain
from tests.worlds import Json

pytestmark = pytest.mark.kubernetes("1.34")

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PARAMETERS = "/api/v1/namespaces/bursar-system/configmaps/bursar-device-classes"
SCHEDULER = "system:kube-scheduler"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
# name, driver, extended resource
GIVEN = (
    ("h100", "gpu.nvidia.com", ""),
    ("card", "gpu.nvidia.com", "acme.com/card"),
    ("whole", "gpu.nvidia.com", "nvidia.com/gpu"),
    ("gpu-nic", "nic.example.com", "acme.com/nic"),
    ("unknown", "other.example.com", ""),
)


class World(Cluster):
    """All policies in force, the DeviceClasses, and the certificate process, which follows them."""

    def __init__(self, cp: ControlPlane, folder: Path) -> None:
        super().__init__(cp)
        self._folder = folder
        apply_files(cp, [MANIFESTS / "rbac.yaml", *sorted(MANIFESTS.glob("admission-*.yaml"))])
        for name, driver, resource in GIVEN:
            self.device_class(name, driver, resource)
        self.set(noGPUDrivers="nic.example.com")
        account = "/api/v1/namespaces/team-a/serviceaccounts/default"
        eventually(lambda: cp.api.answers(account), "the account")
        self.process = self._certificates()

    def _certificates(self) -> Certificates:
        """The certificate process, as its service account."""
        token = self.kubectl("create", "token", "bursar-certificates", "-n", "bursar-system").strip()
        kubeconfig = self.cp.kubeconfig(token, "certificates")
        flags = ("--every", "1", "--configuration", "zz-bursar")
        return Certificates(self.cp, self._folder, "one", *flags, kubeconfig=kubeconfig)

    def device_class(self, name: str, driver: str, resource: str = "") -> None:
        """Creates a class of this driver."""
        spec: Json = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        spec |= {"extendedResourceName": resource} if resource else {}
        self.cp.api.call("POST", CLASSES, {"metadata": {"name": name}, "spec": spec})

    def node(self, name: str, *drivers: str) -> None:
        """A node with four devices of each driver."""
        kwok = kwok_node(name)
        self.cp.api.call("POST", "/api/v1/nodes", kwok)
        for driver in drivers:
            spec: Json = {
                "driver": driver,
                "nodeName": name,
                "devices": [{"name": f"d{n}"} for n in range(4)],
            }
            spec["pool"] = {"name": name, "generation": 1, "resourceSliceCount": 1}
            body = {"metadata": {"name": f"{name}-{driver}"}, "spec": spec}
            self.cp.api.call("POST", "/apis/resource.k8s.io/v1/resourceslices", body)

    def set(self, **data: str) -> None:
        """Writes settings, as an administrator does."""
        patch = ("patch", "configmap", "bursar-device-classes", "-n", "bursar-system", "--type=merge", "-p")
        self.kubectl(*patch, json.dumps({"data": data}))

    def claims(self, whole: Json, *flags: str) -> str:
        """What kubectl says about the creation of a claim, where nothing is stored."""
        create = ("create", "-n", "team-a", "--dry-run=server", "-f", "-", *flags)
        return self.said(*create, input=json.dumps(whole))[1]

    def pods(self, resource: str) -> str:
        """What kubectl says about the creation of a pod with this limit, where nothing is stored."""
        limited = {"name": "main", "image": "x", "resources": {"limits": {resource: "1"}}}
        return self.claims(a_pod(limited))


def claim(
    *classes: str, kind: str = "ResourceClaim", first_of: tuple[str, ...] = (), made: bool = False
) -> Json:
    """A ResourceClaim, or a template of one, on these classes. ``made``: with kube-scheduler's mark."""
    requests: list[Json] = [
        {"name": f"r{number}", "exactly": {"deviceClassName": each}} for number, each in enumerate(classes)
    ]
    if first_of:
        several = [{"name": f"s{n}", "deviceClassName": each} for n, each in enumerate(first_of)]
        requests.append({"name": "either", "firstAvailable": several})
    spec: Json = {"devices": {"requests": requests}}
    metadata: Json = {"generateName": "c-"} | ({"annotations": {EXTENDED: "true"}} if made else {})
    whole: Json = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata}
    return whole | {"spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec}


@pytest.fixture(scope="module")
def control_plane(lender: Lender) -> Iterator[ControlPlane]:
    """With extended resources of DeviceClasses, which 1.34 and 1.35 have behind a feature gate."""
    is_gated = KUBERNETES.series < (1, 36)
    own = ControlPlane(Options(api_flags=("--feature-gates=DRAExtendedResource=true",)))
    with own if is_gated else lender.lent() as cp:
        yield cp


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Entered once the policies know the classes."""
    made = World(control_plane, tmp_path_factory.mktemp("world"))
    with made.process:
        eventually(lambda: made.claims(claim("gpu-nic")) == "", "the parameters")
        eventually(lambda: told(made.pods("acme.com/card")), "the policy on limits")
        yield made


@pytest.mark.parametrize(
    ("kind", "at"),
    [("ResourceClaim", "spec.devices.requests"), ("ResourceClaimTemplate", "spec.spec.devices.requests")],
)
def test_a_claim_passes_for_a_class_that_is_listed_as_no_gpu_and_for_no_other(
    world: World, kind: str, at: str
) -> None:
    for name in ("h100", "card", "whole", "unknown", "nowhere"):
        assert told(world.claims(claim("gpu-nic", name, kind=kind))) == {("device-claim", f"{at}[r1]")}, name
    either = claim(kind=kind, first_of=("gpu-nic", "h100"))
    assert told(world.claims(either)) == {("device-claim", f"{at}[either]")}
    assert world.claims(claim("gpu-nic", kind=kind, first_of=("gpu-nic", "gpu-nic"))) == ""


def test_a_limit_passes_unless_a_class_that_may_be_of_gpus_stands_behind_it(world: World) -> None:
    limits = {("device-claim", "spec.containers[main].resources.limits")}
    prefix = "deviceclass.resource.kubernetes.io/"

    assert {
        name: told(world.pods(name)) for name in ("acme.com/card", f"{prefix}h100", f"{prefix}unknown")
    } == {
        "acme.com/card": limits,
        f"{prefix}h100": limits,
        f"{prefix}unknown": limits,
    }
    for name in ("acme.com/nic", f"{prefix}gpu-nic", "example.com/fpga"):
        assert world.pods(name) == "", name


def test_the_claim_that_the_scheduler_makes_passes_for_a_charged_resource_and_for_no_other(
    world: World,
) -> None:
    scheduler = f"--as={SCHEDULER}"

    assert world.claims(claim("whole", made=True), scheduler) == ""
    assert told(world.claims(claim("card", made=True), scheduler)) != set()
    assert told(world.claims(claim("whole"), scheduler)) != set()
    world.kubectl("create", "clusterrolebinding", "tess", "--clusterrole=cluster-admin", "--user=tess")
    assert told(world.claims(claim("whole", made=True), "--as=tess")) != set()


def test_classes_and_settings_are_followed_and_a_class_without_judgement_is_reported(world: World) -> None:
    world.device_class("later", "nic.example.com")
    world.device_class("latest", "new.example.com", "acme.com/new")
    log = world.process.log

    eventually(lambda: world.claims(claim("later")) == "", "the class to be listed")
    eventually(lambda: told(world.pods("acme.com/new")), "its extended resource to be refused")
    assert (
        'event=device-class-not-judged device_class=latest reason="driver new.example.com is not known"'
        in log()
    )
    assert "latest: driver new.example.com is not known" in world.get(PARAMETERS)["data"]["notJudged"]
    world.set(noGPUDrivers="nic.example.com new.example.com", otherNoGPUClasses="H100")
    eventually(lambda: world.claims(claim("latest")) == "", "the driver to be listed")
    eventually(lambda: world.pods("acme.com/new") == "", "its extended resource to pass")
    assert "event=setting-not-valid field=bursar-device-classes.data.otherNoGPUClasses got=H100 " in log()
    world.cp.api.call("DELETE", f"{CLASSES}/latest")
    eventually(lambda: told(world.claims(claim("latest"))), "the class to be gone")


@pytest.mark.kubernetes("1.36")  # kube-scheduler, too, has the gate before it
def test_the_scheduler_gets_no_gpu_for_a_class_that_the_process_has_not_seen_yet(world: World) -> None:
    world.process.process.kill()
    world.process.process.wait()
    world.device_class("fresh", "gpu.nvidia.com", "acme.com/fresh")
    world.node("n1", "gpu.nvidia.com", "nic.example.com")
    for name in ("fresh", "nic"):
        limited = {"name": "main", "image": "x", "resources": {"limits": {f"acme.com/{name}": "1"}}}
        pod = a_pod(limited) | {"metadata": {"name": name}}
        world.cp.api.call("POST", "/api/v1/namespaces/team-a/pods", pod)

    world.cp.start_scheduler()

    pods = "/api/v1/namespaces/team-a/pods"
    eventually(lambda: world.get(f"{pods}/nic")["spec"].get("nodeName") == "n1", "the neighbour to be bound")
    eventually(
        lambda: "[device-claim]" in str(world.get(f"{pods}/fresh")["status"]), "its claim to be refused"
    )
    assert "nodeName" not in world.get(f"{pods}/fresh")["spec"]
    claims = world.get("/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims")["items"]
    assert [each["metadata"]["ownerReferences"][0]["name"] for each in claims] == ["nic"]


def test_without_parameters_no_claim_passes_and_every_other_pod_does_and_the_process_writes_them_again(
    world: World,
) -> None:
    world.process.process.kill()
    world.process.process.wait()
    world.cp.api.call("DELETE", PARAMETERS)

    eventually(lambda: "no params found" in world.claims(claim("gpu-nic")), "the policy to have none")

    assert world.claims(a_pod(plain("main"))) == ""
    assert world.pods("example.com/fpga") == ""
    assert "no params found" in world.claims(claim("whole", made=True), f"--as={SCHEDULER}")
    with world.process:
        eventually(
            lambda: world.cp.api.answers(PARAMETERS), "the parameters to be written again", within_s=60
        )
        refused = {("device-claim", "spec.devices.requests[r0]")}  # the setting is gone too
        eventually(lambda: told(world.claims(claim("gpu-nic"))) == refused, "the policy to know them")
