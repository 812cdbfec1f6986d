"""What a simulation says of pods that do not exist: by the functions that decide, and without an effect."""

from dataclasses import replace

from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.cooldown import NOTHING_DONE
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.scoring.selection import Policies
from scheduler_ext.simulation.simulate import SimulatedPod, SimulationInput, simulate
from scheduler_ext.snapshot.drains import Drain
from scheduler_ext.snapshot.snapshot import Snapshot, drain, undrain
from tests.scheduler_ext.preemption_worlds import budget, of, pdbs, standing
from tests.scheduler_ext.worlds import node, on, percent, read, rebuilt
from tests.worlds import Json, card
from timekeeper.core.standings import NO_CAP, Cap, Caps

IN_BUDGET = NamespaceStanding("IN_BUDGET")
OVER = NamespaceStanding("OVER_BUDGET", "reclaim")
NOW_MS = 1_000_000_000


def books(snapshot: Snapshot, standings: NamespaceStandings = UNHEARD, *promised: Json) -> SimulationInput:
    policies = Policies("binpack", lambda: standings, lambda: None, lambda _: None)
    limits = PreemptionLimits(180_000, 600_000, 8, "bursar-scheduler", False)
    return SimulationInput(snapshot, standings, pdbs(*promised), NOTHING_DONE, policies, limits, NOW_MS)


def waiting(share: int, name: str, namespace: str = "team-a", **spec: object) -> Json:
    return of(percent(share, name, schedulerName="bursar-scheduler", **spec), namespace)


def told(found: list[SimulatedPod]) -> list[tuple[str, list[str], list[str]]]:
    """Of each pod the node, its cards and its victims."""
    return [
        (
            each.node,
            [uuid for uuid, _ in each.allocation.uses] if each.allocation else [],
            sorted(victim.name for victim in each.victims),
        )
        for each in found
    ]


def test_pods_take_their_cards_one_after_another_and_the_books_stay_as_they_are() -> None:
    snapshot = rebuilt([node("a", card(0)), node("b", card(0), card(1))], [])
    known = books(snapshot)
    pods = [read(waiting(100, f"p{at}")) for at in range(4)]

    found = simulate(pods, known)

    assert [each.node for each in found[:3]] == ["a", "b", "b"]
    assert [each.fitting for each in found] == [2, 1, 1, 0]
    assert {cards[0] for _, cards, _ in told(found)[1:3]} == {"b-GPU-0", "b-GPU-1"}
    assert [(r.refusal.kind, r.nodes) for r in found[3].reasons] == [("room", 2)]
    assert known.snapshot is snapshot
    assert simulate(pods, known) == found


def test_a_victim_of_reclaim_is_named_and_gone_for_the_next_pod() -> None:
    debtor = on(of(percent(100, "debtor"), "team-b"), "a", "a-GPU-0")
    snapshot = rebuilt([node("a", card(0))], [debtor])
    standings = standing(**{"team-a": IN_BUDGET, "team-b": OVER})
    pods = [read(waiting(50, "one")), read(waiting(50, "two"))]

    found = simulate(pods, books(snapshot, standings))

    assert [(node, victims) for node, _, victims in told(found)] == [("a", ["debtor"]), ("a", [])]
    assert (found[0].kind, found[1].kind) == ("reclaim", "")
    # without the standings nobody leaves, and the pod waits
    assert [each.node for each in simulate(pods, books(snapshot))] == ["", ""]


def test_kube_schedulers_own_preemption_is_foreseen_even_against_a_promise_that_ours_keeps() -> None:
    low = on(of(percent(100, "low", priority=-5), "team-b"), "a", "a-GPU-0")
    snapshot = rebuilt([node("a", card(0))], [low])
    promise = budget("team-b", 0, {})
    pod = [read(waiting(100, "p", priority=0))]

    assert told(simulate(pod, books(snapshot, UNHEARD, promise))) == [("a", ["a-GPU-0"], ["low"])]


def test_a_protected_pod_of_a_spent_budget_is_placed_and_is_no_victim_of_reclaim() -> None:
    held = on(of(percent(100, "held"), "team-b"), "a", "a-GPU-0")
    snapshot = rebuilt([node("a", card(0), card(1))], [held])
    spent = NamespaceStanding("OVER_BUDGET", "deny", spent=True, protected=frozenset({"uid-serving"}))
    spared = replace(OVER, protected=frozenset({"uid-held"}))
    names = ("batch", "serving", "other")
    pods = [read(waiting(100, name)) for name in names[:2]] + [read(waiting(100, "other", "team-c"))]

    found = simulate(
        pods, books(snapshot, standing(**{"team-a": spent, "team-b": spared, "team-c": IN_BUDGET}))
    )

    assert [(node, victims) for node, _, victims in told(found)] == [("", []), ("a", []), ("", [])]


def test_a_spent_budget_and_a_cap_refuse_with_the_sentences_of_filter() -> None:
    snapshot = rebuilt([node("a", card(0), card(1))], [])
    spent = standing(**{"team-a": NamespaceStanding("OVER_BUDGET", "deny", spent=True)})
    capped = standing(**{"team-a": replace(IN_BUDGET, caps=Caps(Cap(1000, None), "", NO_CAP))})
    pods = [read(waiting(100, "one")), read(waiting(100, "two"))]

    assert [each.reasons[0].refusal.sentence for each in simulate(pods, books(snapshot, spent))] == [
        "the namespace has spent its GPU budget"
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
    two = rebuilt([node("a", card(0)), node("b", card(0))], [])
    three = rebuilt([node("a", card(0)), node("b", card(0), card(1))], [])

    short = simulate([*gang, single], books(two))
    whole = simulate([gang[0], single, *gang[1:]], books(three))

    lack = "gang g starts whole: 2 of 3 members fit; 1 cards missing; no node has room for more of them"
    assert reasons(short) == [lack] * 3 + [""]
    assert [bool(each.node) for each in short] == [False] * 3 + [True]
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


def test_no_pod_leaves_for_a_gang() -> None:
    debtor = on(of(percent(100, "debtor"), "team-b"), "a", "a-GPU-0")
    standings = standing(**{"team-a": IN_BUDGET, "team-b": OVER})
    snapshot = rebuilt([node("a", card(0))], [debtor])

    assert simulate([read(of_gang("g", size=1))], books(snapshot, standings))[0].victims == ()


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
    assert two.reasons[0].refusal.kind == "room"  # not for the drain: the short pod has one of the cards
    (stranger,) = simulate(pods[:1], books(kept_for("team-b", "secret")))
    assert reasons([stranger]) == [f"kept for another namespace's gang {times}; {passes}"]


def test_a_gang_says_that_the_cards_with_which_it_would_start_are_kept_for_another() -> None:
    gang = [read(of_gang(f"g{at}", size=2, minimum=2)) for at in range(2)]
    larger = [read(of_gang(f"l{at}")) for at in range(3)]
    kept = kept_for("team-a", "big")

    (why, _) = reasons(simulate(gang, books(kept)))

    assert why.startswith("gang g starts whole: 0 of 2 members fit; 2 cards missing; ")
    assert why.endswith(
        "; 2 cards are kept for gang team-a/big until about 1970-01-12T13:51:40Z,"
        " at most until 1970-01-12T14:01:40Z"
    )
    assert "kept" not in reasons(simulate(larger, books(kept)))[0]  # it does not fit on these either
    assert simulate(gang, books(undrain(kept)))[0].node == "a"
