"""Whether a node's agent has reported a pod gone, computed a second time from all reports about the node in
the order of arrival. Imports nothing of ours."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """One report about a node: its boot ("": unknown), and the UIDs that its agent lists; None: no agent
    reports its present boot. ``knows``: a pod that is not listed is not there."""

    at: int
    boot: str
    there: frozenset[str] | None
    knows: bool = True


def seen_gone(uid: str, vanished: int, words: Sequence[Word], new: int) -> int | None:
    """The moment from which the pod is known to have left its node; None if unknown.

    Either its agent listed it and does not list it any more, or the node rebooted after the pod's object had
    vanished and the agent does not list it since. ``new``: the first report since the last write; earlier
    ones are from before the deletion, or are written already.
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
