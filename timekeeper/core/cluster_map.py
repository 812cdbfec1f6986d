"""The documents of the live map: what the extender posts of nodes, cards and waiting pods, and bounds."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

MAX_NODES = 500  # in one post
MAX_CARDS = 256  # of a node
MAX_PODS = 64  # of a card; more are counted only
MAX_WAITING = 500
MAX_STRANDING = 100  # namespaces of a node
MAX_TERM = 100  # characters of a term's name
MAX_TEXT = 300  # characters of a reason
MAX_NAME = 253

# the state of a pod that is not bound -> the words for people
WAITING_STATES = {
    "refused": "no cards fit",
    "not-asked": "no node fits",
    "gated": "held by a gate",
    "reserved": "cards reserved",
    "assumed": "being bound",
}


class MapPod(TypedDict):
    """A pod on a card. ``held``: bound, assumed, vanished, or reserved (it still waits)."""

    namespace: str
    name: str
    uid: str
    share_milli: int
    memory_mib: int
    held: str


class CardAllocation(TypedDict):
    """A card, and what is given out of it."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    healthy: bool
    cordoned: bool
    used_share_milli: int
    used_memory_mib: int


class MapCard(CardAllocation):
    """A card with its pods. ``more_pods``: how many further pods it has."""

    pods: list[MapPod]
    more_pods: int


class MapNode(TypedDict):
    """A node. ``closed``: why no GPU pods are placed on it; "": it is open. ``stranded``: namespace -> the
    thousandths of a card that it strands there; those that strand most, if there are many."""

    name: str
    closed: str
    cards: list[MapCard]
    stranded: NotRequired[dict[str, int]]


class MapWaitingPod(TypedDict):
    """A pod that is not bound. ``age_ms``: since it was created, when this is sent."""

    namespace: str
    name: str
    uid: str
    state: str
    standing: str
    priority: int
    age_ms: int
    reason: str


class MapWaiting(TypedDict):
    """What waits. ``total``: how many pods; ``pods``: of each namespace those that wait longest, as many of
    each as there is room for; ``more``: namespace -> how many further ones it has. Where even these do not
    fit, the namespaces with the fewest are left out."""

    total: int
    pods: list[MapWaitingPod]
    more: NotRequired[dict[str, int]]


class MapPost(TypedDict):
    """``POST /v1/cluster``: nodes that changed, names of nodes that are gone, and, unless null, all that
    waits. ``term``: of the leader that posts, another word each time that a replica begins to lead."""

    version: Literal[1]
    nodes: list[MapNode]
    gone: list[str]
    waiting: MapWaiting | None
    term: NotRequired[str]


def waiting_reason(pod: Mapping[str, Any]) -> str:
    """Why a pod of the extender's ``GET /v1/waiting`` waits: its mistake, the error of its last bind, the
    reason that concerns most nodes, or what kube-scheduler says; "" if nothing is known."""
    decision = pod["decision"]
    if pod["malformed"]:
        return str(pod["malformed"])
    if decision and decision["bind_error"]:
        return str(decision["bind_error"])
    if decision and decision["reasons"]:
        first = max(decision["reasons"], key=lambda each: each["nodes"])
        return f"{first['reason']} ({first['nodes']} of {decision['offered']} nodes)"
    return str(pod["scheduler_message"])
