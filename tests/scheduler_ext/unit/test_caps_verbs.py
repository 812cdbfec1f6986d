"""Caps in a running extender: what filter and bind refuse, who is woken, and many binds at once."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_ext.verbs.verbs import INCOMPLETE
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.store import Fault
from tests.scheduler_ext.worlds import Json, mib, node, on, percent, waiting
from tests.support.simulated_timekeeper import entry, standings
from tests.worlds import card

FULL = "above the cap of namespace team-a (maxGPUs: 1)"
NODES = 4


class World:
    """An extender, and a timekeeper that publishes caps."""

    def __init__(self, running: Stepped) -> None:
        self.running = running

    def say(self, **fields: Any) -> None:
        """The entries of team-a from now on, and of team-b of the same group; the extender has read it."""
        own = {key: value for key, value in fields.items() if key != "caps"}
        self.running.passes(3)  # every round is over
        self.running.says(standings(team_a=entry(**fields), team_b=entry(**own)))

    def filter(self, raw: Json, *nodes: str) -> Json:
        """The pod exists, and kube-scheduler asks for these nodes."""
        return self.running.filter(self.running.put_pod(raw), *(nodes or ("n0",)))

    def bind(self, name: str, where: str = "n0", namespace: str = "team-a") -> str:
        return self.running.bind(self.running.api.pod(name, namespace), where)

    def end(self, name: str, namespace: str = "team-a") -> None:
        self.running.api.put(
            "pods", {**self.running.api.pod(name, namespace), "status": {"phase": "Succeeded"}}
        )

    def held(self) -> Counter[str]:
        """What the API server's pods hold, by namespace: whole annotations, read without our code's sums."""
        total: Counter[str] = Counter()
        for raw in self.running.api.pods():
            if raw["spec"].get("nodeName") and raw["status"]["phase"] != "Succeeded":
                total[raw["metadata"]["namespace"]] += 10 * int(
                    raw["spec"]["containers"][0]["resources"]["limits"]["bursar.dev/gpu-percent"]
                )
        return total


@pytest.fixture
def world(running: Stepped) -> World:
    for at in range(NODES):
        running.put_node(node(f"n{at}", *(card(index) for index in range(4))))
    return World(running)


def test_filter_and_bind_refuse_a_pod_above_the_cap_and_bind_others(world: World) -> None:
    world.say(caps={"total": 1_000, "pod": None})
    assert world.filter(waiting("first"))["NodeNames"] == ["n0"]
    assert world.bind("first") == ""

    answer = world.filter(waiting("second"))

    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {})
    assert answer["FailedAndUnresolvableNodes"] == {"n0": FULL}
    assert world.bind("second", "n1") == FULL
    body = {"Pod": waiting("second"), "NodeNames": ["n0"]}
    assert world.running.client.post("/dryrun", json=body).get_json()["NodeNames"] == []
    assert world.running.posted()["waiting"]["second"]["reason"] == FULL
    assert (
        'bursar_extender_nodes_refused_total{reason="cap"} 1.0' in world.running.client.get("/metrics").text
    )
    assert world.filter(waiting("small", 40))["NodeNames"] == ["n0"]
    assert world.bind("small") == ""
    assert world.filter(waiting("other", namespace="team-b"))["NodeNames"] == ["n0"]
    assert world.bind("other", namespace="team-b") == ""


def test_pods_that_another_scheduler_placed_count_and_are_not_refused(world: World) -> None:
    world.say(caps={"total": 1_000, "pod": None})
    theirs = on(percent(50, "theirs", schedulerName="other"), "n0", "n0-GPU-0")
    world.running.put_pod(theirs)

    assert world.filter(waiting("mine"))["NodeNames"] == []


def test_a_release_wakes_as_many_as_fit_in_turn_and_a_raised_cap_the_rest(world: World) -> None:
    world.say(caps={"total": 1_000, "pod": None})
    world.running.put_pod(on(waiting("holder", 100), "n0", "n0-GPU-0"))
    for at in range(4):
        world.filter(waiting(f"p{at}", 50, priority=at))

    world.end("holder")

    world.running.passes(0.5)
    assert len(world.running.woken()) == 2
    assert world.running.woken() == ["uid-p3", "uid-p2"]
    for name in ("p3", "p2"):
        assert world.filter(world.running.api.pod(name))["NodeNames"] == ["n0"]
        assert world.bind(name) == ""
    assert world.running.woken() == ["uid-p3", "uid-p2"]

    world.say(caps={"total": 1_500, "pod": None})

    world.running.passes(0.5)
    assert len(world.running.woken()) == 3
    assert world.running.woken()[2] == "uid-p1"
    assert world.running.api.made("patch")[2]["status"]["conditions"][0]["reason"] == "BelowCap"


def test_a_raised_cap_wakes_a_pod_though_no_card_was_freed(world: World) -> None:
    world.say(caps={"total": 500, "pod": None})
    assert world.filter(waiting("p"))["NodeNames"] == []

    world.say(caps={"total": 600, "pod": None})

    world.running.passes(0.5)
    assert world.running.woken() == ["uid-p"]


def test_what_claims_hold_counts_and_a_release_of_a_claim_wakes_a_pod(world: World) -> None:
    world.say(caps={"total": 1_000, "pod": None}, heldByClaims=500)
    assert world.filter(waiting("p"))["FailedAndUnresolvableNodes"] == {"n0": FULL}
    assert world.bind("p") == FULL
    old = {"validUntil": 1_750_000_000_000}  # its standing is UNKNOWN, and what counts toward the cap stays
    world.say(caps={"total": 1_000, "pod": None}, heldByClaims=500, **old)
    assert world.filter(waiting("p"))["FailedAndUnresolvableNodes"] == {"n0": FULL}

    world.say(caps={"total": 1_000, "pod": None}, heldByClaims=400)

    world.running.passes(0.5)
    assert world.running.woken() == ["uid-p"]
    assert world.bind("p") == ""


def test_a_groups_cap_counts_the_pods_of_all_its_namespaces(world: World) -> None:
    world.say(group="lab", groupCaps={"total": 1_000, "pod": 700})
    assert world.filter(waiting("a"))["NodeNames"] == ["n0"]
    assert world.bind("a") == ""

    assert world.filter(waiting("b", namespace="team-b"))["FailedAndUnresolvableNodes"] == {
        "n0": "above the cap of group lab (maxGPUs: 1)"
    }
    assert world.bind("b", "n1", "team-b") == "above the cap of group lab (maxGPUs: 1)"
    assert world.filter(waiting("large", 80))["FailedAndUnresolvableNodes"] == {
        "n0": "above the cap of group lab (maxGPUsPerPod: 0.7)"
    }

    world.end("a")

    world.running.passes(0.5)
    assert "uid-b" in world.running.woken()


def test_a_cap_is_kept_while_the_timekeeper_is_silent_and_in_observe_mode_only_logged(world: World) -> None:
    world.say(caps={"total": 0, "pod": None}, validUntil=1_750_000_000_000)  # its standing is UNKNOWN
    assert world.running.extender.standings().of("team-a").status == "UNKNOWN"
    assert world.filter(waiting("p"))["NodeNames"] == []

    world.say(caps={"total": 0, "pod": None}, mode="observe")

    assert world.filter(waiting("p"))["NodeNames"] == ["n0"]
    assert world.bind("p") == ""
    assert [line for line in world.running.lines if line.startswith("would-refuse pod=team-a/p ")]


def test_cards_that_a_bind_did_not_get_count_no_more(world: World) -> None:
    world.say(caps={"total": 1_000, "pod": None})
    world.filter(waiting("refused"))
    world.running.api.faults.append(Fault("bind", status=403))
    assert world.bind("refused") != ""

    assert world.filter(waiting("next"))["NodeNames"] == ["n0"]
    assert world.bind("next") == ""


def test_memory_alone_is_compared_with_the_card_that_it_gets(world: World) -> None:
    world.say(caps={"total": 400, "pod": None})
    world.running.put_node(node("large", card(0, 80_000)))
    raw = mib(8_000, "m", schedulerName="bursar-scheduler")

    answer = world.filter(raw, "n0", "large")

    assert answer["NodeNames"] == ["large"]
    assert answer["FailedAndUnresolvableNodes"] == {"n0": "above the cap of namespace team-a (maxGPUs: 0.4)"}
    assert world.bind("m", "n0") == "above the cap of namespace team-a (maxGPUs: 0.4)"
    assert world.bind("m", "large") == ""


def test_a_pod_above_its_cap_preempts_none(world: World) -> None:
    world.say(caps={"total": 500, "pod": None})
    world.running.put_pod(on(waiting("victim", 100, "team-c"), "n0", "n0-GPU-0"))
    above = world.running.put_pod(waiting("above", 60, priority=100))
    victims = {"n0": {"Pods": [{"UID": "uid-victim"}], "NumPDBViolations": 0}}

    def preempted() -> Json:
        body = {"Pod": above, "NodeNameToMetaVictims": victims}
        answer = world.running.client.post("/preempt", json=body).get_json()
        found: Json = answer["NodeNameToMetaVictims"]
        return found

    assert preempted() == {}
    world.say(caps={"total": 600, "pod": None})
    assert set(preempted()) == {"n0"}
    world.running.passes(0.5)
    assert "uid-above" in world.running.woken()


def test_many_binds_at_once_on_many_nodes_never_exceed_the_caps_and_fill_them(world: World) -> None:
    """Two namespaces with caps of their own in one group: whatever order the binds take, the sums never
    exceed a cap, and what is left is less than any pod that was refused."""
    rng = random.Random(7)
    caps = {"total": 2_500, "pod": None}
    both: Json = {"group": "lab", "caps": caps, "groupCaps": {"total": 4_000, "pod": None}}
    world.running.says(standings(team_a=entry(**both), team_b=entry(**both)))
    pods = [(f"p{at}", 50 if at < 4 else 25, rng.choice(("team-a", "team-b"))) for at in range(40)]
    for name, share, namespace in pods:
        world.running.put_pod(waiting(name, share, namespace))

    def bind(pod: tuple[str, int, str]) -> str:
        return world.bind(pod[0], f"n{rng.randrange(NODES)}", pod[2])

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(bind, pods))

    held = world.held()
    assert held["team-a"] <= 2_500
    assert held["team-b"] <= 2_500
    assert held.total() == 4_000
    assert all("above the cap" in answer for answer in answers if answer)
    world.running.passes(0.5)
    assert dict(world.running.extender.cache.snapshot.held.items()) == dict(held)


def test_no_pod_is_placed_before_a_poll_of_the_standings_was_attempted(world: World) -> None:
    """Without one no cap would be known."""
    world.say(caps={"total": 0, "pod": None})
    verbs = world.running.extender._verbs
    verbs._was_polled = lambda: False
    raw = world.running.put_pod(waiting("early"))

    assert world.running.filter(raw, "n0")["Error"] == INCOMPLETE
    assert world.bind("early") == INCOMPLETE
    assert world.running.client.get("/readyz").status_code == 503
