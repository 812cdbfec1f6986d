"""Decisions, the life of a pod, and what would have happened."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

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
from timekeeper.core.decisions import PLACED
from timekeeper.core.texts import NOT_PLACED, NOTHING_RECORDED, apart, moment, request_notes
from timekeeper.core.violation import first_of

_MOST_NODES = 4
MOST_OF_LIFE = 500  # decisions and charges, the newest

# as `store.engine.workloads.cron_job` tells a run's Job by its minute
_RUN = re.compile(r"Job/(.+?)-+(?:2[4-9]|[3-9][0-9])[0-9]{6}")


def _by_cron_job(answer: Json) -> Iterable[Json]:
    """What was decided of a CronJob's runs in the same words is one row."""
    rows: dict[object, Json] = {}
    for row in answer["decisions"]:
        run = _RUN.fullmatch(row["owner"])
        key = (row["namespace"], run[1], row["kind"], row["sentence"]) if run else row["id"]
        if run and (newer := rows.get(key)):
            whole = {"pod": "", "generateName": "", "owner": f"CronJob/{run[1]}"}
            row = {**newer, **whole, "count": newer["count"] + row["count"]}
        rows[key] = row
    return rows.values()


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
    rows=_by_cron_job,
    empty="no decision was recorded",
)


def _lines(answer: Json) -> Iterator[Json]:
    """Why it waits now, then decisions and charges, each thing once, then how it is."""
    if not (answer["steps"] or answer["charges"] or {*answer["waitsFor"]} - {NOT_PLACED}):
        where = f"{answer['subject']} in {answer['namespace']}"
        yield _at(f"{NOTHING_RECORDED}{where}: see whether name and namespace are right.")
    yield from map(_at, answer["waitsFor"])
    yield from sorted(_once(answer["steps"]), key=lambda row: row["when"])
    yield from _charges(answer["charges"])
    if answer["budget"] not in answer["waitsFor"]:
        yield _at(answer["budget"])
    yield from map(_at, filter(None, (answer["received"], answer["mode"], *answer["protected"])))
    yield from map(_at, request_notes(answer["request"]))


def _at(sentence: str) -> Json:
    return {"when": "now", "pod": "", "what": sentence}


def _once(steps: Iterable[Json]) -> Iterator[Json]:
    """What was decided of several pods in the same words, and where they were placed, is one row each."""
    same = defaultdict[tuple[str, str], list[Json]](list)
    for step in steps:
        same[step["kind"], "" if step["kind"] == PLACED else step["sentence"]].append(step)
    for (kind, _), rows in same.items():
        pods = list(dict.fromkeys(row["pod"] for row in rows))
        count, text = sum(row["count"] for row in rows), rows[-1]["sentence"]
        if kind == PLACED and len(rows) > 1:
            nodes = sorted({str(row["figures"].get("node", "")) for row in rows})
            text = f"{len(pods)} pods were placed on {first_of(nodes, _MOST_NODES)}"
        times = f" ({count} times since {moment(min(row['first'] for row in rows))})"
        again = times if count > len(pods) else ""
        yield {"when": max(row["last"] for row in rows), "pod": _pods(pods), "what": text + again}


def _charges(charges: Iterable[Json]) -> Iterator[Json]:
    """Those of claims; and of pods one row for all of which the same is said beside their amounts."""
    same = defaultdict[str, list[Json]](list)
    for charge in charges:
        if charge["claim"]:
            subject = f"claim/{charge['claim']}"
            yield {"when": charge["bound"], "pod": subject, "what": charge["sentence"]}
        else:
            same[charge["sentence"].partition(". ")[2]].append(charge)
    for more, rows in same.items():
        pods = list(dict.fromkeys(row["pod"] for row in rows))
        if len(pods) == 1:
            yield from ({"when": row["bound"], "pod": row["pod"], "what": row["sentence"]} for row in rows)
            continue
        since = min(row["bound"] for row in rows)
        (hours,), nodes = apart(sum(row["amount"] for row in rows)), sorted({row["node"] for row in rows})
        where = first_of(nodes, _MOST_NODES)
        text = f"Charged {hours} GPU-hours together: {len(pods)} pods held cards of {where}"
        yield {"when": since, "pod": _pods(pods), "what": f"{text}. {more}".strip()}


def _pods(pods: Sequence[str]) -> str:
    """The first of them, and how many others there are."""
    return pods[0] if len(pods) == 1 else f"{pods[0]} and {len(pods) - 1} more"


_LIFE = (
    EXACT("when", "When", "when it happened; now: how it is"),
    POD("pod", "Pod", "of several"),
    SENTENCE("what", "What", "what happened, or what would have to change"),
)


def _life_columns(answer: Json) -> Iterable[Column]:
    is_one_pod = answer["subject"].startswith("Pod/")
    return (each for each in _LIFE if each.key != "pod" or not is_one_pod)


def _cut(answer: Json, _now_ms: int) -> Iterator[str]:
    """That there may be more than is listed."""
    if MOST_OF_LIFE in (len(answer["steps"]), len(answer["charges"])):
        yield f"Only its newest {MOST_OF_LIFE} decisions and charges are read; decisions and usage have all."


LIFE = Sheet(columns=_LIFE, rows=_lines, chosen=_life_columns, has_answer=True, warnings=_cut)


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
