"""What is written on the node, as one change of what stands there."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.node.state import node_patch
from sidecar.node.state.node_patch import DesiredNode, change
from sidecar.node.values import NodeCard, NodeState
from tests.node.worlds import MEMORY_MIB, card, node
from timekeeper.core import names
from timekeeper.core.accelerators import ACCELERATORS
from timekeeper.core.dialects import GPU_RESOURCE
from timekeeper.core.request.cards import decode_inventory

A, B = card("GPU-a"), card("GPU-b", index=1)
TWO_CARDS = {
    "bursar.dev/gpu-percent": "200",
    "bursar.dev/gpu-memory": str(2 * MEMORY_MIB),
    "bursar.dev/gpu-count": "2000",
    "cards.bursar.dev/millionths": "2000000",
}


def wanted(*cards: NodeCard, held: bool = False, holders: str | None = None) -> DesiredNode:
    return DesiredNode(cards, frozenset(), holders, None, held, ("acme.example/",))


def capacity(patch: dict[str, Any]) -> Any:
    """Of a change; allocatable must be the same."""
    status = patch.get("status", {"capacity": {}, "allocatable": {}})
    assert status["capacity"] == status["allocatable"]
    return status["capacity"]


def test_a_bare_node_gets_inventory_and_capacity_in_one_change_allocatable_with_it() -> None:
    patch = change(node(), wanted(A, B, holders="{}"))

    assert patch == {
        "metadata": {
            "annotations": {
                "bursar.dev/inventory": node_patch.inventory((A, B)),
                "bursar.dev/holders": "{}",
            }
        },
        "status": {"capacity": TWO_CARDS, "allocatable": TWO_CARDS},
    }


def test_what_stands_already_is_not_written_again() -> None:
    stands = node(node_patch.inventory((A, B)), "{}", TWO_CARDS)

    assert change(stands, wanted(A, B, holders="{}")) == {}


def test_a_card_on_mps_is_reported_to_be_and_readers_of_the_inventory_read_on() -> None:
    text = node_patch.inventory((A, B), frozenset({"GPU-b", "GPU-gone"}))

    assert [each.get("mps") for each in json.loads(text)["cards"]] == [None, True]
    assert decode_inventory(text) == decode_inventory(node_patch.inventory((A, B)))
    assert node_patch.read_inventory(text) == (A, B)
    assert node_patch.read_mps(text) == {"GPU-b"}


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"cards": [3]}', '{"cards": [{"mps": true}]}'])
def test_of_an_inventory_that_cannot_be_read_nothing_is_reported_of_mps(text: str | None) -> None:
    assert node_patch.read_mps(text) == frozenset()


def test_an_amount_in_another_spelling_is_the_same_amount() -> None:
    stands = node(
        node_patch.inventory((A, B)),
        None,
        TWO_CARDS
        | {
            "bursar.dev/gpu-memory": "160Ki",
            "bursar.dev/gpu-count": "2k",
            "cards.bursar.dev/millionths": "2M",
        },
    )

    assert change(stands, wanted(A, B)) == {}


def test_removed_annotations_are_written_again_and_nothing_else() -> None:
    text = node_patch.inventory((A, B))
    memory = {"bursar.dev/gpu-memory": str(2 * MEMORY_MIB)}
    half = {name: amount for name, amount in TWO_CARDS.items() if name not in memory}

    assert change(node(None, None, TWO_CARDS), wanted(A, B)) == {
        "metadata": {"annotations": {"bursar.dev/inventory": text}}
    }
    assert change(node(text, None, half), wanted(A, B)) == {
        "status": {"capacity": memory, "allocatable": memory}
    }
    assert change(node(text, None, TWO_CARDS, half), wanted(A, B)) == {
        "status": {"capacity": {}, "allocatable": memory}
    }


def test_zeroes_that_a_kubelet_wrote_at_its_start_are_made_good() -> None:
    zeroes = dict.fromkeys(TWO_CARDS, "0")

    assert capacity(change(node(None, None, zeroes), wanted(A, B, held=True))) == TWO_CARDS


def test_an_unhealthy_card_counts_in_the_capacity() -> None:
    ill = A.but(healthy=False, fault="XID 79")

    assert capacity(change(node(), wanted(ill, B))) == TWO_CARDS


def test_capacity_does_not_shrink_under_pods_and_does_when_they_are_gone() -> None:
    stands = node(None, None, TWO_CARDS)

    assert capacity(change(stands, wanted(A, held=True))) == {}
    assert capacity(change(stands, wanted(A))) == {
        "bursar.dev/gpu-percent": "100",
        "bursar.dev/gpu-memory": str(MEMORY_MIB),
        "bursar.dev/gpu-count": "1000",
        "cards.bursar.dev/millionths": "1000000",
    }


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "tencent.com/vcuda-core"])
@pytest.mark.parametrize("amount", ["8", "0"])
def test_a_node_of_another_plugin_gets_the_inventory_and_no_capacity_of_ours(
    resource: str, amount: str
) -> None:
    patch = change(node(None, None, {resource: amount}), wanted(A, B))

    assert patch == {"metadata": {"annotations": {"bursar.dev/inventory": node_patch.inventory((A, B))}}}


def test_a_node_of_a_former_release_gets_what_it_lacks_also_under_pods() -> None:
    former = dict(list(TWO_CARDS.items())[:2])
    stands = node(node_patch.inventory((A, B)), None, former)

    assert capacity(change(stands, wanted(A, B, held=True))) == {
        "bursar.dev/gpu-count": "2000",
        "cards.bursar.dev/millionths": "2000000",
    }


def test_where_another_plugin_came_to_a_node_of_ours_our_capacity_goes_with_the_last_pod() -> None:
    stands = node(None, None, TWO_CARDS | {"nvidia.com/gpu": "2"})

    assert capacity(change(stands, wanted(A, B, held=True))) == {}
    assert capacity(change(stands, wanted(A, B))) == dict.fromkeys(TWO_CARDS)


def test_other_peoples_resources_are_never_in_a_change() -> None:
    stands = node(None, None, {"nvidia.com/gpu": "8"})

    assert "nvidia.com/gpu" not in json.dumps(change(stands, wanted(A)))


def test_a_node_of_the_plugin_of_the_cards_vendor_gets_the_inventory_alone() -> None:
    stands = node(None, None, {"acme.example/card": "0"})

    assert change(stands, wanted(A)).keys() == {"metadata"}
    assert capacity(change(node(None, None, {"acme.example.org/card": "8"}), wanted(A)))


def test_of_a_node_without_cards_nothing_is_written_of_them() -> None:
    assert change(node(), DesiredNode(None, frozenset(), None, None, True, ())) == {}


def test_the_resources_of_others_are_those_that_the_core_knows() -> None:
    known = GPU_RESOURCE.replace(r"^((cards\.)?bursar\.dev/|", "^(").removesuffix(")")
    (nvidias,) = (row.names for row in ACCELERATORS if row.vendor == "NVIDIA")
    assert rf"{known}|amd\.com/gpu|nvidia\.com/({nvidias})$)" == node_patch.OF_OTHERS.pattern
    assert (node_patch.INVENTORY, node_patch.HOLDERS) == (names.INVENTORY, names.HOLDERS)
    own = (names.GPU_PERCENT, names.GPU_MEMORY, names.GPU_COUNT, names.CARD_MILLIONTHS)
    assert own == node_patch.OURS


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("8", 8), ("8k", 8000), ("160Ki", 163_840), ("1Gi", 1 << 30), ("2M", 2_000_000)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, amount: int) -> None:
    assert node_patch.amount(text) == amount


@pytest.mark.parametrize("text", ["", "-1", "0.5", "1e3", "1_0", "\u0661", "100m", "k"])
def test_what_is_no_whole_quantity_is_none(text: str) -> None:
    assert node_patch.amount(text) is None


words = st.text(st.characters(codec="utf-8"), max_size=20)
some_cards = st.lists(
    st.builds(
        NodeCard,
        st.uuids().map(lambda each: f"GPU-{each}"),
        st.integers(0, 10_000),
        words,
        st.integers(1, 2**30),
        st.booleans(),
        words,
        st.none() | st.integers(0, 63),
        st.none() | st.lists(words, max_size=3).map(tuple),
        st.none() | words,
        st.just(()),
    ),
    max_size=5,
    unique_by=(lambda each: each.uuid, lambda each: each.index),
).map(tuple)


@given(some_cards)
def test_an_inventory_is_read_back_by_us_and_by_the_core_as_it_was_written(
    cards: tuple[NodeCard, ...],
) -> None:
    text = node_patch.inventory(cards)
    ordered = sorted(cards, key=lambda each: each.index)

    assert node_patch.read_inventory(text) == cards
    assert [
        (each.uuid, each.index, each.model, each.memory_mib, each.healthy, each.numa, each.links)
        for each in decode_inventory(text)
    ] == [(c.uuid, c.index, c.model, c.memory_mib, c.healthy, c.numa, c.links) for c in ordered]


some_json = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda each: (
        st.lists(each)
        | st.dictionaries(st.sampled_from(["version", "cards", "uuid", "index", "model", "boot"]), each)
    ),
).map(json.dumps)


@given(st.none() | words | some_json)
def test_an_annotation_that_is_none_of_ours_lists_no_card_and_raises_nothing(text: str | None) -> None:
    assert node_patch.read_inventory(text) == ()
    assert isinstance(node_patch.boot_in(text), str)


@given(some_cards, some_cards, st.booleans())
def test_after_a_change_nothing_is_left_to_write_and_nothing_shrank_under_pods(
    before: tuple[NodeCard, ...], after: tuple[NodeCard, ...], held: bool
) -> None:
    stands = applied(node(), change(node(), wanted(*before)))
    changed = applied(stands, change(stands, wanted(*after, held=held)))

    assert change(changed, wanted(*after, held=held)) == {}
    for name, text in stands.capacity if held else ():
        assert int(dict(changed.capacity)[name]) >= int(text)


def applied(stands: NodeState, patch: dict[str, Any]) -> NodeState:
    """The node after a merge patch."""
    annotations = patch.get("metadata", {}).get("annotations", {})
    status = patch.get("status", {})
    return node(
        annotations.get("bursar.dev/inventory", stands.inventory),
        annotations.get("bursar.dev/holders", stands.holders),
        merged(stands.capacity, status.get("capacity", {})),
        merged(stands.allocatable, status.get("allocatable", {})),
    )


def merged(amounts: tuple[tuple[str, str], ...], patch: dict[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in {**dict(amounts), **patch}.items() if text is not None}


@given(
    st.permutations(range(6)), st.lists(st.sampled_from([None, 0, 1, 2, 3, 4, 5]), min_size=36, max_size=36)
)
def test_paths_are_read_back_by_us_and_by_the_core_as_a_digit_for_each_index(
    indices: list[int], levels: list[int | None]
) -> None:
    """Whatever index each card has: the agent numbers cards itself where NVML's numbers repeat."""
    paths = [
        tuple((f"GPU-{b}", level) for b in range(6) if (level := levels[6 * a + b]) is not None and a != b)
        for a in range(6)
    ]
    cards = tuple(card(f"GPU-{a}", index=indices[a], paths=paths[a]) for a in range(6))
    text = node_patch.inventory(cards)

    again = {each.uuid: dict(each.paths) for each in node_patch.read_inventory(text)}
    assert again == {each.uuid: dict(each.paths) for each in cards}
    for each in decode_inventory(text):
        known = dict(paths[int(each.uuid[4:])])
        for other in range(6):
            digit = each.paths[indices[other] : indices[other] + 1]
            assert (int(digit) if digit.isdigit() else None) == known.get(f"GPU-{other}")


def test_paths_of_eight_cards_take_no_more_than_200_bytes_of_the_node() -> None:
    near = [tuple((f"GPU-{b}", 5) for b in range(8) if a != b) for a in range(8)]
    plain = [card(f"GPU-{a}", index=a) for a in range(8)]
    joined = [each.but(paths=paths) for each, paths in zip(plain, near, strict=True)]

    assert len(node_patch.inventory(tuple(joined))) - len(node_patch.inventory(tuple(plain))) <= 200
