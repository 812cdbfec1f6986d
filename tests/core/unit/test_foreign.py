"""Pods that the scheduler of another system bound: their cards, as its annotations name them."""

import random
from typing import Any

import pytest

from tests.worlds import of_resources, pod
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.dialect import PlacedRequest
from timekeeper.core.request.foreign import foreign_placement, named_cards
from timekeeper.core.request.request import parse
from timekeeper.core.values import Card, GPURequest, Placement, Slice

Json = dict[str, Any]

CARDS = tuple(Card(f"GPU-{index}", index, "T4", 16_000) for index in range(4))
RESOURCES = {
    "tencent": {"tencent.com/vcuda-core": "200"},
    "nano-v0.1": {"nano-gpu.io/gpu-core": "20"},
    "nano-v0.3": {"nano-gpu/gpu-percent": "20"},
    "qgpu": {"nano-gpu/qgpu-core": "200"},
    "elastic": {"elasticgpu.io/gpu-core": "200"},
    "gpushare": {"aliyun.com/gpu-mem": "4000"},
    "hami": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"},
    "volcano": {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "4000"},
}


def by_the_plugin(dialect: str, written: dict[str, str], names: tuple[str, ...]) -> dict[str, list[int]]:
    """The indexes of each container's cards by the rules of that system's node plugin in its source:
    an annotation of each container, by its place or its name, or one of the pod."""
    stems = {
        "nano-v0.1": "nano-gpu.io/gpu-",
        "nano-v0.3": "nano-gpu/container-",
        "qgpu": "nano-gpu/container-",
        "elastic": "elasticgpu.io/container-",
    }
    if dialect == "gpushare":
        return {"main": [int(written["ALIYUN_COM_GPU_MEM_IDX"])]}
    if dialect in ("hami", "volcano"):
        of_pod = "hami.io/vgpu-devices-to-allocate" if dialect == "hami" else "volcano.sh/devices-to-allocate"
        # HAMi ends each container with a semicolon, Volcano puts one between two
        texts = written[of_pod].split(";")
        parts = [[device.split(",")[0] for device in text.split(":") if device] for text in texts]
        found = zip(names, parts, strict=dialect == "volcano")
        return {name: [int(uuid.removeprefix("GPU-")) for uuid in part] for name, part in found if part}
    keys = {name: f"{stems[dialect]}{name}" for name in names} if dialect in stems else {}
    keys = keys or {name: f"tencent.com/predicate-gpu-idx-{at}" for at, name in enumerate(names)}
    lists = {name: written.get(key, "-1").split(",") for name, key in keys.items()}
    return {name: [int(each) for each in part] for name, part in lists.items() if part != ["-1"]}


def amount(limits: dict[str, str]) -> int:
    """The cards of a container with these limits."""
    return 2 if limits and next(iter(limits.values())) in ("200", "2") else 1


def placed(request: GPURequest, rng: random.Random) -> Placement:
    """Any cards for each container."""
    same = rng.sample(CARDS, 4)
    chosen = []
    for each in request.asks:
        cards = same if request.dialect == "gpushare" else rng.sample(CARDS, 4)
        share, memory = each.ask.share_milli, each.ask.memory_mib or 16 * each.ask.share_milli
        slices = tuple(Slice(card.uuid, card.index, share, memory) for card in cards[: each.ask.devices])
        chosen.append((each.container, slices))
    return Placement(tuple(chosen))


@pytest.mark.parametrize("dialect", RESOURCES)
def test_what_a_binding_writes_reads_back_as_the_same_cards(dialect: str) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        idle = of_resources({}, "idle")
        asking = of_resources(RESOURCES[dialect], "main")
        raw = pod(*rng.choice([(asking,), (idle, asking), (asking, idle)]))
        request = parse(raw).request
        assert request is not None
        assert request.dialect == dialect
        placement = placed(request, rng)
        names = tuple(each["name"] for each in raw["spec"]["containers"])
        written = BY_NAME[dialect].at_binding(PlacedRequest(request, placement, "n", 7, names, cards=CARDS))
        raw["metadata"]["annotations"] = written

        assert foreign_placement(request, named_cards(raw, request), CARDS) == placement
        meant = {name: [each.index for each in slices] for name, slices in placement.containers}
        assert by_the_plugin(dialect, written, names) == meant


def test_samples_of_other_schedulers_name_their_cards() -> None:
    """Texts as those systems write them (the page on dialects)."""
    hami = "GPU-0,NVIDIA,3000,0:;GPU-1,NVIDIA,5000,0:;"
    empty = ",,0,0:;GPU-1,NVIDIA,5000,0:;"
    two = of_resources({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, "a"), of_resources({}, "b")
    one = of_resources({}, "a"), of_resources({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5000"}, "b")
    whole = of_resources({"nvidia.com/gpu": "1"}, "a"), of_resources({}, "b")
    for containers, text, named in (
        (two, hami, {"a": ("GPU-0",), "b": ("GPU-1",)}),
        (one, empty, {"b": ("GPU-1",)}),
        (whole, ";GPU-1,NVIDIA,5000,0:;", {"b": ("GPU-1",)}),
        (two, "GPU-0,NVIDIA,3000,0:", {}),
        (two, "", {}),
    ):
        raw = pod(*containers, annotations={"hami.io/vgpu-devices-allocated": text})
        request = parse(raw).request
        assert request is not None
        assert dict(named_cards(raw, request)) == named


@pytest.mark.parametrize("index", ["", "9", "-1", "0,1", "zero", "0,", "٣", "1" * 300])
def test_an_index_that_is_none_of_the_nodes_places_nothing(index: str) -> None:
    raw = pod(of_resources(RESOURCES["gpushare"]), annotations={"ALIYUN_COM_GPU_MEM_IDX": index})
    request = parse(raw).request
    assert request is not None

    assert foreign_placement(request, named_cards(raw, request), CARDS) is None
