"""Cards and placements: what is decoded, what a pod takes, what it costs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import card, container, inventory, pod
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.request import cards
from timekeeper.core.request.card_amounts import CardAmount, NamedAmount
from timekeeper.core.request.request import parse
from timekeeper.core.values import Ask, Card, GPURequest, Placement, Slice, UndecodableError

A100 = Card("GPU-0", 0, "NVIDIA A100-SXM4-80GB", 81920)
SMALL = Card("GPU-1", 1, "Tesla T4", 15109)


def request_of(*containers: dict[str, Any], **fields: Any) -> GPURequest:
    request = parse(pod(*containers, **fields)).request
    assert request is not None
    return request


def test_an_inventory_is_read_in_the_order_of_its_indexes() -> None:
    text = inventory(card(1, 8000), card(0, 16000, healthy=False))

    assert cards.decode_inventory(text) == (
        Card("GPU-0", 0, "A100", 16000, False),
        Card("GPU-1", 1, "A100", 8000, True),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "cards": []}',
        '{"version": 1, "cards": {}}',
        '{"version": 1, "cards": [1]}',
        inventory(card(0), card(0)),
        inventory(card(0, 0)),
        inventory(card(0, -1)),
        inventory(card(0) | {"uuid": ""}),
        inventory(card(0) | {"memory_mib": "8000"}),
        inventory(card(0) | {"index": True}),
        "[" * 100_000,
    ],
)
def test_an_inventory_that_cannot_be_trusted_is_an_error(text: str) -> None:
    with pytest.raises(UndecodableError):
        cards.decode_inventory(text)


@pytest.mark.parametrize(
    "containers",
    [
        {"a": []},
        {"a": [{}]},
        {"a": 1},
        {"a": [{"uuid": "G", "index": 0, "share_milli": 1001, "memory_mib": 1}]},
    ],
)
def test_a_placement_that_cannot_be_trusted_is_an_error(containers: object) -> None:
    with pytest.raises(UndecodableError):
        cards.decode_placement(json.dumps({"version": 1, "containers": containers}))


slices = st.builds(
    Slice, st.sampled_from(["GPU-0", "GPU-1"]), st.integers(0, 7), st.integers(0, 1000), st.integers(0, 90000)
)
placements = st.dictionaries(
    st.sampled_from("abc"), st.lists(slices, min_size=1, max_size=3).map(tuple), max_size=3
)


@given(placements)
def test_a_placement_survives_its_annotation(containers: dict[str, tuple[Slice, ...]]) -> None:
    placement = Placement(tuple(sorted(containers.items())))

    assert cards.decode_placement(cards.encode_placement(placement)) == placement


def test_a_share_takes_the_same_share_of_memory_rounded_down() -> None:
    half = cards.need(Ask(1, 500, 0), SMALL)

    assert half == CardAmount(500, 7554)
    assert 2 * half.memory_mib <= SMALL.memory_mib


def test_a_whole_card_takes_all_of_its_memory() -> None:
    assert cards.need(Ask(1, 1000, 0), SMALL) == CardAmount(1000, 15109)


@pytest.mark.parametrize(
    ("word", "matches"),
    [
        ("A100", True),
        ("a100", True),
        ("NVIDIA A100", True),
        ("A100-SXM4", True),
        ("A10", False),
        ("100", False),
        ("", False),
    ],
)
def test_a_model_is_named_by_whole_words_of_it(word: str, matches: bool) -> None:
    assert cards.is_model(word, A100.model) is matches


def test_constraints_on_models_and_uuids_choose_cards() -> None:
    def usable(annotations: dict[str, str]) -> list[str]:
        request = request_of(container(gpu_percent="10"), annotations=annotations)
        return [each.uuid for each in (A100, SMALL) if cards.allowed(request, each)]

    assert usable({}) == ["GPU-0", "GPU-1"]
    assert usable({"bursar.dev/gpu-models": "A100"}) == ["GPU-0"]
    assert usable({"bursar.dev/exclude-gpu-models": "A100"}) == ["GPU-1"]
    assert usable({"bursar.dev/gpu-uuids": "GPU-1"}) == ["GPU-1"]


def test_containers_add_up_and_init_containers_reuse_what_is_theirs() -> None:
    request = request_of(
        container("a", gpu_percent="30"),
        container("b", gpu_percent="20"),
        init=[container("i", gpu_percent="40")],
    )
    on_one_card = Placement(
        (
            ("i", (Slice("GPU-0", 0, 400, 32768),)),
            ("a", (Slice("GPU-0", 0, 300, 24576),)),
            ("b", (Slice("GPU-0", 0, 200, 16384),)),
        )
    )

    assert cards.amounts_by_card(request, on_one_card) == {"GPU-0": CardAmount(500, 40960)}


def test_an_init_container_runs_beside_the_native_sidecars_that_stand_before_it() -> None:
    side = container("side", gpu_memory="1000") | {"restartPolicy": "Always"}
    late = container("late", gpu_memory="500") | {"restartPolicy": "Always"}
    request = request_of(
        container("a", gpu_memory="3000"), init=[side, container("i", gpu_memory="4000"), late]
    )
    amounts = {"side": 1000, "i": 4000, "late": 500, "a": 3000}
    placement = Placement(tuple((name, (Slice("GPU-0", 0, 0, mib),)) for name, mib in amounts.items()))

    assert cards.amounts_by_card(request, placement) == {"GPU-0": CardAmount(0, 5000)}


def placed(name: str = "main", uuid: str = "GPU-0", share: int = 500, memory: int = 40960) -> Placement:
    return Placement(((name, (Slice(uuid, 0, share, memory),)),))


def test_a_placement_counts_only_where_the_request_stands_behind_it() -> None:
    request = request_of(container(gpu_percent="50"))

    assert cards.mismatch(request, placed(), (A100,)) is None
    assert "inventory" in str(cards.mismatch(request, placed(uuid="GPU-9"), (A100,)))
    assert "other amounts" in str(cards.mismatch(request, placed(share=1), (A100,)))
    assert "other amounts" in str(cards.mismatch(request, placed(memory=1), (A100,)))
    assert "containers" in str(cards.mismatch(request, placed(name="other"), (A100,)))


def test_two_cards_must_be_two() -> None:
    request = request_of(container(gpu_count="2"))
    twice = Placement((("main", (Slice("GPU-0", 0, 1000, 81920), Slice("GPU-0", 0, 1000, 81920))),))

    assert "distinct" in str(cards.mismatch(request, twice, (A100,)))


@pytest.mark.parametrize(
    ("use", "charge_by", "weights", "rate"),
    [
        (CardAmount(500, 40960), "dominant", (), 500),
        (CardAmount(100, 65536), "dominant", (), 800),
        (CardAmount(100, 65536), "compute", (), 100),
        (CardAmount(0, 65536), "compute", (), 800),
        (CardAmount(100, 65536), "memory", (), 800),
        (CardAmount(100, 65536), "mean", (), 450),
        (CardAmount(1, 81), "mean", (), 1),
        (CardAmount(0, 1), "dominant", (), 1),
        (CardAmount(500, 40960), "dominant", (("A100", 2500),), 1250),
        (CardAmount(333, 0), "dominant", (("A100", 350),), 117),
        (CardAmount(500, 40960), "dominant", (("A100", 2500), ("A100-SXM4-80GB", 3000)), 1500),
        (CardAmount(500, 40960), "dominant", (("H100", 2500),), 500),
    ],
)
def test_the_rate_is_the_dominant_part_times_the_weight_rounded_up(
    use: CardAmount, charge_by: str, weights: tuple[tuple[str, int], ...], rate: int
) -> None:
    terms = BudgetSettings(weights=weights, charge_by=charge_by)

    assert rated(Demand(uses={"GPU-0": use}), NodeCards((A100,)), terms).rate_milli == rate


TILES = Card("card0", 0, "Max 1550", 1000, resources=(("memory", 2**63 - 1), ("tiles", 2)))


@pytest.mark.parametrize(
    ("resources", "unit_costs", "rate", "share"),
    [
        ((("memory", 2**61), ("tiles", 1)), (), 500, 500),
        ((("memory", 2**63 - 1), ("tiles", 1)), (), 1000, 1000),
        ((("memory", 1),), (), 1, 1),
        ((("memory", 2**61), ("tiles", 1)), (("tiles", 100_000_000_000),), 251, 500),
        ((("memory", 0), ("tiles", 1)), (("tiles", 100_000_000_000), ("other", 1)), 100, 500),
        ((("memory", 2**63 - 1),), (("memory", 10**15),), 1_000_000, 1000),
        ((("memory", 5),), (("memory", 0),), 0, 1),
    ],
)
def test_of_named_resources_the_costliest_is_charged(
    resources: Any, unit_costs: Any, rate: int, share: int
) -> None:
    demand = Demand(uses={"card0": NamedAmount(0, 0, resources)})
    terms = BudgetSettings(charge_by="compute", unit_costs=unit_costs)

    rating = rated(demand, NodeCards((TILES,)), terms)

    assert (rating.rate_milli, rating.requested.share_milli) == (rate, share)


def test_what_a_placement_has_of_named_resources_is_read_back_exactly() -> None:
    named = (("gpu.intel.com/memory.max", 2**63 - 1), ("gpu.intel.com/tiles", 1))
    placement = Placement((("main", (Slice("card0", 0, 0, 0, named), Slice("card1", 1, 0, 0))),))

    text = cards.encode_placement(placement)

    assert json.loads(text)["containers"]["main"][0]["resources"] == dict(named)
    assert "resources" not in json.loads(text)["containers"]["main"][1]
    assert cards.decode_placement(text) == placement
    for wrong in ("-1", "0.5", '"1"', "true", str(2**63), "1e400"):
        with pytest.raises(UndecodableError):
            cards.decode_placement(text.replace(str(2**63 - 1), wrong))


def test_only_cards_with_enough_memory_in_all_are_allowed() -> None:
    request = request_of(container(gpu_percent="10"), annotations={"bursar.dev/min-gpu-memory": "40k"})

    assert [cards.allowed(request, each) for each in (A100, SMALL)] == [True, False]


@pytest.mark.parametrize("text", ["", "0", "-1", "40Gi", "0.5", "NaN", "9" * 30, " 5", "1048577"])
def test_a_minimum_that_no_card_can_have_is_refused(text: str) -> None:
    broken = parse(
        pod(container(gpu_percent="10"), annotations={"bursar.dev/min-gpu-memory": text})
    ).violations

    assert [(each.rule, each.path) for each in broken] == [
        ("min-gpu-memory", "metadata.annotations[bursar.dev/min-gpu-memory]")
    ]


def test_the_rate_of_several_cards_is_their_sum() -> None:
    uses = {"GPU-0": CardAmount(1000, 81920), "GPU-1": CardAmount(250, 3777)}

    terms = BudgetSettings(weights=(("A100", 1000), ("T4", 350)))

    assert rated(Demand(uses=uses), NodeCards((A100, SMALL)), terms).rate_milli == 1000 + 88


def test_constraints_that_differ_are_answered_apart_for_the_same_card() -> None:
    """What was found for one pod and model is remembered, and must not be another's."""
    words = ("A100", "B200", "nvidia")
    for models in [(), *[(each,) for each in words], words]:
        for excluded in [(), *[(each,) for each in words], words]:
            request = GPURequest(dialect="bursar", asks=(), models=models, exclude_models=excluded)
            wanted = not models or any(cards.is_model(each, A100.model) for each in models)
            expected = wanted and not any(cards.is_model(each, A100.model) for each in excluded)
            assert cards.allowed(request, A100) is expected
            assert cards.allowed(request, A100) is expected
