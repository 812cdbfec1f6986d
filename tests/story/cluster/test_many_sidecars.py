"""Two hundred sidecars at once against one timekeeper, which is killed and comes back: no beat is lost, and
every charge is exact."""

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import held_ms
from tests.support.control_plane import create_namespace
from tests.worlds import Json

pytestmark = pytest.mark.soak

MANY, PERCENT, MEASURED = 200, 10, 10_000
TAKEN = 'bursar_heartbeats_total{outcome="new"}'
PODS = "/api/v1/namespaces/many/pods"


def pod(name: str) -> Json:
    """One that runs until it is ended by `end`."""
    limits = {"bursar.dev/gpu-percent": str(PERCENT)}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    metadata = {"name": name, "annotations": {"local.bursar.dev/run-for": "240s"}}
    return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}


def posts_taken(stack: Stack, reader: str) -> int:
    """How many posts of heartbeats the timekeeper has taken since it started."""
    lines = stack.get("/metrics", reader).splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(TAKEN))


def cpu_s(process: int) -> float:
    """The CPU time of a process and its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(int(child)) for child in children)


def measured(stack: Stack, reader: str) -> str:
    """The load of the timekeeper while it takes so many posts, for people."""
    process = stack.processes["timekeeper"].pid
    since, taken, spent = time.monotonic(), posts_taken(stack, reader), cpu_s(process)
    stack.wait("posts to measure by", lambda: posts_taken(stack, reader) >= taken + MEASURED)
    seconds, taken = time.monotonic() - since, posts_taken(stack, reader) - taken
    each_us = 1e6 * (cpu_s(process) - spent) / taken
    return f"{taken / seconds:.0f} posts/s, each {each_us:.0f} us of the timekeeper's CPU"


def spools(stack: Stack) -> list[int]:
    """How many beats each sidecar holds that nobody has acknowledged, of those that hold a spool."""
    held = []
    for path in Path(stack.folder / "sidecars").glob("*/spool/spool.json"):
        read = json.loads(path.read_text())
        held.append(len((read["post"] or {"beats": []})["beats"]) + len(read["waiting"]))
    return held


def test_two_hundred_sidecars_lose_no_beat_though_the_timekeeper_is_killed(
    stack: Stack, sidecars: Sidecars, reader: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for at in range(3):
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(f"many-{at}", cards=8, memory_mib=16_000))
    create_namespace(stack.cp, "many")
    with ThreadPoolExecutor(4) as creators:
        list(creators.map(lambda at: stack.cp.api.call("POST", PODS, pod(f"p{at}")), range(MANY)))
    stack.wait("all sidecars", lambda: len(sidecars.running) == MANY)
    stack.wait("a spool of each", lambda: len(spools(stack)) == MANY)

    load = measured(stack, reader)

    stack.stop("timekeeper", signal.SIGKILL)
    stack.wait("beats of all to be held back", lambda: min(spools(stack)) >= 3)
    held = sum(spools(stack))
    stack.start("timekeeper")
    stack.wait("the timekeeper to be back", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")
    stack.wait("what was held back to be taken", lambda: sum(spools(stack)) < MANY)

    def all_ended() -> bool:
        listed = stack.cp.api.call("GET", PODS)["items"]
        return len(listed) == MANY and all(each["status"]["phase"] == "Succeeded" for each in listed)

    stack.wait("all to end", all_ended, within_s=400)
    stack.wait("the sidecars' end", lambda: not sidecars.running)
    pods = {each["metadata"]["uid"]: each for each in stack.cp.api.call("GET", PODS)["items"]}

    def charged() -> dict[str, int]:
        rows = stack.get("/v1/usage?namespace=many&group=pod", reader)["rows"]
        return {row["uid"]: row["amount"] for row in rows}

    owed = {uid: 10 * PERCENT * held_ms(each) for uid, each in pods.items()}
    stack.wait("the charges", lambda: charged() == owed)
    assert len(owed) == MANY
    # all end at once: sidecars for whose last beats the machine is too slow say how many they are
    late = spools(stack)
    told = [int(beats) for beats in re.findall(r"event=unacknowledged beats=(\d+)", sidecars.logs())]
    assert sorted(told) == sorted(filter(None, late))
    with capfd.disabled():
        print(
            f"{MANY} sidecars: {load}; {held} beats held back while it was away, {sum(late)} last ones late"
        )
