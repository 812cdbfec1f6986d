"""kube-scheduler's preempt verb: what it chose stays, and those are added who free the cards."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.cooldown import MAX_UNUSED, NOTHING_DONE
from tests.scheduler_ext.preemption_worlds import IN, OVER, budget, of, standing
from tests.scheduler_ext.stepped import Stepped
from tests.scheduler_ext.worlds import Json, asking, node, on, percent, read
from tests.worlds import card, container, of_resources

WAITING: dict[str, Any] = {"priority": 1000}
NOBODY: Json = {"Pods": [], "NumPDBViolations": 0}


@pytest.fixture
def world(running: Stepped) -> Stepped:
    """A node "n" of two cards: 50 % + 50 % on the first, 80 % on the second."""
    running.put_node(node("n", card(0), card(1)))
    for name, share, uuid in (("a", 50, "GPU-0"), ("b", 50, "GPU-0"), ("c", 80, "GPU-1")):
        running.put_pod(of(on(percent(share, name), "n", uuid), "other"))
    return running


def meta(*names: str, violations: int = 0) -> Json:
    """Victims by their UIDs."""
    return {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": violations}


def ask(world: Stepped, pod: Json, **nodes: Json | None) -> dict[str, list[str]]:
    """The victims' names that are answered for each node, in order."""
    answer = whole(world, pod, **nodes)
    return {
        name: [each["UID"].removeprefix("uid-") for each in victims["Pods"]]
        for name, victims in answer.items()
    }


def whole(world: Stepped, pod: Json, **nodes: Json | None) -> Json:
    """The nodes of the answer."""
    body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes}
    answer = world.client.post("/preempt", json=body)
    assert answer.status_code == 200
    assert list(answer.get_json()) == ["NodeNameToMetaVictims"]
    found: Json = answer.get_json()["NodeNameToMetaVictims"]
    return found


def stands(world: Stepped, standings: NamespaceStandings) -> None:
    """From now on the timekeeper says so."""
    world.extender.standings = lambda: standings  # type: ignore[method-assign]


def test_victims_that_free_the_cards_are_answered_as_they_came(world: Stepped) -> None:
    asked = meta("c", violations=3)

    assert whole(world, percent(80, "waiting", **WAITING), n=asked) == {"n": asked}


def test_where_they_free_the_totals_but_no_card_those_are_added_who_do(world: Stepped) -> None:
    # a and 20 % that are free are 70 % in sum, on two cards; b is what is missing
    assert ask(world, percent(70, "waiting", **WAITING), n=meta("a")) == {"n": ["a", "b"]}


def test_those_that_kube_scheduler_chose_are_never_dropped(world: Stepped) -> None:
    assert ask(world, percent(80, "waiting", **WAITING), n=meta("a")) == {"n": ["a", "b"]}
    assert ask(world, percent(20, "waiting", **WAITING), n=meta("a", "c")) == {"n": ["a", "c"]}


def test_a_victim_that_requests_no_gpu_is_kube_schedulers_to_choose(world: Stepped) -> None:
    assert ask(world, percent(70, "waiting", **WAITING), n=meta("cpu-only")) == {"n": ["cpu-only", "c"]}


def test_for_a_resize_of_a_bound_pod_no_victim_is_added(world: Stepped) -> None:
    """Of Kubernetes 1.37 with InPlacePodVerticalScalingSchedulerPreemption."""
    grows = on(percent(20, "grows", **WAITING), "n", "GPU-1")
    world.put_pod(grows)

    assert ask(world, grows, n=meta("cpu-only")) == {"n": ["cpu-only"]}


def test_for_a_pod_of_zeros_alone_kube_schedulers_choice_stays(world: Stepped) -> None:
    zeros = asking(of_resources({"nvidia.com/gpu": "0"}), name="waiting", **WAITING)

    assert whole(world, zeros, n=meta("a"), m=meta("cpu-only")) == {"n": meta("a"), "m": meta("cpu-only")}


def test_an_empty_list_is_filled_where_the_cards_need_it_and_else_the_node_is_left_out(
    world: Stepped,
) -> None:
    for empty in (NOBODY, {"Pods": None, "NumPDBViolations": 0}, None, {}):
        assert ask(world, percent(80, "waiting", **WAITING), n=empty) == {"n": ["c"]}
        assert ask(world, percent(20, "waiting", **WAITING), n=empty) == {}


def test_a_node_where_not_even_all_would_help_is_left_out(world: Stepped) -> None:
    three = asking(container(gpu_count="3"), name="waiting", **WAITING)
    models = percent(50, "waiting", annotations={"bursar.dev/gpu-models": "H100"}, **WAITING)

    assert ask(world, three, n=meta("a", "b", "c")) == {}
    assert ask(world, models, n=meta("a")) == {}
    assert ask(world, percent(50, "waiting", **WAITING), unknown=meta("x")) == {}


def test_no_victim_of_equal_or_higher_priority_is_added(world: Stepped) -> None:
    world.put_pod(of(on(percent(80, "c", priority=1000), "n", "GPU-1"), "other"))

    assert ask(world, percent(80, "waiting", **WAITING), n=meta("a")) == {"n": ["a", "b"]}
    whole_cards = asking(container(gpu_count="2"), name="waiting", **WAITING)
    assert ask(world, whole_cards, n=meta("a", "b")) == {}


def test_a_node_is_left_out_where_the_chosen_one_is_no_victim_for_this_pod(world: Stepped) -> None:
    world.put_node(node("m"))

    assert ask(world, percent(50, "waiting", **WAITING), m=meta("a")) == {}
    assert ask(world, percent(50, "waiting", priority=0), n=meta("a")) == {}


def test_disruption_budgets_are_counted_for_the_added_ones_after_the_chosen_ones(world: Stepped) -> None:
    labels = {"app": "web"}
    for name, share, uuid in (("a", 50, "GPU-0"), ("b", 50, "GPU-0")):
        world.put_pod(of(on(percent(share, name), "n", uuid), "other", labels=labels))
    world.put_pod(of(on(percent(80, "c", priority=1), "n", "GPU-1"), "other"))
    world.api.put("poddisruptionbudgets", budget("other", 1, {"matchLabels": labels}))
    world.catches_up()

    answer = whole(world, percent(80, "waiting", **WAITING), n=meta("a"))

    assert answer == {"n": meta("a", "b", violations=1)}


def test_an_over_budget_pod_gets_no_node(world: Stepped) -> None:
    stands(world, standing(team_a=OVER))

    assert ask(world, percent(80, "waiting", **WAITING), n=meta("c")) == {}


def test_a_pod_that_preempts_never_gets_no_node(world: Stepped) -> None:
    assert ask(world, percent(80, "waiting", preemptionPolicy="Never", **WAITING), n=meta("c")) == {}


def test_a_debtor_is_added_whatever_its_class_and_one_in_budget_is_not(world: Stepped) -> None:
    world.put_pod(of(on(percent(80, "c", priority=1000), "n", "GPU-1"), "debtor"))
    stands(world, standing(team_a=IN, debtor=OVER, other=IN))

    assert ask(world, percent(80, "waiting", priority=0), n=NOBODY) == {"n": ["c"]}
    assert ask(world, percent(50, "waiting", priority=0), n=NOBODY) == {"n": ["c"]}
    stands(world, standing(team_a=IN, debtor=IN, other=IN))
    assert ask(world, percent(80, "waiting", priority=0), n=NOBODY) == {}


def test_who_leaves_for_his_standing_alone_is_not_made_to_against_a_disruption_budget(world: Stepped) -> None:
    protected = of(on(percent(80, "c", priority=1000), "n", "GPU-1"), "debtor", labels={"app": "web"})
    world.put_pod(protected)
    world.api.put("poddisruptionbudgets", budget("debtor", 0, {}))
    stands(world, standing(team_a=IN, debtor=OVER, other=IN))
    world.catches_up()

    assert ask(world, percent(80, "waiting", priority=0), n=NOBODY) == {}
    assert ask(world, percent(80, "waiting", priority=1001), n=NOBODY) == {"n": ["c"]}


def test_what_the_cool_down_spares_is_neither_added_nor_removed(world: Stepped) -> None:
    victim, waiting = of(on(percent(80, "gone"), "n", "GPU-1"), "other", "set"), percent(80, "first")
    cooldown = NOTHING_DONE.after(read(victim), read(waiting), 0)
    world.extender.cooldown = lambda: cooldown
    of_set = of(on(percent(80, "c"), "n", "GPU-1"), "other", "set")
    of_set["metadata"]["creationTimestamp"] = "1970-01-01T00:00:01Z"
    world.put_pod(of_set)

    assert ask(world, percent(80, "waiting", **WAITING), n=meta("c")) == {"n": ["c"]}
    recent = NOTHING_DONE.after(read(victim), read(waiting), 4_000_000_000_000)
    world.extender.cooldown = lambda: recent
    of_set["metadata"]["creationTimestamp"] = "2127-01-01T00:00:00Z"
    world.put_pod(of_set)
    assert ask(world, percent(80, "waiting", **WAITING), n=meta("c")) == {}


def drop(world: Stepped, raw: Json) -> None:
    """Delete a pod, and the extender hears of it."""
    metadata = raw["metadata"]
    world.api.delete("pods", metadata["name"], metadata["namespace"])
    world.catches_up()
    assert metadata["uid"] not in world.extender.cache.snapshot.pods


@pytest.mark.parametrize("finalizer", [False, True])
def test_a_namespace_whose_pods_go_after_each_answer_makes_kube_scheduler_evict_a_bounded_number_of_times(
    world: Stepped, finalizer: bool
) -> None:
    for n in range(MAX_UNUSED):
        waiting = world.put_pod(percent(80, f"w{n}", **WAITING))
        assert ask(world, waiting, n=meta("c")) == {"n": ["c"]}
        if finalizer:
            metadata = waiting["metadata"] | {
                "deletionTimestamp": "2027-01-15T08:00:00Z",
                "finalizers": ["x/y"],
            }
            world.put_pod({**waiting, "metadata": metadata})
        else:
            drop(world, waiting)
        world.extender.preemptor.step()

    last = world.put_pod(percent(80, "last", **WAITING))
    assert ask(world, last, n=meta("c")) == {}
    assert ask(world, of(percent(80, "theirs", **WAITING), "team-z"), n=meta("c")) == {"n": ["c"]}


def test_a_pod_that_is_bound_after_the_answer_was_no_unused_one(world: Stepped) -> None:
    for n in range(MAX_UNUSED):
        waiting = world.put_pod(percent(80, f"w{n}", **WAITING))
        assert ask(world, waiting, n=meta("c")) == {"n": ["c"]}
        bound = on(percent(1, f"w{n}", **WAITING), "n", "GPU-1")
        world.put_pod({**bound, "metadata": waiting["metadata"] | bound["metadata"]})
        world.extender.preemptor.step()
        drop(world, waiting)
        world.extender.preemptor.step()

    assert world.extender.cooldown() == NOTHING_DONE


def test_victims_may_come_as_whole_pods_and_keys_in_any_case(world: Stepped) -> None:
    pod = percent(70, "waiting", **WAITING)
    victims = {"n": {"pods": [of(on(percent(50, "a"), "n", "GPU-0"), "other")], "numPdbViolations": 2}}

    for body in (
        {"Pod": pod, "NodeNameToVictims": victims, "NodeNameToMetaVictims": None},
        {"pod": pod, "nodenametovictims": victims},
    ):
        answer = world.client.post("/preempt", json=body).get_json()
        assert answer == {"NodeNameToMetaVictims": {"n": meta("a", "b", violations=2)}}
    lower = {"pod": pod, "NODENAMETOMETAVICTIMS": {"n": {"PODS": [{"uid": "uid-a"}]}}}
    answer = world.client.post("/preempt", json=lower).get_json()
    assert answer == {"NodeNameToMetaVictims": {"n": meta("a", "b")}}


def test_no_nodes_are_no_nodes(world: Stepped) -> None:
    bodies: list[Json] = [
        {},
        {"NodeNameToVictims": None, "NodeNameToMetaVictims": None},
        {"NodeNameToVictims": {}},
    ]
    for body in bodies:
        answer = world.client.post("/preempt", json={"Pod": percent(50), **body}).get_json()
        assert answer == {"NodeNameToMetaVictims": {}}


def test_a_pod_without_a_gpu_gets_the_nodes_that_were_sent_and_a_malformed_one_none(world: Stepped) -> None:
    assert ask(world, asking(container(), **WAITING), n=meta("a"), m=meta("x")) == {"n": ["a"], "m": ["x"]}
    assert ask(world, percent(150, "waiting", **WAITING), n=meta("a")) == {}


def test_before_the_books_are_complete_there_are_no_nodes(world: Stepped) -> None:
    world.extender.cache._missing.add("nodes")

    assert ask(world, percent(80, "waiting", **WAITING), n=meta("c")) == {}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"Pod": None}, "Pod must be an object with metadata"),
        ({"NodeNameToVictims": []}, "NodeNameToVictims and NodeNameToMetaVictims must be objects"),
        ({"NodeNameToMetaVictims": {"n": []}}, "victims must be an object with Pods and NumPDBViolations"),
        (
            {"NodeNameToMetaVictims": {"n": {"Pods": {}}}},
            "Pods must be an array and NumPDBViolations a number",
        ),
        (
            {"NodeNameToMetaVictims": {"n": {"NumPDBViolations": True}}},
            "Pods must be an array and NumPDBViolations a number",
        ),
        ({"NodeNameToMetaVictims": {"n": {"Pods": [None]}}}, "each of Pods must have a UID"),
        ({"NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": 1}}]}}}, "each of Pods must have a UID"),
    ],
)
def test_a_malformed_body_is_answered_with_what_is_wrong(world: Stepped, body: Json, said: str) -> None:
    answer = world.client.post("/preempt", json={"Pod": percent(50)} | body)

    assert answer.status_code == 400
    assert said in answer.text


def test_it_changes_nothing_and_is_logged_and_counted(world: Stepped) -> None:
    before = world.extender.cache.snapshot

    ask(world, percent(70, "waiting", **WAITING), n=meta("a"))

    assert world.extender.cache.snapshot is before
    assert "preempt result=fit pod=team-a/waiting uid=uid-waiting nodes=1 left=1 added=1" in world.lines[-1]
    counted = world.client.get("/metrics").text
    assert 'bursar_extender_verbs_total{result="fit",verb="preempt"} 1.0' in counted


def test_a_recorded_call_of_kube_scheduler_is_answered_as_it_obeyed_it(running: Stepped) -> None:
    """Of kube-scheduler 1.36, where each victim frees its node; it asked for a resource of nobody."""
    sample = json.loads((Path(__file__).parents[1] / "samples" / "preempt.json").read_text())
    waiting = sample["request"]["Pod"]
    waiting["spec"]["containers"][0]["resources"] = {"limits": {"bursar.dev/gpu-percent": "60"}}
    for name, victims in sample["request"]["NodeNameToMetaVictims"].items():
        running.put_node(node(name))
        victim = on(percent(50, f"on-{name}"), name, f"{name}-GPU-0")
        victim["metadata"]["uid"] = victims["Pods"][0]["UID"]
        running.put_pod(victim)

    assert running.client.post("/preempt", json=sample["request"]).get_json() == sample["response"]


def test_unknown_nodes_change_no_answer(world: Stepped) -> None:
    offered = {f"unknown-{at}": meta("x") for at in range(100)} | {"n": meta("a")}

    assert list(ask(world, percent(70, "waiting", **WAITING), **offered)) == ["n"]
