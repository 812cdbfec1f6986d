"""Decisions, the life of a pod, and what would have happened."""

from collections.abc import Iterable, Iterator

from timekeeper.api.sheets.sheet import (
    BADGE,
    DECIMAL,
    EXACT,
    INTEGER,
    NAMESPACE,
    POD,
    SENTENCE,
    TEXT,
    TIME,
    Column,
    Json,
    Sheet,
)
from timekeeper.core.texts import NOT_PLACED, moment

DECISIONS = Sheet(
    columns=(
        TIME("when", "When", "when it was decided last", "last"),
        NAMESPACE("namespace", "Namespace", "of the pod or budget"),
        POD(
            "subject",
            "Subject",
            "the pod, its controller, or the budget",
            lambda raw: raw["pod"] or raw["generateName"] or raw["owner"] or raw["namespace"],
        ),
        BADGE("kind", "Kind", "such as refused, placed or evicted"),
        INTEGER("count", "Times", "how often the same was decided in succession"),
        SENTENCE("sentence", "Why", "the decision with its figures"),
    ),
    rows=lambda answer: answer["decisions"],
    empty="no decision was recorded",
)


def _lines(answer: Json) -> Iterator[Json]:
    """Decisions, charges, what it waits for, and the budget."""
    for step in answer["steps"]:
        times = f" ({step['count']} times since {moment(step['first'])})" if step["count"] > 1 else ""
        yield {"when": step["last"], "pod": step["pod"], "what": step["sentence"] + times}
    for charge in answer["charges"]:
        subject = f"claim/{charge['claim']}" if charge["claim"] else charge["pod"]
        yield {"when": charge["bound"], "pod": subject, "what": charge["sentence"]}
    for sentence in _now(answer):
        yield {"when": "now", "pod": "", "what": sentence}


def _now(answer: Json) -> Iterator[str]:
    if not (answer["steps"] or answer["charges"] or {*answer["waitsFor"]} - {NOT_PLACED}):
        where = f"{answer['subject']} in {answer['namespace']}"
        yield f"Nothing is recorded about {where}: see whether name and namespace are right."
    yield from answer["waitsFor"]
    if answer["budget"] not in answer["waitsFor"]:
        yield answer["budget"]
    yield from filter(None, (answer["received"], answer["mode"], *answer["protected"]))


_LIFE = (
    EXACT("when", "When", "when it happened; now: how it is"),
    POD("pod", "Pod", "of several"),
    SENTENCE("what", "What", "what happened, or what would have to change"),
)


def _life_columns(answer: Json) -> Iterable[Column]:
    is_one_pod = answer["subject"].startswith("Pod/")
    return (each for each in _LIFE if each.key != "pod" or not is_one_pod)


LIFE = Sheet(columns=_LIFE, rows=_lines, chosen=_life_columns, has_answer=True)


def _would_warnings(answer: Json, _now_ms: int) -> Iterator[str]:
    """What is left out of the answer, and what is not known."""
    if answer["enforced"]:
        yield (
            f"Not metered now, so nothing is shown: {', '.join(answer['enforced'])}. Enforced ones have"
            " decisions (kubectl bursar decisions); deleted ones have none."
        )
    yield from answer["notes"]


def _counted(raw: Json) -> str:
    return str(raw["pods"]) if raw["verdict"] == "evicted" else f"{raw['pods']} of {raw['of']}"


WOULD = Sheet(
    columns=(
        TEXT("week", "Week", "ISO 8601, in UTC"),
        TIME("from", "From", "when the week began", priority=1),
        NAMESPACE("namespace", "Namespace", "of the pods"),
        TEXT(
            "verdict",
            "Would be",
            "what would have happened to them",
            lambda raw: "not judged" if raw["verdict"] == "unjudged" else raw["verdict"],
        ),
        TEXT("rule", "Rule", "the first rule that refuses", lambda raw: raw["rule"] or None),
        DECIMAL("pods", "Pods", "how many, of the week's new pods", _counted),
        INTEGER("of", "Of", "how many new pods the week had", priority=1),
        INTEGER("late", "Late", "how many of them were judged long after their creation", priority=1),
        POD("pod", "Newest pod", "the newest of them"),
        SENTENCE("sentence", "Why", "of the newest pod"),
    ),
    rows=lambda answer: answer["rows"],
    empty="no pod was judged in this time",
    warnings=_would_warnings,
)
