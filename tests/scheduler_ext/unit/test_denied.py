"""A namespace that has spent a budget with ``onExhausted: deny`` or ``evict``: its waiting pods are not bound
until the budget is back."""

import pytest

from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.store import Fault
from tests.scheduler_ext.worlds import Json, node, on, percent, waiting
from tests.support.simulated_timekeeper import entry, standings

TEXT = "namespace team-a has spent its GPU budget"


class World:
    """An extender, and a timekeeper that says how ``team-a`` stands; ``team-b`` is in budget."""

    def __init__(self, running: Stepped) -> None:
        self.running = running

    def say(self, standing: str, **fields: object) -> None:
        """How team-a stands from now on; the extender has read it."""
        said = entry(standing, **{"onExhausted": "deny", "spent": True} | fields)
        self.running.passes(3)  # every round is over
        others = entry("IN_BUDGET", onExhausted="deny", spent=False)
        self.running.says(standings(team_a=said, team_b=others))

    def filter(self, raw: Json) -> Json:
        """The pod exists, and kube-scheduler asks for node a."""
        return self.running.filter(self.running.put_pod(raw), "a")


@pytest.fixture
def world(running: Stepped) -> World:
    running.put_node(node("a"))
    world = World(running)
    world.say("OVER_BUDGET")
    return world


def protecting(*names: str) -> Json:
    """The budget's `protect`, by which these pods are protected now."""
    selects = {"labels": {"tier": "serving"}, "owners": [], "cards": 1_000, "amount": None}
    return selects | {"left": 0, "turns": False, "uids": [f"uid-{name}" for name in names]}


@pytest.mark.parametrize(("mode", "is_bound"), [("evict", False), ("hold", False), ("reclaim", True)])
def test_a_pod_that_would_be_evicted_or_held_now_is_not_bound_either(
    world: World, mode: str, is_bound: bool
) -> None:
    world.say("OVER_BUDGET", onExhausted=mode)

    answer = world.filter(waiting(f"under-{mode}"))

    assert answer["NodeNames"] == (["a"] if is_bound else [])


def test_filter_and_bind_refuse_its_pod_with_one_text_and_bind_that_of_another(world: World) -> None:
    answer = world.filter(waiting("denied"))

    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {})
    assert answer["FailedAndUnresolvableNodes"] == {"a": TEXT}
    assert world.running.bind(world.running.api.pod("denied"), "a") == TEXT
    body = {"Pod": waiting("denied"), "NodeNames": ["a"]}
    assert world.running.client.post("/dryrun", json=body).get_json()["NodeNames"] == []
    assert world.running.posted()["waiting"]["denied"]["reason"] == TEXT
    metrics = world.running.client.get("/metrics").text
    assert 'bursar_extender_nodes_refused_total{reason="budget"} 1.0' in metrics

    other = waiting("other", namespace="team-b")
    assert world.filter(other)["NodeNames"] == ["a"]
    assert world.running.bind(world.running.api.pod("other", "team-b"), "a") == ""


def test_a_protected_pod_is_offered_bound_and_simulated_where_the_others_are_refused(world: World) -> None:
    world.say("OVER_BUDGET", protect=protecting("serving"))

    assert world.filter(waiting("batch"))["NodeNames"] == []
    assert world.filter(waiting("serving"))["NodeNames"] == ["a"]
    assert world.running.bind(world.running.api.pod("batch"), "a") == TEXT
    assert world.running.bind(world.running.api.pod("serving"), "a") == ""


def test_a_pod_is_woken_once_it_is_protected(world: World) -> None:
    for name in ("batch", "serving"):
        world.filter(waiting(name))

    world.say("OVER_BUDGET", protect=protecting("serving"))

    world.running.passes(3)
    assert world.running.woken() == ["uid-serving"]
    sent = world.running.api.made("patch")[-1]
    assert sent["status"]["conditions"][0]["reason"] == "InBudget"


def test_a_protected_pod_is_woken_for_a_freed_card(world: World) -> None:
    world.say("OVER_BUDGET", protect=protecting("serving"))
    world.running.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    for name in ("batch", "serving"):
        world.filter(waiting(name))

    ended = {**world.running.api.pod("holder"), "status": {"phase": "Succeeded"}}
    world.running.api.put("pods", ended)

    world.running.passes(3)
    assert world.running.woken() == ["uid-serving"]


@pytest.mark.parametrize(
    ("standing", "fields"),
    [
        ("OVER_BUDGET", {"spent": False}),  # reservations alone use up the rest
        ("OVER_BUDGET", {"onExhausted": "deprioritize"}),
        ("IN_BUDGET", {}),
        ("OVER_BUDGET", {"validUntil": 1_750_000_000_000}),  # over by now: UNKNOWN
    ],
)
def test_a_pod_is_bound_unless_the_grant_is_known_to_be_spent_under_deny(
    world: World, standing: str, fields: Json
) -> None:
    world.say(standing, **fields)

    assert world.filter(waiting("p"))["NodeNames"] == ["a"]
    assert world.running.bind(world.running.api.pod("p"), "a") == ""


def test_a_budget_in_observe_mode_only_logs_what_it_would_refuse(world: World) -> None:
    world.say("OVER_BUDGET", mode="observe", protect=protecting("serving"))

    for name in ("serving", "p"):
        assert world.filter(waiting(name, 40))["NodeNames"] == ["a"]
        assert world.running.bind(world.running.api.pod(name), "a") == ""

    assert not [line for line in world.running.lines if line.startswith("would-refuse pod=team-a/serving ")]
    assert [line for line in world.running.lines if line.startswith("would-refuse pod=team-a/p ")]


def test_it_is_woken_when_the_budget_is_back_and_not_for_a_freed_card(world: World) -> None:
    world.running.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    world.filter(waiting("denied"))
    world.filter(waiting("next", 50, namespace="team-b"))

    ended = {**world.running.api.pod("holder"), "status": {"phase": "Succeeded"}}
    world.running.api.put("pods", ended)

    world.running.passes(3)
    assert world.running.woken() == ["uid-next"]

    world.say("IN_BUDGET", spent=False)

    world.running.passes(3)
    assert world.running.woken() == ["uid-next", "uid-denied"]
    sent = world.running.api.made("patch")[-1]
    assert sent["status"]["conditions"][0]["reason"] == "InBudget"


def test_a_pod_that_the_api_server_did_not_answer_for_is_woken_later(world: World) -> None:
    world.filter(waiting("denied"))
    world.running.api.faults.append(Fault("patch", status=503))

    world.say("IN_BUDGET", spent=False)

    world.running.passes(3)
    assert world.running.woken().count("uid-denied") == 2
