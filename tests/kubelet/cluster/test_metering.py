"""Beats, charges and cards on a real node, whatever happens to sidecar, network, timekeeper and kubelet."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.local.real_node import STATIC_PODS
from tests.kubelet.worlds import (
    NAMESPACE,
    NODE,
    PODS,
    SIDECAR,
    STUBBORN,
    Json,
    World,
    allocatable,
    container,
    gpu_pod,
    held_ms,
    lives,
    milliseconds,
    runs_for,
    state,
    status_of,
)

HALF = 500  # milli-GPU: half a T4, whose weight is 1
JOBS = "/apis/batch/v1/namespaces/gpus/jobs"


def half_a_card(name: str, program: str, **spec: object) -> Json:
    """A pod whose only container of the user's has half a card."""
    return gpu_pod(name, container("main", program, gpu_percent="50"), **spec)


def test_the_sidecars_beats_arrive_as_its_pods(world: World) -> None:
    world.create(half_a_card("beating", runs_for(5)))

    pod = world.running("beating")
    beats = world.beaten(pod)
    more = world.beaten(pod, since=beats)

    assert len({beat.boot for beat in more}) == 1
    assert more[-1].sequence > beats[-1].sequence
    ended = world.ended("beating")
    assert state(ended, SIDECAR)["terminated"]["exitCode"] == 0
    assert world.charged(ended) == held_ms(ended) * HALF


def test_a_job_completes_although_the_sidecar_is_there(world: World) -> None:
    template = {"spec": half_a_card("", runs_for(2))["spec"]}
    body = {"metadata": {"name": "short"}, "spec": {"template": template, "backoffLimit": 0}}
    world.stack.cp.api.call("POST", JOBS, body)

    def completed() -> bool:
        conditions = world.stack.cp.api.call("GET", f"{JOBS}/short")["status"].get("conditions", [])
        return any(each["type"] == "Complete" and each["status"] == "True" for each in conditions)

    world.until("the Job to complete", completed)

    (pod,) = world.stack.cp.api.call("GET", f"{PODS}?labelSelector=job-name%3Dshort")["items"]
    assert "terminated" in state(pod, SIDECAR)
    assert world.charged(pod) == held_ms(pod) * HALF


def test_a_sidecar_that_is_ended_before_its_python_has_begun_exits_with_0(world: World) -> None:
    """At 30m of a CPU the interpreter alone takes a third of a second, and a first process ignores a SIGTERM
    that it has no handler for."""
    main = container("main", runs_for(20), gpu_percent="50")
    main["resources"]["requests"] = {"cpu": "10m", "memory": "16Mi"}
    before = set(os.listdir("/proc"))
    world.create(gpu_pod("early", main))

    os.kill(first_process(world, before), signal.SIGTERM)

    world.until("its next run", lambda: status_of(world.pod("early"), SIDECAR).get("restartCount") == 1)
    pod = world.pod("early")
    assert pod["spec"]["initContainers"][0]["resources"]["limits"]["cpu"] == "30m"
    assert status_of(pod, SIDECAR)["lastState"]["terminated"]["exitCode"] == 0
    assert world.charged(world.ended("early")) == held_ms(world.pod("early")) * HALF


def first_process(world: World, before: set[str]) -> int:
    """The first process of the sidecar that is not among ``before``, as soon as it is Python or has a handler
    for SIGTERM."""
    found: list[int] = []

    def is_there() -> bool:
        for name in set(os.listdir("/proc")) - before:
            with suppress(OSError):  # it is gone again
                folder = Path("/proc", name)
                if not (folder / "cmdline").read_bytes().endswith(b"-m\0sidecar\0"):
                    continue
                told = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
                handled = int(told["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1
                is_python = os.readlink(folder / "exe").rpartition("/")[2].startswith("python")
                if told["NSpid"].split()[-1] == "1" and (handled or is_python):
                    found.append(int(name))
        return bool(found)

    world.until("the sidecar's first process", is_there)
    return found[0]


ALONE = """
import os, time
print("begun")
while [each for each in os.listdir("/proc") if each.isdecimal() and each not in ("1", str(os.getpid()))]:
    time.sleep(0.1)
"""


def test_a_pod_that_shares_its_processes_ends_although_one_waits_for_all_others(world: World) -> None:
    """As Katib's collector does: the sidecar would end after it, and it after the sidecar."""
    world.create(half_a_card("sharing", ALONE, shareProcessNamespace=True))

    ended = world.ended("sharing")

    assert "initContainers" not in ended["spec"]
    assert world.charged(ended) == held_ms(ended) * HALF


def test_a_killed_sidecar_makes_no_time_free_and_stops_nothing(world: World) -> None:
    world.create(half_a_card("killed", runs_for(9)))
    pod = world.running("killed")
    before = world.beaten(pod)

    os.kill(world.pid(pod, SIDECAR), signal.SIGKILL)
    world.until("the sidecar again", lambda: status_of(world.pod("killed"), SIDECAR)["restartCount"] == 1)
    after = world.beaten(pod, since=before)

    ended = world.ended("killed")
    assert len({beat.boot for beat in after}) <= 2
    assert status_of(ended, "main")["restartCount"] == 0
    assert world.charged(ended) == held_ms(ended) * HALF


def test_a_pod_cut_off_from_the_network_is_charged_all_the_same(world: World) -> None:
    world.create(half_a_card("cut", runs_for(9)))
    pod = world.running("cut")
    world.beaten(pod)

    subprocess.run(["ip", "link", "set", veth(world.pid(pod, "main")), "down"], check=True)
    (before,) = world.beats(pod)

    ended = world.ended("cut")
    (last,) = world.beats(ended)
    assert last.sequence <= before.sequence + 1, "more came through than was on its way, so the cut was none"
    assert status_of(ended, SIDECAR)["restartCount"] == 0
    assert world.charged(ended) == held_ms(ended) * HALF


def veth(pid: int) -> str:
    """The host's end of the link of the network that a process is in."""
    peer = Path("/proc", str(pid), "root/sys/class/net/eth0/iflink").read_text()
    links = Path("/sys/class/net").iterdir()
    return next(link.name for link in links if (link / "ifindex").read_text() == peer)


@pytest.mark.parametrize("away_s", [12, pytest.param(60, marks=pytest.mark.soak)])
def test_what_ends_without_the_timekeeper_is_charged_to_the_millisecond(world: World, away_s: int) -> None:
    """Pods that end while it is away, one that begins too, and one that runs on when it is back."""
    runs_on_s = away_s + 20
    for name, lasts_s in (("ends", away_s // 3), ("runs-on", runs_on_s)):
        world.create(half_a_card(name, runs_for(lasts_s)))
    before = {name: world.beaten(world.running(name)) for name in ("ends", "runs-on")}

    world.stack.stop("timekeeper")
    back_at = time.monotonic() + away_s
    try:
        world.create(half_a_card("born-and-gone", runs_for(3)))
        gone = [world.ended(name) for name in ("born-and-gone", "ends")]
        world.until("the time to pass", lambda: time.monotonic() > back_at)
        runs_on = world.pod("runs-on")
    finally:
        world.stack.start("timekeeper")

    world.until("the timekeeper", lambda: world.stack.is_ready(world.stack.timekeeper_url))
    assert "running" in state(runs_on, "main")
    after = world.beaten(runs_on, since=before["runs-on"])
    ended = world.ended("runs-on")
    assert {beat.boot for beat in after} == {beat.boot for beat in before["runs-on"]}
    assert [world.charged(pod) for pod in (*gone, ended)] == [held_ms(pod) * HALF for pod in (*gone, ended)]


def test_a_restarted_kubelet_changes_nothing(world: World) -> None:
    world.create(half_a_card("through", runs_for(15)))
    pod = world.running("through")
    before = world.beaten(pod)
    pid = world.pid(pod, "main")

    world.node.stop_kubelet()
    world.node.start_kubelet()
    told = renewed(world)
    world.until("the node's Lease to be renewed", lambda: renewed(world) != told)

    assert lives(pid)
    world.beaten(pod, since=before)
    assert allocatable(world.stack)["bursar.dev/gpu-percent"] == "200"
    ended = world.ended("through")
    assert status_of(ended, "main")["restartCount"] == 0
    assert world.charged(ended) == held_ms(ended) * HALF


def renewed(world: World) -> str:
    """When the kubelet was last heard."""
    lease = world.stack.cp.api.call(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
    )
    return str(lease["spec"]["renewTime"])


# Fails the first time, after some seconds; what it leaves in the pod's own volume tells it which time it is.
FAILS_ONCE = (
    "import pathlib, sys, time; mark = pathlib.Path('/shared/mark'); again = mark.exists(); mark.touch(); "
    "time.sleep(3); sys.exit(0 if again else 1)"
)


def test_a_restarted_container_goes_on_in_one_session_without_a_gap(world: World) -> None:
    main = container("main", FAILS_ONCE, gpu_percent="50")
    main["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
    spec = {"restartPolicy": "OnFailure", "volumes": [{"name": "shared", "emptyDir": {}}]}
    world.create(gpu_pod("again", main, **spec))

    pod = world.ended("again")

    first, second = status_of(pod, "main")["lastState"]["terminated"], state(pod, "main")["terminated"]
    assert first["exitCode"] == 1
    assert held_ms(pod) >= milliseconds(second["finishedAt"]) - milliseconds(first["startedAt"])
    assert world.charged(pod) == held_ms(pod) * HALF


GRACE_S = 15


def test_a_force_deleted_pod_keeps_its_cards_and_is_charged_while_the_kubelet_runs_it(world: World) -> None:
    """It does not obey SIGTERM, and its grace period is long: the API server has forgotten it long before."""
    both = container("main", STUBBORN, gpu_count="2")
    world.create(gpu_pod("stubborn", both, terminationGracePeriodSeconds=GRACE_S))
    pod = world.running("stubborn")
    world.said(pod, "main", "begun")
    pid = world.pid(pod, "main")

    world.stack.cp.api.call("DELETE", f"{PODS}/stubborn", {"gracePeriodSeconds": 0})
    world.create(gpu_pod("heir", container("main", runs_for(1), gpu_count="2")))
    world.said(pod, "main", "asked")
    assert not world.stack.exists(f"{PODS}/stubborn")
    assert lives(pid)
    world.until("the heir to be bound", lambda: "nodeName" in world.pod("heir")["spec"])

    assert not lives(pid), "two pods had the same cards"
    world.ended("heir")
    session = world.session(pod)
    assert session is not None
    assert session["vanished"] is not None


def test_a_static_pod_is_charged_in_one_session_while_its_mirror_is_deleted_and_made_again(
    world: World,
) -> None:
    name, manifest = f"static-{NODE}", STATIC_PODS / "metered.json"
    path = f"{PODS}/{name}"
    pod = half_a_card("static", runs_for(600))
    pod["metadata"]["namespace"] = NAMESPACE

    def is_another() -> bool:
        return world.stack.exists(path) and world.pod(name)["metadata"]["uid"] != first["metadata"]["uid"]

    def sessions() -> list[Json]:
        listed = world.stack.get("/v1/sessions?namespace=gpus", world.reader)["sessions"]
        return [session for session in listed if session["pod"] == name]

    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **pod}))
    try:
        world.until("its mirror", lambda: world.stack.exists(path))
        first = world.running(name)
        world.until("its session", lambda: len(sessions()) == 1)
        world.stack.cp.api.call("DELETE", path, {"gracePeriodSeconds": 0})
        world.until("another mirror", is_another)
        again = world.running(name)
    finally:
        manifest.unlink()
    world.until("its mirror to be gone for good", lambda: not world.stack.exists(path))
    world.until("its session to end", lambda: sessions()[0]["vanished"] is not None)

    (session,) = sessions()
    assert state(again, "main") == state(first, "main")  # it ran on
    assert SIDECAR not in json.dumps(first)
    assert (session["rateMilli"], session["node"]) == (HALF, NODE)
    assert session["bound"] == milliseconds(first["metadata"]["creationTimestamp"])
    assert session["amount"] == HALF * (session["vanished"] - session["bound"])
