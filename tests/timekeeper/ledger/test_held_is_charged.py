"""What is held is charged, what is charged is held: random histories of pods, told to the ledger and to the
extender's snapshot, and an oracle that imports nothing of ours (`tests.timekeeper.histories`).

Once all evidence is in, a pod's session has the parts of cards that the oracle computes, and its postings
are the rate of these parts through the time from its binding to its end; until then the extender holds
exactly these parts.
"""

import random

import pytest

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.snapshot.snapshot import EMPTY, node_updated, pods_listed
from tests import worlds
from tests.support import profile
from tests.support.profile import examples
from tests.timekeeper.clocks import iso
from tests.timekeeper.histories import Batch, History
from tests.timekeeper.worlds import HOUR, SECOND, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.core.budgets.policy import GPU_HOUR

pytestmark = pytest.mark.untraced

HISTORIES = examples(100, soak=20_000)
TOGETHER = 300


# the floor lasts for a part of the histories
PROTECTING = "gpuHours: 1\nperiod: once\nonExhausted: evict\nprotect: {labels: {tier: serving}, hours: 1}"


def test_each_pod_is_charged_for_exactly_the_cards_and_the_time_that_it_holds(town: Town) -> None:
    """Also under a budget that is spent and protects some of them; and what these have used is their sum."""
    town.begin(("configmaps", budgets(team_a=PROTECTING)))
    serving_used = 0
    first = profile.seed()
    for number in range(first, first + HISTORIES, TOGETHER):
        batch = Batch(town, random.Random(number))
        histories = [History(batch, each) for each in range(number, number + min(TOGETHER, HISTORIES))]
        try:
            batch.live(histories)
            batch.settle(histories)
            serving_used += sum(each.amount for each in histories if each.is_serving)
            assert town.budget()["protect"]["used"] == serving_used
            assert town.settler.ledger.protected["team-a"].used == serving_used
        except AssertionError as error:
            raise AssertionError(f"BURSAR_SEED={number}") from error
    assert serving_used > GPU_HOUR


# weight in thousandths, as `_settings` below has it
DEVICES = {
    "amd.com/cpx_nps4": 125,
    "huawei.com/Ascend910-2c": 2000,
    "google.com/tpu": 1000,
    "aws.amazon.com/neuron": 1000,
}
WEIGHTS = "weights: {cpx_nps4: 0.125, Ascend910: 2}"


def device_pod(rng: random.Random, number: int) -> tuple[Json, int, int, int, bool]:
    """A pod of vendors' devices that has ended: with what it held of them, unweighted and weighted, for how
    long, and whether admission governed it."""
    asked = [(rng.choice(list(DEVICES)), rng.randint(1, 16)) for _ in range(rng.randint(1, 3))]
    first = [(rng.choice(list(DEVICES)), rng.randint(1, 40))] if rng.random() < 0.3 else []
    made = [worlds.of_resources({name: str(n)}, f"c{at}") for at, (name, n) in enumerate(asked)]
    before = [worlds.of_resources({name: str(n)}, "first") for name, n in first]
    bound_ms = T0 + rng.randint(0, 600) * SECOND
    ended_ms = bound_ms + rng.randint(1, 3_000) * SECOND
    raw = worlds.pod(*made, init=before, nodeName="n1")
    ends = {each["name"]: worlds.terminated(iso(bound_ms), iso(ended_ms)) for each in (*before, *made)}
    raw["metadata"] = gpu_pod(f"d{number}")["metadata"]
    raw["metadata"]["annotations"] = {"bursar.dev/standing": "IN_BUDGET"}
    governed = rng.random() < 0.8
    raw["metadata"]["labels"] = {"bursar.dev/governed": "true"} if governed else {}
    raw["status"] = worlds.status("Succeeded", **ends)
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(bound_ms)}
    raw["status"]["conditions"] = [bound]
    # kubelet and kube-scheduler keep what an init container had for later containers of its resource alone
    most = {
        resource: max(sum(n for name, n in requests if name == resource) for requests in (asked, first))
        for resource in DEVICES
    }
    rate = sum(n * DEVICES[resource] for resource, n in most.items())
    return raw, 1000 * sum(most.values()), rate, ended_ms - bound_ms, governed


def test_each_metered_device_is_charged_whole_from_the_binding_to_the_end(town: Town) -> None:
    town.begin(("configmaps", budgets(_settings=WEIGHTS)), ("nodes", node()))
    rng = random.Random(54)
    pods = [device_pod(rng, number) for number in range(40)]
    running = {"phase": "Running"}
    for raw, *_ in pods:
        conditions = {"conditions": raw["status"]["conditions"]}
        town.hear("pods", raw | {"status": running | conditions})
    town.advance(SECOND)
    town.restart()
    snapshot = node_updated(EMPTY, read_node(node()), T0)
    told = [found for raw, *_ in pods if (found := read_pod(raw | {"status": running})) is not None]
    snapshot = pods_listed(snapshot, told, T0)

    assert snapshot.held.get("team-a") == sum(held for _, held, _, _, governed in pods if governed)
    there = snapshot.node("n1")
    assert there is not None
    assert there.closed == ""

    for raw, *_ in pods:
        town.hear("pods", raw)
    town.advance(2 * HOUR)

    amounts = {
        raw["metadata"]["uid"]: sum(
            (to_ms - from_ms) * each for from_ms, to_ms, each, _ in town.postings(raw["metadata"]["uid"])
        )
        for raw, *_ in pods
    }
    assert amounts == {
        raw["metadata"]["uid"]: rate * length_ms if governed else 0
        for raw, _, rate, length_ms, governed in pods
    }
