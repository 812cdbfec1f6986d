"""Who leaves so that a waiting pod has its cards: the choice on one node, and among nodes."""

import copy
from typing import Any

import pytest

from scheduler_ext.preemption.plan import PreemptibleNodes
from scheduler_ext.preemption.victims import Choice, best
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot, assume, pod_updated
from tests.scheduler_ext.preemption_worlds import (
    DEMOTED,
    IN,
    NOW_MS,
    OVER,
    UNLIMITED,
    at,
    budget,
    cards,
    chosen,
    names_of,
    of,
    pdbs,
    standing,
)
from tests.scheduler_ext.worlds import Json, asking, node, on, percent, place, read, rebuilt
from tests.worlds import card, container
from timekeeper.core.request.cards import decode_placement


def test_two_half_free_cards_hold_no_three_quarters_so_the_smaller_holding_of_lower_priority_goes() -> None:
    snapshot = cards(
        2,
        on(percent(50, "a", priority=-5), "n", "GPU-0"),
        on(percent(50, "b", priority=0), "n", "GPU-1"),
    )

    choice = chosen(read(percent(75, "waiting", priority=10)), snapshot)

    assert names_of(choice) == ["a"]
    assert choice is not None
    assert [each.uuid for _, slices in choice.placement.containers for each in slices] == ["GPU-0"]


def test_one_large_pod_leaves_rather_than_two_small_ones_of_lower_priority() -> None:
    snapshot = cards(
        2,
        on(percent(80, "large", priority=3), "n", "GPU-0"),
        on(percent(40, "small-1", priority=1), "n", "GPU-1"),
        on(percent(40, "small-2", priority=1), "n", "GPU-1"),
    )

    assert names_of(chosen(read(percent(80, "waiting", priority=10)), snapshot)) == ["large"]


def test_a_pod_on_a_card_that_the_request_may_not_use_is_never_a_victim() -> None:
    h100 = card(1, model="H100")
    snapshot = rebuilt(
        [node("n", card(0), h100)],
        [
            on(percent(60, "on-a100", priority=-9), "n", "GPU-0"),
            on(percent(60, "on-h100", priority=0), "n", "GPU-1"),
        ],
    )
    waiting = percent(60, "waiting", priority=1, annotations={"bursar.dev/gpu-models": "H100"})

    assert names_of(chosen(read(waiting), snapshot)) == ["on-h100"]


def test_equal_or_higher_priority_is_never_a_victim() -> None:
    snapshot = cards(1, on(percent(60, "equal", priority=5), "n", "GPU-0"))

    assert chosen(read(percent(60, "waiting", priority=5)), snapshot) is None
    assert names_of(chosen(read(percent(60, "waiting", priority=6)), snapshot)) == ["equal"]


def test_no_victim_is_chosen_where_all_of_them_would_not_be_enough() -> None:
    snapshot = cards(
        1,
        on(percent(40, "low", priority=0), "n", "GPU-0"),
        on(percent(40, "high", priority=9), "n", "GPU-0"),
    )

    assert chosen(read(percent(70, "waiting", priority=5)), snapshot) is None


def test_no_victim_is_chosen_where_there_is_room() -> None:
    snapshot = cards(2, on(percent(90, "low", priority=0), "n", "GPU-0"))

    assert names_of(chosen(read(percent(70, "waiting", priority=5)), snapshot)) == []


def test_a_pod_that_ends_anyway_is_awaited_and_no_other_is_evicted() -> None:
    leaving = on(percent(60, "leaving", priority=9), "n", "GPU-0")
    leaving["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z"
    snapshot = cards(2, leaving, on(percent(60, "staying", priority=0), "n", "GPU-1"))

    choice = chosen(read(percent(70, "waiting", priority=5)), snapshot)

    assert names_of(choice) == []
    assert choice is not None
    assert [pod.name for pod in choice.leaving] == ["leaving"]


@pytest.mark.parametrize(
    ("leaves", "names"),
    [
        ("2027-01-15T08:00:30Z", []),  # as after an eviction: it is waited for
        ("2027-01-15T08:00:45Z", []),
        ("2027-01-15T08:00:46Z", ["leaving"]),
        ("2038-01-01T00:00:00Z", ["leaving"]),
    ],
)
@pytest.mark.parametrize("priority", [0, 9])
def test_a_pod_of_lower_rank_that_takes_longer_than_an_eviction_would_is_a_victim(
    leaves: str, names: list[str], priority: int
) -> None:
    leaving = on(percent(60, "leaving", priority=priority), "n", "GPU-0")
    leaving["metadata"] |= {"deletionTimestamp": leaves, "deletionGracePeriodSeconds": 1_000_000}
    choice = chosen(read(percent(70, "waiting", priority=5)), cards(1, leaving))

    outranked = priority < 5
    if names and not outranked:
        assert choice is None or not choice.victims
        return
    assert names_of(choice) == names
    assert choice is not None
    assert bool(choice.leaving) is not bool(names)
    if names:
        assert choice.grace_ms(NOW_MS) == 30_000


@pytest.mark.parametrize("uids", [("a", "b"), ("b", "a")])
def test_of_two_pods_alike_the_one_that_is_being_deleted_already_leaves(uids: tuple[str, str]) -> None:
    leaving, staying = (on(percent(60, f"p-{uid}"), "n", f"GPU-{at}") for at, uid in enumerate(uids))
    leaving["metadata"] |= {
        "deletionTimestamp": "2038-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 1_000_000,
    }

    choice = chosen(read(percent(70, "waiting", priority=5)), cards(2, leaving, staying))

    assert names_of(choice) == [f"p-{uids[0]}"]


def test_a_pod_that_is_being_bound_is_no_victim() -> None:
    binding = read(percent(60, "binding", priority=0))
    placement = decode_placement(
        '{"version":1,"containers":{"main":[{"uuid":"GPU-0","index":0,"share_milli":600,"memory_mib":9600}]}}'
    )
    snapshot = assume(cards(1), binding, "n", placement)

    assert chosen(read(percent(60, "waiting", priority=5)), snapshot) is None


def test_whole_cards_must_be_empty_and_the_emptiest_are_taken() -> None:
    snapshot = cards(
        3,
        *(on(percent(20, f"a{each}"), "n", "GPU-0") for each in range(3)),
        on(percent(90, "b"), "n", "GPU-1"),
        *(on(percent(30, f"c{each}"), "n", "GPU-2") for each in range(2)),
    )
    waiting = asking(container(gpu_count="2"), name="waiting", priority=1)

    assert names_of(chosen(read(waiting), snapshot)) == ["b", "c0", "c1"]


def test_a_pod_on_two_cards_counts_once() -> None:
    both = place(cards(2), asking(container(gpu_count="2"), name="both"), "n")
    assert both is not None
    snapshot = cards(4, both, *(on(percent(60, f"p{each}"), "n", f"GPU-{each}") for each in (2, 3)))

    waiting = asking(container(gpu_count="2"), name="waiting", priority=1)

    assert names_of(chosen(read(waiting), snapshot)) == ["both"]


def test_a_debtor_goes_first_whatever_class_it_was_stamped_with() -> None:
    snapshot = cards(
        2,
        of(on(percent(60, "debtor", priority=1000), "n", "GPU-0"), "team-over"),
        of(on(percent(60, "low", priority=-5), "n", "GPU-1"), "team-in"),
    )
    context = at(snapshot, standing(team_over=OVER, team_in=IN, team_a=IN))

    assert names_of(chosen(read(percent(60, "waiting", priority=0)), snapshot, context)) == ["debtor"]


def test_a_pod_that_is_marked_as_idle_is_a_debtor_of_a_namespace_in_budget() -> None:
    idle = of(on(percent(60, "idle", priority=1000), "n", "GPU-0"), "team-in")
    idle["metadata"]["annotations"]["bursar.dev/reclaimable"] = "idle"
    snapshot = cards(2, idle, of(on(percent(60, "busy", priority=0), "n", "GPU-1"), "team-in"))
    context = at(snapshot, standing(team_in=IN, team_a=IN))

    assert names_of(chosen(read(percent(60, "waiting", priority=0)), snapshot, context)) == ["idle"]


def test_a_node_is_worth_a_search_for_its_idle_pod_alone_and_only_while_it_is_idle() -> None:
    """No namespace owes anything, and none of its pods has a lower priority."""
    busy = of(on(percent(60, "pod", priority=0), "n", "GPU-0"), "team-in")
    idle = copy.deepcopy(busy)
    idle["metadata"]["annotations"]["bursar.dev/reclaimable"] = "idle"
    nodes, waiting, found = PreemptibleNodes(), read(percent(60, "waiting", priority=0)), []
    snapshot = cards(1, busy)

    for each in (busy, idle, busy):
        snapshot = pod_updated(snapshot, read(each), NOW_MS)
        nodes.follow(snapshot)
        found.append(nodes.worth(waiting, standing(team_in=IN, team_a=IN)))

    assert found == [[], ["n"], []]
    assert nodes.worth(waiting, standing(team_in=IN, team_a=OVER)) == []


def test_of_two_debtors_the_one_of_lower_priority_goes_then_the_younger() -> None:
    def with_priorities(first: int, second: int) -> Snapshot:
        return cards(
            2,
            of(on(percent(60, "old", priority=first), "n", "GPU-0"), "team-over", started="00:00:00"),
            of(on(percent(60, "young", priority=second), "n", "GPU-1"), "team-over", started="09:00:00"),
        )

    standings = standing(team_over=OVER, team_a=IN)
    waiting = read(percent(60, "waiting"))

    lower, equal = with_priorities(-5, 0), with_priorities(0, 0)
    assert names_of(chosen(waiting, lower, at(lower, standings))) == ["old"]
    assert names_of(chosen(waiting, equal, at(equal, standings))) == ["young"]


def test_one_beside_a_debtor_leaves_before_two_of_lower_priority_who_are_in_budget() -> None:
    snapshot = cards(
        2,
        of(on(percent(50, "debtor", priority=0), "n", "GPU-0"), "team-over"),
        of(on(percent(50, "beside", priority=3), "n", "GPU-0"), "team-in"),
        *(of(on(percent(50, f"low-{each}", priority=1), "n", "GPU-1"), "team-in") for each in (1, 2)),
    )
    context = at(snapshot, standing(team_over=OVER, team_in=IN, team_a=IN))

    choice = chosen(read(percent(100, "waiting", priority=9)), snapshot, context)

    assert names_of(choice) == ["beside", "debtor"]


def test_a_namespace_that_is_back_in_budget_is_spared() -> None:
    snapshot = cards(1, of(on(percent(60, "paid", priority=0), "n", "GPU-0"), "team-back"))
    waiting = read(percent(60, "waiting", priority=0))

    assert names_of(chosen(waiting, snapshot, at(snapshot, standing(team_back=OVER, team_a=IN)))) == ["paid"]
    assert chosen(waiting, snapshot, at(snapshot, standing(team_back=IN, team_a=IN))) is None


def test_who_is_only_deprioritized_unlimited_or_unknown_goes_by_priority_alone() -> None:
    snapshot = cards(1, of(on(percent(60, "user", priority=0), "n", "GPU-0"), "other"))
    equal, higher = read(percent(60, "waiting", priority=0)), read(percent(60, "waiting", priority=1))

    for standings in (
        standing(other=DEMOTED, team_a=IN),
        standing(other=UNLIMITED, team_a=IN),
        standing(team_a=IN),
        standing(other=OVER, team_a=UNLIMITED),
        standing(other=OVER),
    ):
        assert chosen(equal, snapshot, at(snapshot, standings)) is None
        assert names_of(chosen(higher, snapshot, at(snapshot, standings))) == ["user"]


def test_over_budget_pods_preempt_no_pod_whatever_their_priority() -> None:
    snapshot = cards(1, of(on(percent(60, "low", priority=-5), "n", "GPU-0"), "other"))
    waiting = read(percent(60, "waiting", priority=1000))

    for own in (OVER, DEMOTED):
        assert chosen(waiting, snapshot, at(snapshot, standing(team_a=own, other=OVER))) is None


def test_a_pod_whose_class_never_preempts_has_no_victims() -> None:
    snapshot = cards(1, of(on(percent(60, "debtor", priority=-5), "n", "GPU-0"), "team-over"))
    waiting = read(percent(60, "waiting", priority=1000, preemptionPolicy="Never"))

    assert chosen(waiting, snapshot, at(snapshot, standing(team_over=OVER, team_a=IN))) is None


def test_of_equal_pods_the_one_without_a_disruption_budget_is_the_victim() -> None:
    snapshot = cards(
        2,
        of(on(percent(60, "kept"), "n", "GPU-0"), "other", labels={"app": "kept"}, started="09:00:00"),
        of(on(percent(60, "free"), "n", "GPU-1"), "other", labels={"app": "free"}, started="00:00:00"),
    )
    promised = pdbs(budget("other", 0, {"matchLabels": {"app": "kept"}}))

    choice = chosen(read(percent(60, "waiting", priority=1)), snapshot, at(snapshot, promised=promised))

    assert names_of(choice) == ["free"]
    assert choice is not None
    assert choice.violations == 0


def test_so_it_is_on_one_card_where_they_hold_the_same() -> None:
    snapshot = cards(
        1,
        of(on(percent(40, "kept"), "n", "GPU-0"), "other", labels={"app": "kept"}, started="09:00:00"),
        of(on(percent(40, "free"), "n", "GPU-0"), "other", labels={"app": "free"}, started="00:00:00"),
    )
    promised = pdbs(budget("other", 0, {"matchLabels": {"app": "kept"}}))

    choice = chosen(read(percent(60, "waiting", priority=1)), snapshot, at(snapshot, promised=promised))

    assert names_of(choice) == ["free"]


def test_a_disruption_budget_that_allows_one_is_broken_by_the_second() -> None:
    labels = {"app": "web"}
    snapshot = cards(
        1, *(of(on(percent(40, f"p{each}"), "n", "GPU-0"), "other", labels=labels) for each in (1, 2))
    )
    promised = pdbs(budget("other", 1, {"matchLabels": labels}))

    choice = chosen(read(percent(90, "waiting", priority=1)), snapshot, at(snapshot, promised=promised))

    assert choice is not None
    assert (names_of(choice), choice.violations) == (["p1", "p2"], 1)


def test_a_priority_is_kept_to_before_a_disruption_budget_is() -> None:
    snapshot = cards(
        2,
        of(on(percent(60, "kept", priority=-5), "n", "GPU-0"), "other", labels={"app": "kept"}),
        of(on(percent(60, "free", priority=0), "n", "GPU-1"), "other"),
    )
    promised = pdbs(budget("other", 0, {"matchLabels": {"app": "kept"}}))

    choice = chosen(read(percent(60, "waiting", priority=1)), snapshot, at(snapshot, promised=promised))

    assert names_of(choice) == ["kept"]


def test_on_a_closed_node_no_victim_is_chosen_even_while_the_pod_that_closed_it_ends() -> None:
    low, foreign = on(percent(60, "low"), "n", "GPU-0"), percent(10, "foreign", nodeName="n")
    foreign["status"] = {"phase": "Running"}
    leaving = {**foreign, "metadata": foreign["metadata"] | {"deletionTimestamp": "2027-01-01T00:00:00Z"}}

    for closing in (foreign, leaving):
        snapshot = rebuilt([node("n")], [low, closing])
        assert snapshot.node("n").closed
        assert chosen(read(percent(60, "waiting", priority=1)), snapshot) is None


def test_a_malformed_pod_evicts_no_pod() -> None:
    snapshot = cards(1, on(percent(60, "low"), "n", "GPU-0"))

    assert chosen(read(percent(150, "waiting", priority=1)), snapshot) is None


def test_several_containers_are_laid_out_together_once_the_victims_have_left() -> None:
    snapshot = cards(
        2,
        on(percent(70, "a"), "n", "GPU-0"),
        on(percent(30, "b"), "n", "GPU-1"),
        on(percent(60, "c"), "n", "GPU-1"),
    )
    waiting = asking(
        container("x", gpu_percent="60"), container("y", gpu_percent="60"), name="waiting", priority=1
    )

    assert names_of(chosen(read(waiting), snapshot)) == ["a", "c"]


def test_containers_that_cannot_share_a_card_are_put_where_the_fewest_must_leave() -> None:
    snapshot = cards(2, on(percent(40, "a"), "n", "GPU-0"), on(percent(50, "b"), "n", "GPU-1"))
    waiting = asking(
        container("x", gpu_percent="60"), container("y", gpu_percent="100"), name="waiting", priority=1
    )
    halves = asking(container("x", gpu_percent="50"), container("y", gpu_percent="50"), name="w", priority=1)

    assert names_of(chosen(read(waiting), snapshot)) == ["b"]
    assert names_of(chosen(read(halves), cards(1, on(percent(40, "a"), "n", "GPU-0")))) == ["a"]
    assert names_of(chosen(read(halves), cards(2, on(percent(60, "a"), "n", "GPU-0")))) == []


def test_on_a_node_whose_plugin_picks_the_cards_as_many_leave_as_free_whole_cards() -> None:
    nvidia = {"nvidia.com/gpu": "2"}
    raw = node("n", card(0), card(1), capacity=nvidia)

    def whole(name: str, **fields: Any) -> Json:
        resources = {"limits": {"nvidia.com/gpu": "1"}}
        return asking({"name": "main", "image": "x", "resources": resources}, name=name, **fields)

    pods = [whole(name, priority=priority, nodeName="n") for name, priority in (("low", -1), ("high", 3))]
    snapshot = rebuilt([raw], [each | {"status": {"phase": "Running"}} for each in pods])

    assert names_of(chosen(read(whole("waiting", priority=5)), snapshot)) == ["low"]
    assert chosen(read(whole("waiting", priority=-1)), snapshot) is None


# among nodes


def nodes_with(*pods: tuple[str, list[Json]]) -> Snapshot:
    """Nodes of two cards by name, with these pods on them."""
    return rebuilt(
        [node(name, card(0), card(1)) for name, _ in pods], [each for _, there in pods for each in there]
    )


def best_of(waiting: Json, snapshot: Snapshot, **how: Any) -> Choice | None:
    """The best choice over all nodes of the snapshot."""
    context = at(snapshot, **how)
    nodes: list[NodeInfo] = list(snapshot.nodes.values())
    found = [chosen(read(waiting), snapshot, context, each.name) for each in nodes]
    choices = [each for each in found if each is not None]
    assert best(choices, context) == best(reversed(choices), context)
    return best(choices, context)


def half(name: str, where: str, card_at: int, namespace: str = "other", **fields: Any) -> Json:
    """A pod on 60 % of one of a node's cards."""
    labels = fields.pop("labels", None)
    started = str(fields.pop("started", ""))
    raw = on(percent(60, name, **fields), where, f"{where}-GPU-{card_at}")
    return of(raw, namespace, labels=labels, started=started)


def test_the_node_is_taken_where_the_fewest_disruption_budgets_are_broken() -> None:
    kept = {"app": "kept"}
    snapshot = nodes_with(
        ("a", [half(f"a{at}", "a", at, priority=-5, labels=kept) for at in (0, 1)]),
        ("b", [half(f"b{at}", "b", at) for at in (0, 1)]),
    )
    promised = pdbs(budget("other", 0, {"matchLabels": kept}))

    choice = best_of(percent(60, "waiting", priority=1), snapshot, promised=promised)

    assert choice is not None
    assert choice.node == "b"


def test_the_node_is_taken_whose_highest_victim_is_lowest_and_a_debtor_is_lowest_of_all() -> None:
    snapshot = nodes_with(
        ("a", [half(f"a{at}", "a", at, priority=-5) for at in (0, 1)]),
        ("b", [half(f"b{at}", "b", at, namespace="team-over", priority=1000) for at in (0, 1)]),
    )
    standings = standing(team_over=OVER, team_a=IN)

    choice = best_of(percent(60, "waiting", priority=1), snapshot, standings=standings)

    assert choice is not None
    assert choice.node == "b"


def test_of_nodes_alike_the_one_with_fewer_victims_then_with_the_younger_then_the_first_by_name() -> None:
    few = [half(f"a{at}", "a", at, started="01:00:00") for at in (0, 1)]
    many = [
        of(on(percent(40, f"b{at}-{each}"), "b", f"b-GPU-{at}"), "other") for at in (0, 1) for each in (1, 2)
    ]
    young = [half(f"c{at}", "c", at, started="09:00:00") for at in (0, 1)]
    twin = [half(f"d{at}", "d", at, started="09:00:00") for at in (0, 1)]
    waiting = percent(100, "waiting", priority=1)

    def where(*pods: tuple[str, list[Json]]) -> str | None:
        choice = best_of(waiting, nodes_with(*pods))
        return choice.node if choice else None

    assert where(("a", few), ("b", many)) == "a"
    assert where(("a", few), ("c", young)) == "c"
    assert where(("d", twin), ("c", young)) == "c"


def test_of_nodes_whose_highest_are_alike_the_least_sum_decides_where_a_debtor_counts_nothing() -> None:
    standings = standing(team_over=OVER, team_a=IN)
    waiting = asking(container(gpu_count="2"), name="waiting", priority=9)
    low = [half("a0", "a", 0, priority=5), half("a1", "a", 1, priority=0)]
    lower = [half("b0", "b", 0, priority=5), half("b1", "b", 1, priority=-2)]
    debtor = [half("c0", "c", 0, priority=5), half("c1", "c", 1, namespace="team-over", priority=1000)]

    for more, less in ((("a", low), ("b", lower)), (("b", lower), ("c", debtor))):
        choice = best_of(waiting, nodes_with(more, less), standings=standings)
        assert choice is not None
        assert choice.node == less[0]


def test_where_one_node_has_room_no_victim_is_chosen_on_another() -> None:
    snapshot = nodes_with(("a", [half("a0", "a", 0), half("a1", "a", 1)]), ("b", [half("b0", "b", 0)]))

    choice = best_of(percent(60, "waiting", priority=1), snapshot)

    assert choice is not None
    assert (choice.node, choice.victims) == ("b", ())


def test_no_choices_are_no_choice() -> None:
    assert best([], at(cards(1))) is None
