"""A list of pods makes of the snapshot what the same pods make of it one by one."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import NonGPUPod, Pod
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    assume,
    nodes_listed,
    non_gpu_pod_updated,
    non_gpu_pods_listed,
    pod_updated,
    pods_listed,
)
from tests.scheduler_ext.worlds import node, on, percent, read
from tests.support.profile import examples

PERCENTS = (20, 50, 100)


def some_pod(rng: random.Random, number: int) -> Pod:
    """Waiting, bound, bound without a placement, or ended."""
    raw = percent(rng.choice(PERCENTS), f"p{number}")
    where = rng.choice(("a", "b", "c"))
    pod = read(on(raw, where, "GPU-0"))
    match rng.randrange(5):
        case 0:
            return read(raw)
        case 1:
            return structs.replace(pod, placement=None)
        case 2:
            return structs.replace(pod, terminal=True, hold=replace(pod.hold, over=True))
    return pod


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32))
def test_a_list_is_every_pod_of_it(seed: int) -> None:
    rng = random.Random(seed)
    pods = [some_pod(rng, number) for number in range(rng.randint(0, 12))]
    others = [
        NonGPUPod(f"other-{number}", rng.choice(("a", "b", "c")), rng.choice((0, 100, 700)))
        for number in range(rng.randint(0, 12))
    ]
    known = nodes_listed(EMPTY, [read_node(node(name)) for name in ("a", "b")])  # not c
    for pod in pods:
        match rng.randrange(4):
            case 0:
                known = pod_updated(known, pod)
            case 1 if pod.placement is not None:
                known = assume(known, structs.replace(pod, node=""), rng.choice(("a", "b")), pod.placement)
    for other in rng.sample(others, len(others) // 3):
        known = non_gpu_pod_updated(known, structs.replace(other, cpu_milli=300))

    one_by_one = known
    for pod in pods:
        one_by_one = pod_updated(one_by_one, pod)
    for other in others:
        one_by_one = non_gpu_pod_updated(one_by_one, other)

    assert pods_listed(non_gpu_pods_listed(known, others), pods, 0) == one_by_one
