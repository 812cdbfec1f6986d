"""GPUs by DeviceClasses, on a real API server with the policies and the certificate process, which has the
rights of the manifests: a class counts by the driver that it requires."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import apply_files, collection
from tests.support.waiting import eventually
from tests.webhook.cases import a_pod, told
from tests.webhook.clusters import MANIFESTS, Cluster
from tests.webhook.replicas import Certificates
from tests.webhook.worlds import plain
from tests.worlds import Json

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PARAMETERS = "/api/v1/namespaces/bursar-system/configmaps/bursar-device-classes"
EXPLICIT = "deviceclass.resource.kubernetes.io/"
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
        flags = ("--every", "1")
        return Certificates(self.cp, self._folder, "one", *flags, kubeconfig=kubeconfig)

    def device_class(self, name: str, driver: str, resource: str = "") -> None:
        """Creates a class of this driver."""
        spec: Json = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        spec |= {"extendedResourceName": resource} if resource else {}
        self.cp.api.call("POST", CLASSES, {"metadata": {"name": name}, "spec": spec})

    def set(self, **data: str) -> None:
        """Writes settings, as an administrator does."""
        self.patch(PARAMETERS, {"data": data})

    def says(self, whole: Json) -> str:
        """What is said to the creation of an object, where nothing is stored: why not, or the warnings."""
        refusal, warnings = self.answer("POST", f"{collection(whole, 'team-a')}?dryRun=All", whole)
        return refusal + "".join(warnings)

    def pods(self, resource: str) -> str:
        """The same of a pod with this limit."""
        limited = {"name": "main", "image": "x", "resources": {"limits": {resource: "1"}}}
        return self.says(a_pod(limited))


def claim(*classes: str, kind: str = "ResourceClaim") -> Json:
    """A ResourceClaim, or a template of one, on these classes."""
    requests: list[Json] = [
        {"name": f"r{number}", "exactly": {"deviceClassName": each}} for number, each in enumerate(classes)
    ]
    spec: Json = {"devices": {"requests": requests}}
    whole: Json = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"generateName": "c-"}}
    return whole | {"spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Entered once the policies know the classes."""
    made = World(control_plane, tmp_path_factory.mktemp("world"))
    with made.process:
        eventually(lambda: told(made.pods("acme.com/card")), "the policy on limits")
        yield made


def test_a_limit_passes_unless_a_class_that_may_be_of_gpus_serves_it_and_the_webhook_sees_no_such_pod(
    world: World,
) -> None:
    limits = {("device-claim", "spec.containers[main].resources.limits")}

    assert told(world.pods("acme.com/card")) == limits
    for name in (
        "acme.com/nic",
        f"{EXPLICIT}gpu-nic",
        f"{EXPLICIT}h100",
        "example.com/fpga",
        "nvidia.com/gpu",
    ):
        assert world.pods(name) == "", name


def test_claims_of_any_class_are_created_for_their_pods_are_judged(world: World) -> None:
    for kind in ("ResourceClaim", "ResourceClaimTemplate"):
        for name in ("h100", "unknown", "nowhere", "gpu-nic"):
            assert world.says(claim(name, kind=kind)) == "", (kind, name)


def test_classes_and_settings_are_followed_and_a_class_without_judgement_is_reported(world: World) -> None:
    world.device_class("latest", "new.example.com", "acme.com/new")
    log = world.process.log

    eventually(lambda: told(world.pods("acme.com/new")), "its extended resource to be refused")
    assert (
        'event=device-class-not-judged device_class=latest reason="driver new.example.com is not known"'
        in log()
    )
    assert "latest: driver new.example.com is not known" in world.get(PARAMETERS)["data"]["notJudged"]
    world.set(noGPUDrivers="nic.example.com new.example.com", otherNoGPUClasses="H100")
    eventually(lambda: world.pods("acme.com/new") == "", "its extended resource to pass")
    assert "event=setting-not-valid field=bursar-device-classes.data.otherNoGPUClasses got=H100 " in log()
    world.set(noGPUDrivers="nic.example.com", unknownClasses="allow")
    eventually(lambda: told(world.pods("acme.com/new")), "its extended resource to be refused again")
    assert 'data.unknownClasses got=allow allowed="deny or free"' in log()
    world.set(unknownClasses="free")
    eventually(lambda: world.pods("acme.com/new") == "", "its extended resource to be free")


def test_without_parameters_every_pod_passes_and_the_process_writes_them_again(world: World) -> None:
    world.process.process.kill()
    world.process.process.wait()
    world.cp.api.call("DELETE", PARAMETERS)

    eventually(lambda: world.pods("acme.com/card") == "", "the policy to have none")

    assert world.says(a_pod(plain("main"))) == ""
    with world.process:
        eventually(lambda: world.cp.api.answers(PARAMETERS), "the parameters to be written again")
        eventually(lambda: told(world.pods("acme.com/card")), "the policy to know them")
