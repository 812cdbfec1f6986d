"""How the workers of a run share its files."""

import random

from tests.support.compositions import ROOT
from tests.support.lanes import COMPUTE, LANES, NODE, PLANE, STACK, STORIES, lane_of, next_unit

UNITS = {
    STORIES: ["tests/story/cluster/test_gangs.py", "tests/story/cluster/test_caps.py"],
    STACK: ["tests/docs/cluster/test_nodes.py", "tests/cli/cluster/test_aggregated.py"],
    PLANE: [f"tests/webhook/cluster/test_{number}.py" for number in range(9)],
    NODE: ["tests/kubelet/cluster/test_nri.py", "tests/kubelet/cluster/test_claims.py"],
    COMPUTE: [f"tests/core/unit/test_{number}.py" for number in range(9)],
}


def test_every_unit_runs_once_and_no_two_workers_have_a_node_or_a_stack() -> None:
    for seed in range(200):
        drawn = random.Random(seed)
        waiting = [unit for lane in LANES for unit in UNITS[lane]]
        workers = range(drawn.randrange(1, 7))
        lanes: dict[int, str] = {}
        ran = []
        idle = set(workers)
        while waiting:
            worker = drawn.choice(sorted(idle))
            chosen = next_unit(waiting, lanes, worker)
            if chosen is None:
                lanes.pop(worker, None)
                idle.discard(worker)
                continue
            unit, lanes[worker] = chosen
            assert lane_of(unit) == lanes[worker]
            waiting.remove(unit)
            ran.append(unit)
            owners = [lane for lane in lanes.values() if lane in (NODE, STACK, STORIES)]
            assert len(owners) == len(set(owners)), seed

        assert sorted(ran) == sorted(unit for units in UNITS.values() for unit in units)


def test_workers_begin_in_different_lanes_and_stay_there() -> None:
    waiting = [unit for lane in reversed(LANES) for unit in UNITS[lane]]
    lanes: dict[str, str] = {}
    for worker in "abcde":
        unit, lanes[worker] = next_unit(waiting, lanes, worker) or ("", "")
        waiting.remove(unit)

    assert list(lanes.values()) == list(LANES)
    assert [(next_unit(waiting, lanes, worker) or ("", ""))[1] for worker in "abcde"] == list(LANES)


def test_who_has_done_its_lane_computes_and_at_last_helps_with_control_planes() -> None:
    lanes = {"a": STACK, "b": PLANE, "c": STORIES, "d": NODE}

    assert next_unit([*UNITS[PLANE], *UNITS[COMPUTE]], lanes, "a") == (UNITS[COMPUTE][0], COMPUTE)
    assert next_unit(UNITS[PLANE], lanes, "a") == (UNITS[PLANE][0], PLANE)
    assert next_unit(UNITS[STACK], lanes, "b") is None


def test_no_browser_runs_beside_a_real_node() -> None:
    told = "from tests.support.browser " + "import"
    asks = [file for file in (ROOT / "tests").rglob("test_*.py") if told in file.read_text()]

    assert len(asks) >= 4
    assert {lane_of(file.relative_to(ROOT).as_posix()) for file in asks} == {NODE}
