"""The command ``review``: files in, a report and an exit code out."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO

from timekeeper.core.budgets.reader import precedence
from timekeeper.core.json_values import mapping
from timekeeper.core.rating.held import card_host
from timekeeper.core.request.host import CardHost, allocatable
from timekeeper.core.request.inventory import charged_cards
from timekeeper.core.values import UndecodableError
from timekeeper.core.violation import Violation
from webhook.admission import budgets, workloads
from webhook.dryrun import inputs
from webhook.dryrun.flags import ReviewSettings, program
from webhook.dryrun.inputs import STDIN, CannotReviewError, ManifestFile
from webhook.dryrun.judge import manifests, objects, reports
from webhook.dryrun.judge.assumed_cluster import VENDORS_CLASSES, AssumedCluster
from webhook.dryrun.judge.manifests import ManifestDocument
from webhook.dryrun.judge.objects import AdmissionOutcome
from webhook.dryrun.judge.reports import LocatedOutcome

_ASSUMED = " assumed: what is used is not known here"
_OF_AN_ENTRY = re.compile(r"(.*data\[[^\]]*\]), line ([0-9]+)(, .*)?", re.DOTALL)


def run(settings: ReviewSettings, stdin: BinaryIO) -> int:
    """Reviews the files and prints the report; returns 0 where everything is admitted, 1 where something is
    refused, 2 where something could not be read. Raises CannotReviewError, also for empty input, because its
    writer has probably failed."""
    world = replace(
        inputs.world(settings.given, stdin),
        standing=settings.standing,
        namespace=settings.namespace,
        classes=settings.classes,
    )
    texts = [inputs.read(file, stdin) for file in settings.files or (STDIN,)]
    if not any(text.documents or text.trouble for text in texts):
        raise CannotReviewError("nothing to review: no object in the input")
    judged = tuple(judge_all(texts, world))
    troubles = [text.trouble for text in texts if text.trouble]
    troubles += _without_a_template(texts, world)
    sys.stdout.write(reports.shown(judged, settings.output, "" if settings.standing else _ASSUMED))
    sys.stdout.flush()
    for trouble in troubles:
        print(reports.printable(f"{program('review')}: {trouble}"), file=sys.stderr)
    return reports.exit_code(judged, all_read=not troubles)


def judge_all(texts: Sequence[ManifestFile], world: AssumedCluster) -> Iterator[LocatedOutcome]:
    """Judges every object of every file, budgets also by the keys of the other ConfigMaps."""
    numbered = [(text.file, document) for text in texts for document in text.documents]
    every = [
        (file, number, document, at, value)
        for number, (file, document) in enumerate(numbered, 1)
        for at, value in objects.objects(document.value)
    ]
    maps = [value for *_, value in every if isinstance(value, dict)]
    namespaces = [value for value in maps if value.get("kind") == "Namespace"]
    world = replace(
        world.with_namespaces(namespaces).with_claims(maps, VENDORS_CLASSES),
        classes={**_classes(value for *_, value in every), **world.classes},
        card_host=_card_host(value for *_, value in every),
    )
    owners = _owners(value for *_, value in every)
    for file, number, document, at, value in every:
        outcome = _outcome(document, value, world, owners)
        lines = tuple(_line(document, at, each) for each in outcome.violations)
        line = manifests.line_of(document, at) if at else document.line
        yield LocatedOutcome(file, number, line, outcome, lines)


def _without_a_template(texts: Sequence[ManifestFile], world: AssumedCluster) -> Iterator[str]:
    """A sentence for each ``--template-path`` that leads to no pod template, for it reviews nothing."""
    documents = (document for text in texts for document in text.documents)
    values = [value for document in documents for _, value in objects.objects(document.value)]
    for path in world.template_paths:
        of_kind = [value for value in values if objects.kind_of(value) == (path.group, path.kind)]
        if not any(workloads.found(value, (path,)) for value in of_kind):
            yield workloads.leads_nowhere(path, len(of_kind))


def _outcome(
    document: ManifestDocument, value: Any, world: AssumedCluster, owners: Mapping[str, str]
) -> AdmissionOutcome:
    if document.problem:
        return objects.unread(value, document.problem.sentence)
    outcome = objects.judged(value, world)
    if outcome.kind == "ConfigMap" and outcome.verdict in ("admitted", "refused"):
        return objects.refused_too(outcome, _elsewhere(outcome.name, value, owners))
    return outcome


def _owners(values: Iterator[Any]) -> dict[str, str]:
    """Which ConfigMap owns each key."""
    found = [
        (objects.name_of(value), key)
        for value in values
        if mapping(value).get("kind") == "ConfigMap" and budgets.holds_budgets("", "ConfigMap", value)
        for key in budgets.entries_of(value)
    ]
    owners: dict[str, str] = {}
    for name, key in sorted(found, key=lambda each: precedence(each[0])):
        owners.setdefault(key, name)
    return owners


def _elsewhere(name: str, value: Any, owners: Mapping[str, str]) -> Iterator[Violation]:
    for key in budgets.entries_of(value):
        if owners[key] != name:
            yield Violation(
                "budget-entry",
                f"data[{key}]",
                "",
                f"also in ConfigMap {owners[key]}, whose entry takes effect",
                "a key in one ConfigMap",
                "removing it from one of them",
            )


def _classes(values: Iterator[Any]) -> dict[str, int]:
    return {
        objects.name_of(value): value["value"]
        for value in values
        if mapping(value).get("kind") == "PriorityClass" and isinstance(value.get("value"), int)
    }


def _card_host(values: Iterator[Any]) -> CardHost | None:
    """How much CPU and memory the nodes in the files have for each card."""
    nodes = [value for value in values if mapping(value).get("kind") == "Node"]
    known = []
    for each in nodes:
        with suppress(UndecodableError):
            known.append((charged_cards(each), allocatable(each)))
    return card_host(known)


def _line(document: ManifestDocument, at: str, violation: Violation) -> int:
    """The violation's line in the file; for a mistake in an entry, the line inside the entry."""
    if document.problem:
        return document.problem.line
    entry = _OF_AN_ENTRY.fullmatch(violation.path)
    if entry:
        return manifests.line_of(document, at + entry[1]) + int(entry[2]) - 1
    return manifests.line_of(document, at + violation.path)
