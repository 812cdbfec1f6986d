"""Two hundred sidecars at once against one timekeeper, which is killed and comes back: no beat is lost, and
every charge is exact."""

import datetime
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.local.nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900)]

Json = dict[str, Any]

MANY, PERCENT = 200, 10
PODS = "/api/v1/namespaces/many/pods"


def pod(name: str) -> Json:
    """One that runs until it is ended by `end`."""
    limits = {"bursar.dev/gpu-percent": str(PERCENT)}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    metadata = {"name": name, "annotations": {"local.bursar.dev/run-for": "180s"}}
    return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}


def spools(stack: Stack) -> list[int]:
    """How many beats each sidecar holds that nobody has acknowledged, of those that hold a spool."""
    held = []
    for path in Path(stack.folder / "sidecars").glob("*/spool/spool.json"):
        read = json.loads(path.read_text())
        held.append(len((read["post"] or {"beats": []})["beats"]) + len(read["waiting"]))
    return held


def ran_ms(each: Json) -> int:
    """How long its container ran, by the kubelet's own timestamps."""
    ended = each["status"]["containerStatuses"][0]["state"]["terminated"]
    start, end = (datetime.datetime.fromisoformat(ended[key]) for key in ("startedAt", "finishedAt"))
    return int((end - start).total_seconds() * 1000)


def test_two_hundred_sidecars_lose_no_beat_though_the_timekeeper_is_killed(
    stack: Stack, sidecars: Sidecars, reader: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for at in range(3):
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(f"many-{at}", cards=8, memory_mib=16_000))
    stack.cp.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "many"}})
    stack.wait("the namespace", lambda: stack.exists("/api/v1/namespaces/many/serviceaccounts/default"))
    with ThreadPoolExecutor(4) as creators:
        list(creators.map(lambda at: stack.cp.api.call("POST", PODS, pod(f"p{at}")), range(MANY)))
    stack.wait("all sidecars", lambda: len(sidecars.running) == MANY, within_s=120)
    stack.wait("a spool of each", lambda: len(spools(stack)) == MANY, within_s=120)

    stack.stop("timekeeper", signal.SIGKILL)
    stack.wait("beats of all to be held back", lambda: min(spools(stack)) >= 3, within_s=120)
    held = sum(spools(stack))
    stack.start("timekeeper")
    stack.wait("the timekeeper to be back", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")
    stack.wait("what was held back to be taken", lambda: sum(spools(stack)) < MANY, within_s=120)

    def all_ended() -> bool:
        listed = stack.cp.api.call("GET", PODS)["items"]
        return len(listed) == MANY and all(each["status"]["phase"] == "Succeeded" for each in listed)

    stack.wait("all to end", all_ended, within_s=400)
    stack.wait("the sidecars' end", lambda: not sidecars.running, within_s=60)
    pods = {each["metadata"]["uid"]: each for each in stack.cp.api.call("GET", PODS)["items"]}

    def charged() -> dict[str, int]:
        rows = stack.get("/v1/usage?namespace=many&group=pod", reader)["rows"]
        return {row["uid"]: row["amount"] for row in rows}

    owed = {uid: 10 * PERCENT * ran_ms(each) for uid, each in pods.items()}
    stack.wait("the charges", lambda: charged() == owed, within_s=60)
    assert len(owed) == MANY
    assert sum(spools(stack)) == 0
    with capfd.disabled():
        print(f"{MANY} sidecars; {held} beats were held back while the timekeeper was away")
