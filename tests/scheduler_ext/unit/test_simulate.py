"""What a simulation says of pods that do not exist: by the functions that decide, and without an effect."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.simulation.simulate import PROCESSOR_S, SimulatedPod, SimulationInput, simulate
from scheduler_ext.snapshot.drains import Drain
from scheduler_ext.snapshot.snapshot import Snapshot, assume, drain, undrain
from tests.scheduler_ext.preemption_worlds import of, standing
from tests.scheduler_ext.worlds import asking, node, on, percent, read, rebuilt
from tests.worlds import Json, card, container
from timekeeper.core.standings import NO_CAP, Cap, Caps

IN_BUDGET = NamespaceStanding("IN_BUDGET")
OVER = NamespaceStanding("OVER_BUDGET", "reclaim")
NOW_MS = 1_000_000_000


def books(
    snapshot: Snapshot, standings: NamespaceStandings = UNHEARD, policy: str = "binpack"
) -> SimulationInput:
    policies = Policies(policy, lambda: standings, lambda: None, lambda _: None)
    return SimulationInput(snapshot=snapshot, standings=standings, policies=policies, now_ms=NOW_MS)


def waiting(share: int, name: str, namespace: str = "team-a", **spec: object) -> Json:
    return of(percent(share, name, schedulerName="bursar-scheduler", **spec), namespace)


def cards_of(simulated: SimulatedPod) -> list[str]:
    return [uuid for uuid, _ in simulated.allocation.uses] if simulated.allocation else []


def test_pods_take_their_cards_one_after_another_and_the_books_stay_as_they_are() -> None:
    snapshot = rebuilt([node("a", card(0)), node("b", card(0), card(1))], [])
    known = books(snapshot)
    pods = [read(waiting(100, f"p{at}")) for at in range(4)]

    found = simulate(pods, known)

    assert [each.node for each in found[:3]] == ["a", "b", "b"]
    assert [each.fitting for each in found] == [2, 1, 1, 0]
    assert {cards_of(pod)[0] for pod in found[1:3]} == {"b-GPU-0", "b-GPU-1"}
    assert [(r.refusal.kind, r.nodes) for r in found[3].reasons] == [("full", 2)]
    assert known.snapshot is snapshot
    assert simulate(pods, known) == found


def test_no_pod_leaves_for_one_that_is_simulated() -> None:
    debtor = on(of(percent(100, "debtor", priority=-5), "team-b"), "a", "a-GPU-0")
    snapshot = rebuilt([node("a", card(0))], [debtor])
    standings = standing(**{"team-a": IN_BUDGET, "team-b": OVER})

    for pod in (waiting(100, "single", priority=0), of_gang("g", size=1)):
        (found,) = simulate([read(pod)], books(snapshot, standings))
        assert (found.node, found.is_partial) == ("", False)


def test_a_protected_pod_of_a_spent_budget_is_placed() -> None:
    snapshot = rebuilt([node("a", card(0))], [])
    spent = NamespaceStanding("OVER_BUDGET", "deny", spent=True, protected=frozenset({"uid-serving"}))
    pods = [read(waiting(100, name)) for name in ("batch", "serving")]

    found = simulate(pods, books(snapshot, standing(**{"team-a": spent})))

    assert [pod.node for pod in found] == ["", "a"]


@pytest.mark.parametrize("policy", ["binpack", "spread", "fragmentation"])
def test_pods_are_placed_as_each_alone_is_where_the_others_hold_their_cards(policy: str) -> None:
    """What is kept of nodes between pods that are alike changes no answer."""
    drawn = random.Random(f"simulate-{policy}")
    nodes = [node(f"n{at}", *(card(index) for index in range(drawn.randint(1, 4)))) for at in range(150)]
    pods = [read(waiting(drawn.choice((30, 50, 100, 200)), f"p{at}")) for at in range(40)]
    known = books(rebuilt(nodes, []), policy=policy)

    together = simulate(pods, known)

    for pod, found in zip(pods, together, strict=True):
        (alone,) = simulate([pod], known)
        assert alone == found
        if alone.node and pod.request is not None:
            placement = fit(pod.request, known.snapshot.node(alone.node), known.policies(pod))
            assert not isinstance(placement, Refusal)
            known = replace(known, snapshot=assume(known.snapshot, pod, alone.node, placement))


def until(looks: int) -> Callable[[], float]:
    """The time that is left: all until the clock was read so often, then so much that pods are still placed
    on nodes that were looked at, and after as many readings again none."""
    readings = itertools.count()
    return lambda: (PROCESSOR_S, 0.3 * PROCESSOR_S, 0)[min(2, next(readings) // looks)]


def test_a_simulation_whose_time_is_over_says_what_it_has_not_looked_at() -> None:
    nodes = [node(f"n{at}", card(0)) for at in range(1_000)]
    pods = [read(waiting(100, f"p{at}")) for at in range(30)]
    known = books(rebuilt(nodes, []))

    whole = simulate(pods, known)
    partial = simulate(pods, replace(known, left_s=until(10)))
    none = simulate(pods, replace(known, left_s=lambda: 0.0))

    assert [pod.fitting for pod in whole] == list(range(1_000, 970, -1))
    assert not any(pod.is_partial for pod in whole)
    placed = [pod for pod in partial if pod.node]
    assert 0 < len(placed) < 30
    assert {pod.is_partial for pod in partial} == {True}
    most = placed[0].fitting
    assert most < 1_000
    assert [pod.fitting for pod in placed] == list(range(most, most - len(placed), -1))
    assert reasons(none) == ["the time of the simulation was over"] * 30
    gang = [read(of_gang(f"g{at}")) for at in range(3)]
    assert {pod.is_partial for pod in simulate(gang, replace(known, left_s=lambda: 0.0))} == {True}


def test_no_search_begins_once_the_time_is_over() -> None:
    """Nodes of which each takes a search of its own."""
    nodes = [node(f"n{at}", *(card(i, memory_mib=16_000 + at) for i in range(4))) for at in range(64)]
    shares = (container(f"c{at}", gpu_percent=str(31 + at)) for at in range(6))
    pod = read(asking(*shares, name="p"))

    (found,) = simulate([pod], replace(books(rebuilt(nodes, [])), left_s=until(20)))

    assert (found.is_partial, 0 < found.fitting < 64) == (True, True)


def test_a_spent_budget_and_a_cap_refuse_with_the_sentences_of_filter() -> None:
    snapshot = rebuilt([node("a", card(0), card(1))], [])
    spent = standing(**{"team-a": NamespaceStanding("OVER_BUDGET", "deny", spent=True)})
    capped = standing(**{"team-a": replace(IN_BUDGET, caps=Caps(Cap(1000, None), "", NO_CAP))})
    pods = [read(waiting(100, "one")), read(waiting(100, "two"))]

    assert [each.reasons[0].refusal.sentence for each in simulate(pods, books(snapshot, spent))] == [
        "namespace team-a has spent its GPU budget"
    ] * 2
    one, two = simulate(pods, books(snapshot, capped))
    assert one.node == "a"
    assert (two.node, two.reasons[0].refusal.kind) == ("", "cap")


def test_nodes_that_kube_scheduler_would_not_offer_are_left_out() -> None:
    snapshot = rebuilt([node("a", card(0))], [])
    elsewhere = read(waiting(50, "p", nodeSelector={"zone": "x"}))

    (found,) = simulate([elsewhere], books(snapshot))

    assert (found.node, found.reasons) == ("", ())


def test_nodes_without_gpus_are_left_out() -> None:
    plain = {"metadata": {"name": "c"}, "status": {"allocatable": {"cpu": "64", "pods": "110"}}}
    snapshot = rebuilt([node("a", card(0)), plain], [])

    (found,) = simulate([read(waiting(200, "p"))], books(snapshot))

    assert [reason.nodes for reason in found.reasons] == [1]


def of_gang(name: str, size: int = 3, minimum: int = 3) -> Json:
    sizes = {"bursar.dev/gang-size": str(size), "bursar.dev/gang-minimum": str(min(minimum, size))}
    raw = waiting(100, name)
    raw["metadata"]["annotations"] = {"bursar.dev/gang": "g", "bursar.dev/held": "turn", **sizes}
    return raw


def reasons(found: list[SimulatedPod]) -> list[str]:
    return [each.reasons[0].refusal.sentence if each.reasons else "" for each in found]


def test_a_gang_is_placed_whole_or_takes_no_card() -> None:
    gang = [read(of_gang(f"g{at}")) for at in range(3)]
    single = read(waiting(100, "single"))
    nodes = [node("a", card(0)), node("b", card(0))]
    two = rebuilt([*nodes, node("c", card(0))], [on(percent(100, "x"), "c", "c-GPU-0")])
    three = rebuilt([node("a", card(0)), node("b", card(0), card(1))], [])

    short = simulate([*gang, single], books(two))
    whole = simulate([gang[0], single, *gang[1:]], books(three))

    lack = (
        "gang g starts whole: 2 of 3 members fit; 1 cards missing of 3, the others on 2 nodes; no node takes"
        " more of them"
    )
    assert reasons(short) == [lack] * 3 + [""]
    assert [bool(each.node) for each in short] == [False] * 3 + [True]
    never = "it can never start here: it needs 3 cards on nodes that it may use, which have 2"
    small = books(rebuilt(nodes, []))
    assert reasons(simulate(gang, small)) == [f"gang g starts whole: {never}"] * 3
    assert "never" not in "".join(reasons(simulate(gang, replace(small, autoscales=True))))
    assert sorted(each.node for each in whole if each.pod.name != "single") == ["a", "b", "b"]
    assert whole[1].node == ""  # the gang took the last card


def test_a_gang_that_suffices_starts_with_those_that_fit() -> None:
    gang = [read(of_gang(f"g{at}", minimum=2)) for at in range(3)]

    found = simulate(gang, books(rebuilt([node("a", card(0), card(1))], [])))

    assert sorted(each.node for each in found) == ["", "a", "a"]
    assert simulate(gang[:1], books(rebuilt([node("a", card(0))], [])))[0].node == ""
    assert reasons(simulate(gang[:1], books(rebuilt([node("a", card(0))], [])))) == [
        "gang g starts whole: 1 of 3 members are simulated"
    ]


def kept_for(namespace: str, name: str) -> Snapshot:
    """A node of two free cards, which are kept for a gang for another five minutes."""
    minute = 60_000
    times = NOW_MS + 5 * minute, NOW_MS + 15 * minute
    cards = (("a", ("a-GPU-0", "a-GPU-1")),)
    return drain(
        rebuilt([node("a", card(0), card(1))], []), Drain(namespace, f"bursar/{name}", name, *times, cards)
    )


def test_a_pod_that_gets_no_card_that_is_kept_for_a_gang_says_so_and_one_that_ends_in_time_gets_it() -> None:
    short = waiting(100, "short", activeDeadlineSeconds=240, terminationGracePeriodSeconds=0)
    pods = [read(each) for each in (waiting(100, "long"), short, waiting(200, "two"))]
    times = "until about 1970-01-12T13:51:40Z, at most until 1970-01-12T14:01:40Z"
    passes = "a pod that declares to end before 1970-01-12T13:51:40Z may use it"

    long, passing, two = simulate(pods, books(kept_for("team-a", "big")))

    assert (long.node, reasons([long])) == ("", [f"kept for gang team-a/big {times}; {passes}"])
    assert (passing.node, passing.fitting) == ("a", 1)
    assert two.reasons[0].refusal.kind == "full"  # not for the drain: the short pod has one of the cards
    (stranger,) = simulate(pods[:1], books(kept_for("team-b", "secret")))
    assert reasons([stranger]) == [f"kept for another namespace's gang {times}; {passes}"]


def test_a_gang_says_that_the_cards_with_which_it_would_start_are_kept_for_another() -> None:
    gang = [read(of_gang(f"g{at}", size=2, minimum=2)) for at in range(2)]
    larger = [read(of_gang(f"l{at}")) for at in range(3)]
    kept = kept_for("team-a", "big")

    (why, _) = reasons(simulate(gang, books(kept)))

    assert why.startswith("gang g starts whole: 0 of 2 members fit; 2 cards missing of 2; ")
    assert why.endswith(
        "; 2 cards are kept for gang team-a/big until about 1970-01-12T13:51:40Z,"
        " at most until 1970-01-12T14:01:40Z"
    )
    assert "kept" not in reasons(simulate(larger, books(kept)))[0]  # it does not fit on these either
    assert simulate(gang, books(undrain(kept)))[0].node == "a"
