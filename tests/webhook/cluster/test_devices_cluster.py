"""What each container of a pod is told of cards and limits, on a real API server: by what the webhook wrote,
what the Binding wrote after it, and what nobody can write in between.

The kubelet fills variables from the pod's annotations each time it starts a container; here that is done by
hand, from the pod as the API server has it.
"""

import copy
from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import apply, apply_files, bind_role, refused
from tests.support.waiting import eventually
from tests.webhook.clusters import MANIFESTS, Registered
from tests.webhook.worlds import half, plain
from tests.worlds import Json, container, limits_of, pod

POLICY, BINDINGS = "'bursar-written-once'", "'bursar-bindings'"
EXTENDER = "system:serviceaccount:bursar-system:bursar-scheduler"
CARDS = {
    "visible-devices.bursar.dev/main": "GPU-1,GPU-2",
    "visible-devices.bursar.dev/prepare": "GPU-3",
    "visible-devices.bursar.dev/helper": "GPU-2",
    "visible-devices.bursar.dev/bursar-sidecar": "GPU-1,GPU-2,GPU-3",
}
LIMITS = {
    "mps-memory.bursar.dev/main": "0=8000M,1=8000M",
    "mps-threads.bursar.dev/main": "50",
    "mps-memory.bursar.dev/prepare": "0=16000M",
    "mps-threads.bursar.dev/prepare": "100",
    "mps-memory.bursar.dev/helper": "0=1024M",
    "mps-threads.bursar.dev/helper": "10",
}
WRITTEN = CARDS | LIMITS | {"bursar.dev/devices": "{}"}


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """A cluster whose nodes run MPS, with the policies on what is written once and on Bindings; a tenant,
    tess, who may do far too much with pods, and the extender's account."""
    flags = ("--mps", "on", "--mps-pipe-directory", "/run/nvidia-mps")
    with Registered(control_plane, tmp_path_factory.mktemp("world"), *flags) as made:
        account = "/api/v1/namespaces/team-a/serviceaccounts/default"
        eventually(lambda: made.cp.api.answers(account), "the account")
        may = {
            "apiGroups": [""],
            "resources": ["pods", "pods/status", "pods/binding"],
            "verbs": ["get", "create", "update", "patch"],
        }
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [may]}
        apply(made.cp, role | {"metadata": {"name": "pods"}})
        bind_role(made.cp, "pods", "tess", EXTENDER)
        files = [MANIFESTS / f"admission-{name}.yaml" for name in ("modes", "policies", "bypass")]
        apply_files(made.cp, files)
        probe = make(made, "probe", half())
        eventually(lambda: POLICY in edited(made, probe, {"bursar.dev/standing": "x"}, try_only=True), POLICY)
        forged = {"bursar.dev/devices": "{}"}
        eventually(lambda: BINDINGS in binds(made, probe, forged, "tess", try_only=True), BINDINGS)
        yield made


def make(world: Registered, name: str, *containers: Json, **fields: object) -> str:
    """Creates a pod of these containers in team-a."""
    raw = pod(*copy.deepcopy(containers), **fields)  # type: ignore[arg-type]
    raw["metadata"] = {"name": name}
    del raw["status"]
    world.cp.api.call("POST", "/api/v1/namespaces/team-a/pods", raw)
    return name


def stored(world: Registered, name: str) -> Json:
    """A pod as the API server has it."""
    found: Json = world.get(f"/api/v1/namespaces/team-a/pods/{name}")
    return found


def binds(
    world: Registered, name: str, annotations: Json, user: str = EXTENDER, try_only: bool = False
) -> str:
    """Binds a pod to some node: what that is refused with, or nothing."""
    whole = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations},
        "target": {"kind": "Node", "name": "nowhere"},
    }
    path = f"/api/v1/namespaces/team-a/pods/{name}/binding" + ("?dryRun=All" if try_only else "")
    return refused(world.cp, "POST", path, whole, user)


def edited(world: Registered, name: str, annotations: Json, try_only: bool = False) -> str:
    """A tenant's change of a pod's annotations: what that is refused with, or nothing."""
    path = f"/api/v1/namespaces/team-a/pods/{name}" + ("?dryRun=All" if try_only else "")
    return refused(world.cp, "PATCH", path, {"metadata": {"annotations": annotations}}, "tess")


def started(raw: Json, name: str) -> dict[str, str]:
    """The variables on cards and limits with which the kubelet starts a container of the pod now; one that is
    read from an annotation that is not there is set and empty."""
    both = [*raw["spec"].get("initContainers", []), *raw["spec"]["containers"]]
    (found,) = (each for each in both if each["name"] == name)
    variables = {}
    for each in found.get("env", []):
        value = each.get("value", "")
        if "valueFrom" in each:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            key = path.removeprefix("metadata.annotations['").removesuffix("']")
            value = raw["metadata"].get("annotations", {}).get(key, "")
        if each["name"] == "NVIDIA_VISIBLE_DEVICES" or each["name"].startswith("CUDA_MPS_"):
            variables[each["name"]] = value
    return variables


def told(cards: str, memory: str, threads: str) -> dict[str, str]:
    """The variables of a GPU container."""
    return {
        "NVIDIA_VISIBLE_DEVICES": cards,
        "CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
    }


def make_each_kind(world: Registered, name: str) -> str:
    """A pod with a GPU container of each kind and a container without cards."""
    main = container("main", gpu_percent="100", gpu_count="2")
    init = [container("prepare", gpu_count="1"), container("helper", gpu_percent="10")]
    init[1]["restartPolicy"] = "Always"
    return make(world, name, main, plain("web"), init=init)


def test_each_container_is_started_with_its_own_cards_and_limits(world: Registered) -> None:
    name = make_each_kind(world, "whole")

    assert binds(world, name, WRITTEN) == ""

    bound = stored(world, name)
    assert started(bound, "main") == told("GPU-1,GPU-2", "0=8000M,1=8000M", "50")
    assert started(bound, "prepare") == told("GPU-3", "0=16000M", "100")
    assert started(bound, "helper") == told("GPU-2", "0=1024M", "10")
    assert started(bound, "web") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert started(bound, "bursar-sidecar") == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2,GPU-3"}


def test_a_pod_that_starts_without_a_placement_is_shown_no_card(world: Registered) -> None:
    name = make_each_kind(world, "unplaced")

    assert binds(world, name, {"note": "another scheduler's"}, "tess") == ""

    bound = stored(world, name)
    for each in ("main", "prepare", "helper"):
        assert started(bound, each) == told("", "", "")
    assert started(bound, "bursar-sidecar") == {"NVIDIA_VISIBLE_DEVICES": ""}
    assert started(bound, "web") == {"NVIDIA_VISIBLE_DEVICES": "void"}


CHANGES: dict[str, Json] = {
    "more cards": {"visible-devices.bursar.dev/main": "all"},
    "the cards of another container": {"visible-devices.bursar.dev/web": "GPU-1"},
    "more memory": {"mps-memory.bursar.dev/main": "0=80000M,1=80000M"},
    "no limit of memory": {"mps-memory.bursar.dev/main": None},
    "more compute": {"mps-threads.bursar.dev/helper": "100"},
    "a placement": {"bursar.dev/devices": None},
    "devices for the runtime": {"cdi.k8s.io/mine": "nvidia.com/gpu=all"},
}


@pytest.fixture(scope="module")
def bound_pod(world: Registered) -> str:
    """A pod that is bound."""
    name = make_each_kind(world, "bound")
    assert binds(world, name, WRITTEN) == ""
    return name


@pytest.mark.parametrize("change", CHANGES)
def test_no_later_edit_reaches_a_container_that_is_started_again(
    world: Registered, bound_pod: str, change: str
) -> None:
    (key,) = CHANGES[change]

    said = edited(world, bound_pod, CHANGES[change])

    assert f"ValidatingAdmissionPolicy {POLICY}" in said
    assert f"metadata.annotations[{key}]: this was set when the pod was created and bound" in said
    again = stored(world, bound_pod)
    assert again["metadata"]["annotations"].items() >= WRITTEN.items()
    assert started(again, "main") == told("GPU-1,GPU-2", "0=8000M,1=8000M", "50")
    assert started(again, "helper") == told("GPU-2", "0=1024M", "10")


@pytest.mark.parametrize("key", WRITTEN)
def test_only_the_extender_binds_with_cards_or_limits(world: Registered, key: str) -> None:
    if not world.cp.api.answers("/api/v1/namespaces/team-a/pods/waits"):
        make_each_kind(world, "waits")

    said = binds(world, "waits", {key: "forged"}, "tess")

    assert f"metadata.annotations[{key}]" in said
    assert "[forged-annotation]" in said


@pytest.mark.parametrize("key", WRITTEN)
def test_no_user_creates_a_pod_with_cards_or_limits(world: Registered, key: str) -> None:
    raw = {"metadata": {"name": "forged", "annotations": {key: "forged"}}, "spec": pod(half())["spec"]}

    made = world.cp.api.call("POST", "/api/v1/namespaces/team-a/pods?dryRun=All", raw)

    assert key not in made["metadata"]["annotations"]


def test_a_pod_in_gpu_managers_dialect_is_left_to_gpu_manager(world: Registered) -> None:
    asks = limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="32")

    name = make(world, "driven", asks)

    assert started(stored(world, name), "main") == {"NVIDIA_VISIBLE_DEVICES": ""}
