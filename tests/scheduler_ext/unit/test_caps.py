"""Caps: the sums that the snapshot keeps, and what they allow."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from scheduler_ext.fit.caps import CapChecks, GroupSums
from scheduler_ext.fit.fit import fit
from scheduler_ext.model.node import read_node
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.snapshot.snapshot import (
    EMPTY,
    Snapshot,
    assume,
    expire,
    forget,
    node_deleted,
    node_updated,
    pod_deleted,
    pod_updated,
)
from scheduler_ext.waiting.denied_pods import MAX_WOKEN, TRIED_WITHIN_S, DeniedPods
from tests.scheduler_ext.worlds import in_namespace, mib, node, on, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import card
from timekeeper.core.standings import Cap, Caps
from timekeeper.core.values import Placement

NAMES = ("team-a", "team-b", "team-c")
FOUR = [card(at) for at in range(4)]


def standings(**caps: Caps) -> NamespaceStandings:
    """Namespaces in budget with these caps; keywords have ``_`` for a dash."""
    listed = {
        name.replace("_", "-"): NamespaceStanding("IN_BUDGET", caps=each) for name, each in caps.items()
    }
    return NamespaceStandings(listed, NamespaceStanding("UNLIMITED"))


def checks(**caps: Caps) -> CapChecks:
    known = standings(**caps)
    return CapChecks(lambda: known)


def counted(snapshot: Snapshot) -> dict[str, int]:
    """What each namespace holds, counted pod by pod: the oracle of the sums."""
    total: Counter[str] = Counter()
    for node_info in snapshot.nodes.values():
        for allocation in node_info.allocations.values():
            total[allocation.full_name.split("/")[0]] += allocation.held_milli
    return {name: milli for name, milli in total.items() if milli}


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32))
def test_the_sums_are_what_the_pods_hold_after_any_events(seed: int) -> None:
    rng = random.Random(seed)
    snapshot, sums = EMPTY, GroupSums()
    known = standings(
        team_a=Caps(group="lab", of_group=Cap(1)), team_b=Caps(group="lab", of_group=Cap(1)), team_c=Caps()
    )
    for at in range(30):
        name = f"p{rng.randrange(6)}"
        share = rng.choice((10, 30, 50))
        raw = in_namespace(
            NAMES[int(name[1]) % 3], rng.choice((percent(share, name), mib(share * 100, name)))
        )
        where = rng.choice(("a", "b"))
        waiting, bound = read(raw), read(on(raw, where, f"{where}-GPU-0"))
        match rng.randrange(8):
            case 0:
                snapshot = node_updated(
                    snapshot, read_node(node(where, card(0, rng.choice((16_000, 32_000)))))
                )
            case 1:
                snapshot = node_deleted(snapshot, where)
            case 2:
                snapshot = pod_updated(snapshot, waiting)
            case 3:
                snapshot = pod_updated(snapshot, bound)
            case 4:
                snapshot = pod_deleted(snapshot, rng.choice((waiting, bound)), at)
            case 5:
                placement = fit(waiting.request, snapshot.node(where)) if waiting.request else None
                if isinstance(placement, Placement) and snapshot.allocation(waiting.uid) is None:
                    snapshot = assume(snapshot, waiting, where, placement)
            case 6:
                snapshot = forget(snapshot, waiting.uid)
            case _:
                snapshot = expire(snapshot, at * 10_000)
        total = counted(snapshot)
        assert dict(snapshot.held.items()) == total
        together = total.get("team-a", 0) + total.get("team-b", 0)
        assert sums.of("lab", snapshot.held, known) == together


@given(st.lists(st.sampled_from((100, 250, 500, 1000)), min_size=1, max_size=16), st.integers(0, 6_000))
def test_binds_in_any_order_never_exceed_a_cap_and_end_only_where_nothing_more_is_allowed(
    shares: list[int], cap: int
) -> None:
    caps = checks(team_a=Caps(Cap(cap)), team_b=Caps(Cap(cap)))
    snapshot = rebuilt([node("a", *FOUR), node("b", *FOUR)], [])
    left: list[int] = []
    for at, share in enumerate(shares):
        pod = read(percent(share // 10, f"p{at}"))
        assert pod.request is not None
        where = "ab"[at % 2]
        placement = fit(pod.request, snapshot.node(where))
        if not isinstance(placement, Placement):
            continue
        taken = assume(snapshot, pod, where, placement)
        refused = caps.exceeded(pod, taken)
        assert (refused is None) == (caps.refusal(pod, snapshot) is None)  # shares are known before
        if refused is None:
            snapshot = taken
        else:
            left.append(share)

    held = snapshot.held.get("team-a") or 0
    assert held <= cap
    assert all(held + share > cap or held > cap - share for share in left)


def test_the_caps_of_namespace_and_group_and_of_a_pod_are_refused_by_their_names() -> None:
    raws = [
        in_namespace("team-b", on(percent(50, "other"), "a", "a-GPU-0")),
        on(percent(50, "own"), "a", "a-GPU-1"),
    ]
    snapshot = rebuilt([node("a", *FOUR)], raws)
    wanted = read(percent(60, "p"))

    def sentence(caps: Caps) -> str:
        refused = checks(team_a=caps, team_b=Caps(group="lab", of_group=Cap(1))).refusal(wanted, snapshot)
        return refused.sentence if refused is not None else ""

    assert sentence(Caps()) == ""
    assert sentence(Caps(Cap(1_100))) == ""
    assert sentence(Caps(Cap(1_099))) == "above the cap of namespace team-a (maxGPUs: 1.099)"
    assert sentence(Caps(Cap(None, 600))) == ""
    assert sentence(Caps(Cap(None, 599))) == "above the cap of namespace team-a (maxGPUsPerPod: 0.599)"
    assert sentence(Caps(group="lab", of_group=Cap(1_600))) == ""
    assert sentence(Caps(group="lab", of_group=Cap(1_599))) == "above the cap of group lab (maxGPUs: 1.599)"
    assert (
        sentence(Caps(group="lab", of_group=Cap(None, 1)))
        == "above the cap of group lab (maxGPUsPerPod: 0.001)"
    )
    assert sentence(Caps(Cap(0), "lab", Cap(0))) == "above the cap of namespace team-a (maxGPUs: 0)"


@pytest.mark.parametrize(
    ("own_milli", "others_milli", "refused"),
    [
        (400, 0, ""),
        (401, 0, "above the cap of namespace team-a (maxGPUs: 1.5)"),
        (0, 900, ""),
        (0, 901, "above the cap of group lab (maxGPUs: 2)"),
    ],
)
def test_what_claims_hold_counts_with_the_cards(own_milli: int, others_milli: int, refused: str) -> None:
    raws = [on(percent(50, "own"), "a", "a-GPU-0")]
    snapshot, pod = rebuilt([node("a", *FOUR)], raws), read(percent(60, "p"))
    group = Caps(group="lab", of_group=Cap(2_000))
    listed = {
        "team-a": NamespaceStanding("IN_BUDGET", caps=replace(group, own=Cap(1_500)), claims_milli=own_milli),
        "team-b": NamespaceStanding("IN_BUDGET", caps=group, claims_milli=others_milli),
        "team-c": NamespaceStanding("IN_BUDGET", caps=Caps(Cap(5_000)), claims_milli=5_000),
    }
    known = NamespaceStandings(listed)
    caps = CapChecks(lambda: known)

    found = caps.refusal(pod, snapshot)
    again = caps.refusal(pod, snapshot)

    assert ("" if found is None else found.sentence) == refused
    assert again == found
    figures, _ = caps.tightest(pod, snapshot)
    most = max(500 + own_milli - 1_500, 500 + own_milli + others_milli - 2_000)
    assert figures["heldByOthersMilli"] - figures["capMilli"] == most


def test_when_claims_change_the_sums_of_groups_do() -> None:
    group, sums, held = Caps(group="lab", of_group=Cap(2_000)), GroupSums(), rebuilt([], []).held
    found = []
    for milli in (0, 700, 0):
        listed = {"team-a": NamespaceStanding("IN_BUDGET", caps=group, claims_milli=milli)}
        found.append(sums.of("lab", held, NamespaceStandings(listed)))

    assert found == [0, 700, 0]


def test_a_budget_in_observe_mode_caps_nothing_and_says_what_it_would() -> None:
    snapshot = rebuilt([node("a", *FOUR)], [on(percent(50, "own"), "a", "a-GPU-1")])
    observing = NamespaceStanding("UNLIMITED", watched="IN_BUDGET", caps=Caps(Cap(500)))
    caps = CapChecks(lambda: NamespaceStandings({"team-a": observing}))
    pod = read(percent(50, "p"))

    assert caps.refusal(pod, snapshot) is None
    bound = pod_updated(snapshot, read(on(percent(50, "p"), "a", "a-GPU-0")))
    assert caps.exceeded(pod, bound) is None
    assert caps.exceeded(pod, bound, observed=True) is not None


def test_an_amount_of_memory_is_refused_on_cards_of_which_it_is_too_large_a_part() -> None:
    snapshot = rebuilt([node("small", card(0, 16_000)), node("large", card(0, 80_000))], [])
    pod = read(mib(8_000))
    caps = checks(team_a=Caps(Cap(400)))

    assert caps.refusal(pod, snapshot) is None
    assert set(caps.refused_nodes(pod, ["small", "large"], snapshot)) == {"small"}
    assert caps.refused_nodes(read(percent(50)), ["small", "large"], snapshot) == {}


def test_no_more_pods_are_woken_than_the_cap_allows_and_first_those_in_turn() -> None:
    known = standings(team_a=Caps(Cap(1_000)))
    denied = DeniedPods(CapChecks(lambda: known))
    snapshot = rebuilt([node("a", *FOUR)], [on(percent(50, "own"), "a", "a-GPU-1")])
    pods = [read(percent(20, f"p{at}", priority=at)) for at in range(4)]
    for pod in pods:
        denied.add(pod.uid, "cap")

    assert denied.may_have_changed(snapshot, known, 0.0)
    back = denied.no_longer(pods, snapshot, known)
    denied.wake(back, 0.0)

    assert [pod.uid for pod, _ in back] == ["uid-p3", "uid-p2"]
    assert not denied.may_have_changed(snapshot, known, 0.1)  # they count until they are tried
    assert denied.no_longer(pods[:2], snapshot, known) == []
    denied.tried("uid-p3")
    assert denied.may_have_changed(snapshot, known, 0.2)
    assert [pod.uid for pod, _ in denied.no_longer(pods[:2], snapshot, known)] == ["uid-p1"]
    assert denied.may_have_changed(snapshot, known, TRIED_WITHIN_S + 0.1)  # or until it takes too long


def test_of_many_the_others_are_woken_next() -> None:
    known = standings()
    denied = DeniedPods(CapChecks(lambda: known))
    pods = [read(percent(20, f"p{at}")) for at in range(MAX_WOKEN + 1)]
    for pod in pods:
        denied.add(pod.uid, "budget")

    assert denied.may_have_changed(EMPTY, known, 0.0)
    first = denied.no_longer(pods, EMPTY, known)
    denied.wake(first, 0.0)

    assert (len(first), {why for _, why in first}) == (MAX_WOKEN, {"budget"})
    assert denied.may_have_changed(EMPTY, known, 0.0)


@pytest.mark.parametrize("state", ["reserved", "assumed"])
def test_what_is_taken_for_the_pod_itself_does_not_count_against_it(state: str) -> None:
    pod = read(percent(50, "p"))
    snapshot = rebuilt([node("a", *FOUR)], [])
    placement = fit(pod.request, snapshot.node("a")) if pod.request else None
    assert isinstance(placement, Placement)
    snapshot = assume(pod_updated(snapshot, pod), pod, "a", placement)
    if state == "reserved":
        allocation = snapshot.allocation(pod.uid)
        assert allocation is not None
        assert structs.replace(allocation, state="reserved").held_milli == 500

    assert checks(team_a=Caps(Cap(500))).refusal(pod, snapshot) is None
    assert checks(team_a=Caps(Cap(500))).refusal(read(percent(50, "q")), snapshot) is not None
