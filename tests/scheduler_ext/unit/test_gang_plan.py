"""Cards for a whole gang: found where they are there, on few nodes, and never given out twice."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.plan import GangPlan, plan
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.worlds import node, percent, rebuilt
from tests.support.profile import examples
from tests.worlds import Json, card
from timekeeper.core.request.cards import amounts_by_card
from timekeeper.core.standings import Cap, Caps


def member(name: str, share: int = 100, **fields: Any) -> Json:
    """A held pod of a gang of 64."""
    named = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "64", "bursar.dev/held": "turn"}
    return percent(share, name=name, annotations=named, **fields)


def made(
    nodes: dict[str, int], shares: list[int], standings: NamespaceStandings = UNHEARD, **fields: Any
) -> GangPlan:
    """The plan for pods of these shares on nodes with so many cards."""
    raws = [member(f"p{at}", share, **fields) for at, share in enumerate(shares)]
    there = [node(name, *(card(at) for at in range(count))) for name, count in nodes.items()]
    snapshot = rebuilt(there, raws)
    pods = [snapshot.pods.get(f"uid-p{at}") for at in range(len(shares))]
    return plan([each for each in pods if each], PlanInput(snapshot, standings, lambda _: BINPACK))


def nodes_of(found: GangPlan) -> dict[str, int]:
    names = sorted(each.node for each in found.members)
    return {name: names.count(name) for name in names}


def test_a_gang_goes_to_the_fewest_nodes() -> None:
    assert nodes_of(made({"a": 1, "b": 4, "c": 2, "d": 3}, [100] * 4)) == {"b": 4}
    assert nodes_of(made({"a": 1, "b": 4, "c": 2, "d": 3}, [100] * 6)) == {"b": 4, "c": 2}
    assert nodes_of(made({"a": 8, "b": 2}, [100] * 2)) == {"b": 2}  # the node that it fills


def test_the_cap_is_paid_by_all_members_together() -> None:
    capped = NamespaceStanding("IN_BUDGET", caps=Caps(own=Cap(total_milli=2_000)))

    found = made({"a": 4}, [100] * 3, NamespaceStandings(default=capped))

    assert len(found.members) == 2
    assert "maxGPUs: 2" in found.why


def possible(cards: list[int], shares: list[int]) -> bool:
    """Whether all shares fit, by trying every way: shares of one card, in hundredths, on any card."""
    rooms = [100] * sum(cards)
    order = sorted(shares, reverse=True)

    def fits(at: int) -> bool:
        if at == len(order):
            return True
        for room in sorted({each for each in rooms if each >= order[at]}):
            card_at = rooms.index(room)
            rooms[card_at] -= order[at]
            if fits(at + 1):
                return True
            rooms[card_at] += order[at]
        return False

    return fits(0)


_CARDS = st.lists(st.integers(1, 4), min_size=1, max_size=4)
_SHARES = st.lists(st.sampled_from([10, 30, 50, 100]), min_size=1, max_size=8)


@settings(max_examples=examples(80), deadline=None)
@given(_CARDS, _SHARES)
def test_no_card_is_given_out_twice_and_alike_members_are_placed_where_that_is_possible(
    cards: list[int], shares: list[int]
) -> None:
    found = made({f"n{at}": count for at, count in enumerate(cards)}, shares)

    used: dict[str, int] = {}
    for each in found.members:
        assert each.pod.request is not None
        for uuid, amount in amounts_by_card(each.pod.request, each.placement).items():
            assert uuid.startswith(f"{each.node}-")
            used[uuid] = used.get(uuid, 0) + amount.share_milli
    assert max(used.values(), default=0) <= 1000
    assert len(found.members) + len(found.left) == len(shares)
    if not found.left:
        assert possible(cards, shares)
    elif len({*shares}) == 1:
        assert not possible(cards, shares)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 16))
def test_whole_cards_for_alike_members_take_the_fewest_nodes(cards: list[int], count: int) -> None:
    found = made({f"n{at}": each for at, each in enumerate(cards)}, [100] * count)

    enough = (n for n in range(1, len(cards) + 1) if sum(sorted(cards)[-n:]) >= count)
    fewest = next(enough, None)
    if fewest is None:
        assert found.left
    else:
        assert len(nodes_of(found)) == fewest
