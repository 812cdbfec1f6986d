"""All members of a gang in one rack, or in as few as possible."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.domains import whole_cards
from scheduler_ext.gangs.plan import TRIES, GangPlan, lack_text, place_text, plan
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.planning import plan_of_all
from tests.scheduler_ext.worlds import asking, node, percent, read, rebuilt
from tests.support.profile import examples
from tests.worlds import Json, card, container

RACK, ZONE = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"
REQUIRED, PREFERRED = "bursar.dev/gang-topology", "bursar.dev/gang-topology-preferred"

Racks = dict[str, list[int]]  # cards of each node of a rack; "": nodes without the label


def there(racks: Racks, **zones: str) -> list[Json]:
    """Nodes ``RACK-0`` and so on; ``zones``: by rack."""
    found = []
    for rack, sizes in racks.items():
        for at, cards in enumerate(sizes):
            raw = node(f"{rack or 'none'}-{at}", *(card(index) for index in range(cards)))
            raw["metadata"]["labels"] = {RACK: rack, ZONE: zones.get(rack, "z")} if rack else {"a": "b"}
            found.append(raw)
    return found


def member(name: str, share: int = 100, cpu: str = "", **says: Any) -> Json:
    named = {"bursar.dev/gang": "g", "bursar.dev/gang-size": "64", "bursar.dev/held": "turn"}
    named |= {{"required": REQUIRED, "preferred": PREFERRED}[key]: value for key, value in says.items()}
    raw = container(gpu_percent=str(share))
    if cpu:
        raw["resources"]["requests"] = {**raw["resources"].get("requests", {}), "cpu": cpu}
    return asking(raw, name=name, annotations=named)


def made(
    nodes: list[Json],
    shares: list[int],
    standings: NamespaceStandings = UNHEARD,
    beside: tuple[str, ...] = (),
    is_late: Callable[[], bool] = lambda: False,
    **says: Any,
) -> GangPlan:
    raws = [member(f"p{at}", share, **says) for at, share in enumerate(shares)]
    snapshot = rebuilt(nodes, raws)
    pods = [snapshot.pods.get(f"uid-p{at}") for at in range(len(shares))]
    known = [each for each in pods if each]
    running = [replace(known[0], node=name) for name in beside]
    return plan(known, PlanInput(snapshot, standings, lambda _: BINPACK, is_late), running)


def racks_of(found: GangPlan) -> dict[str, int]:
    """How many members are in each rack."""
    names = sorted(each.node.rpartition("-")[0] for each in found.members)
    return {name: names.count(name) for name in names}


def required(racks: Racks, count: int, **more: Any) -> GangPlan:
    return made(there(racks), [100] * count, required=RACK, **more)


def preferred(racks: Racks, count: int, **more: Any) -> GangPlan:
    return made(there(racks), [100] * count, preferred=RACK, **more)


def test_all_members_go_to_one_rack_of_the_fewest_nodes_and_of_these_to_the_fullest() -> None:
    racks = {"r1": [4, 4], "r2": [8, 8], "r3": [8, 1], "r4": [2] * 8}

    assert racks_of(required(racks, 8)) == {"r3": 8}  # one node, and less room beside it than in r2
    assert racks_of(required(racks, 12)) == {"r2": 12}
    assert place_text(required(racks, 8)) == "on 1 node in rack r3"


def test_the_rack_of_the_fewest_nodes_is_found_among_many() -> None:
    many = {f"r{at:02}": [1] * 8 for at in range(2 * TRIES)}

    assert racks_of(required(many | {"roomy": [8, 8]}, 8)) == {"roomy": 8}


def test_a_gang_that_fits_in_no_rack_says_how_many_fit_in_the_best() -> None:
    found = required({"r1": [8], "r2": [8, 4], "": [8, 8]}, 16)

    assert lack_text(found) == (
        "12 of 16 members fit in rack r2; 4 cards missing of 16, the others on 2 nodes; no rack takes"
        " more of them"
    )


def test_nodes_without_the_label_are_in_no_rack() -> None:
    found = required({"": [8, 8]}, 4)

    assert lack_text(found) == (
        f"0 of 4 members fit; 4 cards missing of 4; no node with the label {RACK} takes one of them"
    )
    assert racks_of(preferred({"": [8, 8], "r1": [2]}, 4)) == {"r1": 2, "none": 2}
    assert racks_of(preferred({"": [8, 8]}, 4)) == {"none": 4}


def test_members_are_in_few_racks_where_that_is_preferred() -> None:
    racks = {"r1": [8, 8], "r2": [4, 4, 4, 4, 4], "r3": [8, 2]}

    assert racks_of(preferred(racks, 10)) == {"r3": 10}
    assert racks_of(preferred(racks, 20)) == {"r2": 20}
    assert racks_of(preferred(racks, 26)) == {"r2": 20, "r3": 6}
    assert place_text(preferred(racks, 26)) == "on 6 nodes (at least 4) in 2 domains of rack"
    assert place_text(preferred(racks, 10)) == "on 2 nodes in rack r3"
    assert not preferred(racks, 46).left


def test_once_the_time_for_a_plan_is_over_no_racks_are_preferred() -> None:
    """It is over once each of the seven nodes has been looked at."""
    nodes = there({"r1": [8, 8], "r2": [4, 4, 4, 4, 4]})
    looks = count()

    found = made(nodes, [100] * 20, preferred=RACK, is_late=lambda: next(looks) >= len(nodes))

    assert racks_of(found) == {"r1": 16, "r2": 4}


def test_one_zone_is_required_and_few_racks_within_it_are_preferred() -> None:
    racks = {"r1": [4], "r2": [4], "r3": [4, 4]}
    nodes = there(racks, r1="a", r2="a", r3="b")

    found = made(nodes, [100] * 8, required=ZONE, preferred=RACK)

    assert racks_of(found) == {"r3": 8}
    assert found.near == "zone b"


def test_members_that_run_keep_the_others_in_their_rack() -> None:
    racks = {"r1": [8, 8], "r2": [2, 2]}

    assert racks_of(required(racks, 2, beside=("r1-0",))) == {"r1": 2}
    assert len(required(racks, 6, beside=("r2-0",)).left) == 2
    assert racks_of(preferred(racks, 6, beside=("r2-0",))) == {"r1": 2, "r2": 4}
    on_node = made(there({"r1": [2, 1]}), [100], beside=("r1-0",))
    assert [each.node for each in on_node.members] == ["r1-0"]


def test_that_the_rack_where_members_run_has_no_room_is_said() -> None:
    found = made(there({"r1": [1], "r2": [8]}), [200], beside=("r1-0",), required=RACK)

    assert found.why == "no rack where members run takes one of them"


def test_members_of_several_shapes_are_in_one_rack_if_any_takes_them() -> None:
    """Each rack takes all of one shape or of the other; the last one alone takes both. That is known from the
    cards for whole ones, and else found by trying."""
    whole = there({f"r{at:02}": [6] for at in range(2 * TRIES)} | {"s": [8]})
    parts = there({f"r{at}": [1, 1] for at in range(TRIES - 1)} | {"s": [1, 1, 1]})

    ways: list[dict[str, Any]] = [{"required": RACK}, {"preferred": RACK}]
    for near in ways:
        assert racks_of(made(whole, [200, 200, 200, 100, 100], **near)) == {"s": 5}
        assert racks_of(made(parts, [70, 70, 40, 40], **near)) == {"s": 4}


def test_how_many_racks_were_not_tried_is_said() -> None:
    """Halves of cards: that no rack takes them together is known only once they are placed."""
    racks = {f"r{at:02}": [1, 1] for at in range(TRIES + 3)}

    found = made(there(racks), [70, 70, 40, 40], required=RACK)

    assert (len(found.members), found.untried) == (2, 3)
    assert found.why == "3 others might take more, and were not tried"


def test_cards_that_a_pod_uses_alone_are_counted() -> None:
    assert [whole_cards(read(percent(share))) for share in (50, 100, 800)] == [0, 1, 8]


_RACKS = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=examples(60), deadline=None)
@given(_RACKS, st.integers(1, 20))
def test_alike_members_are_in_one_rack_if_any_takes_them_and_on_its_fewest_nodes(
    racks: list[list[int]], count: int
) -> None:
    by_name = {f"r{at}": sizes for at, sizes in enumerate(racks)}
    found = required(by_name, count)

    assert len(racks_of(found)) == 1
    assert len(found.members) == min(count, max(map(sum, racks)))
    if not found.left:
        needed = [
            next(n for n in range(1, len(sizes) + 1) if sum(sorted(sizes)[-n:]) >= count)
            for sizes in racks
            if sum(sizes) >= count
        ]
        assert len({each.node for each in found.members}) == min(needed) == found.least


@settings(max_examples=examples(60), deadline=None)
@given(_RACKS, st.lists(st.integers(1, 8), max_size=2), st.integers(1, 40))
def test_alike_members_are_in_as_few_racks_as_possible(
    racks: list[list[int]], elsewhere: list[int], count: int
) -> None:
    by_name = {f"r{at}": sizes for at, sizes in enumerate(racks)}
    found = preferred({"": elsewhere, **by_name}, count)

    sums = sorted(map(sum, racks), reverse=True)
    enough = (n for n in range(1, len(sums) + 1) if sum(sums[:n]) >= count)
    fewest = next(enough, None)
    if fewest is not None:
        assert len(racks_of(found)) == fewest
        assert "none" not in racks_of(found)
    assert len(found.members) == min(count, sum(sums) + sum(elsewhere))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=2), min_size=1, max_size=4),
    st.lists(st.sampled_from([30, 50, 100, 200]), min_size=1, max_size=6),
    st.sampled_from([{"required": RACK}, {"preferred": RACK}, {"required": ZONE, "preferred": RACK}]),
)
def test_no_card_is_given_out_twice_whatever_the_topology(
    racks: list[list[int]], shares: list[int], says: dict[str, Any]
) -> None:
    by_name = {f"r{at}": sizes for at, sizes in enumerate(racks)}
    found = made(there(by_name, r0="y"), shares, **says)

    used: dict[str, int] = {}
    for each in found.members:
        for _, slices in each.placement.containers:
            for one in slices:
                used[one.uuid] = used.get(one.uuid, 0) + one.share_milli
    assert max(used.values(), default=0) <= 1000
    assert len(found.members) + len(found.left) == len(shares)
    if says.get("required") == RACK:
        assert len(racks_of(found)) <= 1


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (64, {"required": RACK}),
        (64, {"preferred": RACK}),
        (64, {"required": ZONE, "preferred": RACK}),
        (512, {"preferred": RACK}),
    ],
)
@pytest.mark.parametrize("shapes", [1, 2])
@pytest.mark.untraced
def test_a_plan_on_5000_nodes_in_racks_leaves_none(members: int, says: dict[str, Any], shapes: int) -> None:
    """A rack has 16 nodes of 8 cards. What a plan costs is counted by tests.bench.cost."""
    nodes = [node(f"n{at}", *(card(i) for i in range(8))) for at in range(5_000)]
    for at, raw in enumerate(nodes):
        more = {f"example.com/label-{index}": "value" for index in range(60)}
        raw["metadata"]["labels"] = more | {RACK: f"r{at // 16}", ZONE: f"z{at // 16 % 3}"}
        raw["status"]["allocatable"] = raw["status"]["allocatable"] | {"cpu": "64"}
    raws = [member(f"p{at}", cpu=str(1 + at % shapes), **says) for at in range(members)]
    snapshot = rebuilt(nodes, raws)

    found = plan_of_all(snapshot)

    assert not found.left
    print(f"{members} members of {shapes} shapes, {says}: {place_text(found)}")
