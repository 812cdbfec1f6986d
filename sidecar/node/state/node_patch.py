"""The patch that the agent writes on its node: inventory, holders and capacity, as the difference from the
present node. Pure.

Capacity never shrinks while pods hold cards: after a restart the kubelet would reject the pods that it runs.
A node that another vendor's plugin serves gets the inventory, but no capacity of ours.
"""

from __future__ import annotations

import json
import re

from sidecar.node.values import NodeCard, NodeState, NriState
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from timekeeper.core.wire import CardWire, Inventory

INVENTORY = "bursar.dev/inventory"
HOLDERS = "bursar.dev/holders"
GPU_PERCENT = "bursar.dev/gpu-percent"
GPU_MEMORY = "bursar.dev/gpu-memory"
GPU_COUNT = "bursar.dev/gpu-count"
CARD_MILLIONTHS = "cards.bursar.dev/millionths"
OURS = (GPU_PERCENT, GPU_MEMORY, GPU_COUNT, CARD_MILLIONTHS)
# of each card; as many pods may name one by number as a node can have
OF_A_CARD = {GPU_PERCENT: 100, GPU_COUNT: 1_000, CARD_MILLIONTHS: 1_000_000}
# The prefix makes Cluster Autoscaler expect that the taint goes away.
STARTUP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/bursar"
# resources of other vendors' GPU plugins, as in timekeeper.core.dialects, and the names of NVIDIA's in
# timekeeper.core.accelerators
OF_OTHERS = re.compile(
    r"^(nvidia\.com/(gpu($|s$|\.shared$|[a-z]{2}|[-_.](mem|core))|mig-|vgpu|priority$)"
    r"|(tencent\.com/vcuda|tke\.cloud\.tencent\.com/qgpu)-"
    r"|elasticgpu\.(io|com)/|nano-gpu(\.io)?/|gpu\.intel\.com/|aliyun\.com/gpu-"
    r"|volcano\.sh/(vgpu-|gpu-)|koordinator\.sh/gpu|amd\.com/gpu"
    r"|nvidia\.com/(pgpu|(GRID|NVIDIA)_.+|[A-Z]{1,2}[0-9]{2,3}[A-Z]*(_.+)?"
    r"|(?i:(gpu[-_.]?)?((nvidia|tesla|quadro|geforce|titan|rtx|gtx)[-_.]?){0,3}"
    r"(a(2|10g?|16|30x?|40|100x?|800)|b[1-3]00|gb[1-3]00|gb10|gh200|h(20|[128]00)|k([124]0|80)"
    r"|l(2|4|20|40[gs]?)|m(4|6|10|40|60)|p(4|6|40|100)|t(4g?|[46]00|1000|2000)|v100s?|orin|thor|xavier"
    r"|(pro[-_.]?)?a?[2-8][05]00|[1-5]0[5-9]0|16[3-6]0|(?:titan[-_.]?)(xp?|v|rtx))"
    r"([-_.]?([0-9]{1,3}g(i?b)?|sxm[0-9]?|pcie|nvl|hbm[0-9]e?|ti|super|ada|blackwell|laptop|max-?q|sff|[bdesx]"
    r"|gpu|full|whole|shared|vgpu)){0,5}|gpu([-_]([abd-ln-z0-9]|m[a-df-z0-9]|c[a-np-z0-9])|\.[0-9])[-a-z0-9_.]*))$)"
)
MAX_PATHS = 64  # paths are of cards with lower indices
_QUANTITY = re.compile(r"([0-9]{1,18})(|k|M|G|T|Ki|Mi|Gi|Ti)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{letter}i": 1024 ** (at + 1) for at, letter in enumerate("KMGT")}


@value
class DesiredNode:
    """The wanted contents of the node. None: not known yet, so the present contents stay."""

    cards: tuple[NodeCard, ...] | None
    mps: frozenset[str]  # the UUIDs of cards that processes use through MPS
    holders: str | None  # the annotation
    nri: NriState | None
    held: bool  # pods hold cards of the node, or may do so
    of_plugin: tuple[str, ...]  # what the resources of the device plugin of these cards begin with


def inventory(
    cards: tuple[NodeCard, ...], mps: frozenset[str] = frozenset(), nri: NriState | None = None
) -> str:
    """The annotation ``bursar.dev/inventory``, canonical: keys sorted, no blanks."""
    at = {card.uuid: card.index for card in cards}
    whole: Inventory = {"version": 1, "cards": [_wire(card, card.uuid in mps, at) for card in cards]}
    if nri and nri.plugins:
        whole["nri"] = {"plugins": list(nri.plugins), "enforced": nri.enforced}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"))


def read_inventory(text: str | None) -> tuple[NodeCard, ...]:
    """The cards in an inventory annotation; none if it is malformed."""
    try:
        whole = json.loads(text or "")
        at = {raw["index"]: _of(str, raw["uuid"]) for raw in whole["cards"]}
        cards = tuple(_card(raw, at) for raw in whole["cards"]) if whole["version"] == 1 else ()
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
    return cards if len({c.uuid for c in cards}) == len({c.index for c in cards}) == len(cards) else ()


def read_mps(text: str | None) -> frozenset[str]:
    """The cards with MPS in an inventory annotation; none if it is malformed."""
    try:
        return frozenset(raw["uuid"] for raw in json.loads(text or "")["cards"] if raw.get("mps") is True)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return frozenset()


def read_nri(text: str | None) -> NriState | None:
    """What an inventory annotation says of NRI; None if it is malformed or says nothing."""
    try:
        raw = json.loads(text or "")["nri"]
        return NriState(tuple(_of(str, each) for each in raw["plugins"]), _of(bool, raw["enforced"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def boot_in(holders: str | None) -> str:
    """The boot ID in a holders annotation; empty if it is malformed."""
    try:
        boot = json.loads(holders or "")["boot"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return boot if isinstance(boot, str) else ""


def change(node: NodeState, wanted: DesiredNode) -> dict[str, Any]:
    """The merge patch of the node's status; empty if the node is as wanted."""
    nri = wanted.nri or read_nri(node.inventory)
    cards = None if wanted.cards is None else inventory(wanted.cards, wanted.mps, nri)
    annotations = {
        name: text
        for name, text, now in (
            (INVENTORY, cards, node.inventory),
            (HOLDERS, wanted.holders, node.holders),
        )
        if text is not None and text != now
    }
    amounts = _amounts(node, wanted)
    capacity = _changed(node.capacity, amounts)
    allocatable = _changed(node.allocatable, amounts)
    patch: dict[str, Any] = {}
    if annotations:
        patch["metadata"] = {"annotations": annotations}
    if capacity or allocatable:
        patch["status"] = {"capacity": capacity, "allocatable": allocatable}
    return patch


def without_startup_taint(node: NodeState) -> dict[str, Any]:
    """The merge patch of the node that removes the startup taint once the inventory stands; empty: there is
    nothing to remove. It names the node's version, so that no taint of another client is lost."""
    if node.other_taints is None or not read_inventory(node.inventory):
        return {}
    return {
        "metadata": {"resourceVersion": node.version},
        "spec": {"taints": json.loads(node.other_taints)},
    }


def is_served_by_another(node: NodeState, of_plugin: tuple[str, ...]) -> bool:
    """Whether the node has a resource of another plugin, also with quantity 0, which the kubelet sets while
    the plugin is away."""
    return any(OF_OTHERS.match(name) or name.startswith(of_plugin) for name, _ in node.capacity)


def _amounts(node: NodeState, wanted: DesiredNode) -> dict[str, int | None]:
    """The wanted quantity by resource; None removes it."""
    if wanted.cards is None:
        return {}
    if is_served_by_another(node, wanted.of_plugin):
        return {} if wanted.held else dict.fromkeys(OURS)
    if not wanted.cards:
        return {}
    amounts = {name: number * len(wanted.cards) for name, number in OF_A_CARD.items()}
    amounts[GPU_MEMORY] = sum(card.memory_mib for card in wanted.cards)
    if not wanted.held:
        return dict(amounts)
    now = {name: amount(text) or 0 for name, text in node.capacity}
    return {name: max(number, now.get(name, 0)) for name, number in amounts.items()}


def _changed(now: tuple[tuple[str, str], ...], amounts: Mapping[str, int | None]) -> dict[str, str | None]:
    stands = dict(now)
    return {
        name: None if number is None else str(number)
        for name, number in amounts.items()
        if (name in stands if number is None else amount(stands.get(name, "")) != number)
    }


def amount(text: str) -> int | None:
    """A whole quantity as Kubernetes writes it; None for any other text."""
    match = _QUANTITY.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def _wire(card: NodeCard, mps: bool, at: Mapping[str, int]) -> CardWire:
    """``at``: the index of each card."""
    wire: CardWire = {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model,
        "memory_mib": card.memory_mib,
        "healthy": card.healthy,
        "numa": card.numa,
        "links": None if card.links is None else list(card.links),
        "mig": card.mig,
    }
    if card.fault:
        wire["fault"] = card.fault
    if mps:
        wire["mps"] = True
    levels = {at[uuid]: str(level) for uuid, level in card.paths if at.get(uuid, MAX_PATHS) < MAX_PATHS}
    if levels:
        wire["paths"] = "".join(levels.get(index, "-") for index in range(max(levels) + 1))
    return wire


def _card(raw: Any, at: Mapping[int, str]) -> NodeCard:
    """``at``: the UUID of the card with each index."""
    links, levels = raw.get("links"), enumerate(_of(str, raw.get("paths", "")))
    return NodeCard(
        _of(str, raw["uuid"]),
        _of(int, raw["index"]),
        _of(str, raw["model"]),
        _of(int, raw["memory_mib"]),
        _of(bool, raw["healthy"]),
        _of(str, raw.get("fault", "")),
        None if raw.get("numa") is None else _of(int, raw["numa"]),
        None if links is None else tuple(_of(str, each) for each in links),
        None if raw.get("mig") is None else _of(str, raw["mig"]),
        tuple((at[index], int(level)) for index, level in levels if index in at and level != "-"),
    )


def _of(kind: type, raw: Any) -> Any:
    if type(raw) is not kind:
        raise TypeError(f"not {kind.__name__}")
    return raw
