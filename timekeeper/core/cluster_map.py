"""The documents of the live map: what the extender posts of nodes, cards and waiting pods, and bounds."""

from typing import Annotated, Literal, NotRequired, TypedDict

from timekeeper.core.forms import Form, items, printable, whole
from timekeeper.core.texts import only_printable
from timekeeper.core.wire import MAX_FIGURE, Age

MAX_NODES = 500  # in one post
MAX_CARDS = 256  # of a node
MAX_PODS = 64  # of a card; more are counted only
MAX_WAITING = 500
MAX_STRANDING = 100  # namespaces of a node
MAX_TERM = 100  # characters of a term's name
MAX_TEXT = 300  # characters of a reason
MAX_NAME = 253
STALE_MS = 60_000  # without a post for this long the map is old

# the state of a pod that is not bound -> the words for people
WAITING_STATES = {
    "refused": "no cards fit",
    "not-asked": "no node fits",
    "gated": "held by a gate",
    "reserved": "cards reserved",
    "assumed": "being bound",
}


def _at_most(most: int) -> Form:
    return items(0, most, f"it must be a list of at most {most}")


_NAMED = printable(MAX_NAME, 1)
# an answer leaves out whose pods they are, where the caller may not read it
_HIDEABLE = Form({"maxLength": MAX_NAME}, _NAMED.sentence, _NAMED.fits)
_Name = Annotated[str, _NAMED]
_PodName = Annotated[str, _HIDEABLE]
_Amount = Annotated[int, whole(MAX_FIGURE)]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_NAME and value.isprintable()


_COUNTS = Form(
    {},
    "it must have a whole number for each namespace",
    lambda found: all(
        _is_name(name) and type(each) is int and 0 <= each <= MAX_FIGURE for name, each in found.items()
    ),
)


class MapPod(TypedDict):
    """A pod on a card. ``held``: bound, assumed, orphaned, reserved (it still waits), drained: kept empty for
    a gang, which the name is of, or late: kept for a pod of a gang that does not exist yet."""

    namespace: _PodName
    name: _PodName
    uid: _PodName
    share_milli: _Amount
    memory_mib: _Amount
    held: _Name


class MapCard(TypedDict):
    """A card with its pods. ``more_pods``: how many further pods it has."""

    uuid: _Name
    index: _Amount
    model: Annotated[str, printable(MAX_NAME)]
    memory_mib: _Amount
    healthy: bool
    cordoned: bool
    used_share_milli: _Amount
    used_memory_mib: _Amount
    pods: Annotated[list[MapPod], _at_most(MAX_PODS)]
    more_pods: _Amount


class MapNode(TypedDict):
    """A node. ``closed``: why no GPU pods are placed on it; "": it is open. ``stranded``: namespace -> the
    thousandths of a card that it strands there; those that strand most, if there are many. ``unnamed``: cards
    that are held, and that only the node's device plugin could name; no card counts them as used.
    ``undescribed``: what a node offers whose cards no inventory describes, such as ``nvidia.com/gpu 8``."""

    name: _Name
    closed: Annotated[str, printable(MAX_TEXT)]
    cards: Annotated[list[MapCard], _at_most(MAX_CARDS)]
    stranded: NotRequired[
        Annotated[
            dict[str, _Amount],
            _COUNTS,
            Form(
                {"maxProperties": MAX_STRANDING},
                f"it must name at most {MAX_STRANDING} namespaces",
                lambda found: len(found) <= MAX_STRANDING,
            ),
        ]
    ]
    unnamed: NotRequired[_Amount]
    undescribed: NotRequired[Annotated[str, printable(MAX_TEXT)]]


class MapWaitingPod(TypedDict):
    """A pod that is not bound. ``age_ms``: since it was created, when this is sent."""

    namespace: _Name
    name: _Name
    uid: _Name
    state: _Name
    standing: _Name
    priority: Annotated[
        int,
        Form(
            {"minimum": -(2**31), "maximum": 2**31},
            "it must be a whole number of 32 bits",
            lambda value: abs(value) <= 2**31,
        ),
    ]
    age_ms: Age
    reason: Annotated[str, printable(MAX_TEXT)]


class MapWaiting(TypedDict):
    """What waits. ``total``: how many pods; ``pods``: of each namespace those that wait longest, as many of
    each as there is room for; ``more``: namespace -> how many further ones it has. Where even these do not
    fit, the namespaces with the fewest are left out."""

    total: _Amount
    pods: Annotated[list[MapWaitingPod], _at_most(MAX_WAITING)]
    more: Annotated[dict[str, _Amount], _COUNTS]


class MapPost(TypedDict):
    """``POST /v1/cluster``: nodes that changed, names of nodes that are gone, and, unless null, all that
    waits. ``term``: of the leader that posts, another word each time that a replica begins to lead."""

    version: Literal[1]
    nodes: Annotated[list[MapNode], _at_most(MAX_NODES)]
    gone: Annotated[
        list[str],
        _at_most(MAX_NODES),
        Form({}, "it must be a list of names", lambda names: all(map(_is_name, names))),
    ]
    waiting: MapWaiting | None
    term: Annotated[str, printable(MAX_TERM)]


def unnamed_sentence(unnamed: int, cards: int) -> str:
    """What is held of a node without a card's name; "": nothing."""
    held = f"{unnamed} of {cards} cards are held, and the node's plugin alone knows which"
    return held if unnamed else ""


def undescribed_sentence(undescribed: str) -> str:
    """What a node offers whose cards no inventory describes; "": it has one."""
    return f"no inventory: {undescribed}" if undescribed else ""


def posted_text(text: str, most: int) -> str:
    """The text as a post may have it: short and printable."""
    return only_printable(text[:most])
