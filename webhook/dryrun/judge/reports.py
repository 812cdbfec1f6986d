"""Reports of a dry run: text, JSON, YAML, or a diff."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from timekeeper.core import names
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.violation import Violation
from webhook.dryrun.judge.objects import AdmissionOutcome, PodOutcome


@dataclass(frozen=True, slots=True)
class LocatedOutcome:
    """An object's outcome with its place in the input."""

    file: str
    document: int  # number in the whole input, from 1
    line: int  # of the object
    outcome: AdmissionOutcome
    lines: tuple[int, ...]  # of each violation


def shown(judged: Sequence[LocatedOutcome], form: str, assumed: str = "") -> str:
    """The report as text, json, yaml or diff. ``assumed``: said after a standing that no flag names."""
    if form == "json":
        return json.dumps({"items": [_as_json(each) for each in judged]}, indent=2) + "\n"
    if form == "yaml":
        return "".join(_as_yaml(outcome, assumed) for outcome in judged)
    if form == "diff":
        return "".join(_as_diff(outcome, assumed) for outcome in judged)
    return "".join(f"{line}\n" for line in _as_text(judged, assumed))


def _as_json(judged: LocatedOutcome) -> dict[str, Any]:
    outcome = judged.outcome
    return {
        "document": judged.document,
        "kind": outcome.kind,
        "name": outcome.name,
        "verdict": outcome.verdict,
        "violations": [
            {
                "rule": each.rule,
                "path": each.path,
                "got": each.got,
                "allowed": each.allowed,
                "example": each.example,
            }
            for each in outcome.violations
        ],
        "warnings": list(outcome.warnings),
        "pods": [_pod_as_json(pod) for pod in outcome.pods],
        "patched": outcome.after,
    }


def _pod_as_json(pod: PodOutcome) -> dict[str, Any]:
    return {
        "path": pod.path,
        "effect": pod.effect,
        "request": json.loads(pod.request) if pod.request else None,
        "reason": pod.reason,
    }


def _as_yaml(judged: LocatedOutcome, assumed: str) -> str:
    """The object as it would be stored; a comment where it is refused or unchanged."""
    comment = "".join(f"# {line}\n" for line in _lines(judged, assumed))
    after = judged.outcome.after
    return f"---\n{comment}" + (_dumped(after) if after is not None else "")


def _as_diff(judged: LocatedOutcome, assumed: str) -> str:
    before, after = judged.outcome.before, judged.outcome.after
    if before is None or after is None:
        return "".join(f"# {line}\n" for line in _lines(judged, assumed))
    title = f"{judged.outcome.kind}/{judged.outcome.name}"
    changed = difflib.unified_diff(
        _dumped(before).splitlines(keepends=True),
        _dumped(after).splitlines(keepends=True),
        f"{title} as written",
        f"{title} as admitted",
    )
    return "".join(changed)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Writes repeated values in full."""
        return True


def _text_of(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text_of)


def _dumped(value: Json) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000)


def _as_text(judged: Sequence[LocatedOutcome], assumed: str) -> Iterator[str]:
    for each in judged:
        yield from _lines(each, assumed)
    count = len(judged)
    words = ("admitted", "refused", "not-reviewed", "unreadable")
    counts = [(sum(each.outcome.verdict == word for each in judged), word) for word in words]
    summary = ", ".join(f"{number} {word.replace('-', ' ')}" for number, word in counts if number)
    yield f"{count} object{'' if count == 1 else 's'}" + (f": {summary}" if summary else "")


def _lines(judged: LocatedOutcome, assumed: str) -> Iterator[str]:
    outcome = judged.outcome
    title = " ".join(each for each in (outcome.kind, outcome.name) if each)
    yield printable(f"{judged.file}:{judged.line}: {title}: {outcome.verdict.replace('-', ' ')}")
    for line, violation in zip(judged.lines, outcome.violations, strict=True):
        yield printable(f"  {judged.file}:{line}: {_sentence(violation)}")
    for warning in outcome.warnings:
        yield printable(f"  warning: {warning}")
    if outcome.after is not None:
        yield printable(f"  governed: {_governed(outcome.after, assumed)}")
        return
    for pod in outcome.pods:
        at = f"{pod.path}: " if pod.path else ""
        request = f": request {_request(pod.request)}" if pod.request else ""
        reason = f"; {pod.reason}" if pod.reason else ""
        yield printable(f"  {at}{pod.effect.replace('-', ' ')}{request}{reason}")


def _sentence(violation: Violation) -> str:
    if violation.rule == "unreadable":
        return f"{violation.path}: {violation.problem}" if violation.path else violation.problem
    return f"{violation.sentence()} ({violation.rule})" if violation.allowed else violation.problem


def _governed(pod: Json, assumed: str) -> str:
    annotations: Mapping[str, Any] = annotations_of(pod)
    own_class = mapping(pod.get("spec")).get("priorityClassName", "of its own")
    return (
        f"{annotations.get(names.STANDING, '')}{assumed}, priority class {own_class}, request "
        f"{_request(str(annotations.get(names.REQUEST, '')))}"
    )


def _request(text: str) -> str:
    """``text``: of the annotation; empty while it is not known what the pod's claims ask for."""
    return "not known yet" if text == "{}" else text


def printable(line: str) -> str:
    """The line without control characters, which could change the terminal; a break of it is a blank."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(line.splitlines()))


def exit_code(judged: Iterable[LocatedOutcome], all_read: bool) -> int:
    """0 where everything is admitted, 1 where something is refused, 2 where something could not be read."""
    verdicts = {each.outcome.verdict for each in judged}
    if not all_read or "unreadable" in verdicts:
        return 2
    return 1 if "refused" in verdicts else 0
