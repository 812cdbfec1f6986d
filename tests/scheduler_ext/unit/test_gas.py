"""Intel GPU Aware Scheduling: nodes and pods as its users have them in, and the decision out. Its words, and
what is read back, are in `tests/core/dialects/gas.yaml`."""

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.binding.manifest import written_for
from scheduler_ext.controllers.deschedule_labels import wrongly_marked
from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit, layout_in, score_of, shape_for
from scheduler_ext.fit.refusal import GIVEN_UP, Refusal
from scheduler_ext.model.pod import read_pod
from scheduler_ext.scoring.fragmentation import fragmentation
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BUILT, Policy
from scheduler_ext.scoring.typical_pods import BUILT_IN
from scheduler_ext.snapshot.immutable_map import Map
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from tests.scheduler_ext.preemption_worlds import chosen, names_of
from tests.scheduler_ext.worlds import asking, bound, node, read, rebuilt, request_of
from tests.support.profile import examples
from tests.worlds import of_resources
from timekeeper.core.dialects import gas, gas_nodes
from timekeeper.core.request.cards import decode_placement, encode_placement

Json = dict[str, Any]

INTEL = "gpu.intel.com/"
TAS = "telemetry.aware.scheduling.policy-a/"
GIB = 1024**3


def intel_node(
    name: str = "n", cards: int = 1, labels: Json | None = None, driver: str = "i915", **each: int
) -> Json:
    """A node with so much of each resource on every card; __ stands for a point."""
    numbers = {INTEL + "gpu-numbers": ".".join(map(str, range(cards)))}
    amounts = {f"{INTEL}{key.replace('__', '.')}": str(cards * amount) for key, amount in each.items()}
    amounts = {f"{INTEL}{driver}": str(10 * cards), **amounts}
    metadata = {"name": name, "labels": {**numbers, **(labels or {})}}
    return {"metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts}}


def wants(name: str = "main", **amounts: object) -> Json:
    """A container with these limits."""
    return of_resources(
        {f"{INTEL}{key.replace('__', '.')}": str(amount) for key, amount in amounts.items()}, name
    )


def used(where: Json, cards: dict[int, Json]) -> list[Json]:
    """Pods that take these amounts of the cards."""
    pods: list[Json] = []
    for number, amounts in cards.items():
        raw = asking(
            wants(i915=1, **amounts), name=f"user-{number}", annotations={"gas-allow": f"card{number}"}
        )
        pods.append(placed(rebuilt([where], pods), raw) or {})
    return pods


def placed(snapshot: Snapshot, raw: Json, where: str = "n", policy: str = "binpack") -> Json | None:
    answer = fit(request_of(raw), snapshot.node(where), BUILT[policy])
    return None if isinstance(answer, Refusal) else bound(raw, where, encode_placement(answer))


def on(raw: Json, *pods: Json, node: Json, policy: str = "binpack") -> str:
    """The annotation of cards and, after a blank, that of tiles; "" where the pod does not fit."""
    snapshot = rebuilt([node], list(pods))
    assert snapshot.node("n").closed == ""
    request = request_of(raw)
    answer = fit(request, snapshot.node("n"), BUILT[policy])
    if isinstance(answer, Refusal):
        return ""
    written = written_for(read(raw), request, answer, "n", 7, family="gas").annotations
    assert written["gas-ts"] == "7"
    return " ".join(
        written[name] for name in ("gas-container-cards", "gas-container-tiles") if name in written
    )


GTS = {f"{TAS}gas-tile-disable-card0_gt0": "true", f"{TAS}gas-tile-preferred-card0": "gt3"}
PAIRS = {INTEL + "xe-links": "0.0-1.0_2.1-3.2"}
GROUPS = {INTEL + "pci-groups": "0.1_2.3"}
NUMA = {INTEL + "numa-gpu-map": "0-0.1_1-2.3"}
ALONE = asking(wants(i915=1))
LINKED = {"gas-allocate-xelink": "true"}


@pytest.mark.parametrize(
    ("raw", "node", "taken", "policy", "expected"),
    [
        pytest.param(ALONE, intel_node(cards=3), {}, "binpack", "card0", id="S21 no preference"),
        pytest.param(
            ALONE,
            intel_node(cards=3, labels={f"{TAS}gas-prefer-gpu": "card2"}),
            {},
            "binpack",
            "card2",
            id="S21 preferred",
        ),
        pytest.param(
            asking(wants(i915=1, foo=1)),
            intel_node(cards=3, foo=4),
            {0: {"foo": 1}, 1: {"foo": 2}},
            "spread",
            "card2",
            id="S22 balanced",
        ),
        pytest.param(
            asking(wants("a", i915=1, tiles=1), wants("b", i915=1, tiles=1)),
            intel_node(cards=3, tiles=4),
            {0: {"tiles": 2}, 2: {"tiles": 1}},
            "spread",
            "card1|card2 card1:gt0|card2:gt1",
            id="S22 by tiles",
        ),
        *(
            pytest.param(
                asking(wants(i915=1), annotations={name: card}),
                intel_node(),
                {},
                "binpack",
                expected,
                id=f"S23 {name} {card}",
            )
            for name, card, expected in [
                ("gas-allow", "card0", "card0"),
                ("gas-allow", "card1", ""),
                ("gas-deny", "card1", "card0"),
                ("gas-deny", "card0", ""),
            ]
        ),
        *(
            pytest.param(
                ALONE,
                intel_node(labels={f"{TAS}gas-disable-card0": value, INTEL + "pci-groups": "0"}),
                {},
                "binpack",
                "",
                id=f"S23 disabled {value}",
            )
            for value in ("true", "PCI_GROUP")
        ),
        pytest.param(
            ALONE,
            intel_node(cards=4, labels={f"{TAS}gas-disable-card1": "PCI_GROUP", **GROUPS}),
            {},
            "binpack",
            "card2",
            id="the whole PCI group is disabled",
        ),
        pytest.param(
            ALONE,
            intel_node(cards=12, labels={f"{TAS}gas-disable-card10": "1"}),
            {},
            "binpack",
            "card0",
            id="card10 is not card0",
        ),
        pytest.param(
            asking(wants(i915=1, tiles=1)),
            intel_node(tiles=4, labels=GTS),
            {},
            "binpack",
            "card0 card0:gt3",
            id="S29",
        ),
        pytest.param(
            asking(wants(i915=1, tiles=4)),
            intel_node(tiles=4, labels=GTS),
            {},
            "binpack",
            "",
            id="S29 a disabled tile is not given out",
        ),
        pytest.param(
            asking(wants("a", i915=2, tiles=4), of_resources({}, "b"), wants("c", i915=1, millicores=10)),
            intel_node(cards=2, tiles=2, millicores=1000),
            {},
            "binpack",
            "card0,card1||card0 card0:gt0+gt1,card1:gt0+gt1||",
            id="a container without a card has an empty part",
        ),
        pytest.param(
            asking(wants("a", i915=1), wants("b", i915=1)),
            intel_node(),
            {},
            "binpack",
            "card0|card0 |",
            id="two containers without tiles",
        ),
        pytest.param(
            asking(wants(xe=1, millicores=1000)),
            intel_node(driver="xe", millicores=1000),
            {},
            "binpack",
            "card0",
            id="xe",
        ),
        pytest.param(
            asking(wants("a", i915=2), wants("b", i915=1), annotations={"gas-allocate-single-numa": "true"}),
            intel_node(cards=4, labels=NUMA, i915=1),
            {1: {}},
            "binpack",
            "card2,card3|card0 |",
            id="3.4 single NUMA, and no phantom use after a failed branch",
        ),
        pytest.param(
            asking(wants(i915=2, tiles=2), annotations=LINKED),
            intel_node(cards=4, tiles=3, labels=PAIRS),
            {},
            "binpack",
            "card0,card1 card0:gt0,card1:gt0",
            id="Xe link",
        ),
        pytest.param(
            asking(wants("a", i915=2, tiles=2), wants("b", i915=2, tiles=2), annotations=LINKED),
            intel_node(cards=4, tiles=3, labels=PAIRS),
            {0: {"tiles": 1}},
            "binpack",
            "",
            id="a link with a taken tile does not count",
        ),
        pytest.param(
            asking(wants("a", i915=2, tiles=2), wants("b", i915=2, tiles=2), annotations=LINKED),
            intel_node(cards=4, tiles=2, i915=1, labels={INTEL + "xe-links": "0.0-1.0_1.0-2.0_2.1-3.0"}),
            {},
            "binpack",
            "card0,card1|card2,card3 card0:gt0,card1:gt0|card2:gt1,card3:gt0",
            id="the middle link is left out, for it would serve one container only",
        ),
        pytest.param(
            asking(wants(i915=4, tiles=4), annotations=LINKED),
            intel_node(cards=4, tiles=3, labels=PAIRS),
            {},
            "binpack",
            "card0,card1,card2,card3 card0:gt0,card1:gt0,card2:gt1,card3:gt2",
            id="two links",
        ),
        pytest.param(
            asking(wants(i915=4, tiles=4), annotations={**LINKED, "gas-allocate-single-numa": ""}),
            intel_node(cards=4, tiles=3, labels={**PAIRS, **NUMA}),
            {},
            "binpack",
            "",
            id="no links across NUMA nodes",
        ),
        pytest.param(
            asking(wants("a", i915=1), wants("b", i915=1), annotations={"gas-same-gpu": "a,b"}),
            intel_node(cards=2, i915=2),
            {0: {}},
            "binpack",
            "card1|card1 |",
            id="same card, with one slot for each container",
        ),
    ],
)
def test_a_pod_gets_the_cards_of_the_scenario(
    raw: Json, node: Json, taken: dict[int, Json], policy: str, expected: str
) -> None:
    assert on(raw, *used(node, taken), node=node, policy=policy) == expected


def test_memory_of_the_node_in_sum_does_not_help_a_pod_that_needs_it_on_one_card() -> None:
    """S19: two cards of 8 GB, three pods of 5 GB."""
    node = intel_node(cards=2, memory__max=8 * 10**9)
    pods: list[Json] = []
    for name in ("a", "b", "c"):
        raw = placed(rebuilt([node], pods), asking(wants(i915=1, memory__max="5G"), name=name))
        pods += [raw] if raw else []

    assert [pod["metadata"]["name"] for pod in pods] == ["a", "b"]
    refused = fit(request_of(asking(wants(i915=1, memory__max="5G"))), rebuilt([node], pods).node("n"))
    assert isinstance(refused, Refusal)
    assert refused.sentence == "no card has 1 gpu.intel.com/i915 and 5000000000 gpu.intel.com/memory.max free"


def test_a_node_with_room_on_its_preferred_card_is_above_any_other() -> None:
    plain = intel_node(cards=1)
    marked = intel_node("m", cards=8, labels={f"{TAS}gas-prefer-gpu": "card7"})
    snapshot, request = rebuilt([plain, marked], []), request_of(ALONE)

    for policy in BUILT.values():
        scores = {}
        for name in ("n", "m"):
            shape = shape_for(request, snapshot.node(name))
            assert not isinstance(shape, Refusal)
            layout = layout_in(request, shape, policy, Steps())
            assert not isinstance(layout, Refusal)
            scores[name] = score_of(layout, policy)
        assert scores["m"] > scores["n"]


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ({"gpu-numbers": "0.1.2", "gpu-numbers2": "Z.5.8.9", "gpu-numbers3": "Z.10"}, (0, 1, 2, 5, 8, 9, 10)),
        ({"cards": "card0.card1"}, (0, 1)),
        ({"gpu-numbers": "1.10.11.2.3.4.5.6.7.8.9"}, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)),
        ({}, ()),
    ],
)
def test_the_labels_number_the_cards(labels: Json, numbers: tuple[int, ...]) -> None:
    """S31."""
    assert gas_nodes.card_numbers({INTEL + name: text for name, text in labels.items()}) == numbers


def test_links_count_the_cards_by_the_order_of_their_numbers() -> None:
    """S31: Level Zero counts from 0, cards may begin with 1."""
    labels = {INTEL + "xe-links": "1.0-2.1"}
    numbers = tuple(range(1, 12))

    assert gas_nodes.xe_links(labels, numbers) == {2: ((0, "card3", 1),), 3: ((1, "card2", 0),)}
    assert gas_nodes.xe_links({INTEL + "xe-links": "1.0-2.1_x"}, numbers) == {}
    assert gas_nodes.pci_group({INTEL + "pci-groups": "0.1_2.3.4"}, 3) == {2, 3, 4}
    assert gas_nodes.preferred_first([1, 2, 3, 4], [3, 1, 4]) == (3, 1, 4, 2)
    assert gas_nodes.numa_nodes(
        {INTEL + "numa-gpu-map": "0-0.1_1", INTEL + "numa-gpu-map2": "Z-2.3"}, ()
    ) == {
        0: 0,
        1: 0,
        2: 1,
        3: 1,
    }


def test_containers_of_one_card_need_no_links() -> None:
    pod = read(asking(wants("a", i915=1), wants("b", i915=1), annotations={"gas-same-gpu": "a,b", **LINKED}))

    assert pod.request is None
    assert "it contradicts gas-allocate-xelink" in pod.malformed


def gas_pod(cards: object, tiles: object, *containers: Json, name: str = "theirs") -> Json:
    """A pod that GAS itself bound."""
    written = {"gas-ts": "7", "gas-container-cards": cards, "gas-container-tiles": tiles}
    annotations = {name: text for name, text in written.items() if text is not None}
    return bound(asking(*containers, name=name, annotations=annotations), "n", None)


def test_a_pod_that_gas_bound_has_its_cards_and_tiles_and_the_node_stays_open() -> None:
    node = intel_node(cards=2, tiles=2, i915=4, millicores=1000)
    theirs = gas_pod(
        "card0,card1|", "card0:gt0,card1:gt1|", wants("a", i915=2, tiles=2, millicores=1000), wants("b")
    )
    free = rebuilt([node], [theirs]).node("n")

    assert free.closed == ""
    assert [{name: left for name, left, _ in each.resources} for each in free.free_by_card if each] == [
        {f"{INTEL}i915": 3, f"{INTEL}tiles": 1, f"{INTEL}millicores": 500}
    ] * 2
    assert on(asking(wants(i915=2, tiles=2)), theirs, node=node) == "card0,card1 card0:gt1,card1:gt0"
    without_tiles = gas_pod("|card1", None, wants("a"), wants("b", i915=1, millicores=600))
    assert on(asking(wants(i915=1, millicores=500)), without_tiles, node=node) == "card0"


def name_of(node: Json) -> str:
    return str(node["metadata"]["name"])


MARK = "gpu.aware.scheduling/deschedule-pod=gpu"


@pytest.mark.parametrize(
    "labels",
    [
        {f"{TAS}gas-deschedule-pods-card0": "true"},
        {f"{TAS}gas-deschedule-pods-card1": "PCI_GROUP", INTEL + "pci-groups": "0.1"},
        {f"{TAS}gas-tile-deschedule-card0_gt0": "true"},
    ],
)
def test_a_pod_is_marked_while_its_card_or_tile_is_to_be_left(labels: Json) -> None:
    """S33: exactly one mark put on, and exactly one taken off."""
    raw = asking(wants(i915=1, tiles=1))
    at_first = placed(rebuilt([intel_node(cards=2, tiles=4)], []), raw)
    assert at_first is not None

    def marks(labels: Json, marked: bool) -> list[bool]:
        pod = {
            **at_first,
            "metadata": {**at_first["metadata"], "labels": dict([MARK.split("=")] if marked else [])},
        }
        snapshot = rebuilt([intel_node(cards=2, tiles=4, labels=labels)], [pod])
        return [needs for _, needs in wrongly_marked(snapshot.node("n"), snapshot.pods)]

    assert marks({}, marked=False) == []
    assert marks(labels, marked=False) == [True]
    assert marks(labels, marked=True) == []
    assert marks({f"{TAS}gas-deschedule-pods-card1": "true"}, marked=False) == []
    assert marks({f"{TAS}gas-tile-deschedule-card0_gt1": "true"}, marked=False) == []
    assert marks({f"{TAS}gas-tile-deschedule-card0_gt9": "true"}, marked=False) == []
    also = {**labels, "telemetry.aware.scheduling.policy-b/gas-deschedule-pods-card0": "1"}
    assert marks(dict([*also.items()][-1:]), marked=True) == []
    assert marks({}, marked=True) == [False]


def test_no_pod_of_another_node_is_marked_or_loses_its_mark() -> None:
    raw = asking(of_resources({"bursar.dev/gpu-percent": "50"}))
    raw["metadata"]["labels"] |= dict([MARK.split("=")])
    ours = placed(rebuilt([node()], []), raw)
    assert ours is not None
    snapshot = rebuilt([node()], [ours])

    assert snapshot.node("n").allocations
    assert list(wrongly_marked(snapshot.node("n"), snapshot.pods)) == []


def test_no_pod_is_placed_where_pods_must_leave() -> None:
    node = intel_node(cards=2, labels={f"{TAS}gas-deschedule-pods-card0": "true"})

    assert on(ALONE, node=node) == "card1"


TEXTS = st.sampled_from(
    ["", "card0", "card0,card1", "a,b", "0", "-1", "NaN", "1e400", "9" * 30, "Z.1", "0.1", "_"]
)
NAMES = ["i915", "xe", "millicores", "tiles", "memory.max", "i915_monitoring", "foo"]
STEMS = ["gas-disable-", "gas-deschedule-pods-", "gas-tile-disable-", "gas-tile-preferred-", "gas-prefer-gpu"]
WORDS = ["gpu-numbers", "gpu-numbers2", "cards", "pci-groups", "xe-links", "numa-gpu-map", "product"]


@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS | st.integers(-2, 4) | st.text(max_size=3)),
    st.dictionaries(st.sampled_from(sorted(gas.USER_ANNOTATIONS)), TEXTS | st.text(max_size=5)),
    st.dictionaries(
        st.sampled_from([INTEL + word for word in WORDS] + [f"{TAS}{stem}card0_gt0" for stem in STEMS]),
        TEXTS | st.text(max_size=5),
    ),
)
def test_no_pod_and_no_node_of_its_words_is_an_exception(
    limits: Json, annotations: Json, labels: Json
) -> None:
    containers = [
        of_resources({INTEL + name: amount for name, amount in limits.items()}, "a"),
        wants("b", i915=2),
    ]
    pod = read_pod(asking(*containers, annotations=annotations))
    node = intel_node(cards=2, labels=labels, tiles=2)
    snapshot = rebuilt([node], [])

    assert pod is not None
    assert (pod.request is None) == bool(pod.malformed)
    if pod.request is not None:
        assert fit(pod.request, snapshot.node("n")) is not None


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [([0], [1], ""), ([0], [0], "placement"), ([0], [4], "placement"), ([0], [], "placement")],
)
def test_a_placement_counts_only_with_tiles_that_exist_each_once(
    first: list[int], second: list[int], fault: str
) -> None:
    part = {"uuid": "card0", "index": 0, "share_milli": 0, "memory_mib": 0}
    amounts = {"resources": {f"{INTEL}i915": 1, f"{INTEL}tiles": 1}}
    containers = {"a": [{**part, **amounts, "tiles": first}], "b": [{**part, **amounts, "tiles": second}]}
    raw = asking(wants("a", i915=1, tiles=1), wants("b", i915=1, tiles=1))

    pod = bound(raw, "n", json.dumps({"version": 1, "containers": containers}))

    assert rebuilt([intel_node(tiles=4)], [pod]).node("n").closed == fault


@pytest.mark.parametrize("policy", [BUILT["binpack"], fragmentation(FragmentationModel(BUILT_IN), 1000)])
def test_many_nodes_are_filtered_by_what_is_left_of_each_resource(policy: Policy) -> None:
    nodes = [intel_node(f"n{at}", millicores=1000) for at in range(6)]
    pods = [
        placed(rebuilt(nodes, []), asking(wants(i915=1, millicores=800), name=f"u{at}"), f"n{at}") or {}
        for at in range(5)
    ]
    request = request_of(asking(wants(i915=1, millicores=300)))

    found = FitCache().partition(
        fit_key(request, policy, ()), rebuilt(nodes, pods).nodes, [f"n{at}" for at in range(6)]
    )

    marked = [*nodes[:5], intel_node("n5", millicores=1000, labels={f"{TAS}gas-prefer-gpu": "card0"})]
    scores = FitCache().scored(
        fit_key(request, policy, ()), rebuilt(marked, []).nodes, [*map(name_of, marked)]
    )[0]
    assert found.fits == ["n5"]
    assert scores.argmax() == 5
    assert {each.kind for each in {**found.short, **found.refused}.values()} == {"full"}


@pytest.mark.parametrize("seed", range(8))
def test_many_nodes_at_once_are_scored_as_each_alone(seed: int) -> None:
    rng, policy = random.Random(seed), fragmentation(FragmentationModel(BUILT_IN), 1000)
    nodes: dict[str, NodeInfo] = {}
    for name in (f"n{at}" for at in range(12)):
        labels = {f"{TAS}gas-prefer-gpu": "card1"} if rng.random() < 0.2 else {}
        there = intel_node(cards=3, labels=labels, millicores=1000, foo=4)
        taken = {at: {"millicores": rng.choice([100, 500, 900]), "foo": rng.randint(1, 4)} for at in range(3)}
        kept = {at: each for at, each in taken.items() if rng.random() < 0.7}
        nodes[name] = rebuilt([there], used(there, kept)).node("n")
    request = request_of(asking(wants(i915=rng.choice([1, 2]), millicores=400, foo=2)))
    key = fit_key(request, policy, ())

    together = FitCache().scored(key, Map(nodes), [*nodes])[0].tolist()

    alone = [FitCache().scored(key, Map({name: each}), [name])[0][0] for name, each in nodes.items()]
    assert together == alone


def test_the_pod_of_lowest_priority_leaves_whose_resources_suffice_and_its_tile_is_given_on() -> None:
    node = intel_node(cards=2, tiles=2, millicores=1000)
    pods: list[Json] = []
    for name, card, millicores in (("small", 0, 100), ("large", 1, 900), ("middle", 0, 300)):
        raw = asking(
            wants(i915=1, millicores=millicores, tiles=1),
            name=name,
            annotations={"gas-allow": f"card{card}"},
            priority=millicores,
        )
        pods.append(placed(rebuilt([node], pods), raw) or {})
    waiting = read(asking(wants(i915=1, millicores=700, tiles=1), name="waiting", priority=1000))

    choice = chosen(waiting, rebuilt([node], pods))

    assert choice is not None
    ((_, (part,)),) = choice.placement.containers
    assert names_of(choice) == ["small"]
    assert (part.uuid, part.tiles, dict(part.resources)[f"{INTEL}millicores"]) == ("card0", (0,), 700)


def test_the_search_for_links_ends_within_its_bounds() -> None:
    links = "_".join(f"{a}.{tile}-{b}.{tile}" for a in range(16) for b in range(a) for tile in range(4))
    node = intel_node(cards=16, tiles=4, labels={INTEL + "xe-links": links})
    stubborn = [wants(f"c{at}", i915=4, tiles=4) for at in range(17)]  # 68 tiles of 64
    many = [wants(f"c{at}", i915=2, tiles=2) for at in range(201)]

    for containers in (stubborn, many):
        request = request_of(asking(*containers, annotations=LINKED))
        assert fit(request, rebuilt([node], []).node("n")) == GIVEN_UP


CARD = st.integers(0, 3)
Links = tuple[tuple[int, int, int, int], ...]


def brute_force(links: Links, pairs: list[int], slots: dict[int, int]) -> bool:
    """Try every set of links for every container: cards distinct within it, tiles and slots used once."""

    def run(at: int, tiles: frozenset[tuple[int, int]], left: dict[int, int]) -> bool:
        if at == len(pairs):
            return True
        for links_of in itertools.combinations(links, pairs[at]):
            ends = [end for a, s, b, t in links_of for end in ((a, s), (b, t))]
            cards = [card for card, _ in ends]
            if len(set(cards)) < len(cards) or len(set(ends)) < len(ends) or not tiles.isdisjoint(ends):
                continue
            after = {card: count - (card in cards) for card, count in left.items()}
            if min(after.values()) >= 0 and run(at + 1, tiles | set(ends), after):
                return True
        return False

    return run(0, frozenset(), slots)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sets(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3), st.integers(0, 1)), max_size=6
    ),
    st.lists(st.sampled_from([1, 1, 2]), min_size=1, max_size=3),
    st.integers(1, 2),
)
def test_linked_cards_are_found_if_and_only_if_there_are_any(
    drawn: set[tuple[int, int, int, int]], pairs: list[int], slots: int
) -> None:
    links = tuple(sorted(each for each in drawn if each[0] < each[2]))
    label = "_".join(f"{a}.{s}-{b}.{t}" for a, s, b, t in links)
    node = intel_node(cards=4, tiles=2, i915=slots, labels={INTEL + "xe-links": label} if label else {})
    containers = [wants(f"c{at}", i915=2 * each, tiles=2 * each) for at, each in enumerate(pairs)]

    found = on(asking(*containers, annotations=LINKED), node=node)

    assert bool(found) == brute_force(links, pairs, dict.fromkeys(range(4), slots))


@pytest.mark.parametrize(
    ("tiles", "asked", "init", "expected"),
    [
        (1, 1, 1, {"i": (0,), "m": (0,)}),
        (3, 1, 2, {"i": (0, 1), "m": (0,)}),
        (3, 3, 2, {"i": (0, 1), "m": (0, 1, 2)}),
    ],
)
def test_an_init_container_reuses_tiles_of_its_pod(
    tiles: int, asked: int, init: int, expected: dict[str, tuple[int, ...]]
) -> None:
    node = intel_node(tiles=tiles)
    raw = asking(wants("m", i915=1, tiles=asked), init=[wants("i", i915=1, tiles=init)])

    bound_pod = placed(rebuilt([node], []), raw)

    assert bound_pod is not None
    written = decode_placement(bound_pod["metadata"]["annotations"]["bursar.dev/devices"])
    assert {name: slices[0].tiles for name, slices in written.containers} == expected
    assert rebuilt([node], [bound_pod]).node("n").closed == ""


def test_a_native_sidecar_and_the_init_container_after_it_have_different_tiles() -> None:
    node, before = intel_node(tiles=2), {**wants("s", i915=1, tiles=1), "restartPolicy": "Always"}
    raw = asking(wants("m", i915=1, tiles=1), init=[before, wants("i", i915=1, tiles=1)])

    bound_pod = placed(rebuilt([node], []), raw)

    assert bound_pod is not None
    written = decode_placement(bound_pod["metadata"]["annotations"]["bursar.dev/devices"])
    assert {name: slices[0].tiles for name, slices in written.containers} == {"s": (0,), "i": (1,), "m": (1,)}
    assert rebuilt([node], [bound_pod]).node("n").closed == ""
