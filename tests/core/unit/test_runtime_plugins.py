"""What the Binding writes for plugins of the node's container runtime, and how it finds them."""

import json

import pytest

from scheduler_ext.model.node import read_node
from tests.scheduler_ext.worlds import node
from tests.worlds import Json, card
from timekeeper.core.dialects import hami, native, tencent
from timekeeper.core.request.inventory import runtime_plugins
from timekeeper.core.request.runtime_plugins import KAIS, read_by
from timekeeper.core.values import Card, Placement, Slice

CARDS = (Card("GPU-0", 0, "A100", 16_000), Card("GPU-1", 1, "A100", 16_000), Card("GPU-2", 2, "A30", 8_000))
READY = "gpu-fractioning.nvidia.com/Ready"


def placed(*slices: Slice, container: str = "main") -> Placement:
    """The placement of one container."""
    return Placement(((container, slices),))


def described(said: object = None, *conditions: tuple[str, str]) -> Json:
    """A node whose inventory says what hands out its cards."""
    raw = node("n", card(0))
    inventory = json.loads(raw["metadata"]["annotations"]["bursar.dev/inventory"])
    inventory |= {} if said is None else {"nri": said}
    raw["metadata"]["annotations"]["bursar.dev/inventory"] = json.dumps(inventory)
    raw["status"]["conditions"] = [{"type": kind, "status": status} for kind, status in conditions]
    return raw


def test_the_driver_limits_a_share_on_each_card_to_the_smallest_of_its_parts() -> None:
    parts = Slice("GPU-2", 2, 500, 4_000), Slice("GPU-1", 1, 500, 8_000)

    assert read_by((KAIS,), native.DIALECT, placed(*parts), CARDS) == {
        "nvidia.com/container.main.gpus.devices": "GPU-1,GPU-2",
        "nvidia.com/container.main.gpu-memory.request": "4000Mi",
        "nvidia.com/container.main.gpu-memory.limit": "4000Mi",
    }


def test_whole_cards_are_left_to_their_container_and_a_part_of_their_memory_is_not() -> None:
    whole, part = Slice("GPU-0", 0, 1000, 16_000), Slice("GPU-0", 0, 1000, 1_000)

    assert read_by((KAIS,), native.DIALECT, placed(whole), CARDS) == {}
    limited = read_by((KAIS,), native.DIALECT, placed(part), CARDS)
    assert limited["nvidia.com/container.main.gpu-memory.limit"] == "1000Mi"


def test_nvidias_plugin_gets_the_names_of_the_cards_in_cdi() -> None:
    parts = Slice("GPU-1", 1, 1000, 16_000), Slice("GPU-0", 0, 1000, 16_000)

    assert read_by(("nvidia-toolkit",), native.DIALECT, placed(*parts), CARDS) == {
        "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=GPU-0,nvidia.com/gpu=GPU-1"
    }


@pytest.mark.parametrize(("plugin", "most"), [(KAIS, 34), ("nvidia-ctk-installer", 53)])
def test_a_name_that_no_annotation_can_have_is_not_written(plugin: str, most: int) -> None:
    part = Slice("GPU-0", 0, 500, 8_000)

    assert read_by((plugin,), native.DIALECT, placed(part, container="c" * most), CARDS)
    assert read_by((plugin,), native.DIALECT, placed(part, container="c" * (most + 1)), CARDS) == {}


def test_nothing_is_written_where_another_plugin_does_it_or_there_is_no_memory() -> None:
    part, named = Slice("GPU-0", 0, 500, 8_000), Slice("GPU-0", 0, 0, 0, (("x/y", 1),))

    assert read_by((), native.DIALECT, placed(part), CARDS) == {}
    assert read_by(("another",), native.DIALECT, placed(part), CARDS) == {}
    assert read_by(("bursar",), hami.DIALECT, placed(part), CARDS) == {}
    assert read_by((KAIS,), tencent.DIALECT, placed(part), CARDS) == {}
    assert read_by(("nvidia-toolkit",), hami.DIALECT, placed(part), CARDS) == {}
    assert read_by((KAIS,), native.DIALECT, placed(named), CARDS) == {}


def test_where_bursars_plugin_gives_the_cards_the_runtime_requires_it_and_those_that_take_part() -> None:
    part = placed(Slice("GPU-0", 0, 500, 8_000))

    assert read_by(("bursar",), native.DIALECT, part, CARDS) == {
        "required-plugins.noderesource.dev": '["bursar"]'
    }
    both = read_by(("bursar", KAIS), native.DIALECT, part, CARDS)
    assert both["required-plugins.noderesource.dev"] == '["bursar", "gpu-fractioning"]'
    assert both["nvidia.com/container.main.gpu-memory.limit"] == "8000Mi"


def test_the_agents_word_is_read() -> None:
    raw = described({"plugins": ["bursar", "nvidia-toolkit"], "enforced": True})

    assert runtime_plugins(raw) == read_node(raw).runtime_plugins == ("bursar", "nvidia-toolkit")
    assert len(read_node(raw).cards) == 1


@pytest.mark.parametrize("odd", [None, "bursar", 7, ["bursar"], {"plugins": "bursar"}, {"plugins": [7]}, {}])
def test_without_a_word_that_can_be_read_there_is_no_plugin_and_the_cards_stay(odd: object) -> None:
    found = read_node(described(odd))

    assert (found.runtime_plugins, len(found.cards), found.fault) == ((), 1, "")


def test_an_inventory_that_cannot_be_read_names_no_plugin() -> None:
    raw = node("n", annotations={"bursar.dev/inventory": '{"nri":{"plugins":["bursar"]}'})

    assert runtime_plugins(raw) == ()


def test_kais_operator_says_that_its_plugin_is_ready() -> None:
    assert runtime_plugins(described(None, ("Ready", "True"), (READY, "True"))) == (KAIS,)
    assert runtime_plugins(described(None, (READY, "False"))) == ()
    assert runtime_plugins(described(None, (READY, "Unknown"))) == ()
    for plugins in (["bursar"], ["bursar", KAIS]):
        assert runtime_plugins(described({"plugins": plugins}, (READY, "True"))) == ("bursar", KAIS)
