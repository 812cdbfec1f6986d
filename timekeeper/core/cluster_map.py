"""What is said of the live map: the words of its states, its bounds (its posts:
`timekeeper.wire.cluster_map`)."""

from timekeeper.core.object_names import timestamp
from timekeeper.core.texts import only_printable

MAX_NODES = 500  # in one post
MAX_CARDS = 256  # of a node
MAX_PODS = 64  # of a card; more are counted only
MAX_WAITING = 500
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


def unnamed_sentence(unnamed: int, cards: int) -> str:
    """What is held of a node without a card's name; "": nothing."""
    held = f"{unnamed} of {cards} cards are held, and the node's plugin alone knows which"
    return held if unnamed else ""


def undescribed_sentence(undescribed: str) -> str:
    """What a node offers whose cards no inventory describes; "": it has one."""
    return f"no inventory: {undescribed}" if undescribed else ""


def held_sentence(cards: int, nodes: int) -> str:
    """That no card is free of those that a pod may use."""
    held = "the one card" if cards == 1 else f"all {cards} cards"
    where = "the one node" if nodes == 1 else f"the {nodes} nodes"
    return f"{held} of {where} that it may use {'is' if cards == 1 else 'are'} held"


OF_DEVICES = "devices"  # in place of when: the ledger knows when devices of claims may be free
NO_END = "no end is known: of the pods that hold these cards too few have declared time"


def not_before(at_ms: int, where: str = "") -> str:
    """That nothing of what a pod needs is free before then. ``where``: the node that is first."""
    first = f"; first those on {where} end" if where else ""
    return (
        f"not before {timestamp(at_ms)}, unless pods end early: the pods that hold these cards have declared"
        f" time until then{first}"
    )


def posted_text(text: str, most: int) -> str:
    """The text as a post may have it: short and printable."""
    return only_printable(text[:most])
