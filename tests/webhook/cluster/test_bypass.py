"""Every way past a GPU request that docs/bypass.md tells, on a real API server with the policies and the
webhook: that it is closed, and that the nearest harmless thing is not."""

import copy
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import (
    Answer,
    apply,
    apply_files,
    bind_role,
    collection,
    create_namespace,
    refused,
)
from tests.support.profile import examples
from tests.support.waiting import eventually
from tests.webhook.cases import SUSPECT, WAYS, a_pod, mounting, told
from tests.webhook.clusters import MANIFESTS, Registered
from tests.webhook.servers import ROOT
from tests.webhook.worlds import env, half, plain
from tests.worlds import Json, container, limits_of
from timekeeper.core.admission.rules.denylist import names_devices, reaches_cards, reaches_node
from timekeeper.core.admission.rules.device_annotations import DEVICE_WORDS
from timekeeper.core.admission.rules.size import MAX_LETTERS, MAX_MEMBERS, MAX_MOUNT_LETTERS

pytestmark = pytest.mark.make_test("refuses it also while the webhook is down")

PAGE = ROOT / "docs" / "bypass.md"
VOID_FOR_EVERYONE = ROOT / "deploy" / "samples" / "void-for-everyone.yaml"
CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"
PODS = "/api/v1/namespaces/team-a/pods"
EXTENDER = "system:serviceaccount:bursar-system:bursar-scheduler"
PASSES = Answer("", [])
RIGHTS = (
    ("", "pods,bindings,pods/binding,namespaces", "get,create,update,patch"),
    ("", "pods/status,pods/ephemeralcontainers,pods/resize", "get,update,patch"),
)


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook registered, all policies in force, and a tenant named tess who may do far too much."""
    with Registered(control_plane, tmp_path_factory.mktemp("world")) as made:
        for name, labels in (("ops", {"bursar.dev/exempt": "true"}), ("gpu-operator", {})):
            made.cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        for name in ("team-a", "ops", "gpu-operator", "bursar-system", "bursar-node"):
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            eventually(lambda account=account: made.cp.api.answers(account), "the account")  # type: ignore[misc]
        made.post_runtime_classes()
        allow(made, "tess", *RIGHTS)
        apply_files(made.cp, sorted(MANIFESTS.glob("admission-*.yaml")))
        judged_classes(made)
        probes = [WAYS["the whole node"].bad, WAYS["a device class behind an extended resource"].bad]
        eventually(
            lambda: all("denied" in refusal(made, pod) for pod in probes), "the policies to be in force"
        )
        yield made


def judged_classes(world: Registered) -> None:
    """The parameters of the policies on device classes, as the certificate process would write them."""
    data = {"noGPUClasses": "rdma.example.com", "refusedResources": "acme.com/card"}
    world.patch(f"{CONFIG_MAPS}/bursar-device-classes", {"data": data})


def allow(world: Registered, user: str, *rights: tuple[str, str, str]) -> None:
    """Gives a user rights on groups, resources and verbs, in the whole cluster; the API server knows them."""
    rules = [
        {"apiGroups": [group], "resources": resources.split(","), "verbs": verbs.split(",")}
        for group, resources, verbs in rights
    ]
    role: Json = {"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "rules": rules}
    apply(world.cp, role | {"metadata": {"name": user}})
    bind_role(world.cp, user, user)
    for group, resources, verbs in rights:
        asked = {"group": group, "resource": resources.split(",")[0], "verb": verbs.split(",")[-1]}
        eventually(lambda asked=asked: may(world, user, asked), "the right")  # type: ignore[misc]


def may(world: Registered, user: str, asked: Json) -> bool:
    """Whether the API server lets a user do something in every namespace."""
    review = {"spec": {"user": user, "resourceAttributes": asked}}
    allowed = world.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]
    return bool(allowed)


def refusal(world: Registered, pod: Json, namespace: str = "team-a") -> str:
    """What the creation of a pod is refused with, where nothing is stored; empty where it is not."""
    return tried(world, pod, namespace).refusal


def tried(world: Registered, pod: Json, namespace: str = "team-a", user: str = "") -> Answer:
    """What is said to the creation of a pod, where nothing is stored."""
    return world.answer("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod, user)


def make(world: Registered, pod: Json, name: str, namespace: str = "team-a") -> None:
    """Creates a pod of this name."""
    named = copy.deepcopy(pod)
    named["metadata"]["name"] = name
    world.cp.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", named)


def stored(world: Registered, name: str, namespace: str = "team-a") -> Json:
    """A pod as the API server has it."""
    found: Json = world.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found


# pods that ask for a card


def test_no_image_of_a_tenant_runs_under_the_sidecars_name(world: Registered) -> None:
    make(world, a_pod(half("main")), "a-model")
    spec = stored(world, "a-model")["spec"]
    (sidecar,) = (each for each in spec["initContainers"] if each["name"] == "bursar-sidecar")
    volumes = [each for each in spec["volumes"] if each["name"].startswith("bursar-")]

    def copied(**changes: str) -> Json:
        return a_pod(half("main"), init=[sidecar | changes], volumes=volumes)

    make(world, copied(image="tenant.example/free:1"), "its-image")

    (own,) = stored(world, "its-image")["spec"]["initContainers"]
    assert (own["name"], own["image"]) == ("bursar-sidecar", sidecar["image"])
    assert refusal(world, copied()) == ""


# pods that ask for no card


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_a_card_without_a_request_is_refused_and_the_nearest_harmless_pod_is_not(
    world: Registered, way: str
) -> None:
    case = WAYS[way]

    said = refusal(world, case.bad)

    assert said.startswith('403: pods "p" is forbidden: ValidatingAdmissionPolicy \'bursar-')
    assert told(said) == {(case.rule, case.path)}
    assert refusal(world, case.good) == ""


def test_an_overhead_of_gpus_is_refused_beside_a_request_too_and_no_user_writes_another(
    world: Registered,
) -> None:
    said = refusal(world, a_pod(half("main"), runtimeClassName="heavy"))

    assert told(said) == {("overhead", "spec.overhead[nvidia.com/gpu]")}
    assert 'the overhead of RuntimeClass "heavy" takes GPUs' in said
    assert refusal(world, a_pod(half("main"), runtimeClassName="light")) == ""
    for runtime_class in ("light", "heavy"):
        own = a_pod(plain("main"), runtimeClassName=runtime_class, overhead={"memory": "1Mi"})
        assert "Pod's Overhead doesn't match RuntimeClass's" in refusal(world, own)


def test_every_way_in_one_pod_is_reported_at_once(world: Registered) -> None:
    pod = a_pod(
        plain("main", securityContext={"privileged": True}),
        hostPID=True,
        runtimeClassName="nvidia",
        annotations={"cdi.k8s.io/mine": "nvidia.com/gpu=all"},
        volumes=[{"name": "v", "hostPath": {"path": "/"}}],
    )

    assert {rule for rule, _ in told(refusal(world, pod))} == {
        "host-path",
        "privileged",
        "host-pid",
        "runtime-class",
        "device-annotation",
    }


@pytest.mark.parametrize("namespace", ["ops", "kube-system", "gpu-operator", "bursar-system", "bursar-node"])
def test_what_runs_the_nodes_is_left_alone(world: Registered, namespace: str) -> None:
    assert {way: refusal(world, case.bad, namespace) for way, case in WAYS.items()} == dict.fromkeys(WAYS, "")


def test_a_pod_of_a_controller_is_refused_where_its_owner_can_read_it(world: Registered) -> None:
    template = {"spec": a_pod(plain("main"), hostPID=True, restartPolicy="Never")["spec"]}
    job = {"metadata": {"name": "peek"}, "spec": {"template": template}}
    world.cp.api.call("POST", "/apis/batch/v1/namespaces/team-a/jobs", job)

    def events() -> list[str]:
        found = world.get("/api/v1/namespaces/team-a/events?fieldSelector=involvedObject.name%3Dpeek")
        return [each["message"] for each in found["items"]]

    eventually(lambda: any("[host-pid]" in each for each in events()), "the controller to tell")
    assert world.get("/api/v1/namespaces/team-a/pods?labelSelector=job-name%3Dpeek")["items"] == []


def test_a_mirror_of_a_static_pod_is_shown_for_the_pod_runs_anyway(world: Registered) -> None:
    pod = a_pod(plain("main"), hostPID=True, nodeName="n1") | {"metadata": {"name": "static-n1"}}
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    create = ("create", "--dry-run=server", "-n", "team-a", "-f", "-")
    node = world.cp.api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["uid"], "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]

    kubelet = ("--as=system:node:n1", "--as-group=system:nodes", "--as-group=system:authenticated")
    code, said = world.said(*create, *kubelet, input=json.dumps(pod))
    assert (code, said) == (0, "")
    del pod["metadata"]["ownerReferences"]
    assert "[host-pid]" in tried(world, pod, user="tess").refusal


def test_the_mirror_of_a_static_pod_with_a_gpu_is_admitted_as_it_is_from_its_own_kubelet_alone(
    world: Registered,
) -> None:
    """Without a kubelet: the API server is told who asks, and NodeRestriction judges it too."""
    node = world.cp.api.call("POST", "/api/v1/nodes", {"metadata": {"name": "gpu-1"}})["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": node["uid"], "controller": True}

    def made(user: str, *groups: str, **annotations: str) -> tuple[int, str, Json]:
        """The code, what the user reads, and the pod that would be stored."""
        asked = limits_of("main", nvidia_com__gpu="1")
        pod = a_pod(asked, nodeName="gpu-1", priorityClassName="system-node-critical")
        pod["metadata"] = {
            "name": "web-gpu-1",
            "annotations": {"kubernetes.io/config.mirror": "x"} | annotations,
        }
        if user.startswith("system:node:"):
            pod["metadata"]["ownerReferences"] = [owner]
        call = ("create", "--dry-run=server", "-o", "json", "-n", "team-a", "-f", "-", f"--as={user}")
        done = world.cp.kubectl(*call, *(f"--as-group={group}" for group in groups), input=json.dumps(pod))
        return done.returncode, done.stderr, json.loads(done.stdout or "{}")

    nodes = ("system:nodes", "system:authenticated")
    code, said, stored = made("system:node:gpu-1", *nodes)
    assert (code, said.count("This is the mirror of a static pod")) == (0, 1)
    assert [container["name"] for container in stored["spec"]["containers"]] == ["main"]
    assert "initContainers" not in stored["spec"]
    assert "labels" not in stored["metadata"]
    forged = {"bursar.dev/devices": "{}"}
    assert "only Bursar and node plugins write this" in made("system:node:gpu-1", *nodes, **forged)[1]
    assert "spec.nodeName" in made("tess", *nodes)[1]
    assert made("system:node:gpu-2", *nodes)[0] != 0


def test_a_path_with_a_line_break_is_refused_with_the_plain_sentence(world: Registered) -> None:
    said = refusal(world, mounting("/dev/nvidia0\n"))

    assert said.endswith(
        "denied request: spec: it gives access to GPUs that the pod does not request; "
        "allowed: a GPU request in resources.limits"
    )


def test_a_long_path_is_reported_in_short_and_nothing_is_left_out(world: Registered) -> None:
    said = refusal(world, mounting("/dev/nvidia0/" + "é" * 2_000))

    assert told(said) == {("host-path", "spec.volumes[v].hostPath.path")}
    assert len(said) < 600


def test_of_many_ways_the_first_are_reported(world: Registered) -> None:
    volumes = [{"name": f"v{n}", "hostPath": {"path": f"/dev/nvidia{n}"}} for n in range(200)]

    said = refusal(world, a_pod(plain("main"), volumes=volumes))

    assert (
        "denied request: spec.volumes[v0].hostPath.path: this path of the node gives access to its GPUs"
        in said
    )
    assert said.endswith("...")
    assert len(said) < 4096


def test_privileged_alone_is_reported_and_not_refused(world: Registered) -> None:
    pod = a_pod(plain("main", securityContext={"privileged": True}))

    refusal, (said,) = tried(world, pod)

    assert refusal == ""
    assert said.startswith("Validation failed for ValidatingAdmissionPolicy 'bursar-privileged'")
    assert (
        "spec.containers[main].securityContext.privileged: a privileged container can open every GPU" in said
    )
    assert tried(world, pod, "ops") == PASSES


@pytest.mark.parametrize(
    ("added", "is_reported"),
    [
        (["SYS_ADMIN"], True),
        (["net_admin", "sys_admin"], True),
        (["ALL"], True),
        (["NET_ADMIN", "SYS_PTRACE"], False),
    ],
)
def test_a_capability_that_opens_devices_is_reported_and_others_are_not(
    world: Registered, added: list[str], is_reported: bool
) -> None:
    """A process with SYS_ADMIN alone opened a device that its control group (v1) denied."""
    field = "spec.initContainers[first].securityContext.capabilities.add: with SYS_ADMIN"
    pod = a_pod(plain(), init=[plain("first", securityContext={"capabilities": {"add": added}})])

    assert (field in warned(world, pod)) == is_reported


def warned(world: Registered, pod: Json) -> str:
    """The warnings about the creation of a pod, where nothing is stored."""
    said = tried(world, pod)
    assert said.refusal == ""
    return "\n".join(said.warnings)


@pytest.fixture
def refusing(world: Registered, tmp_path: Path) -> Iterator[None]:
    """Policy bursar-node-access switched to refusing by the commands of the page, on a copy of its file."""
    commands = re.search(
        r"^(sed -i .* (\S*/admission-node-access\.yaml))\nkubectl (apply .*) \2$", PAGE.read_text(), re.M
    )
    assert commands, "the page has the commands"
    copied = tmp_path / commands[2]
    copied.parent.mkdir(parents=True)
    shutil.copy(ROOT / commands[2], copied)
    subprocess.run(shlex.split(commands[1]), cwd=tmp_path, check=True)
    world.kubectl(*shlex.split(commands[3]), str(copied))
    probe = next(iter(SUSPECT.values())).bad
    eventually(lambda: "[node-path]" in refusal(world, probe), "the binding to refuse")
    yield
    world.kubectl("apply", "--server-side", "-f", str(ROOT / commands[2]))
    eventually(lambda: not refusal(world, probe), "the binding to warn")


def test_paths_and_variables_of_the_node_are_warned_of_and_their_nearest_are_not(world: Registered) -> None:
    for way, case in SUSPECT.items():
        said = warned(world, case.bad)
        assert "ValidatingAdmissionPolicy 'bursar-node-access'" in said, way
        assert f"{case.path}: " in said
        assert f"[{case.rule}]" in said
        assert warned(world, case.good) == "", way


def test_switched_to_refusing_the_same_ways_are_refused_and_random_paths_as_python_judges_them(
    world: Registered, refusing: None
) -> None:
    for case in SUSPECT.values():
        assert told(refusal(world, case.bad)) == {(case.rule, case.path)}
        assert refusal(world, case.good) == ""

    @settings(max_examples=examples(60), deadline=None)
    @given(path=paths(NODE_NAMES))
    def judged_alike(path: str) -> None:
        rules = {
            rule
            for rule, reached in (("host-path", reaches_cards(path)), ("node-path", reaches_node(path)))
            if reached
        }
        assert judged(world, path) == rules

    judged_alike()
    assert debug_refused(world)


def debug_refused(world: Registered) -> bool:
    """Whether an ephemeral container with the variable is refused, and one with both variables is not."""
    make(world, a_pod(plain("main")), "old-image")
    both = [{"name": "CUDA_VERSION", "value": "12"}, {"name": VISIBLE, "value": "void"}]
    said = debug(world, "old-image", "old", env=both[:1]).refusal
    assert debug(world, "old-image", "both", env=both) == PASSES
    return told(said) == {("cuda-version", "spec.ephemeralContainers[old].env")}


NODE_NAMES = "sys SYS fs cgroup var lib kubelet pods Pods dev vfio 12 sysfs /"
HOST_NAMES = """dev nvidia nvidia0 nvidia-caps dri shm proc run var lib kubelet pods device-plugins etc cdi
    docker.sock kubernetes manifests containerd nvidia-container-devices usr local log nvi k3s 1 . .. /
    DEV Nvidia0 Proc VAR Run"""
MOUNT_NAMES = """var run nvidia-container-devices nvidia-container-devices. all . .. .. / Var RUN x
    Nvidia-Container-Devices"""


def paths(names: str) -> st.SearchStrategy[str]:
    """Paths of a few of these names, written in many ways."""
    return st.builds(
        lambda start, parts, end: start + "/".join(parts) + end,
        st.sampled_from(["", "/", "//", "/./", "/var/run/", "/run/"]),
        st.lists(st.sampled_from(names.split()), max_size=6),
        st.sampled_from(["", "/", "/.", "all"]),
    ).filter(bool)


@settings(max_examples=examples(100), deadline=None)
@given(path=paths(HOST_NAMES))
def test_random_host_paths_are_judged_as_python_judges_them(world: Registered, path: str) -> None:
    assert judged(world, path) == ({"host-path"} if reaches_cards(path) else set())


def judged(world: Registered, path: str) -> set[str]:
    """The rules that a host path breaks. Kubernetes itself refuses one with `..`, before policies are asked:
    then those that Python finds."""
    said = refusal(world, mounting(path))
    if ".." in path.split("/"):
        assert "must not contain '..'" in said
        return {"host-path"} if reaches_cards(path) else {"node-path"} if reaches_node(path) else set()
    assert {at for _, at in told(said)} <= {"spec.volumes[v].hostPath.path"}
    return {rule for rule, _ in told(said)}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/var/run/nvidia-container-devices/all", True),
        ("/run/nvidia-container-devices", True),
        ("//var/./run//./nvidia-container-devices/GPU-1", True),
        ("./var//run/nvidia-container-devices", True),
        ("/var/run/nvidia-container-devices.d", False),
        ("/srv/var/run/nvidia-container-devices", False),
        ("/var/run/NVIDIA-container-devices/all", False),
        ("/var/run/../run//nvidia-container-devices/", True),
        ("/var/run/../nvidia-container-devices.d/..", False),
    ],
)
def test_a_mount_is_known_however_it_is_written(world: Registered, path: str, names: bool) -> None:
    mount = {"name": "v", "mountPath": path}
    pod = a_pod(plain("main", volumeMounts=[mount]), volumes=[{"name": "v", "emptyDir": {}}])

    assert (bool(refusal(world, pod)), names_devices(path)) == (names, names)


@settings(max_examples=examples(80), deadline=None)
@given(path=paths(MOUNT_NAMES))
def test_random_mounts_are_judged_as_python_judges_them(world: Registered, path: str) -> None:
    mount = {"name": "v", "mountPath": path}
    pod = a_pod(plain("main", volumeMounts=[mount]), volumes=[{"name": "v", "emptyDir": {}}])

    assert told(refusal(world, pod)) == (
        {("device-mount", "spec.containers[main].volumeMounts")} if names_devices(path) else set()
    )


# variables

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_pod_that_requests_no_card_cannot_show_itself_all(world: Registered, field: str) -> None:
    def showing(value: str) -> Json:
        shown = plain("shows", env=[{"name": VISIBLE, "value": value}])
        return a_pod(shown) if field == "containers" else a_pod(plain(), init=[shown])

    for value in ("all", "0", "GPU-1"):
        said = refusal(world, showing(value))
        assert 'admission webhook "govern.bursar.dev" denied the request: ' in said
        assert f"spec.{field}[0].env[0]: the pod requests no GPU, so no GPU may be visible to it" in said
    assert {value: refusal(world, showing(value)) for value in ("void", "none", "")} == {
        "void": "",
        "none": "",
        "": "",
    }


def test_every_other_container_of_a_gpu_pod_sees_no_card_whatever_its_config_map_says(
    world: Registered,
) -> None:
    """What stands in `env` goes before `envFrom`, and both before the image's own."""
    source = {"configMapRef": {"name": "says-all"}}
    make(world, a_pod(half(), plain("proxy", envFrom=[source]), init=[plain("setup")]), "several")

    spec = stored(world, "several")["spec"]

    assert {
        each["name"]: env(each).get(VISIBLE) for each in (*spec["initContainers"], *spec["containers"])
    } == {
        "bursar-sidecar": "metadata.annotations['visible-devices.bursar.dev/bursar-sidecar']",
        "setup": "void",
        "main": "metadata.annotations['visible-devices.bursar.dev/main']",
        "proxy": "void",
    }


@pytest.fixture
def void_for_everyone(world: Registered) -> Iterator[None]:
    """The sample for nodes whose default runtime is NVIDIA's, in force; and a pod from before."""
    make(world, a_pod(plain()), "older")
    assert debug(world, "older", "earlier") == PASSES
    apply_files(world.cp, [VOID_FOR_EVERYONE])
    probe = a_pod(plain("probe"))

    def acts() -> bool:
        path = "/api/v1/namespaces/team-a/pods?dryRun=All"
        pod = world.cp.api.call("POST", path, probe)
        return env(pod["spec"]["containers"][0]) == {VISIBLE: "void"}

    eventually(acts, "the sample to act")
    yield
    for policy in yaml.safe_load_all(VOID_FOR_EVERYONE.read_text()):
        world.cp.api.call("DELETE", f"{collection(policy)}/{policy['metadata']['name']}")


def test_with_the_sample_for_it_no_image_shows_itself_cards_either(
    world: Registered, void_for_everyone: None
) -> None:
    variables = [{"name": "A", "value": "1"}, {"name": "A", "value": "$(B)"}]
    own = [{"name": VISIBLE, "value": "none"}]
    pod = a_pod(plain("bare"), plain("more", env=variables), plain("own", env=own), init=[plain("first")])
    make(world, pod, "everyone")
    for name in ("everyone", "older"):
        assert debug(world, name, "later") == PASSES
    make(world, a_pod(half(), plain()), "asks")
    make(world, a_pod(plain("bare")), "exempt", "ops")
    crowd = a_pod(*(plain(f"c{number}", env=variables) for number in range(500)))
    assert refusal(world, crowd) == ""

    spec = stored(world, "everyone")["spec"]
    assert [each.get("env") for each in spec["containers"]] == [
        [{"name": VISIBLE, "value": "void"}],
        [*variables, {"name": VISIBLE, "value": "void"}],
        own,
    ]
    for each in (*spec["initContainers"], *spec["ephemeralContainers"]):
        assert each["env"] == [{"name": VISIBLE, "value": "void"}]
    later, earlier = stored(world, "older")["spec"]["ephemeralContainers"]
    assert (env(later), env(earlier)) == ({VISIBLE: "void"}, {})
    main, web = stored(world, "asks")["spec"]["containers"]
    assert env(main)[VISIBLE] == "metadata.annotations['visible-devices.bursar.dev/main']"
    assert env(web) == {VISIBLE: "void"}
    assert "env" not in stored(world, "exempt", "ops")["spec"]["containers"][0]


# ephemeral containers


def debug(world: Registered, pod: str, name: str, namespace: str = "team-a", **fields: Any) -> Answer:
    """Adds an ephemeral container, as `kubectl debug` does."""
    container = {"name": name, "image": "registry.example/cuda:1"} | fields
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/ephemeralcontainers"
    return world.answer("PATCH", path, {"spec": {"ephemeralContainers": [container]}})


def test_an_ephemeral_container_of_a_gpu_pod_sees_no_card_though_its_image_requests_all(
    world: Registered,
) -> None:
    make(world, a_pod(half()), "debugged")

    assert debug(world, "debugged", "bare") == PASSES
    assert debug(world, "debugged", "more", env=[{"name": "A", "value": "b"}]) == PASSES

    added = stored(world, "debugged")["spec"]["ephemeralContainers"]
    assert {each["name"]: env(each) for each in added} == {
        "bare": {"NVIDIA_VISIBLE_DEVICES": "void"},
        "more": {"A": "b", "NVIDIA_VISIBLE_DEVICES": "void"},
    }


def test_an_ephemeral_container_of_a_gpu_pod_is_neither_privileged_nor_shown_cards(world: Registered) -> None:
    make(world, a_pod(half()), "debugged-hard")
    shown = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

    for name, fields, path in (
        ("a", {"env": shown}, "spec.ephemeralContainers[0].env[NVIDIA_VISIBLE_DEVICES]: "),
        (
            "b",
            {"securityContext": {"privileged": True}},
            "spec.ephemeralContainers[0].securityContext.privileged: ",
        ),
    ):
        assert path in debug(world, "debugged-hard", name, **fields).refusal

    assert debug(world, "debugged-hard", "c", securityContext={"privileged": False}) == PASSES


def test_an_ephemeral_container_opens_no_device_that_an_ordinary_pod_has_mounted(world: Registered) -> None:
    make(world, mounting("/dev/fuse"), "fuse")

    said = debug(world, "fuse", "root", securityContext={"privileged": True})

    assert told(said.refusal) == {("privileged", "spec.ephemeralContainers[root].securityContext.privileged")}
    assert debug(world, "fuse", "user") == PASSES


PRIVILEGED_CARDS = ".securityContext.privileged: a privileged container can open every card of its node"
# of a copy, whose containers kubectl has share their processes
SHARES_PROCESSES = (
    "Warning: spec.shareProcessNamespace: containers that wait for all processes, or end them, meet ours, so"
    " the pod gets no sidecar, and the kubelet's timestamps charge it.\n"
)
# what the container is refused with that a profile of `kubectl debug` adds to a GPU pod, or to a copy of it
PROFILES = {
    **dict.fromkeys(("general", "baseline", "restricted", "netadmin"), ""),
    "sysadmin": PRIVILEGED_CARDS,
}


@pytest.mark.parametrize("profile", PROFILES)
def test_kubectl_debug_shows_no_cards_and_its_copy_of_a_gpu_pod_is_charged(
    world: Registered, profile: str
) -> None:
    pod, copied = f"debug-{profile}", f"copy-{profile}"
    make(world, a_pod(half(), plain("web")), pod)
    command = ("debug", pod, "-n", "team-a", "--image=registry.example/cuda:1", f"--profile={profile}")

    said = [world.said(*command, "--container=shell", *flags) for flags in ((), (f"--copy-to={copied}",))]

    if refused := PROFILES[profile]:
        assert [(code, refused in text) for code, text in said] == [(1, True), (1, True)]
        return
    assert said == [(0, ""), (0, SHARES_PROCESSES)]
    (added,) = stored(world, pod)["spec"]["ephemeralContainers"]
    assert env(added) == {VISIBLE: "void"}
    second = stored(world, copied)
    assert {each["name"]: env(each)[VISIBLE] for each in second["spec"]["containers"]} == {
        "main": "metadata.annotations['visible-devices.bursar.dev/main']",
        "web": "void",
        "shell": "void",
    }
    assert second["metadata"]["labels"] == {"bursar.dev/governed": "true"}
    request, standing = (
        second["metadata"]["annotations"][f"bursar.dev/{name}"] for name in ("request", "standing")
    )
    assert (list(json.loads(request)), standing) == (["main"], "IN_BUDGET")


def test_kubectl_debug_copies_no_gpu_pod_to_the_node_where_it_runs(world: Registered) -> None:
    make(world, a_pod(half()), "bound")
    binding = {"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n1"}}
    world.cp.api.call("POST", "/api/v1/namespaces/team-a/pods/bound/binding", binding)
    command = ("debug", "bound", "-n", "team-a", "--image=registry.example/cuda:1", "--profile=general")

    code, said = world.said(*command, "--copy-to=beside", "--same-node")

    assert code == 1
    assert "spec.nodeName: a GPU pod that names its node bypasses the scheduler" in said
    assert world.said(*command, "--copy-to=elsewhere") == (0, SHARES_PROCESSES)
    assert "nodeName" not in stored(world, "elsewhere")["spec"]


def test_what_was_there_before_forbids_no_debugging(world: Registered) -> None:
    create_namespace(world.cp, "was-exempt", **{"bursar.dev/exempt": "true"})
    make(world, mounting("/dev/fuse", privileged=True) | {"metadata": {}}, "old", "was-exempt")
    assert debug(world, "old", "root", "was-exempt", securityContext={"privileged": True}) == PASSES
    world.patch("/api/v1/namespaces/was-exempt", labels({"bursar.dev/exempt": None}))

    def refused_now() -> bool:
        return debug(world, "old", "again", "was-exempt", securityContext={"privileged": True}) != PASSES

    eventually(refused_now, "the namespace to be governed")
    assert debug(world, "old", "plain", "was-exempt") == PASSES
    world.patch("/api/v1/namespaces/was-exempt/pods/old", annotations({"note": "x"}))


# what is there stays as it is


def test_a_request_cannot_be_taken_away_or_changed(world: Registered) -> None:
    limits = {"cpu": "1", "bursar.dev/gpu-percent": "50"}
    make(world, a_pod({"name": "main", "image": "x", "resources": {"limits": limits}}), "keeps")

    def patched(resources: Json, subresource: str = "") -> str:
        patch = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        return refused(world.cp, "PATCH", f"{PODS}/keeps/{subresource}", patch)

    for amount in (None, "10", "100"):
        changed = {key: {"bursar.dev/gpu-percent": amount} for key in ("limits", "requests")}
        for subresource in ("", "resize"):
            said = patched(changed, subresource)
            assert "Forbidden" in said, (amount, subresource)
    assert patched({"limits": {"cpu": "2"}}, "resize") == ""
    kept = stored(world, "keeps")["spec"]["containers"][0]["resources"]["limits"]
    assert kept == {"cpu": "2", "bursar.dev/gpu-percent": "50"}


CHANGES: dict[str, Json] = {
    "a standing": {"annotations": {"bursar.dev/standing": "UNLIMITED"}},
    "a request": {"annotations": {"bursar.dev/request": "{}"}},
    "cards": {"annotations": {"visible-devices.bursar.dev/main": "GPU-0,GPU-1"}},
    "more memory of its card": {"annotations": {"mps-memory.bursar.dev/main": "0=80000M"}},
    "more compute of its card": {"annotations": {"mps-threads.bursar.dev/main": "100"}},
    "a placement": {"annotations": {"bursar.dev/devices": "{}"}},
    "what gpu-manager reads": {"annotations": {"tencent.com/predicate-gpu-idx-0": "0"}},
    "devices for the container runtime": {"annotations": {"cdi.k8s.io/mine": "nvidia.com/gpu=all"}},
    "devices for a plugin of the runtime": {
        "annotations": {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}
    },
    "cards for KAI's plugin of the runtime": {
        "annotations": {"nvidia.com/container.main.gpus.devices": "all"}
    },
    "the mark of a governed pod": {"labels": {"bursar.dev/governed": "false"}},
}


@pytest.mark.parametrize("subresource", ["", "status", "ephemeralcontainers", "resize"])
@pytest.mark.parametrize("change", CHANGES)
def test_marks_stay_as_they_are_by_whichever_way_they_are_written(
    world: Registered, change: str, subresource: str
) -> None:
    """Some subresources drop such a change in silence, the others are kept from it by the policy."""
    name = f"marked-{subresource or 'whole'}"
    path = f"/api/v1/namespaces/team-a/pods/{name}"
    if not world.cp.api.answers(path):
        make(world, a_pod(half()), name)
    before = stored(world, name)["metadata"]

    said = refused(world.cp, "PATCH", f"{path}/{subresource}", {"metadata": CHANGES[change]}, "tess")

    after = stored(world, name)["metadata"]
    assert (after["annotations"], after["labels"]) == (before["annotations"], before["labels"])
    if subresource in ("", "status"):
        assert "ValidatingAdmissionPolicy 'bursar-written-once'" in said


def test_a_pod_behind_a_gate_of_its_own_names_no_devices_meanwhile(world: Registered) -> None:
    make(world, a_pod(plain(), schedulingGates=[{"name": "example.com/mine"}]), "gated")

    def annotated(**added: str) -> str:
        return refused(world.cp, "PATCH", f"{PODS}/gated", annotations(added), "tess")

    said = annotated(**{"cdi.k8s.io/mine": "nvidia.com/gpu=all"})

    assert (
        "metadata.annotations[cdi.k8s.io/mine]: this was set when the pod was created and bound, "
        "and must not change" in said
    )
    assert annotated(**{"nvidia.com/container.main.gpus.devices": "all"})
    assert annotated(**{"example.com/mine": "x", "nvidia.com/containers": "x"}) == ""
    world.patch(f"{PODS}/gated", {"spec": {"schedulingGates": None}})


def test_no_annotation_shows_a_container_more_cards_than_its_request_pays(world: Registered) -> None:
    """What KAI's plugin of the runtime, NVIDIA's and containerd's read, beside a request of 1 %."""
    asks = container("main", gpu_percent="1")
    for word in DEVICE_WORDS:
        key = f"{word}main.gpus.devices" if word[-1] == "." else word
        said = refusal(world, a_pod(asks, annotations={key: "all"}))
        assert f"metadata.annotations[{key}]: the container runtime, or a plugin of it, reads devices" in said
    assert refusal(world, a_pod(asks, annotations={"nvidia.com/containers": "all"})) == ""


def test_the_webhook_refuses_devices_without_a_request_while_the_policy_only_warns(world: Registered) -> None:
    bad = a_pod(plain("main"), annotations={"nvidia.com/container.main.gpus.devices": "all"})
    binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/bursar-ways-around"
    world.patch(binding, {"spec": {"validationActions": ["Warn", "Audit"]}})
    try:
        eventually(lambda: "check.bursar.dev" in refusal(world, bad), "the policy to warn")
        assert "metadata.annotations[nvidia.com/container.main.gpus.devices]" in refusal(world, bad)
        assert refusal(world, a_pod(plain("main"), annotations={"nvidia.com/containers": "all"})) == ""
    finally:
        world.patch(binding, {"spec": {"validationActions": ["Deny"]}})
        eventually(lambda: "ValidatingAdmissionPolicy" in refusal(world, bad), "the policy to refuse")


# bindings


def binding(pod: str, **metadata: Json) -> Json:
    """A Binding to a node that does not exist."""
    target = {"kind": "Node", "name": "nowhere"}
    whole: Json = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod} | metadata,
        "target": target,
    }
    return whole


def bound(world: Registered, whole: Json, user: str, legacy: bool = False) -> str:
    """Sends a Binding as a user, by its pod or the old way: what it is refused with, or nothing."""
    pod = whole["metadata"]["name"]
    path = "/api/v1/namespaces/team-a/" + ("bindings" if legacy else f"pods/{pod}/binding")
    return refused(world.cp, "POST", path, whole, user)


@pytest.mark.parametrize("legacy", [False, True], ids=["pods/binding", "bindings"])
def test_cards_come_with_the_extenders_binding_and_no_one_elses(world: Registered, legacy: bool) -> None:
    suffix = "legacy" if legacy else "new"
    if not world.cp.api.answers(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{EXTENDER}"):
        allow(world, EXTENDER, ("", "bindings,pods/binding", "create"))
    make(world, a_pod(half()), f"bound-{suffix}")
    make(world, a_pod(half()), f"free-{suffix}")
    cards = {"visible-devices.bursar.dev/main": "GPU-0", "bursar.dev/devices": "{}"}

    for written, path, rule in (
        ({"annotations": {"visible-devices.bursar.dev/main": "GPU-0"}}, "annotations", "forged-annotation"),
        ({"annotations": {"mps-memory.bursar.dev/main": "0=80000M"}}, "annotations", "forged-annotation"),
        ({"annotations": {"mps-threads.bursar.dev/main": "100"}}, "annotations", "forged-annotation"),
        ({"labels": {"mps-threads.bursar.dev/main": "100"}}, "labels", "forged-label"),
        ({"annotations": {"tencent.com/predicate-gpu-idx-0": "0"}}, "annotations", "forged-annotation"),
        ({"annotations": {"tencent.com/gpu-assigned": "true"}}, "annotations", "forged-annotation"),
        ({"annotations": {"cdi.k8s.io/mine": "nvidia.com/gpu=all"}}, "annotations", "forged-annotation"),
        ({"annotations": {"devices.gke.io/container.main": "all"}}, "annotations", "forged-annotation"),
        (
            {"annotations": {"nvidia.com/container.main.gpus.devices": "all"}},
            "annotations",
            "forged-annotation",
        ),
        ({"labels": {"bursar.dev/governed": "false"}}, "labels", "forged-label"),
    ):
        (key,) = next(iter(written.values()))
        said = bound(world, binding(f"bound-{suffix}", **written), "tess", legacy)
        assert told(said) == {(rule, f"metadata.{path}[{key}]")}

    assert bound(world, binding(f"bound-{suffix}", annotations=cards), EXTENDER, legacy) == ""
    assert stored(world, f"bound-{suffix}")["metadata"]["annotations"].items() >= cards.items()
    assert bound(world, binding(f"free-{suffix}", annotations={"note": "x"}), "tess", legacy) == ""


# exemption


def labels(changed: dict[str, str | None]) -> Json:
    """A patch of an object's labels; None takes one away."""
    return {"metadata": {"labels": changed}}


def annotations(changed: dict[str, str]) -> Json:
    """A patch of an object's annotations."""
    return {"metadata": {"annotations": changed}}


def labelled(world: Registered, namespace: str, user: str, **changed: str | None) -> str:
    """What a change of a namespace's labels of ours, or of another's, ``app``, is refused with."""
    keys = {key if key == "app" else f"bursar.dev/{key}": value for key, value in changed.items()}
    return refused(world.cp, "PATCH", f"/api/v1/namespaces/{namespace}", labels(keys), user)


def test_only_who_has_the_right_takes_a_namespace_out(world: Registered) -> None:
    world.post("/api/v1/namespaces", {"metadata": {"name": "mine"}})
    exempt = {"metadata": {"name": "mine-too", "labels": {"bursar.dev/exempt": "true"}}}

    said = labelled(world, "mine", "tess", exempt="true")

    assert "metadata.labels[bursar.dev/exempt]: this label exempts the namespace from GPU budgets" in said
    assert "[exemption]" in refused(world.cp, "POST", "/api/v1/namespaces", exempt, "tess")
    assert labelled(world, "mine", "tess", app="x", exempt="false") == ""
    assert labelled(world, "mine", "", exempt="true") == ""
    assert labelled(world, "mine", "tess", app="y") == ""
    allow(world, "olga", ("bursar.dev", "exemptions", "create"), ("", "namespaces", "get,create,patch"))
    assert refused(world.cp, "POST", "/api/v1/namespaces", exempt, "olga") == ""


def test_an_exempt_namespace_meets_neither_webhook_nor_policy(world: Registered) -> None:
    before = world.reviews("mutate")

    make(world, a_pod(half()), "own-affair", "ops")

    pod = stored(world, "own-affair", "ops")
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert "labels" not in pod["metadata"]
    assert world.reviews("mutate") == before
    assert (
        refusal(world, a_pod(half() | {"resources": {"limits": {"bursar.dev/gpu-percent": "150"}}}), "ops")
        == ""
    )
    world.patch("/api/v1/namespaces/ops/pods/own-affair", annotations({"ALIYUN_COM_GPU_MEM_IDX": "1"}))


# modes


def test_only_who_has_the_right_changes_the_mode_of_a_namespace(world: Registered) -> None:
    world.post("/api/v1/namespaces", {"metadata": {"name": "ours"}})

    said = labelled(world, "ours", "tess", mode="meter")
    assert "metadata.labels[bursar.dev/mode]: this label decides whether GPU budgets are enforced" in said
    said = labelled(world, "ours", "", mode="off")
    assert 'this is no mode, got "off"; allowed: enforce, observe, meter, or no such label' in said
    assert labelled(world, "ours", "", mode="meter") == ""
    assert labelled(world, "ours", "tess", app="y") == ""
    assert "[mode]" in labelled(world, "ours", "tess", mode=None)
    allow(world, "moira", ("bursar.dev", "modes", "create"), ("", "namespaces", "get,create,patch"))
    assert labelled(world, "ours", "moira", mode=None) == ""


def test_policies_refuse_warn_or_say_nothing_by_the_mode_and_guard_our_fields_in_each(
    world: Registered,
) -> None:
    modes = {"watched": "observe", "free": "meter"}
    for name in modes:
        create_namespace(world.cp, name)
    for name in ("bursar-modes", "bursar-modes-observed"):
        world.patch(f"{CONFIG_MAPS}/{name}", {"data": modes})
    bad = WAYS["the whole node"].bad

    eventually(
        lambda: not any(refusal(world, bad, namespace) for namespace in modes), "the modes to be followed"
    )
    assert " denied request: " in refusal(world, bad)
    (warning,) = tried(world, bad, "watched").warnings
    assert warning.startswith("Validation failed for ValidatingAdmissionPolicy 'bursar-ways-around'")
    assert tried(world, bad, "free") == PASSES
    for namespace in modes:
        make(world, a_pod({"name": "c", "image": "x"}), "own", namespace)
        path = f"/api/v1/namespaces/{namespace}/pods/own"
        said = refused(world.cp, "PATCH", path, annotations({"bursar.dev/standing": "IN_BUDGET"}))
        assert "ValidatingAdmissionPolicy 'bursar-written-once'" in said


# the page


def test_every_policy_and_rule_of_the_policies_is_on_the_page_and_no_other() -> None:
    page = PAGE.read_text()
    documents = [
        document
        for file in sorted(MANIFESTS.glob("admission-*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
    ]
    names = {each["metadata"]["name"] for each in documents if each["kind"] == "ValidatingAdmissionPolicy"}
    texts = [
        (MANIFESTS / f"admission-{name}.yaml").read_text()
        for name in ("bypass", "claims", "modes", "node-access", "grace", "sizes", "updates")
    ]
    text = "".join(texts)
    rules = set(re.findall(r"[^:] \[([a-z-]+)\]['\n]", text))

    assert set(re.findall(r"`(bursar-[a-z-]+)`", page)) & names == names
    assert {rule for rule in rules if f"`{rule}`" not in page} == set()
    assert rules == {case.rule for case in (*WAYS.values(), *SUSPECT.values())} | {
        *("forged-annotation", "forged-label", "exemption", "mode"),
        *("grace-period", "pod-parts", "pod-size", "sidecar-name"),
        *("claim-finalizer", "claim-toleration", "budget-spent", "host-share"),
    }


# within the API server's limit on cost

LONGEST = 253 + 1 + 63  # letters of a name


def named(count: int, domain: int = 253) -> dict[str, str]:
    """So many names of the longest form, without values. ``domain``: letters before the slash."""
    return {f"{'x' * domain}/{number:n>63}": "" for number in range(count)}


def of_names(field: str, count: int) -> Json:
    """A pod with so many annotations or labels."""
    pod = a_pod(plain())
    pod["metadata"][field] = named(count)
    return pod


def of_resources(count: int) -> Json:
    """A pod whose limits, and its requests, are so many resources of the longest names."""
    amounts = dict.fromkeys(named(count, 244), "1")
    return a_pod({**plain(), "resources": {"limits": amounts, "requests": amounts}})


def of_paths(count: int, begins: str) -> Json:
    """A pod with so many volumes of host paths that begin so."""
    paths = (f"{begins}/{number:03}" for number in range(count))
    volumes = [{"name": f"v{number}", "hostPath": {"path": path}} for number, path in enumerate(paths)]
    return a_pod(plain(), volumes=volumes)


def of_mounts(count: int) -> Json:
    """A pod with so many mounts with paths of a hundred letters."""
    mounts = [{"name": "data", "mountPath": f"/{number:x>99}"} for number in range(count)]
    return a_pod(plain(volumeMounts=mounts), volumes=[{"name": "data", "emptyDir": {}}])


# what there is so much of -> the largest number that is allowed, and the pod with so many
CROWDS: dict[str, tuple[int, Callable[[int], Json]]] = {
    "annotations": (MAX_LETTERS // (LONGEST + 10), partial(of_names, "annotations")),
    "labels": (MAX_LETTERS // (LONGEST + 10), partial(of_names, "labels")),
    "resources": (MAX_LETTERS // (LONGEST - 9 + 10) // 2, of_resources),
    "short host paths": (MAX_LETTERS // 40, lambda count: of_paths(count, "/srv/a")),
    "deep host paths": (MAX_LETTERS // 1034, lambda count: of_paths(count, "/a" * 500)),
    "mounts": (MAX_MOUNT_LETTERS // 100 - 1, of_mounts),  # the API server has added the token's
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_what_is_allowed_is_within_the_cost_and_what_is_not_gets_our_sentence(
    world: Registered, crowd: str
) -> None:
    most, made = CROWDS[crowd]

    eventually(lambda: "[pod-parts]" in refusal(world, made(most + 1)), "the sizes to be in force")
    assert refusal(world, made(most)) == ""
    assert "[pod-parts]" in refusal(world, made(3 * most))


def test_all_that_is_allowed_together_is_within_the_cost(world: Registered) -> None:
    """A third of the letters each for annotations, labels and host paths, and all variables and mounts."""
    third = MAX_LETTERS // 3
    pod = of_paths(third // 40, "/srv/a")
    names = named(third // (LONGEST + 10))
    pod["metadata"] |= {"annotations": names, "labels": names}
    mounts = [
        {"name": "v1", "mountPath": f"/{number:x>99}"} for number in range(MAX_MOUNT_LETTERS // 100 - 1)
    ]
    variables = [{"name": f"V{number}", "value": ""} for number in range(MAX_MEMBERS - len(mounts) - 1)]
    pod["spec"]["containers"] = [plain(env=variables, volumeMounts=mounts)]

    assert refusal(world, pod) == ""
