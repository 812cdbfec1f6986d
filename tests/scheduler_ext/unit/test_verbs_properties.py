"""Over HTTP, bind does as filter said."""

import json
import random

import pytest

from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.unit.test_properties import linked
from tests.scheduler_ext.worlds import Json, asking, rebuilt
from tests.worlds import container


def asked(rng: random.Random, number: int) -> Json:
    """One of many shapes of pods."""
    percents = [rng.choice([20, 30, 50, 60]) for _ in range(rng.randint(1, 3))]
    several = [container(f"c{at}", gpu_percent=str(share)) for at, share in enumerate(percents)]
    match rng.randrange(5):
        case 0:
            raw = asking(container(gpu_count="2"), annotations={"bursar.dev/topology": "pair"})
        case 1:
            raw = asking(container(gpu_memory=str(rng.choice([4000, 9000]))))
        case 2 if sum(percents) <= 100 and several[1:]:
            raw = asking(*several, annotations={"bursar.dev/same-gpu": ",".join(c["name"] for c in several)})
        case 3:
            raw = asking(*several, init=[container("i", gpu_percent="100")])
        case _:
            raw = asking(*several)
    raw["metadata"] |= {"name": f"p{number}", "uid": f"uid-{number}"}
    return raw


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 204))]


@pytest.mark.parametrize("seed", SEEDS)
def test_bind_does_as_filter_said_and_the_objects_alone_show_the_same(running: Stepped, seed: int) -> None:
    rng, names = random.Random(seed), ["a", "b", "c"]
    for name in names:
        running.put_node(linked(name))
    for number in range(40):
        raw, where = running.put_pod(asked(rng, number)), rng.choice(names)
        found = running.filter(raw, *names)
        error = running.bind(raw, where)

        refused = {**found["FailedNodes"], **found["FailedAndUnresolvableNodes"]}
        assert error == refused.get(where, "")
        assert {*found["NodeNames"], *refused} == {*names}
        if not error and rng.random() < 0.3:
            running.put_pod({**running.api.pod(f"p{number}"), "status": {"phase": "Succeeded"}})

    running.catches_up()
    assert running.extender.cache.snapshot == rebuilt(running.api.nodes(), running.api.pods())
    used = used_by_objects(running.api.pods())
    assert [uuid for uuid, (share, memory) in used.items() if share > 1000 or memory > 16000] == []


def used_by_objects(pods: list[Json]) -> dict[str, tuple[int, int]]:
    """Card -> the thousandths and MiB that the pods' annotations say are taken while the containers that stay
    run, added up here anew."""
    used: dict[str, tuple[int, int]] = {}
    for raw in pods:
        text = raw["metadata"].get("annotations", {}).get("bursar.dev/devices")
        if text is None or raw["status"]["phase"] == "Succeeded":
            continue
        for name, slices in json.loads(text)["containers"].items():
            for part in slices if name != "i" else []:
                share, memory = used.get(part["uuid"], (0, 0))
                used[part["uuid"]] = share + part["share_milli"], memory + part["memory_mib"]
    return used
