"""What the extender needs of a Node object, read from its JSON."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from scheduler_ext.model.cpu import cpu_milli
from scheduler_ext.model.node_remarks import NO_REMARKS, NodeRemarks, read_remarks
from scheduler_ext.model.other_resources import Others, others
from scheduler_ext.model.topology import Groups, groups_of
from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects import BY_NAME, DIALECTS, OF_NVIDIA, PREFIXES, NodeFacts
from timekeeper.core.dialects.nvidia import DIALECT as NVIDIA
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.kube.holders import (
    UNREADABLE_HOLDERS,
    NodeHolders,
    is_silent,
    kubelets_boot,
    read_holders,
)
from timekeeper.core.kube.node_constraints import NO_NODE_LABELS, NodeLabels, read_node_labels
from timekeeper.core.ledger.hold import NodeSight, ends_forced
from timekeeper.core.name_lists import listed
from timekeeper.core.request.cards import is_like
from timekeeper.core.request.inventory import (
    cards_by,
    counted_cards,
    dialects_of,
    gpu_amounts,
    node_facts,
    runtime_plugins,
    time_slices,
)
from timekeeper.core.values import Card, UndecodableError

OURS = "bursar"
UNSPOKEN_PLUGIN = "another"

# why a node is closed for sharing: the label value in metrics, and the sentence for users
CLOSED = {
    "claims": "its GPUs are given out by device claims",
    "two-families": "more than one GPU plugin serves it",
    "unspoken-plugin": "its GPU plugin is not supported",
    "not-lockable": "its GPU plugin needs a lock on the node, and --lock-nodes does not allow that",
    "inventory": "its card inventory cannot be read",
    "holders": "its node agent's report of the pods there cannot be read",
    "strangers": "its node agent has closed it: processes use its cards, or can, without an allocation",
    "holders-unknown": "its node agent has not yet reported which pods have its cards",
    "lingering": "a deleted pod still runs there, on cards that are not known",
    "placement": "a pod's placement contradicts its request or the inventory",
    "overcommitted": "two schedulers gave out one of its cards",
    "unplaced": "a GPU pod was bound to it without a placement",
}

_NVIDIA = "nvidia.com/"
_SPOKEN = {name for dialect in DIALECTS for name in (*dialect.resources, *dialect.node_resources)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Node object, as far as the extender needs it."""

    name: str
    cards: tuple[Card, ...]  # the inventory that its node agent published
    family: str  # the dialect whose resources the node advertises
    fault: str  # why the node is closed for sharing: a key of `CLOSED`, or ""
    allocatable: tuple[tuple[str, int], ...]  # the GPU resources that kube-scheduler counts, by name
    cpu_milli: int  # allocatable CPU, in thousandths of a core
    node_labels: NodeLabels = NO_NODE_LABELS
    # allocatable memory and other resources; empty for a node with GPUs and without an inventory
    others: Others = ()
    present: NodeHolders | None = None  # the pods that its node agent reports; None without a usable report
    silent: bool = False  # its kubelet has not renewed its Lease for long (`holders.is_silent`)
    lock: str = ""  # the lock on it, for the node plugins that need one; "" without
    runtime_plugins: tuple[str, ...] = ()  # plugins of its container runtime that containers with cards need
    # no inventory names its whole cards: they are only counted, and its plugin chooses among them
    is_counted: bool = False
    groups: Groups | None = None  # which of the cards are near each other; None: nothing is known of it
    ends_forced: bool = False  # `hold.ends_forced`
    boot: str = ""  # boot ID, "" where neither the kubelet nor the agent reports one
    remarks: NodeRemarks = NO_REMARKS

    @property
    def sight(self) -> NodeSight:
        """What it says of pods without an object: `holders.fresh_holders`, from what is read already."""
        return NodeSight(self.boot, None if self.is_dark else self.present, self.ends_forced)

    @property
    def is_dark(self) -> bool:
        """True while the node says nothing of its pods: it is silent, or its agent's report is unreadable."""
        return self.silent or self.present is UNREADABLE_HOLDERS

    @property
    def has_gpus(self) -> bool:
        """True if it has an inventory, or GPU resources of a dialect, such as a device plugin's before an
        inventory is published."""
        return bool(self.cards) or (bool(self.allocatable) and self.family in BY_NAME)

    @property
    def undescribed(self) -> str:
        """The GPU resources of a node without an inventory, such as ``nvidia.com/gpu 8``; "": it has one, or
        no GPUs."""
        listed = ", ".join(f"{name} {amount}" for name, amount in self.allocatable)
        return listed if self.has_gpus and not self.cards else ""

    @property
    def plugin_chooses(self) -> bool:
        """True where the node's device plugin picks the cards, whatever a placement says."""
        return self.is_counted or (self.family in BY_NAME and BY_NAME[self.family].plugin_chooses)


ModelNames = tuple[tuple[str, str], ...]
"""Names by which pods may request models, each with a part of the model's own name (`is_like`)."""


def read_node(raw: Json, lockable: Collection[str] = tuple(BY_NAME), model_names: ModelNames = ()) -> Node:
    """``lockable``: the dialects for whose plugins the extender may lock nodes. Never raises on what an API
    server can hold."""
    status = mapping(raw.get("status"))
    allocatable = mapping(status.get("allocatable"))
    facts = node_facts(raw)
    family, fault = _family(facts)
    cards: tuple[Card, ...] = ()
    gpus = tuple(sorted(gpu_amounts(allocatable).items()))
    is_counted = False
    present = _present(raw)
    try:
        described = cards_by(facts, raw)
        if described and time_slices(facts, described):
            described = None  # its plugin gives out more than cards, and says of which only to the pods
        # beside its replicas and instances NVIDIA's plugin has whole cards that nothing else names
        has_names = family != NVIDIA.name or names.INVENTORY in annotations_of(raw)
        is_counted = described is None or not has_names
        described = described or counted_cards(raw)
        fault = fault or _lock_fault(family, lockable)
        if not is_counted:
            fault = fault or _agents_fault(family, present, names.HOLDERS in annotations_of(raw))
        if described is None:
            fault = ""  # without cards there is nothing to close
        else:
            cards = _with_names(_with_cordons(described, raw), model_names)
    except UndecodableError:
        fault = "inventory"
    return Node(
        name=str(mapping(raw.get("metadata")).get("name", "")),
        cards=cards,
        family=family,
        fault=fault,
        allocatable=gpus,
        cpu_milli=cpu_milli(allocatable),
        node_labels=read_node_labels(raw),
        others=tuple(sorted(others(allocatable).items())) if cards or not gpus else (),
        present=present,
        silent=is_silent(raw),
        lock=_lock(family, raw),
        runtime_plugins=runtime_plugins(raw) if cards else (),
        is_counted=is_counted and bool(cards),
        groups=groups_of(cards),
        ends_forced=ends_forced(raw),
        boot=kubelets_boot(raw) or (present.boot if present else ""),
        remarks=read_remarks(raw, facts),
    )


def _lock(family: str, raw: Json) -> str:
    name = BY_NAME[family].node_lock if family in BY_NAME else ""
    return str(annotations_of(raw).get(name, "")) if name else ""


def _lock_fault(family: str, lockable: Collection[str]) -> str:
    needed = family in BY_NAME and BY_NAME[family].node_lock
    return "not-lockable" if needed and family not in lockable else ""


def _present(raw: Json) -> NodeHolders | None:
    try:
        return read_holders(raw)
    except UndecodableError:
        return UNREADABLE_HOLDERS


def _agents_fault(family: str, present: NodeHolders | None, has_agent: bool) -> str:
    """Why the agent's report, or the lack of one that is needed, closes the node. Where a device plugin picks
    the cards and no agent runs, pods are only counted, whichever cards they have."""
    if present is UNREADABLE_HOLDERS:
        return "holders"
    if present is not None and present.closed:
        return "strangers"
    chooses = family in BY_NAME and BY_NAME[family].plugin_chooses
    return "holders-unknown" if chooses and has_agent and not (present and present.known) else ""


def _with_cordons(cards: tuple[Card, ...], raw: Json) -> tuple[Card, ...]:
    """The cards, with those marked that the node's annotation cordons."""
    cordoned = listed(annotations_of(raw), names.CORDONED_CARDS)
    if not cordoned:
        return cards
    return tuple(replace(card, cordoned=card.cordoned or card.uuid in cordoned) for card in cards)


def _with_names(cards: tuple[Card, ...], model_names: ModelNames) -> tuple[Card, ...]:
    if not model_names:
        return cards
    named = [tuple(name for name, part in model_names if is_like(part, card.model)) for card in cards]
    return tuple(replace(card, names=names) for card, names in zip(cards, named, strict=True))


def _family(facts: NodeFacts) -> tuple[str, str]:
    """The family of the advertised resources, and the fault in it. NVIDIA's plugin may give out whole cards,
    replicas and instances of one node."""
    families = {dialect.name for dialect in dialects_of(facts)}
    unspoken = [name for name in facts.capacity if name not in _SPOKEN and not name.startswith(PREFIXES)]
    if not families.isdisjoint(OF_NVIDIA):  # its plugin gives out each card under one name
        unspoken = [name for name in unspoken if not (name.startswith(_NVIDIA) and accelerator_of(name))]
    if unspoken:
        families.add(UNSPOKEN_PLUGIN)
    if families.issubset(OF_NVIDIA) and len(families) > 1:
        return NVIDIA.name, ""
    if len(families) > 1:
        return min(families), "two-families"
    family = next(iter(families), OURS)
    return family, "unspoken-plugin" if family == UNSPOKEN_PLUGIN else ""
