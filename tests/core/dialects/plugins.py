"""The node plugins of other systems: which pods they are given here, and what they read of a bound one, by
rules written from those systems' sources. The rules import nothing of ours."""

import json
import random
import re
from collections.abc import Mapping

from tests.core.dialects.contract import Json, Plugin
from tests.worlds import of_resources, pod
from timekeeper.core.values import Card, Slice

Devices = dict[str, list[tuple[str, str, int, int]]]  # container -> UUID, type, MiB and per cent of each
GIB = 2**30


def with_idle(rng: random.Random, limits: Json) -> Json:
    """A pod with one container of these limits, and half of the time one without a card before or behind."""
    asking, idle = of_resources(limits), of_resources({}, "idle")
    return pod(*rng.choice([(asking,), (asking,), (idle, asking), (asking, idle)]))


def ordinary(raw: Json) -> list[str]:
    """The names of the pod's containers without its init containers."""
    return [container["name"] for container in raw["spec"]["containers"]]


def by_index(*requests: Json, stem: str = "", numbered: str = "", of_pod: str = "") -> Plugin:
    """One that reads indexes from annotations, -1 for none: of each container by its name (``stem``, as
    nano-gpu's and elastic-gpu's agents) or by its place (``numbered``, gpu-manager), or of the pod
    (``of_pod``, gpushare and Volcano's former plugin). ``requests``: limits of its pods."""

    def reads(annotations: Mapping[str, str], raw: Json) -> dict[str, list[int]]:
        names = {of_pod: "main"} if of_pod else {}
        names |= {f"{stem}{name}": name for name in ordinary(raw) if stem}
        names |= {f"{numbered}{at}": name for at, name in enumerate(ordinary(raw)) if numbered}
        texts = {name: annotations.get(annotation, "-1") for annotation, name in names.items()}
        return {name: list(map(int, text.split(","))) for name, text in texts.items() if text != "-1"}

    return Plugin(
        asks=lambda rng: with_idle(rng, rng.choice(requests)),
        reads=reads,
        of_slice=lambda part, _limits, _card: part.index,
    )


def _devices(names: list[str], texts: list[str]) -> Devices:
    """Each device of a container ends with a colon, and has four fields, with numbers of 32 bits."""
    read = {}
    for name, text in zip(names, texts, strict=True):
        assert re.fullmatch(r"([^,:;]+,[^,:;]+,[0-9]{1,9},[0-9]{1,9}:)*", text)
        fields = [device.split(",") for device in text.split(":") if device]
        read[name] = [(uuid, kind, int(mib), int(cores)) for uuid, kind, mib, cores in fields]
    return {name: devices for name, devices in read.items() if devices}


def _by_hami(annotations: Mapping[str, str], raw: Json) -> Devices:
    """Init containers come first, and each container ends with a semicolon, so that the last part is
    empty."""
    allocated = annotations["hami.io/vgpu-devices-allocated"]
    assert allocated == annotations["hami.io/vgpu-devices-to-allocate"]
    init = [container["name"] for container in raw["spec"].get("initContainers", [])]
    *texts, last = allocated.split(";")
    assert last == ""
    return _devices([*init, *ordinary(raw)], texts)


def _counted_by_hami(part: Slice, limits: Json, card: Card) -> tuple[str, str, int, int]:
    """MiB and per cent of one device, by HAMi's rules; a whole card has all its memory."""
    given = {name.removeprefix("nvidia.com/"): int(amount) for name, amount in limits.items()}
    percentage = given.get("gpumem-percentage", 100)
    memory = given.get("gpumem") or card.memory_mib * percentage // 100
    is_exclusive = "gpucores" not in given and "gpumem" not in given and percentage == 100
    cores = 100 if is_exclusive else given.get("gpucores", 0)
    return part.uuid, "NVIDIA", card.memory_mib if cores == 100 else memory, cores


def _asks_hami(rng: random.Random) -> Json:
    """Two to five containers, of which the first may be an init container, and the second asks for a part."""

    def limits() -> Json:
        amounts = {
            "gpumem": (1, 9000),
            "gpumem-percentage": (1, 100),
            "gpucores": (0, 100),
            "priority": (0, 1),
        }
        chosen = {name: rng.randint(*bounds) for name, bounds in amounts.items() if rng.random() < 0.5}
        asked = {"gpu": rng.randint(1, 2), **chosen} if rng.random() < 0.6 else {}
        return {f"nvidia.com/{name}": str(amount) for name, amount in asked.items()}

    part = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "70"}
    others = [
        of_resources(part, "c1"),
        *(of_resources(limits(), f"c{at}") for at in range(2, rng.randint(2, 5))),
    ]
    first = of_resources(limits(), "c0")
    return pod(*others, init=[first]) if rng.random() < 0.5 else pod(first, *others)


def _by_volcano(annotations: Mapping[str, str], raw: Json) -> Devices:
    """Semicolons stand between the ordinary containers."""
    allocated = annotations["volcano.sh/vgpu-ids-new"]
    assert allocated == annotations["volcano.sh/devices-to-allocate"]
    return _devices(ordinary(raw), allocated.split(";"))


def _counted_by_volcano(part: Slice, limits: Json, _card: Card) -> tuple[str, str, int, int]:
    return part.uuid, "NVIDIA", int(limits["volcano.sh/vgpu-memory"]), int(limits["volcano.sh/vgpu-cores"])


def _asks_volcano(rng: random.Random) -> Json:
    amounts = {"number": rng.randint(1, 2), "memory": rng.randint(1, 9000), "cores": rng.randint(0, 99)}
    return with_idle(rng, {f"volcano.sh/vgpu-{name}": str(amount) for name, amount in amounts.items()})


def _by_intels(annotations: Mapping[str, str], raw: Json) -> dict[str, list[tuple[str, list[int]]]]:
    """For each ordinary container its cards, and the tiles of each."""
    cards = annotations["gas-container-cards"].split("|")
    tiles = annotations.get("gas-container-tiles", "|" * (len(cards) - 1)).split("|")
    read: dict[str, list[tuple[str, list[int]]]] = {}
    for name, of_cards, of_tiles in zip(ordinary(raw), cards, tiles, strict=True):
        listed = dict(part.split(":") for part in of_tiles.split(",") if part)
        numbers = {
            card: [int(tile.removeprefix("gt")) for tile in text.split("+")] for card, text in listed.items()
        }
        if of_cards:
            read[name] = [(card, numbers.get(card, [])) for card in of_cards.split(",")]
    return read


def _asks_intels(rng: random.Random) -> Json:
    """Up to three containers, the first with a card at least."""
    containers = []
    for at in range(rng.randint(1, 3)):
        cards = rng.randint(0 if at else 1, 2)
        amounts = {"i915": cards, "tiles": cards * rng.randint(0, 2)}
        limits = {f"gpu.intel.com/{name}": str(amount) for name, amount in amounts.items() if amount}
        containers.append(of_resources(limits, f"c{at}"))
    return pod(*containers)


def _by_node_side(annotation: str, prefix: str, count: str) -> Plugin:
    """KubeDevice's and KubeGPU's: the UUIDs of what each container's ``allocatefrom`` names."""

    def cards_in(group: str, *cards: str, memory: int = 0) -> Json:
        amounts = {f"{prefix}/{group}gpu/{card}/cards": 1 for card in cards}
        return amounts | ({f"{prefix}/{group}gpu/{card}/memory": memory for card in cards} if memory else {})

    requests: tuple[Json, ...] = ({count: 1}, {count: 2})
    if prefix == "resource/group":
        requests += (
            cards_in("gpugrp0/x/", "a", "b"),
            cards_in("gpugrp1/x/", "a", "b", "c"),
            cards_in("", "a", memory=9 * GIB),
            cards_in("gpugrp1/x/gpugrp0/y/", "a", "b", memory=9 * GIB),
            cards_in("gpugrp1/x/gpugrp0/y/", "a", "b") | cards_in("gpugrp1/x/gpugrp0/z/", "c", "d"),
            cards_in("gpugrp0/B/", "a", "b") | cards_in("gpugrp0/A/", "c", memory=GIB) | {count: 4},
            cards_in("gpugrp1/x/", "a", "b", memory=GIB) | cards_in("gpugrp1/x/gpugrp0/z/", "c", "d"),
            cards_in("", "a", memory=2 * GIB) | cards_in("", "b", memory=GIB) | cards_in("gpugrp1/y/", *"cd"),
        )

    def asks(rng: random.Random) -> Json:
        if prefix == "resource/group" and rng.random() < 0.2:
            return with_idle(rng, {count: "1"})  # of NVIDIA's plugin
        names = "ab"[: rng.randint(1, 2)]
        asked: Json = {"runningcontainer": {name: {"requests": rng.choice(requests)} for name in names}}
        asked |= rng.choice([{}, {"requests": {"gpu/gpu-generate-topology": rng.randint(0, 1)}}])
        return pod(*(of_resources({}, name) for name in names), annotations={annotation: json.dumps(asked)})

    def reads(annotations: Mapping[str, str], _raw: Json) -> dict[str, list[str]]:
        return {
            name: [
                value.split("/")[-2] for value in of_one["allocatefrom"].values() if value.endswith("/cards")
            ]
            for name, of_one in json.loads(annotations[annotation])["runningcontainer"].items()
        }

    return Plugin(asks=asks, reads=reads, of_slice=lambda part, _limits, _card: part.uuid)


def _amounts(resource: str, *amounts: int) -> list[Json]:
    return [{resource: str(amount)} for amount in amounts]


PLUGINS: dict[str, Plugin] = {
    "tencent": by_index(
        {"tencent.com/vcuda-core": "200"},
        {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "8"},
        {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "20"},
        numbered="tencent.com/predicate-gpu-idx-",
    ),
    "nano-v0.1": by_index(*_amounts("nano-gpu.io/gpu-core", 20, 60, 100), stem="nano-gpu.io/gpu-"),
    "nano-v0.3": by_index(*_amounts("nano-gpu/gpu-percent", 20, 60, 100), stem="nano-gpu/container-"),
    "qgpu": by_index(*_amounts("nano-gpu/qgpu-core", 20, 60, 200), stem="nano-gpu/container-"),
    "elastic": by_index(*_amounts("elasticgpu.io/gpu-core", 20, 60, 200), stem="elasticgpu.io/container-"),
    "gpushare": by_index(*_amounts("aliyun.com/gpu-mem", 2, 5, 9), of_pod="ALIYUN_COM_GPU_MEM_IDX"),
    "volcano-memory": by_index(
        *_amounts("volcano.sh/gpu-memory", 1, 900, 9000), of_pod="volcano.sh/gpu-index"
    ),
    "volcano-number": by_index(*_amounts("volcano.sh/gpu-number", 1, 2), of_pod="volcano.sh/gpu-index"),
    "hami": Plugin(asks=_asks_hami, reads=_by_hami, of_slice=_counted_by_hami),
    "volcano": Plugin(asks=_asks_volcano, reads=_by_volcano, of_slice=_counted_by_volcano),
    "gas": Plugin(
        asks=_asks_intels,
        reads=_by_intels,
        of_slice=lambda part, _limits, _card: (part.uuid, list(part.tiles)),
    ),
    "kubedevice": _by_node_side("KubeDevice/DeviceInfo", "resource/group", "nvidia.com/gpu"),
    "kubegpu": _by_node_side("pod.alpha/DeviceInformation", "alpha/grpresource", "alpha.gpu/numgpu"),
}
