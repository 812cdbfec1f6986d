"""Which of the cards that fit is best, and which of the nodes: the placement policies.

A policy's order of cards decides within a node, its score between nodes. Scores are only compared with each
other, never added: kube-scheduler gets ranks (`rank`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler_ext.rooms import Room

Score = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Policy:
    """``order``: the room before and after an ask -> what to sort by, least first. ``score``: the rooms of
    all cards after the placement, and which of them it uses -> the greater the better."""

    name: str
    order: Callable[[Room, Room], tuple[int, ...]]
    score: Callable[[Sequence[Room], Sequence[int]], Score]


def _tightest(_before: Room, after: Room) -> tuple[int, ...]:
    return after.left_milli, after.card_mib


def _fullest(rooms: Sequence[Room], used: Sequence[int]) -> Score:
    """Tightest on the cards used, then on the node as a whole."""
    return -sum(rooms[at].left_milli for at in used), -sum(room.left_milli for room in rooms)


def _emptiest(before: Room, _after: Room) -> tuple[int, ...]:
    return -before.left_milli, -before.card_mib


def _freest(rooms: Sequence[Room], _used: Sequence[int]) -> Score:
    """The freest single card, then the freest node."""
    left = [room.left_milli for room in rooms]
    return max(left, default=0), sum(left)


BINPACK = Policy("binpack", _tightest, _fullest)
SPREAD = Policy("spread", _emptiest, _freest)

BUILT = {policy.name: policy for policy in (BINPACK, SPREAD)}


def policy_named(word: str) -> Policy:
    """The policy of this name; binpack for every word that is not built yet."""
    return BUILT.get(word, BINPACK)
