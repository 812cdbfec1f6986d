"""Which replica leads, by the order of marks in the one stream that every replica watches: the pods.

A replica that takes over writes a mark, a word never written before, into the status of its own pod. Watches
deliver all changes of pods in the same order. A replica that has seen its own mark has therefore seen
everything that happened before it, and a replica that sees another's mark after its own has been superseded.
This needs no clock, no counter, and no object other than pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler_ext.model.pod import NonGPUPod
from timekeeper.core import names
from timekeeper.core.json_values import Json, mapping, sequence


@dataclass(frozen=True, slots=True)
class LeaderMark:
    """The mark on a replica's pod, with the pod itself, which may count as a pod without GPUs."""

    uid: str
    word: str
    pod: NonGPUPod


@dataclass(frozen=True, slots=True)
class LeaderMarks:
    """What this replica knows of the leaders' marks."""

    me: str  # prefix of every word that this replica writes
    known: Mapping[str, str] = field(default_factory=dict)  # the last mark on each replica's pod, by UID
    claim: str = ""  # the word with which this replica takes over; empty while it does not
    seen: bool = False  # the stream has shown the claim
    superseded: bool = False  # the stream has shown another replica's mark after the claim


def read_leader_mark(raw: Json, namespace: str, pod: NonGPUPod) -> LeaderMark | None:
    """The mark on a pod of the replicas' namespace, or None. Marks in other namespaces are ignored: a writer
    there must not be able to depose the leader."""
    metadata = mapping(raw.get("metadata"))
    if metadata.get("namespace") != namespace:
        return None
    for each in sequence(mapping(raw.get("status")).get("conditions")):
        if mapping(each).get("type") == names.LEADS_CONDITION:
            return LeaderMark(str(metadata.get("uid", "")), str(mapping(each).get("message", "")), pod)
    return None


def claimed(marks: LeaderMarks, word: str) -> LeaderMarks:
    """This replica is about to write the mark ``word``."""
    return replace(marks, claim=word, seen=False, superseded=False)


def given_up(marks: LeaderMarks) -> LeaderMarks:
    """This replica does not lead and does not try to."""
    return replace(marks, claim="", seen=False, superseded=False)


def heard(marks: LeaderMarks, mark: LeaderMark) -> LeaderMarks:
    """The stream has shown this mark, for the first time or again."""
    if marks.known.get(mark.uid) == mark.word:
        return marks
    marks = replace(marks, known={**marks.known, mark.uid: mark.word})
    if marks.claim and mark.word == marks.claim:
        return replace(marks, seen=True)
    if marks.seen and not mark.word.startswith(marks.me):
        return replace(marks, superseded=True)
    return marks


def listed(marks: LeaderMarks, there: Mapping[str, str]) -> LeaderMarks:
    """A list shows these marks (UID -> word) and no others. It does not show the order in which they were
    written, so an unknown mark of another replica beside ours counts as the younger."""
    seen = marks.seen or (marks.claim != "" and marks.claim in there.values())
    news = [
        word for uid, word in there.items() if marks.known.get(uid) != word and not word.startswith(marks.me)
    ]
    return replace(marks, known=dict(there), seen=seen, superseded=marks.superseded or (seen and bool(news)))
