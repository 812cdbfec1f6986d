"""``POST /v1/cluster``: what the leading extender posts of nodes, cards and waiting pods."""

from typing import Annotated

from msgspec import Meta, Struct

from timekeeper.core.cluster_map import (
    MAX_CARDS,
    MAX_NAME,
    MAX_NODES,
    MAX_PODS,
    MAX_TERM,
    MAX_TEXT,
    MAX_WAITING,
)
from timekeeper.wire.findings import PostedFindings
from timekeeper.wire.forms import NotAllowedError, check_printable, items, text, whole
from timekeeper.wire.values import MAX_FIGURE, Age, Version


def _at_most(most: int) -> Meta:
    return items(0, most, f"it must be a list of at most {most}")


_NAMED = f"it must be a printable text of 1 to {MAX_NAME} characters"
_Name = Annotated[str, text(MAX_NAME, 1, _NAMED)]
# an answer leaves out whose pods they are, where the caller may not read it
_PodName = Annotated[str, text(MAX_NAME, says=_NAMED)]
_Amount = Annotated[int, whole(MAX_FIGURE)]


class MapPod(Struct, frozen=True):
    """A pod on a card. ``held``: bound, assumed, orphaned, reserved (it still waits), drained: kept empty for
    a gang, which the name is of, or late: kept for a pod of a gang that does not exist yet."""

    namespace: _PodName
    name: _PodName
    uid: _PodName
    share_milli: _Amount
    memory_mib: _Amount
    held: _Name

    def __post_init__(self) -> None:
        check_printable(self, "namespace", "name", "uid", "held")
        for field in ("namespace", "name", "uid"):
            if not getattr(self, field):
                raise NotAllowedError(field)


class MapCard(Struct, frozen=True):
    """A card with its pods. ``more_pods``: how many further pods it has."""

    uuid: _Name
    index: _Amount
    model: Annotated[str, text(MAX_NAME)]
    memory_mib: _Amount
    healthy: bool
    cordoned: bool
    used_share_milli: _Amount
    used_memory_mib: _Amount
    pods: Annotated[list[MapPod], _at_most(MAX_PODS)]
    more_pods: _Amount

    def __post_init__(self) -> None:
        check_printable(self, "uuid", "model")


class MapNode(Struct, frozen=True, omit_defaults=True):
    """A node. ``closed``: why no GPU pods are placed on it; "": it is open. ``unnamed``: cards that are held,
    and that only the node's device plugin could name; no card counts them as used. ``undescribed``: what a
    node offers whose cards no inventory describes, such as ``nvidia.com/gpu 8``."""

    name: _Name
    closed: Annotated[str, text(MAX_TEXT)]
    cards: Annotated[list[MapCard], _at_most(MAX_CARDS)]
    unnamed: _Amount = 0
    undescribed: Annotated[str, text(MAX_TEXT)] = ""

    def __post_init__(self) -> None:
        check_printable(self, "name", "closed", "undescribed")


class MapWaitingPod(Struct, frozen=True, omit_defaults=True):
    """A pod that is not bound. ``age_ms``: since it was created, when this is sent; ``gang``: with which it
    waits for cards; ``when``: the earliest moment at which it may start, or that none is known, in words."""

    namespace: _Name
    name: _Name
    uid: _Name
    state: _Name
    standing: _Name
    priority: Annotated[int, whole(2**31, "it must be a whole number of 32 bits", -(2**31))]
    age_ms: Age
    reason: Annotated[str, text(MAX_TEXT)]
    gang: Annotated[str, text(MAX_NAME)] = ""
    when: Annotated[str, text(MAX_TEXT)] = ""

    def __post_init__(self) -> None:
        check_printable(self, "namespace", "name", "uid", "state", "standing", "reason", "gang", "when")


class MapWaiting(Struct, frozen=True):
    """What waits. ``total``: how many pods; ``pods``: of each namespace those that wait longest, as many of
    each as fit; ``more``: namespace -> how many further ones it has. Where even these do not
    fit, the namespaces with the fewest are left out."""

    total: _Amount
    pods: Annotated[list[MapWaitingPod], _at_most(MAX_WAITING)]
    more: dict[_Name, _Amount]

    def __post_init__(self) -> None:
        check_printable(self, "more")


class MapPost(Struct, frozen=True, kw_only=True):
    """Nodes that changed, names of nodes that are gone, and, unless null, all that waits and all that the
    extender finds wrong. ``term``: of the leader that posts, another word each time that a replica begins to
    lead."""

    version: Version
    nodes: Annotated[list[MapNode], _at_most(MAX_NODES)]
    gone: Annotated[list[_Name], _at_most(MAX_NODES)]
    waiting: MapWaiting | None = None
    findings: PostedFindings | None = None
    term: Annotated[str, text(MAX_TERM)]

    def __post_init__(self) -> None:
        check_printable(self, "gone", "term")
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise NotAllowedError("nodes", "each node must appear once")
