"""Whether a node's agent has seen a pod go, worked out a second time and in another way: from all that was
heard of the node, in the order it was heard. Imports nothing of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """What was heard of a node at a moment: its boot ("" where that was not told), and the UIDs that its
    agent lists; None: nobody speaks for its present boot. ``knows``: who is not listed is not there."""

    at: int
    boot: str
    there: frozenset[str] | None
    knows: bool = True


def seen_gone(uid: str, vanished: int, words: Sequence[Word], new: int) -> int | None:
    """The moment from which on the pod is known to be gone from its node, None where it is not known so.

    Its agent must have listed it and list it no longer, or the node booted anew after the pod's object had
    vanished, and the agent does not list it then. ``new``: the first word since the ledger was last written;
    what was said before that was said of a pod whose object was there still, or has been written.
    """
    boot, rebooted, listed = "", False, False
    gone: tuple[int, int] | None = None
    for number, word in enumerate(words):
        if boot and word.boot not in ("", boot):
            rebooted = vanished <= word.at
        boot = word.boot or boot
        if word.there is None:
            listed = False
        elif uid in word.there:
            listed, gone = True, None
        elif word.knows and (listed or rebooted):
            listed = False
            gone = gone or (number, word.at)
    return gone[1] if gone and gone[0] >= new else None
