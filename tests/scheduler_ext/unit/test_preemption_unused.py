"""An eviction that led to no binding: the next one waits, and cards are held for a while only."""

from typing import Any

import pytest

from tests.scheduler_ext.preempting import stage, unscheduled
from tests.scheduler_ext.preempting_worlds import CLAIMED, FRAGMENTED, begins, low, reservation
from tests.scheduler_ext.reserving import held, stamp
from timekeeper.core.ledger.reservation import MAX_MS


def test_a_pod_with_a_useless_eviction_soon_causes_no_other() -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")
    world.ends("a")
    world.step()
    world.api.put("pods", low("c", 60, "GPU-0", priority=9))  # bound over our head: it has the card now
    world.step(after_s=1, times=240)

    assert world.asked() == ["a"]


@pytest.mark.parametrize(
    ("share", "namespace", "asked"),
    [(50, "team-a", ["a"]), (49, "team-a", ["a", "b"]), (50, "team-c", ["a", "b"])],
)
def test_a_pod_renewed_under_another_uid_has_no_more_evicted_for_it(
    share: int, namespace: str, asked: list[str]
) -> None:
    world = stage(*FRAGMENTED)
    begins(world, "high")
    world.ends("a")
    world.step()
    world.api.put("pods", low("c", 60, "GPU-0", priority=9))
    world.api.delete("pods", "high", "team-a")
    world.step()
    renewed = unscheduled("renewed", share, priority=9, namespace=namespace)
    renewed["metadata"]["creationTimestamp"] = stamp(world.now_ms)
    world.api.put("pods", renewed)
    world.offered["renewed"] = ["n"]
    world.step(after_s=1, times=60)

    assert world.asked() == asked


@pytest.mark.parametrize(
    ("offered", "later_s", "fields", "ends"),
    [
        (["m"], 2.0, {}, True),  # kube-scheduler called filter without the node
        (["m"], 0.0, {}, False),  # that was before the cards were free
        (["n", "m"], 2.0, {}, False),
        (["n"], 0.0, CLAIMED, True),  # it may have refused the node without a call
    ],
)
def test_a_hold_ends_seconds_after_kube_scheduler_refuses_the_free_cards(
    offered: list[str], later_s: float, fields: dict[str, Any], *, ends: bool
) -> None:
    pods = (*FRAGMENTED[:3], unscheduled("high", 50, priority=9, **fields))
    world = stage(*pods)
    begins(world, "high")
    world.ends("a")
    world.step()
    assert reservation(world, "high") == "n"

    world.offered["high"] = offered
    world.refused_s = world.now_ms / 1000 + later_s if later_s else 0.0
    world.step(after_s=1, times=20)

    assert (reservation(world, "high") == "") is ends
    assert (("high", "CardsLetGo") in world.told) is ends


def test_one_that_is_held_for_longer_than_may_be_is_released() -> None:
    raw = held(unscheduled("p", 50), "n", "GPU-0", until_ms=1_795_000_000_000 + 2 * MAX_MS)
    raw["status"]["conditions"].append(unscheduled("p", 50)["status"]["conditions"][0])
    world = stage(*FRAGMENTED[:3], raw)
    world.step(times=3)

    assert reservation(world, "p") == ""
    assert world.asked() == []
