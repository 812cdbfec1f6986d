"""Whose turn it is, by the order of marks in the one stream that every replica sees: the pods'.

Who takes over writes a mark, a word that nobody has written before, into the status of its own pod. Watches
tell every change of pods in order, so a replica that has seen its own mark has seen all that happened before
it, and one that sees another's mark after its own has been followed by that one. No clock and no counter is
needed for this, and nothing but pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler_ext.model.pod import NonGPUPod
from timekeeper.core import names
from timekeeper.core.json_values import Json, mapping, sequence


@dataclass(frozen=True, slots=True)
class LeaderMark:
    """The mark that stands on a replica's pod, and what else is counted of that pod."""

    uid: str
    word: str
    pod: NonGPUPod


@dataclass(frozen=True, slots=True)
class LeaderMarks:
    """``known``: the last mark on each replica's pod, by its UID. ``claim``: the one by which we take over,
    "" while we do not; ``seen``: the stream has shown it; ``beaten``: and another's after it. Our own begin
    with ``me``."""

    me: str
    known: Mapping[str, str] = field(default_factory=dict)
    claim: str = ""
    seen: bool = False
    beaten: bool = False


def read_leader_mark(raw: Json, namespace: str, pod: NonGPUPod) -> LeaderMark | None:
    """The mark on a pod of the replicas' namespace; None where there is none. Elsewhere nobody is believed:
    whoever may write there must not depose us."""
    metadata = mapping(raw.get("metadata"))
    if metadata.get("namespace") != namespace:
        return None
    for each in sequence(mapping(raw.get("status")).get("conditions")):
        if mapping(each).get("type") == names.LEADS_CONDITION:
            return LeaderMark(str(metadata.get("uid", "")), str(mapping(each).get("message", "")), pod)
    return None


def claimed(marks: LeaderMarks, word: str) -> LeaderMarks:
    """We are about to write this mark."""
    return replace(marks, claim=word, seen=False, beaten=False)


def given_up(marks: LeaderMarks) -> LeaderMarks:
    """We lead no more, and do not try to."""
    return replace(marks, claim="", seen=False, beaten=False)


def heard(marks: LeaderMarks, mark: LeaderMark) -> LeaderMarks:
    """The stream shows this mark now, or again."""
    if marks.known.get(mark.uid) == mark.word:
        return marks
    marks = replace(marks, known={**marks.known, mark.uid: mark.word})
    if marks.claim and mark.word == marks.claim:
        return replace(marks, seen=True)
    if marks.seen and not mark.word.startswith(marks.me):
        return replace(marks, beaten=True)
    return marks


def listed(marks: LeaderMarks, there: Mapping[str, str]) -> LeaderMarks:
    """These marks stand now, and no others. A list does not tell in which order they were written: beside
    ours, one that we did not know may be the younger, so it counts as that."""
    seen = marks.seen or (marks.claim != "" and marks.claim in there.values())
    news = [
        word for uid, word in there.items() if marks.known.get(uid) != word and not word.startswith(marks.me)
    ]
    return replace(marks, known=dict(there), seen=seen, beaten=marks.beaten or (seen and bool(news)))
