"""Cards enter containers by NRI, on the real containerd: each opens the cards of its placement alone.

The device nodes have the numbers of NVIDIA's driver, which this machine lacks. So to open one fails with
ENXIO where the kernel's device cgroup allows it, and with EPERM where it does not.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from deploy.local.cleanup import FOLDER
from deploy.local.real_node import CDI, STATIC_PODS
from tests.kubelet import agents
from tests.kubelet.agents import Agent
from tests.kubelet.plugins import RESOURCE, device_plugin
from tests.kubelet.worlds import CARDS, NAMESPACE, PODS, Json, World, container, gpu_pod, state
from tests.support.profile import examples

REFUSED = "the sandbox names a placement, but the API server has no such pod"
LOOK_S = 2.5  # the agent looks each second
# Makes each device node itself, as root may, and prints the cards that the kernel lets it open. It leaves the
# same for the kubelet: what a container prints while containerd is dead is lost if it ends then.
OPENS = """
import errno, os, time
found = []
for number in range(4):
    path = f"/tmp/card{number}"
    os.mknod(path, 0o666 | 0o020000, os.makedev(195, number))
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        if error.errno == errno.ENXIO:
            found.append(number)
        elif error.errno != errno.EPERM:
            print("unexpected", error)
nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
told = f"opens {found} has {nodes}"
print(told, flush=True)
with open("/dev/termination-log", "w") as file:
    file.write(told)
"""


@pytest.fixture(scope="module")
def nri(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """The chart's agent for nodes without NVIDIA's runtime, once it answers the container runtime."""
    folder = tmp_path_factory.mktemp("nvml")
    with agents.with_driver() as by, agents.running_on(world, folder, by) as agent:
        world.until("the agent to answer the runtime", lambda: nri_of(agent).get("plugins") == ["bursar"])
        yield agent


def nri_of(agent: Agent) -> Json:
    """What the inventory says of NRI."""
    told: Json = json.loads(agent.annotation("inventory") or "{}").get("nri", {})
    return told


def opened(world: World, name: str, which: str = "main") -> str:
    """What the container printed."""
    lines = world.node.output(world.ended(name), which)
    return next(line for line in lines if line.startswith("opens"))


def number_of(world: World, name: str, which: str = "main") -> list[int]:
    """The numbers of the cards in the placement."""
    annotations = world.pod(name)["metadata"].get("annotations", {})
    placed = json.loads(annotations.get("bursar.dev/devices", '{"containers": {}}'))
    return sorted(CARDS.index(each["uuid"]) for each in placed["containers"].get(which, []))


def specify(*devices: tuple[str, int]) -> None:
    """A CDI specification of these cards: name, and number of the device node."""
    listed = [
        {"name": name, "containerEdits": {"deviceNodes": [node(f"/dev/nvidia{number}", number)]}}
        for name, number in devices
    ]
    common = {"env": ["BY=cdi"], "deviceNodes": [node("/dev/nvidiactl", 255)]}
    whole = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": listed, "containerEdits": common}
    fresh = CDI / "nvidia.new"
    fresh.write_text(yaml.safe_dump(whole))
    os.replace(fresh, CDI / "nvidia.yaml")


def node(path: str, minor: int) -> Json:
    """A device node in a specification, which needs no file on this machine."""
    return {"path": path, "hostPath": path, "type": "c", "major": agents.DRIVERS_MAJOR, "minor": minor}


@pytest.fixture
def by_cdi(world: World, nri: Agent) -> Iterator[None]:
    """A specification names the first card by UUID, and the second by its index."""
    specify((CARDS[0], 0), ("1", 1))
    time.sleep(LOOK_S)
    yield
    (CDI / "nvidia.yaml").unlink()
    time.sleep(LOOK_S)


def test_the_agent_reads_the_drivers_library_from_the_folder_that_the_chart_names(
    world: World, nri: Agent
) -> None:
    (pod,) = agents.running(world)
    maps = Path(f"/proc/{world.pid(pod, 'agent')}/maps").read_text()
    libraries = {line.split()[-1] for line in maps.splitlines() if "libnvidia-ml" in line}

    assert libraries == {"/host/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}


def test_each_container_opens_the_cards_of_its_placement_by_device_nodes(world: World, nri: Agent) -> None:
    world.create(gpu_pod("half", container("main", OPENS, gpu_percent="50"), container("none", OPENS)))
    world.create(gpu_pod("whole", container("main", OPENS, gpu_count="1")))

    for name in ("half", "whole"):
        world.ended(name)
        (card,) = number_of(world, name)
        assert opened(world, name) == f"opens [{card}] has ['nvidia{card}', 'nvidiactl']"
    assert opened(world, "half", "none") == "opens [] has []"
    assert nri_of(nri) == {"plugins": ["bursar"], "enforced": True}


def test_a_specification_gives_the_card_that_it_names_by_uuid_or_index(
    world: World, nri: Agent, by_cdi: None
) -> None:
    shows = OPENS + "\nprint('by', os.environ.get('BY'))"
    for name in ("first", "second"):
        world.create(gpu_pod(name, container("main", shows, gpu_count="1")))
        said = opened(world, name)
        (card,) = number_of(world, name)
        assert said == f"opens [{card}] has ['nvidia{card}', 'nvidiactl']"
        assert "by cdi" in world.node.output(world.pod(name), "main")
    world.delete("first", "second")
    world.create(gpu_pod("both", container("main", shows, gpu_count="2")))
    assert opened(world, "both") == "opens [0, 1] has ['nvidia0', 'nvidia1', 'nvidiactl']"


def test_without_the_agent_no_container_of_a_pod_with_cards_is_made_until_it_is_back(
    world: World, nri: Agent
) -> None:
    world.stack.cp.api.call("DELETE", f"{agents.DAEMONSETS}/bursar-node")
    try:
        world.until("the agent to be gone", lambda: not agents.running(world))
        world.create(gpu_pod("waits", container("main", OPENS, gpu_percent="50"), container("none", OPENS)))
        world.create(gpu_pod("free", container("main", OPENS)))

        assert opened(world, "free") == "opens [] has []"
        refused = 'required plugin \\"bursar\\" not present'
        world.until("it to be refused", lambda: refused in json.dumps(world.pod("waits")["status"]))
        time.sleep(5)
        assert not any(world.node.output(world.pod("waits"), which) for which in ("main", "none"))
    finally:
        world.stack.cp.api.call("POST", agents.DAEMONSETS, nri.deployed)
    said = opened(world, "waits")
    assert said.startswith(f"opens {number_of(world, 'waits')} ")
    assert number_of(world, "waits") != []


def test_init_sidecar_and_ephemeral_containers_get_what_their_placement_says(
    world: World, nri: Agent
) -> None:
    init = container("before", OPENS, gpu_percent="50")
    helper = {**container("helper", OPENS + "\ntime.sleep(600)"), "restartPolicy": "Always"}
    long = container("main", OPENS + "\ntime.sleep(8)", gpu_percent="50")
    world.create(gpu_pod("kinds", long, initContainers=[init, helper]))
    pod = world.running("kinds")
    body = {"spec": {"ephemeralContainers": [{"name": "debug", **plain(OPENS)}]}}
    strategic = "application/strategic-merge-patch+json"
    world.stack.cp.api.call("PATCH", f"{PODS}/kinds/ephemeralcontainers", body, content_type=strategic)

    world.until("the ephemeral container", lambda: any("opens" in x for x in world.node.output(pod, "debug")))
    world.ended("kinds")

    for which in ("before", "main"):
        assert opened(world, "kinds", which).startswith(f"opens {number_of(world, 'kinds', which)} ")
        assert number_of(world, "kinds", which) != []
    for which in ("helper", "debug"):
        assert opened(world, "kinds", which) == "opens [] has []"


def plain(program: str) -> Json:
    """What an ephemeral container may say."""
    asked = container("x", program)
    return {key: asked[key] for key in ("image", "imagePullPolicy", "command")}


def test_what_container_image_and_sandbox_say_does_not_count(world: World, nri: Agent) -> None:
    """The image asks for all cards by its variable. A static pod may write any annotation."""
    forged = {
        "version": 1,
        "containers": {"main": [{"uuid": CARDS[0], "index": 0, "share_milli": 1000, "memory_mib": 1}]},
    }
    world.create(gpu_pod("all", container("main", OPENS)))
    assert opened(world, "all") == "opens [] has []"

    with static_pod({"bursar.dev/devices": json.dumps(forged)}):
        log = FOLDER / "logs" / "kubelet.log"
        world.until("its container to be refused", lambda: REFUSED in log.read_text())


@contextmanager
def static_pod(annotations: dict[str, str]) -> Iterator[None]:
    """The kubelet runs it without the API server."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "static", "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", **plain(OPENS)}]},
    }
    manifest = STATIC_PODS / "static.json"
    manifest.write_text(json.dumps(pod))
    try:
        yield
    finally:
        manifest.unlink()


@contextmanager
def without_nri(world: World) -> Iterator[None]:
    """The runtime's NRI is off, its own CDI stays."""
    file = FOLDER / "config" / "containerd.toml"
    before = file.read_text()
    name = "[plugins.'io.containerd.nri.v1.nri']\n"
    file.write_text(before.replace(name, f"{name}  disable = true\n"))
    world.node.machine.processes.restart("containerd")
    try:
        yield
    finally:
        file.write_text(before)
        world.node.machine.processes.restart("containerd")


def _all(logs: Path, pods: str) -> str:
    """What these pods' containers printed."""
    return "".join(file.read_text() for file in logs.glob(f"{pods}/main/*.log"))


def test_without_nri_the_runtimes_own_cdi_gives_cards_to_a_device_plugins_pods_alone(
    world: World, nri: Agent, by_cdi: None
) -> None:
    """The kubelet tells the runtime of a plugin's devices, and of no annotation of the pod."""
    with without_nri(world), device_plugin(world, [CARDS[0]], "nvidia.com/gpu"):
        world.create(gpu_pod("ours", container("main", OPENS, gpu_percent="50")))
        asked = container("main", OPENS)
        asked["resources"] = {"limits": {RESOURCE: "1"}}
        world.create(gpu_pod("plugins", asked))
        with static_pod({"cdi.k8s.io/any": f"nvidia.com/gpu={CARDS[0]}"}):
            assert opened(world, "plugins") == "opens [0] has ['nvidia0', 'nvidiactl']"
            assert opened(world, "ours") == "opens [] has []"
            logs = FOLDER / "pods"
            world.until("the static pod", lambda: "opens [] has []" in _all(logs, f"{NAMESPACE}_static-*"))
    world.until("NRI to be back", lambda: nri_of(nri).get("plugins") == ["bursar"])


ROUNDS = examples(3, 17)  # of three pods with four containers each


@pytest.mark.timeout(1200)
def test_whatever_is_killed_meanwhile_a_container_opens_the_cards_of_its_placement(
    world: World, nri: Agent
) -> None:
    """While pods start, agent, containerd and kubelet are killed in turn, a second apart."""
    kills = 0
    for number in range(ROUNDS):
        two = [container("with0", OPENS, gpu_percent="100", gpu_count="2")]
        halves = [container(f"with{index}", OPENS, gpu_percent="20") for index in range(2)]
        names = [f"round{number}-{kind}" for kind in ("two", "halves", "none")]
        for name, asked in zip(names, (two, halves, []), strict=True):
            without = [container(f"none{index}", OPENS) for index in range(4 - len(asked))]
            world.create(gpu_pod(name, *asked, *without, restartPolicy="OnFailure"))
        for what in ("agent", "containerd", "kubelet"):
            time.sleep(1)
            kills += kill(world, what, is_new=number % 2 == 1)
        for name in names:
            world.until(f"{name} to end", partial(has_ended, world, name))
            pod = world.pod(name)
            placed = {each: number_of(world, name, each) for each in named(pod)}
            assert {each for each, cards in placed.items() if cards} == {x for x in placed if x[:4] == "with"}
            for each, cards in placed.items():
                runs = [x for x in world.node.output(pod, each) if x.startswith("opens")]
                runs.append(state(pod, each)["terminated"]["message"])
                assert {line.split(" has")[0] for line in runs} == {f"opens {cards}"}
        world.delete(*names)
    assert kills == 3 * ROUNDS


def has_ended(world: World, name: str) -> bool:
    """Whether all its containers have ended well."""
    phase = world.pod(name)["status"]["phase"]
    assert phase != "Failed"
    return bool(phase == "Succeeded")


def named(pod: Json) -> list[str]:
    """The names of its containers."""
    return [each["name"] for each in pod["spec"]["containers"]]


def kill(world: World, what: str, is_new: bool) -> int:
    """Kill it with SIGKILL, and have it start again. ``is_new``: the agent's pod too is another then, for the
    kubelet waits longer before each start of a container. Returns how many were killed."""
    if what != "agent":
        world.node.machine.processes.restart(what)
        return 1
    running = [each for each in agents.running(world) if "running" in state(each, "agent")]
    for pod in running[:1]:
        os.kill(world.pid(pod, "agent"), signal.SIGKILL)
        if is_new:
            path = f"/api/v1/namespaces/bursar-node/pods/{pod['metadata']['name']}"
            world.stack.cp.api.call("DELETE", path, {"gracePeriodSeconds": 0})
    return len(running[:1])
