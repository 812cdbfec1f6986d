"""Cards are held, and charged, from the binding until the kubelet has ended the last container."""

import json
import subprocess
import sys

import pytest

from deploy.local.limits import LONGEST_S
from tests.kubelet.worlds import (
    PODS,
    SIDECAR,
    STUBBORN,
    Json,
    World,
    bound_ms,
    container,
    gpu_pod,
    held_ms,
    lives,
    milliseconds,
    runs_for,
    state,
    status_of,
)

ALL_CARDS = 2_000  # milli-GPU: both T4s of the node, whose weight is 1
LONG_S = 10


def heir(world: World, name: str) -> int:
    """Create a pod that requests all cards, wait until it is bound; when that was."""
    world.create(gpu_pod(name, container("main", runs_for(0), gpu_count="2")))
    world.until(f"{name} to be bound", lambda: "nodeName" in world.pod(name)["spec"])
    return bound_ms(world.pod(name))


def test_a_container_without_a_card_holds_the_cards_of_its_pod(world: World) -> None:
    short, idle = container("main", runs_for(2), gpu_count="2"), container("idle", runs_for(9))
    world.create(gpu_pod("idles", short, idle))
    world.running("idles", "idle")

    heir_ms = heir(world, "waits-for-idle")

    pod = world.ended("idles")
    assert heir_ms >= milliseconds(state(pod, "idle")["terminated"]["finishedAt"])
    assert world.charged(pod) == held_ms(pod) * ALL_CARDS
    compared = audited(world)
    assert compared["compared"] >= 1
    assert pod["metadata"]["uid"] not in {each["uid"] for each in compared["pods"]}


def audited(world: World) -> Json:
    """What `audit --cluster` says of the pods, with the rights of the timekeeper's account."""
    stack = world.stack
    account = stack.cp.kubeconfig(stack.token("bursar-system", "bursar-timekeeper"), "audit")
    database = f"sqlite:///{stack.folder}/bursar.db"
    flags = ("--cluster", f"--kubeconfig={account}", f"--database={database}", "--output=json")
    command = [sys.executable, "-m", "timekeeper", "audit", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=stack.environment(), timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr + done.stdout
    found: Json = json.loads(done.stdout)["cluster"]
    return found


def test_cards_that_an_init_container_alone_requests_are_held_and_charged_to_the_end(world: World) -> None:
    first = container("first", runs_for(1), gpu_count="2")
    world.create(gpu_pod("begins", container("main", runs_for(5)), initContainers=[first]))
    world.running("begins")

    heir_ms = heir(world, "waits-for-main")

    pod = world.ended("begins")
    assert heir_ms >= milliseconds(state(pod, "main")["terminated"]["finishedAt"])
    assert world.charged(pod) == held_ms(pod) * ALL_CARDS


def test_a_second_deletion_without_grace_frees_no_card_that_the_kubelet_still_uses(world: World) -> None:
    world.create(gpu_pod("twice", container("main", STUBBORN, gpu_count="2")))
    pod = world.running("twice")
    world.said(pod, "main", "begun")
    pid = world.pid(pod, "main")

    world.stack.cp.api.call("DELETE", f"{PODS}/twice", {"gracePeriodSeconds": LONG_S})
    world.said(pod, "main", "asked")
    world.stack.cp.api.call("DELETE", f"{PODS}/twice", {"gracePeriodSeconds": 0})
    assert not world.stack.exists(f"{PODS}/twice")
    assert lives(pid)
    heir(world, "waits-for-twice")

    assert not lives(pid), "two pods had the same cards"

    def is_charged_through_the_long_grace() -> bool:
        session = world.session(pod)
        assert session is not None
        due_ms = session["vanished"] + LONG_S * 1_000 - session["bound"]
        return bool(session["amount"] == due_ms * ALL_CARDS)

    world.until("the longer grace period to be charged", is_charged_through_the_long_grace)


HOOK = {"lifecycle": {"preStop": {"exec": {"command": ["python", "-c", "import time; time.sleep(300)"]}}}}


@pytest.mark.parametrize(("grace_s", "hook", "runs_on_s"), [(0, {}, 2), (3, HOOK, 5), (3, {}, 3)])
def test_a_pod_without_an_object_holds_its_cards_for_as_long_as_the_kubelet_may_run_it(
    world: World, grace_s: int, hook: Json, runs_on_s: int
) -> None:
    """At least 2 s, and 2 s after a preStop hook that used up the grace period."""
    name = f"forced-{runs_on_s}"
    main = container("main", STUBBORN, gpu_count="2") | hook
    world.create(gpu_pod(name, main, terminationGracePeriodSeconds=grace_s))
    pod = world.running(name)
    world.said(pod, "main", "begun")
    pid = world.pid(pod, "main")

    world.stack.cp.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    assert not world.stack.exists(f"{PODS}/{name}")
    assert lives(pid)
    heir(world, f"waits-for-{name}")

    session = world.session(pod)
    assert session is not None
    until_ms = session["vanished"] + runs_on_s * 1_000
    world.until(
        "it to be charged until then",
        lambda: (world.session(pod) or {})["amount"] == (until_ms - session["bound"]) * ALL_CARDS,
    )


def test_a_container_that_the_runtime_has_lost_is_charged_until_its_end_is_reported(world: World) -> None:
    """The kubelet reports ContainerStatusUnknown without a time. The time of the one container that it still
    knows proves nothing."""
    short, lost = container("short", runs_for(1)), container("main", runs_for(600), gpu_count="2")
    body = gpu_pod("lost", lost, short)
    body["metadata"]["finalizers"] = ["tests.example/seen"]  # the object stays for its last status
    world.create(body)
    pod = world.running("lost")
    world.until("short to end", lambda: "terminated" in state(world.pod("lost"), "short"))

    world.node.stop_kubelet()
    world.stack.cp.api.call("DELETE", f"{PODS}/lost")
    lose(world, pod, "main", SIDECAR)
    before = (world.session(pod) or {})["amount"]
    world.node.start_kubelet()

    pod = world.ended("lost", "Failed")
    end = status_of(pod, "main")["lastState"]["terminated"]
    assert (end["reason"], end["finishedAt"]) == ("ContainerStatusUnknown", None)
    short_ms = milliseconds(state(pod, "short")["terminated"]["finishedAt"]) - bound_ms(pod)
    least = max(before, short_ms * ALL_CARDS)
    world.until("it to be charged for longer", lambda: (world.session(pod) or {})["amount"] > least)
    merge = "application/merge-patch+json"
    world.stack.cp.api.call("PATCH", f"{PODS}/lost", {"metadata": {"finalizers": None}}, content_type=merge)


def lose(world: World, pod: Json, *names: str) -> None:
    """End containers, and let the container runtime forget them; the kubelet must be stopped."""
    host = world.node.machine
    for name in names:
        lost = status_of(pod, name)["containerID"].removeprefix("containerd://")
        host.ctr("tasks", "kill", "--signal=SIGKILL", lost)
        host.ctr("tasks", "delete", "--force", lost)
        host.ctr("containers", "delete", lost)
        assert lost not in host.ctr("containers", "list", "--quiet").stdout
    host.processes.restart("containerd")
    host.processes.wait(
        "containerd", lambda: host.processes.has_said("containerd", "Start streaming server"), 60
    )
