"""Binds over real HTTP: several at once, and scenarios as kube-scheduler meets them."""

import json
import threading

import pytest

from tests.scheduler_ext.conftest import Running, Start
from tests.scheduler_ext.scenarios import CASES, IDS, Scenario
from tests.scheduler_ext.store import Fault
from tests.scheduler_ext.unit.test_scenarios import decides_as_expected
from tests.scheduler_ext.worlds import mib, node, percent
from tests.support.waiting import eventually
from tests.worlds import card

SOME = slice(None, None, 12)


@pytest.mark.parametrize(("scenario", "policy"), CASES[SOME], ids=IDS[SOME])
def test_filter_and_bind_decide_as_fit_does(running: Running, scenario: Scenario, policy: str) -> None:
    decides_as_expected(running, scenario, policy)


def test_binds_to_different_nodes_do_not_wait_for_each_other(start: Start) -> None:
    world = start("--bind-timeout", "5s")
    world.put_node(node("a"))
    world.put_node(node("b"))
    slow, quick = world.put_pod(percent(10, "slow")), world.put_pod(percent(10, "quick"))
    world.api.faults.append(Fault("bind", how="silent"))
    waiting = threading.Thread(target=world.bind, args=(slow, "a"), daemon=True)
    waiting.start()
    eventually(lambda: world.api.made("bind"))

    assert world.bind(quick, "b") == ""
    assert waiting.is_alive()
    world.api.ended.set()
    waiting.join()


def test_many_pods_at_once_never_overcommit_a_card(running: Running) -> None:
    for name in "ab":
        running.put_node(node(name, card(0), card(1)))
    pods = [running.put_pod(mib(7000, f"p{at}")) for at in range(16)]
    errors: dict[str, str] = {}

    def bind(raw: dict[str, dict[str, str]], to: str) -> None:
        errors[raw["metadata"]["name"]] = running.bind(raw, to)

    threads = [threading.Thread(target=bind, args=(raw, "ab"[at % 2])) for at, raw in enumerate(pods)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sorted(errors.values()) == [""] * 8 + ["no card has 7000 MiB free"] * 8
    used: dict[str, int] = {}
    for raw in running.api.pods():
        if raw["spec"].get("nodeName"):
            (given,) = json.loads(raw["metadata"]["annotations"]["bursar.dev/devices"])["containers"]["main"]
            used[given["uuid"]] = used.get(given["uuid"], 0) + given["memory_mib"]
    assert used == dict.fromkeys(["a-GPU-0", "a-GPU-1", "b-GPU-0", "b-GPU-1"], 14_000)
