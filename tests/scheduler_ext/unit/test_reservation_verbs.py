"""Reservations through the extender's verbs."""

from tests.scheduler_ext.reserving import held
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.worlds import node, on, percent
from tests.worlds import card


def test_filter_prioritize_and_bind_keep_held_cards_for_the_pod(running: Stepped) -> None:
    running.put_node(node("n"))
    mine = held(percent(60), "n", "GPU-0", since_ms=running.now_ms, until_ms=running.now_ms + 60_000)
    mine = running.put_pod(mine)
    other = running.put_pod(percent(60, "other"))
    small = running.put_pod(percent(40, "small"))

    assert running.filter(other, "n")["NodeNames"] == []
    assert running.prioritize(other, "n") == {"n": 0}
    assert running.bind(other, "n") == "no card has 60 percent free"
    assert running.filter(mine, "n")["NodeNames"] == ["n"]
    assert running.bind(small, "n") == ""
    assert running.bind(mine, "n") == ""
    assert running.free("n") == [0]


def test_what_is_held_is_seen_as_that_and_not_as_taken(running: Stepped) -> None:
    running.put_node(node("n", card(0), card(1)))
    running.put_pod(
        held(percent(60), "n", "GPU-0", since_ms=running.now_ms, until_ms=running.now_ms + 60_000)
    )

    first = running.posted()["nodes"]["n"]["cards"][0]
    assert [pod["held"] for pod in first["pods"]] == ["reserved"]
    assert first["used_share_milli"] == 0
    exposed = running.client.get("/metrics").text
    assert "bursar_extender_reservations 1.0" in exposed
    assert "bursar_extender_reserved_gpus 0.6" in exposed
    assert "bursar_extender_free_gpus 1.4" in exposed
    assert 'bursar_extender_preemptions_total{kind="reclaim",result="bound"} 0.0' in exposed
    assert 'bursar_extender_preemption_victims_total{how="deleted",kind="reclaim"} 0.0' in exposed
    assert "bursar_extender_evictions_refused_total 0.0" in exposed


def test_a_reservation_survives_a_restart_and_ends_by_the_clock(start: Start) -> None:
    first = start()
    first.put_node(node("n"))
    first.put_pod(held(percent(60), "n", "GPU-0", since_ms=first.now_ms, until_ms=first.now_ms + 2_500))
    first.extender.stop()

    second = start()
    second.now_ms = first.now_ms

    assert second.free("n") == [400]
    second.passes(3)
    assert second.free("n") == [1000]


def test_kube_scheduler_gets_no_victims_for_a_pod_that_others_leave_for_already(running: Stepped) -> None:
    running.put_node(node("n"))
    running.put_node(node("m"))
    running.put_pod(on(percent(100, "low", priority=-5), "m", "m-GPU-0"))
    plain = percent(60, "p", priority=9)
    mine = held(plain, "n", "GPU-0", since_ms=running.now_ms, until_ms=running.now_ms + 60_000)

    asked = {"NodeNameToVictims": None, "NodeNameToMetaVictims": {"m": {"Pods": [{"UID": "uid-low"}]}}}
    before = running.client.post("/preempt", json={"Pod": running.put_pod(plain), **asked}).get_json()
    after = running.client.post("/preempt", json={"Pod": running.put_pod(mine), **asked}).get_json()

    assert list(before["NodeNameToMetaVictims"]) == ["m"]
    assert not after["NodeNameToMetaVictims"]
