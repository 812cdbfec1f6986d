"""The simulation of fair order (`tests/bench/fair.py`) gives out freed cards as a real kube-scheduler and our
extender do.

Once the extender has kept a freed card for a second, kube-scheduler may try a pod out of turn. On a machine
with much other work that befalls a few."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from tests.bench.fair import CARDS, HOUR, Cluster, Job, Tenants
from tests.scheduler_ext.cluster.test_storms import PERCENT, Batch, nodes, pod
from tests.scheduler_ext.clusters import PODS, Callers, World
from tests.scheduler_ext.history import History, watched
from tests.support.waiting import eventually

AT_ONCE, PODS_IN_ALL, MOST_WAITING = 4, 200, 5
CLASSES = {"a": 4, "b": 3, "c": 2, "d": 1}  # a group's weight is the priority of its pods
ONE = Batch(1, 0, ({PERCENT: "100"},))


def simulated(groups: list[str]) -> list[list[str]]:
    """The groups of the pods that start each time that some cards get free, sorted."""
    running = [Job(at, "a", 0, HOUR + at // AT_ONCE, 1, 1) for at in range(PODS_IN_ALL)]
    waiting = [Job(PODS_IN_ALL + at, group, 1, 2 * HOUR, 1, 1) for at, group in enumerate(groups)]
    tenants = Tenants(CLASSES, dict.fromkeys(CLASSES, 1), {group: group for group in CLASSES})
    cluster = Cluster("priority", tenants, PODS_IN_ALL // CARDS, HOUR, MOST_WAITING)
    cluster.run([*running, *waiting])
    rounds: dict[int, list[str]] = {}
    for job in waiting:
        rounds.setdefault(job.started_ms or 0, []).append(job.account)
    return [sorted(rounds[at_ms]) for at_ms in sorted(rounds)]


def alike(some: Sequence[str], others: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(others) + 1)
    for one in some:
        before, row = row, [0]
        for at, other in enumerate(others):
            row.append(before[at] + 1 if one == other else max(row[at], before[at + 1]))
    return row[-1]


def tried(history: History) -> int:
    """How many pods kube-scheduler has tried without success."""
    pods = [*history.alive.values()]
    return sum(
        condition.get("reason") == "Unschedulable"
        for raw in pods
        if "nodeName" not in raw["spec"]
        for condition in raw["status"].get("conditions", ())
    )


def bound(history: History) -> int:
    """How many pods have been bound."""
    return history.bound


def has(count: Callable[[History], int], history: History, so_many: int) -> bool:
    """Whether the count is that."""
    return count(history) == so_many


def test_pods_get_freed_cards_in_the_order_that_is_simulated(world: World) -> None:
    raws = nodes(world, PODS_IN_ALL, cards=1)
    for group, value in CLASSES.items():
        body = {"metadata": {"name": f"order-{group}"}, "value": value, "preemptionPolicy": "Never"}
        world.plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    callers = Callers(world.plane.api)
    groups = random.Random(93).choices([*CLASSES], k=PODS_IN_ALL)
    held = {group: [f"{group}-{at}" for at, name in enumerate(groups) if name == group] for group in CLASSES}
    rounds = list[list[str]]()

    def release(group: str) -> None:
        for name in held[group][:1]:
            body = pod(name, ONE, priorityClassName=f"order-{group}")
            world.plane.api.call("POST", PODS, body)
        del held[group][:1]

    with watched(world.plane.api, raws, PODS) as history:
        running = [f"running-{at}" for at in range(PODS_IN_ALL)]
        callers.each(("POST", PODS, pod(name, ONE)) for name in running)
        eventually(lambda: history.bound == PODS_IN_ALL)
        for group in CLASSES:
            for _ in range(MOST_WAITING):
                release(group)
        while running:
            still = PODS_IN_ALL - len(rounds) * AT_ONCE - sum(map(len, held.values()))
            eventually(partial(has, tried, history, still))
            going, running = running[:AT_ONCE], running[AT_ONCE:]
            so_many = history.bound + AT_ONCE
            callers.each(("DELETE", f"{PODS}/{name}", None) for name in going)
            eventually(partial(has, bound, history, so_many))
            rounds.append(sorted(name[0] for name in history.order[-AT_ONCE:]))
            for group in rounds[-1]:
                release(group)

    model = simulated(groups)
    assert [len(names) for names in rounds] == [len(names) for names in model]
    out_of_turn = PODS_IN_ALL - alike([*chain(*rounds)], [*chain(*model)])
    print(f"{out_of_turn} of {PODS_IN_ALL} pods were bound out of turn")
    assert out_of_turn <= PODS_IN_ALL // 10
    assert history.wrong == []
