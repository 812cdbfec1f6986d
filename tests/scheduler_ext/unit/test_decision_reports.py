"""What the extender decided becomes records: placements, evictions with both pods, and why a pod waits."""

from collections import Counter
from dataclasses import replace

import pytest

from scheduler_ext.fit import refusal
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.reports.decision_reports import DecisionReports, WaitingState
from scheduler_ext.scoring.policy import BUILT
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecisions
from scheduler_ext.waiting.order import waiting_pod
from tests.scheduler_ext.worlds import (
    Json,
    asking,
    in_namespace,
    mib,
    node,
    on,
    percent,
    read,
    rebuilt,
    request_of,
)
from tests.worlds import card, container, limits_of
from timekeeper.accounts.decisions.sentences import sentence, waits_for
from timekeeper.core.decisions import Decision
from timekeeper.core.standings import Cap, Caps

STANDINGS = NamespaceStandings(
    {
        "team-a": NamespaceStanding("OVER_BUDGET", "deny"),
        "team-c": NamespaceStanding("IN_BUDGET", caps=Caps(Cap(1_000))),
        "team-d": NamespaceStanding("IN_BUDGET", caps=Caps(Cap(2_000), "lab", Cap(1_000))),
        "team-e": NamespaceStanding("OVER_BUDGET", "deny", deciding_group="_group.lab"),
    }
)


class World:
    """Reports over a snapshot in which the pods of ``waiting`` wait."""

    def __init__(self, snapshot: Snapshot, *waiting: str) -> None:
        self.found: list[Decision] = []
        there = (snapshot.pods.get(f"uid-{name}") for name in waiting)
        pods = [waiting_pod(pod, BUILT["binpack"], ()) for pod in there if pod is not None]
        self.last = LastDecisions(lambda uid: self.reports.waits(uid))
        state = WaitingState(
            lambda: snapshot, lambda: pods, self.last.of, lambda: STANDINGS, CapChecks(lambda: STANDINGS)
        )
        self.reports = DecisionReports(self.found.append, state, lambda: 7)

    def refuse(self, uid: str, **nodes: refusal.Refusal) -> list[Decision]:
        """Each node refuses the pod; what is recorded of it."""
        self.found.clear()
        self.last.refused(uid, len(nodes), (nodes,))
        self.reports.step()
        return self.found


def test_cards_that_an_init_container_leaves_to_others_are_needed_once() -> None:
    raw = asking(container(gpu_count="2"), init=[container("first", gpu_count="2")])
    snapshot = rebuilt([node("n")], [raw])

    (found,) = World(snapshot, "p").refuse("uid-p", n=refusal.not_enough_free(request_of(raw)))

    assert found.figures["cardsNeeded"] == 2


def test_why_a_pod_waits_is_recorded_once_until_its_reasons_change() -> None:
    cards = [card(0), card(1, memory_mib=8_000)]
    snapshot = rebuilt(
        [node("n", *cards)], [on(percent(50, "there"), "n", "GPU-0"), mib(9_000, "first"), mib(12_000, "p")]
    )
    world = World(snapshot, "first", "p")
    room = refusal.not_enough_free(request_of(mib(12_000)))

    (found,) = world.refuse("uid-p", n=room)

    assert (found.kind, found.reason, found.name, found.namespace) == (
        "waiting",
        "TooLittleFree",
        "p",
        "team-a",
    )
    assert found.figures == {
        "standing": "OVER_BUDGET",
        "onExhausted": "deny",
        "offeredNodes": 1,
        "reasons": "1 node: no card has 12000 MiB free",
        "cardsNeeded": 1,
        "shareNeededMilli": 0,
        "memoryNeededMib": 12_000,
        "podsAhead": 1,
        "largestHoleNode": "n",
        "largestHoleMib": 8_000,
        "largestHoleMilli": found.figures["largestHoleMilli"],
    }
    assert world.refuse("uid-p", n=room) == []
    assert world.refuse("uid-p", n=room, m=room) == []
    (other,) = world.refuse("uid-p", n=refusal.spent("team-a", ""))
    assert other.reason == "GrantSpent"


def test_a_failed_bind_is_a_reason_too_and_a_pod_that_is_bound_has_none() -> None:
    snapshot = rebuilt([node()], [percent(50, "p"), on(percent(50, "there"), "n", "GPU-0")])
    world = World(snapshot, "p")

    world.last.bind_failed("uid-p", "the node's plugin is busy")
    world.last.bind_failed("uid-there", "late")
    world.reports.step()

    assert [(each.name, each.reason, each.figures["bindError"]) for each in world.found] == [
        ("p", "BindFailed", "the node's plugin is busy")
    ]


def test_a_bind_that_is_taken_back_is_recorded_with_the_pods_controller() -> None:
    snapshot = rebuilt([node()], [on(percent(50, "p"), "n", "GPU-0")])
    world, allocation = World(snapshot, "p"), snapshot.allocation("uid-p")
    assert allocation is not None

    world.reports.undone(allocation, "n", "Job/train")

    (found,) = world.found
    assert (found.kind, found.reason, found.namespace, found.owner) == (
        *("bind-undone", "BindTakenBack"),
        *("team-a", "Job/train"),
    )
    assert (found.name, found.uid, found.figures) == ("p", "uid-p", {"node": "n"})


def test_an_eviction_is_recorded_on_both_pods_with_the_name_of_the_other() -> None:
    world = World(rebuilt([node()], []))
    victim, pod = read(percent(50, "victim", priority=-5)), read(percent(100, "pod", priority=10))

    world.reports.evicted(victim, pod, "reclaim", "evicted", "n")

    first, second = world.found
    assert (first.kind, first.name, first.figures["otherPod"]) == ("reclaimed", "victim", "pod")
    assert (second.kind, second.reason, second.name, second.figures["otherPod"]) == (
        *("waiting", "VictimsEvicted", "pod"),
        "victim",
    )
    shared = {
        "node": "n",
        "how": "evicted",
        "victimPriority": -5,
        "podPriority": 10,
        "victimStanding": "OVER_BUDGET",
    }
    assert Counter(shared.items()) <= Counter(first.figures.items()) & Counter(second.figures.items())


def test_a_placement_is_recorded_with_its_cards() -> None:
    world = World(rebuilt([node()], []))
    pod = read(on(percent(50, "p"), "n", "GPU-0"))
    assert pod.placement is not None

    world.reports.placed(pod, "n", pod.placement)

    (found,) = world.found
    assert (found.kind, found.reason, found.uid, found.at_ms) == ("placed", "Bound", "uid-p", 7)
    assert (found.figures["cards"], found.figures["shareMilli"], found.figures["memoryMib"]) == (
        "GPU-0",
        500,
        8_000,
    )
    assert sentence(found).endswith("8000 MiB, on n/0.")
    many: dict[str, int | str] = {
        "cards": "a,b,c,d,e",
        "cardIndexes": "0,1,2,3,4",
        "node": "n",
        "shareMilli": 5_000,
        "memoryMib": 1,
    }
    assert sentence(replace(found, figures=many)).endswith("on 5 cards.")


def test_a_pod_above_a_cap_has_a_record_of_its_own_kind_with_the_caps_figures() -> None:
    def of_c(raw: Json) -> Json:
        return {**raw, "metadata": {**raw["metadata"], "namespace": "team-c"}}

    pods = [of_c(on(percent(60, "there"), "n", "GPU-0")), of_c(percent(50, "p"))]
    world = World(rebuilt([node("n", card(0), card(1))], pods), "p")

    (found,) = world.refuse("uid-p", n=refusal.capped("namespace", "team-c", "maxGPUs", 1_000))

    assert (found.kind, found.reason, found.name, found.namespace) == ("capped", "AboveCap", "p", "team-c")
    assert {name: found.figures[name] for name in found.figures if name.endswith("Milli")} == {
        "capMilli": 1_000,
        "heldByOthersMilli": 600,
        "needsAtLeastMilli": 500,
        "shareNeededMilli": 500,
        "largestHoleMilli": 1_000,
    }
    assert sentence(found) == (
        "No node takes it: 1 node: above the cap of namespace team-c (maxGPUs: 1); needs at least 0.5 of a "
        "cap of 1 cards, of which others hold 0.6."
    )


@pytest.mark.parametrize(("namespace", "budget"), [("team-c", ""), ("team-d", "_group.lab")])
def test_a_pod_above_a_cap_has_the_budget_whose_cap_it_is(namespace: str, budget: str) -> None:
    pods = [
        in_namespace(namespace, on(percent(60, "there"), "n", "GPU-0")),
        in_namespace(namespace, percent(50, "p")),
    ]
    world = World(rebuilt([node("n", card(0), card(1))], pods), "p")

    (found,) = world.refuse("uid-p", n=refusal.capped("group", "lab", "maxGPUs", 1_000))

    assert (found.kind, found.figures["capMilli"], found.budget) == ("capped", 1_000, budget)


@pytest.mark.parametrize(("namespace", "budget"), [("team-a", ""), ("team-e", "_group.lab")])
def test_a_spent_grant_and_a_reclaim_have_the_budget_whose_account_decides(
    namespace: str, budget: str
) -> None:
    world = World(rebuilt([node()], [in_namespace(namespace, percent(50, "p"))]), "p")

    (waits,) = world.refuse("uid-p", n=refusal.spent("team-a", ""))
    (no_room,) = world.refuse("uid-p", n=refusal.NO_CARDS)
    victim, pod = read(in_namespace(namespace, percent(50, "p"))), read(percent(100, "pod"))
    world.found.clear()
    world.reports.evicted(victim, pod, "reclaim", "evicted", "n")
    world.reports.evicted(victim, pod, "priority", "evicted", "n")
    reclaimed, _, preempted_, _ = world.found

    assert (waits.reason, waits.budget) == ("GrantSpent", budget)
    assert (no_room.reason, no_room.budget) == ("NoNodeFits", "")
    assert (reclaimed.kind, reclaimed.budget) == ("reclaimed", budget)
    assert (preempted_.kind, preempted_.budget) == ("preempted", "")


def test_what_kube_scheduler_refuses_itself_is_recorded_when_its_message_changes_but_for_figures() -> None:
    def pod(message: str) -> Json:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return percent(50, "p") | {"status": {"conditions": [condition]}}

    def seen(message: str) -> list[tuple[str, object]]:
        world.found.clear()
        snapshot[0] = rebuilt([node()], [pod(message)])
        world.reports.seen(read(pod(message)))
        world.reports.step()
        return [(each.reason, each.figures["scheduler"]) for each in world.found]

    snapshot = [rebuilt([node()], [])]
    world = World(snapshot[0])
    checks = CapChecks(lambda: STANDINGS)
    state = WaitingState(lambda: snapshot[0], list, world.last.of, lambda: STANDINGS, checks)
    world.reports = DecisionReports(world.found.append, state, lambda: 0)

    assert seen("0/2 nodes are available") == [("Unschedulable", "0/2 nodes are available")]
    assert seen("0/3 nodes are available") == []
    assert seen("too few cards") == [("Unschedulable", "too few cards")]
    world.reports.seen(read(on(percent(50, "p"), "n", "GPU-0")))
    assert seen("too few cards") == [("Unschedulable", "too few cards")]


def test_what_kube_scheduler_preempts_is_recorded_once_however_often_it_is_seen() -> None:
    pod = read(preempted("PreemptionByScheduler"))
    world = World(rebuilt([node()], []))

    for _ in range(3):
        world.reports.preempted(pod)

    (found,) = world.found
    assert (found.kind, found.reason, found.name) == ("preempted", "PreemptedByScheduler", "p")
    assert sentence(found) == (
        "Evicted from node n (by kube-scheduler) for a pod of higher priority; its own is -5."
    )


def test_a_condition_of_kube_scheduler_alone_says_that_it_preempts() -> None:
    assert read(preempted("PreemptionByScheduler")).preempted
    assert not read(preempted("EvictionByEvictionAPI")).preempted


def preempted(reason: str) -> Json:
    raw = on(percent(50, "p", priority=-5), "n", "GPU-0")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return raw | {"status": raw["status"] | {"conditions": [condition]}}


def test_what_lacks_beside_free_cards_is_named_without_amounts() -> None:
    there = node("n", card(0), card(1))
    there["status"]["allocatable"] |= {"cpu": "64", "memory": "8Gi", "pods": "110"}
    hog = percent(1, "hog")
    hog["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "62"}
    waits = percent(100, "p")
    waits["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    waits["status"]["conditions"] = [condition | {"message": "0/1 nodes are available: 1 Insufficient cpu."}]
    world = World(rebuilt([there], [on(hog, "n", "GPU-0"), waits]), "p")

    world.reports.seen(read(waits))
    world.reports.step()

    (found,) = world.found
    assert found.reason == "Unschedulable"
    assert (found.figures["freeCardsNode"], found.figures["lacksBesideCards"]) == ("n", "CPU")
    assert sentence(found).startswith(
        "Node n has the cards, and lacks CPU; kube-scheduler finds no node for it: 0/1 nodes are available:"
        " 1 Insufficient cpu; needs 1 card"
    )


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Unschedulable", "0/1 nodes are available: 1 cannot allocate all claims."),
        ("SchedulerError", 'running PreBind plugin "DynamicResources": exceeded quota: one'),
    ],
)
def test_a_pod_whose_limit_claims_serve_waits_for_devices_and_is_told_of_no_card(
    reason: str, said: str
) -> None:
    waits = asking(limits_of("main", nvidia_com__gpu="1"), schedulerName="default-scheduler")
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": said}
    waits["status"]["conditions"] = [condition]
    world = World(rebuilt([node("n", card(0))], [waits]), "p")

    world.reports.seen(read(waits))
    world.reports.step()

    (found,) = world.found
    figures = {"standing": "OVER_BUDGET", "onExhausted": "deny", "scheduler": said, "podsAhead": 0}
    assert (found.kind, found.reason, found.figures) == ("waiting", "WaitsForDevices", figures)
    assert sentence(found) == f"kube-scheduler finds no node for it: {said.rstrip('.')}."
    assert waits_for(found.figures) == [f"kube-scheduler says: {said.rstrip('.')}"]


def test_pods_that_wait_for_other_nodes_are_not_ahead_and_held_cards_are_counted() -> None:
    """One of the two earlier pods waits for the other pool: of the one node that ``p`` may use both cards are
    held."""

    def of_pool(raw: Json, pool: str) -> Json:
        return {**raw, "metadata": {**raw["metadata"], "labels": {"pool": pool}}}

    nodes = [of_pool(node("n", card(0), card(1)), "a"), of_pool(node("m", card(0)), "b")]
    there = [on(percent(100, "x"), "n", "GPU-0"), on(percent(100, "y"), "n", "GPU-1")]
    waits = [
        percent(100, name, nodeSelector={"pool": pool})
        for name, pool in (("ahead", "a"), ("elsewhere", "b"), ("p", "a"))
    ]
    world = World(rebuilt(nodes, [*there, *waits]), "ahead", "elsewhere", "p")

    (found,) = world.refuse("uid-p", n=refusal.not_enough_free(request_of(percent(100))))

    assert (found.figures["podsAhead"], found.figures["heldCards"], found.figures["heldNodes"]) == (1, 2, 1)
    assert sentence(found).startswith(
        "All 2 cards of the one node that it may use are held; 1 waiting pod is ahead; no node takes it: "
    )
