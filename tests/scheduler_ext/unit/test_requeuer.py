"""Waking: when cards free, the pod that should go next is woken, and no other."""

import random
import threading
from collections import Counter
from typing import Any

import pytest

from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.waiting import rounds
from scheduler_ext.waiting.order import MAX_NODES, WaitingPod, next_to_wake, waiting_pod
from scheduler_ext.waiting.rounds import HOLD_BACK_S
from tests.scheduler_ext.reserving import NOW_MS, held
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.store import Fault
from tests.scheduler_ext.worlds import Json, asking, in_namespace, node, on, percent, read, rebuilt, waiting
from tests.support.simulated_timekeeper import entry, standings
from tests.worlds import card

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}


def waits(name: str, share: int = 60, priority: int = 0, created: str = "", **fields: Any) -> Json:
    """A waiting pod of our scheduler."""
    raw = waiting(name, share, priority=priority, **fields)
    if created:
        raw["metadata"]["creationTimestamp"] = created
    return raw


@pytest.fixture
def full(running: Stepped) -> Stepped:
    """One node of one card that is full."""
    running.put_node(node("a"))
    running.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    return running


@pytest.fixture
def told(full: Stepped) -> Stepped:
    """As ``full``, where the timekeeper tells that the namespace ``debtor`` is over budget and ``payer`` is
    not."""
    full.says(standings(debtor=entry("OVER_BUDGET"), payer=entry("IN_BUDGET")))
    return full


def fresh(_: WaitingPod) -> Steps:
    """No pod takes steps from another."""
    return Steps()


def frees(world: Stepped) -> None:
    """The holder ends, and the watch shows it."""
    world.put_pod({**world.api.pod("holder"), "status": {"phase": "Succeeded"}})


def refuse(world: Stepped, raw: Json, *names: str) -> None:
    """The pod comes and is refused on these nodes."""
    assert world.filter(world.put_pod(raw), *names)["NodeNames"] == []


def test_a_freed_card_wakes_the_one_that_should_go_next_and_no_other(full: Stepped) -> None:
    refuse(full, waits("low", priority=-5), "a")
    refuse(full, waits("high", priority=1000), "a")
    refuse(full, waits("middle"), "a")

    frees(full)

    full.passes(0.1)
    assert full.woken() == ["uid-high"]
    (sent,) = full.api.made("patch")
    (condition,) = sent["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "bursar.dev/CardFreed",
        "True",
        "CardFreed",
    )


def test_other_conditions_of_the_pod_stay(full: Stepped) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    refuse(full, {**waits("p"), "status": {"phase": "Pending", "conditions": [unscheduled]}}, "a")

    frees(full)

    full.passes(0.1)
    conditions = full.api.pod("p")["status"]["conditions"]
    assert unscheduled in conditions
    assert len(conditions) == 2


def test_when_it_is_bound_the_next_that_still_fits_is_woken(full: Stepped) -> None:
    for name, share, priority in (("first", 60, 3), ("second", 60, 2), ("third", 40, 1)):
        refuse(full, waits(name, share, priority), "a")
    frees(full)
    full.passes(0.1)
    assert full.woken() == ["uid-first"]

    assert full.bind(full.api.pod("first"), "a") == ""

    full.passes(0.1)
    assert full.woken() == ["uid-first", "uid-third"]


def test_one_that_is_refused_again_makes_way_for_the_next(full: Stepped) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")
    frees(full)
    full.passes(0.1)
    assert full.woken() == ["uid-first"]

    full.filter(full.api.pod("first"), "elsewhere")  # kube-scheduler finds that something else keeps it off

    full.passes(0.1)
    assert full.woken() == ["uid-first", "uid-second"]


def test_one_that_is_not_tried_in_time_makes_way_and_is_not_woken_again(full: Stepped) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")

    frees(full)

    full.passes(rounds.TRIED_WITHIN_S)
    assert full.woken() == ["uid-first"]
    full.passes(10)
    assert full.woken() == ["uid-first", "uid-second"]


def test_no_pod_is_woken_for_a_node_that_was_not_offered_or_has_no_room(full: Stepped) -> None:
    full.put_node(node("b"))
    full.put_pod(on(percent(100, "other"), "b", "b-GPU-0"))
    refuse(full, waits("elsewhere"), "b")
    full.api.put("pods", {**on(percent(30, "filler"), "a", "a-GPU-0")})
    refuse(full, waits("too-large", 80), "a")

    frees(full)

    full.passes(10)
    assert full.free("a") == [700]
    assert full.woken() == []


@pytest.mark.parametrize("how", ["other scheduler", "gated", "deleting", "bound"])
def test_who_does_not_wait_is_not_woken(full: Stepped, how: str) -> None:
    raw = waits("p", 60)
    if how == "other scheduler":
        raw["spec"]["schedulerName"] = "default-scheduler"
    refuse(full, raw, "a")
    refuse(full, waits("last", 60, priority=-9), "a")
    if how == "gated":
        raw["spec"]["schedulingGates"] = [{"name": "wait"}]
    if how == "deleting":
        raw["metadata"]["deletionTimestamp"] = "2026-11-20T04:32:53Z"
    if how == "bound":
        raw["spec"]["nodeName"] = "elsewhere"
    full.put_pod(raw)

    frees(full)

    full.passes(0.1)
    assert full.woken() == ["uid-last"]


def test_what_freed_between_the_snapshot_of_a_refusal_and_now_is_looked_at_again(full: Stepped) -> None:
    full.put_pod(waits("p"))
    before = full.extender.cache.snapshot
    frees(full)
    full.passes(10)
    assert full.woken() == []

    full.extender.requeuer.refused(waiting_pod(read(full.api.pod("p")), BINPACK, ["a"]), before)

    full.passes(0.1)
    assert full.woken() == ["uid-p"]


def test_cards_that_free_without_any_event_wake_too(running: Stepped) -> None:
    """A vanished pod's grace period ends: kube-scheduler hears nothing of that."""
    running.put_node(node("a"))
    holder = on(percent(100, "holder", terminationGracePeriodSeconds=1), "a", "a-GPU-0")
    running.put_pod(holder)
    refuse(running, waits("p"), "a")

    running.api.delete("pods", "holder", "team-a")

    running.passes(3)
    assert running.woken() == ["uid-p"]


def test_after_a_restart_waiting_pods_are_woken_though_their_refusal_was_not_seen(start: Start) -> None:
    first = start()
    first.put_node(node("a"))
    first.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    first.put_pod(waits("p"))
    first.extender.stop()
    second = start()

    frees(second)

    assert second.woken() == ["uid-p"]  # a new leader has touched it
    second.passes(0.1)
    assert second.woken() == ["uid-p", "uid-p"]


def test_a_pod_that_was_refused_before_any_watch_showed_it_waits_once_it_is_listed(full: Stepped) -> None:
    """As where etcd was restored, and the watch of pods has been silent since."""
    full.api.watching = False
    raw = waits("p")
    raw["status"] = {"conditions": [UNSCHEDULABLE]}
    stored = full.api.put("pods", raw)
    assert full.filter(stored, "a")["NodeNames"] == []
    assert full.extender.requeuer.waiting() == []

    full.api.watching, full.api.oldest = True, int(stored["metadata"]["resourceVersion"])
    frees(full)

    full.passes(0.1)
    assert full.woken() == ["uid-p"]


def test_a_failed_wake_does_no_harm(full: Stepped) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")
    full.api.faults.append(Fault("patch", status=500))

    frees(full)

    full.passes(3)
    assert full.woken() == ["uid-first", "uid-second"]


def test_turns_go_by_priority_and_then_by_age() -> None:
    old, new = "2026-11-20T04:32:53Z", "2026-11-20T04:32:54Z"
    raws = [waits("new", created=new), waits("old", created=old), waits("high", priority=1, created=new)]
    waiting_pods = [waiting_pod(read(raw), BINPACK, ["n"]) for raw in raws]
    free = rebuilt([node("n")], []).node("n")
    order = []
    while (chosen := next_to_wake(free, waiting_pods, fresh)) is not None:
        waiting_pods.remove(chosen)
        order.append(chosen.pod.name)

    assert order == ["high", "old", "new"]


def test_of_many_offered_nodes_any_may_be_the_one() -> None:
    names = [f"n{at}" for at in range(MAX_NODES + 1)]

    assert waiting_pod(read(waits("p")), BINPACK, names).offered is None
    assert waiting_pod(read(waits("p")), BINPACK, names[:-1]).offered == frozenset(names[:-1])


def order(waiting_pods: list[WaitingPod], known: NamespaceStandings = UNHEARD) -> list[str]:
    """The names in the order in which they are woken for a free node ``n``."""
    left, found = [*waiting_pods], []
    free = rebuilt([node("n")], []).node("n")
    while (chosen := next_to_wake(free, left, fresh, known)) is not None:
        left.remove(chosen)
        found.append(chosen.pod.name)
    return found


def test_who_is_over_budget_now_goes_behind_whatever_his_priority_is() -> None:
    raws = [
        in_namespace("debtor", waits("debtor", priority=1000)),
        in_namespace("payer", waits("payer")),
        waits("unknown", priority=1),
    ]
    waiting_pods = [waiting_pod(read(raw), BINPACK, ["n"]) for raw in raws]
    known = NamespaceStandings(
        {"debtor": NamespaceStanding("OVER_BUDGET"), "payer": NamespaceStanding("IN_BUDGET")}
    )

    assert order(waiting_pods, known) == ["unknown", "payer", "debtor"]
    assert order(waiting_pods) == ["debtor", "unknown", "payer"]


def test_the_one_that_cards_are_held_for_goes_first_of_all_for_its_node_alone() -> None:
    over = NamespaceStandings({"team-a": NamespaceStanding("OVER_BUDGET")})
    raws = [
        in_namespace("payer", waits("other", priority=9)),
        held(waits("held"), "n", "GPU-0", until_ms=NOW_MS + 1),
    ]
    waiting_pods = [waiting_pod(read(raw), BINPACK, ["n", "elsewhere"]) for raw in raws]
    elsewhere = rebuilt([node("elsewhere")], []).node("elsewhere")

    assert order(waiting_pods, over) == ["held", "other"]
    first = next_to_wake(elsewhere, waiting_pods, fresh, over)
    assert first is not None
    assert first.pod.name == "other"


def reasons(answer: Json) -> dict[str, str]:
    """What is told of each node that was refused."""
    return {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}


def test_a_freed_card_goes_to_the_namespace_in_budget_though_kube_scheduler_tries_the_other_first(
    told: Stepped,
) -> None:
    debtor, payer = (
        in_namespace("debtor", waits("debtor", priority=1000)),
        in_namespace("payer", waits("payer")),
    )
    for each in (debtor, payer):
        refuse(told, each, "a")
    before = reasons(told.filter(told.api.pod("debtor", "debtor"), "a"))

    frees(told)
    answer = told.filter(told.api.pod("debtor", "debtor"), "a")

    assert answer["NodeNames"] == []
    assert reasons(answer) == before  # other words would wake it again
    assert told.filter(told.api.pod("payer", "payer"), "a")["NodeNames"] == ["a"]
    told.passes(0.1)
    assert told.woken() == ["uid-payer"]


def test_a_card_is_kept_for_one_that_was_offered_it_until_it_is_bound(full: Stepped) -> None:
    refuse(full, waits("first", priority=2), "a")
    refuse(full, waits("second", priority=1), "a")
    frees(full)
    full.passes(0.1)
    assert full.woken() == ["uid-first"]
    assert full.filter(full.api.pod("first"), "a")["NodeNames"] == ["a"]

    assert full.filter(full.api.pod("second"), "a")["NodeNames"] == []

    assert full.woken() == ["uid-first"]
    assert full.bind(full.api.pod("first"), "a") == ""


def test_one_that_a_card_was_kept_from_is_woken_when_the_other_left_room(told: Stepped) -> None:
    debtor, payer = (
        in_namespace("debtor", waits("debtor", priority=9)),
        in_namespace("payer", waits("payer", 40)),
    )
    for each in (debtor, payer):
        refuse(told, each, "a")
    frees(told)
    assert told.filter(told.api.pod("debtor", "debtor"), "a")["NodeNames"] == []

    assert told.bind(told.api.pod("payer", "payer"), "a") == ""

    told.passes(3)
    assert "uid-debtor" in told.woken()
    assert told.filter(told.api.pod("debtor", "debtor"), "a")["NodeNames"] == ["a"]


def test_nothing_is_kept_from_one_whose_turn_comes_first(full: Stepped) -> None:
    full.put_node(node("b"))
    refuse(full, waits("waiting"), "a")
    frees(full)
    full.passes(0.1)
    assert full.woken() == ["uid-waiting"]

    urgent, later = full.put_pod(waits("urgent", priority=5)), full.put_pod(waits("later", priority=-5))

    assert full.filter(urgent, "a", "b")["NodeNames"] == ["a", "b"]
    assert full.filter(later, "a", "b")["NodeNames"] == ["b"]


def test_a_pod_that_kube_scheduler_refused_by_itself_waits_too(full: Stepped) -> None:
    """Its sums were short already, so nobody asked us."""
    tried = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    full.put_pod({**waits("p"), "status": {"phase": "Pending", "conditions": [tried]}})
    full.put_pod({**waits("new", priority=5), "status": {"phase": "Pending"}})

    frees(full)

    full.passes(0.1)
    assert full.woken() == ["uid-p"]


def test_a_pod_is_not_woken_for_a_node_that_its_selector_bars(full: Stepped) -> None:
    tried = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    barred = waits("barred", priority=5, nodeSelector={"pool": "other"})
    for each in (barred, waits("p")):
        full.put_pod({**each, "status": {"phase": "Pending", "conditions": [tried]}})

    frees(full)

    full.passes(0.1)
    assert full.woken() == ["uid-p"]


def test_who_was_kept_off_for_one_that_does_not_come_is_the_next(told: Stepped) -> None:
    payers = [in_namespace("payer", waits(name)) for name in ("payer-1", "payer-2")]
    for each in (in_namespace("debtor", waits("debtor", priority=9)), *payers):
        refuse(told, each, "a")
    frees(told)
    assert told.filter(told.api.pod("debtor", "debtor"), "a")["NodeNames"] == []

    told.passes(3)

    assert told.woken() == ["uid-payer-1", "uid-debtor"]
    assert told.filter(told.api.pod("debtor", "debtor"), "a")["NodeNames"] == ["a"]


def test_a_pod_that_never_comes_holds_none_back_for_long(running: Stepped) -> None:
    """``never`` fits on the node by its cards; kube-scheduler refuses it by itself. Its namespace frees cards
    of the node again and again."""
    running.put_node(node("a"))
    for number in range(100):
        running.put_pod(in_namespace("greedy", on(percent(1, f"small-{number}"), "a", "a-GPU-0")))
    never = in_namespace("greedy", waits("never", 1))
    tried = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    running.put_pod({**never, "status": {"phase": "Pending", "conditions": [tried]}})
    other = running.put_pod(in_namespace("modest", waits("other", 1, priority=-1)))
    answers: list[list[str]] = []

    for number in range(20):
        gone = running.api.pod(f"small-{number}", "greedy")
        running.put_pod({**gone, "status": {"phase": "Succeeded"}})
        answers.append(running.filter(other, "a")["NodeNames"])
        running.passes(HOLD_BACK_S / 5)

    # the node is kept for the pod that is earlier in turn, for one second
    assert answers == 6 * [[]] + 14 * [["a"]]


def long_to_refuse(number: int) -> Json:
    """A pod of the namespace ``greedy`` with 48 containers that nearly fill 16 cards: to find that they do
    not fit takes all steps of a search."""
    chance, shares = random.Random(number), [0]
    while not 1560 <= sum(shares) <= 1590:
        shares = [chance.choice((26, 28, 32, 34, 36, 38, 44, 46, 48)) for _ in range(48)]
    return in_namespace("greedy", several(f"greedy-{number}", shares))


def cost_of_one(world: Stepped, spent: Counter[int]) -> int:
    """The trials of refusing one such pod."""
    before = spent.total()
    world.filter(world.put_pod(long_to_refuse(99)), "a")
    return spent.total() - before


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The trials of all searches, by thread."""
    counted: Counter[int] = Counter()
    spend = Steps.spend

    def counting(steps: Steps) -> None:
        counted[threading.get_ident()] += 1
        spend(steps)

    monkeypatch.setattr(Steps, "spend", counting)
    return counted


def several(name: str, shares: list[int]) -> Json:
    """A waiting pod with a container for each of these shares of a card."""
    limits = [{"limits": {"bursar.dev/gpu-percent": str(each)}} for each in shares]
    containers = [{"name": f"c{at}", "resources": each} for at, each in enumerate(limits)]
    return asking(*containers, name=name, schedulerName="bursar-scheduler", priority=0)


@pytest.fixture
def crowded(running: Stepped) -> Stepped:
    """A node of 16 cards, one of them full, for which 16 pods of one namespace wait."""
    running.put_node(node("a", *map(card, range(16))))
    running.put_pod(on(percent(100, "holder"), "a", "a-GPU-0"))
    for number in range(16):
        refuse(running, long_to_refuse(number), "a")
    return running


def test_pods_that_are_long_to_refuse_delay_no_filter_of_another(
    crowded: Stepped, spent: Counter[int]
) -> None:
    last = crowded.put_pod(waits("last", 10, priority=-1))
    frees(crowded)

    mine = threading.get_ident()
    before = spent[mine]
    answer = crowded.filter(last, "a")

    took = spent[mine] - before
    assert 0 < took < 2 * cost_of_one(crowded, spent), "16 pods are earlier in turn"
    assert answer["NodeNames"] == ["a"]


def test_pods_that_are_long_to_refuse_use_up_no_other_namespaces_search(
    crowded: Stepped, spent: Counter[int]
) -> None:
    """``searched`` does not fit in its containers' own order: a search finds its cards."""
    refuse(crowded, in_namespace("modest", several("searched", 16 * [40] + 16 * [60])), "a")

    before = spent.total()
    frees(crowded)
    crowded.passes(0.1)

    took = spent.total() - before
    assert crowded.woken() == ["uid-searched"]
    assert took < 5 * cost_of_one(crowded, spent)
