"""Decisions, their reasons, and held pods as sheets."""

from collections.abc import Iterable, Iterator
from typing import Any

from timekeeper.cli.output import Column, Sheet, listing, within
from timekeeper.core.decisions import KINDS
from timekeeper.core.texts import NOT_PLACED, age, gpus, moment

_LIFE = (Column("when", "WHEN"), Column("pod", "POD"), Column("what", "WHAT"))
_DECISIONS = (
    Column("when", "WHEN"),
    Column("namespace", "NAMESPACE"),
    Column("subject", "SUBJECT"),
    Column("kind", "KIND"),
    Column("count", "TIMES", True),
    Column("sentence", "WHY"),
)
_HELD = (
    Column("namespace", "NAMESPACE"),
    Column("pod", "POD"),
    Column("waitsFor", "WAITS FOR"),
    Column("ahead", "AHEAD", True),
    Column("priority", "PRIORITY", True),
    Column("gpus", "GPUS", True),
    Column("age", "AGE", True),
    Column("earliest", "EARLIEST"),
)

_WOULD = (
    Column("week", "WEEK"),
    Column("namespace", "NAMESPACE"),
    Column("verdict", "WOULD BE"),
    Column("rule", "RULE", blank="-"),
    Column("shown", "PODS", True),
    Column("pod", "NEWEST POD"),
    Column("sentence", "WHY"),
)


def life(answer: Any) -> Sheet:
    """The life of a pod or of a controller's pods: decisions, charges, what it waits for, and the budget."""
    is_one_pod = answer["subject"].startswith("Pod/")
    columns = tuple(each for each in _LIFE if each.key != "pod" or not is_one_pod)
    return Sheet(columns, tuple(_lines(answer)), answer)


def _lines(answer: Any) -> Iterator[dict[str, str]]:
    for step in answer["steps"]:
        times = f" ({step['count']} times since {moment(step['first'])})" if step["count"] > 1 else ""
        yield {"when": moment(step["last"]), "pod": step["pod"], "what": step["sentence"] + times}
    for charge in answer["charges"]:
        subject = f"claim/{charge['claim']}" if charge.get("claim") else charge["pod"]
        yield {"when": moment(charge["bound"]), "pod": subject, "what": charge["sentence"]}
    is_known = answer["steps"] or answer["charges"] or {*answer["waitsFor"]} - {NOT_PLACED}
    if not is_known:
        sentence = (
            "Nothing is recorded about {subject} in {namespace}: see whether name and namespace are right."
        )
        yield {"when": "now", "what": sentence.format(**answer)}
    for sentence in answer["waitsFor"]:
        yield {"when": "now", "what": sentence}
    if answer["budget"] not in answer["waitsFor"]:
        yield {"when": "now", "what": answer["budget"]}
    if answer.get("received"):
        yield {"when": "now", "what": answer["received"]}
    if answer.get("mode"):
        yield {"when": "now", "what": answer["mode"]}
    for sentence in answer.get("protected", ()):
        yield {"when": "now", "what": sentence}


def decisions(listed: Iterable[Any], answer: Any, kind: str | None = None) -> Sheet:
    """A row for each decision, or for equal ones in succession. ``kind``: the only one that was asked for."""
    known = f"; {kind} is none of the kinds {', '.join(KINDS)}" if kind and kind not in KINDS else ""
    rows = tuple(
        {
            "when": moment(raw["last"]),
            "namespace": raw["namespace"],
            "subject": raw["pod"] or raw["generateName"] or raw["owner"] or raw["namespace"],
            "kind": raw["kind"],
            "count": str(raw["count"]),
            "sentence": raw["sentence"],
        }
        for raw in listed
    )
    return Sheet(_DECISIONS, rows, answer, empty=f"no decision was recorded{known}")


def held(listed: Iterable[Any], answer: Any, now_ms: int, namespace: str | None) -> Sheet:
    """A row for each pod behind Bursar's scheduling gate, and for each gang, in the order of their release.
    ``namespace``: the only one that was asked for."""
    rows = tuple(
        {
            **{key: str(raw[key]) for key in ("namespace", "waitsFor", "ahead", "priority")},
            "pod": f"gang {raw['gang']} ({raw['pods']} pods)" if raw["gang"] else raw["pod"],
            "gpus": gpus(raw["rateMilli"]),
            "age": age(now_ms - raw["created"]),
            "earliest": moment(raw["earliest"]) or "not by this budget",
        }
        for raw in listed
    )
    return Sheet(_HELD, rows, answer, empty=f"no pod is held{within(namespace)}")


def would(answer: Any, namespace: str | None) -> Sheet:
    """A row for each verdict and rule of a namespace and week; ``12 of 340`` counts the week's new pods."""
    rows = tuple(
        {
            **{key: raw[key] for key in ("week", "namespace", "rule", "pod", "sentence")},
            "verdict": "not judged" if raw["verdict"] == "unjudged" else raw["verdict"],
            "shown": str(raw["pods"]) if raw["verdict"] == "evicted" else f"{raw['pods']} of {raw['of']}",
        }
        for raw in answer["rows"]
    )
    return Sheet(
        _WOULD, rows, listing(answer, "rows"), empty=f"no pod was judged in this time{within(namespace)}"
    )


def would_notes(answer: Any) -> Iterator[str]:
    """What is left out of the answer, and what is not known."""
    if answer["enforced"]:
        yield (
            f"Not metered now, so nothing is shown: {', '.join(answer['enforced'])}. Enforced ones have"
            " decisions (kubectl bursar decisions); deleted ones have none."
        )
    yield from answer["notes"]
    if answer["next"]:
        yield "There are more rows: --from and --to, or a namespace, choose some."
