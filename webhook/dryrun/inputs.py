"""Reads files and standard input as manifests, and the cluster that files of budgets describe."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO

from timekeeper.core.budgets import reader
from timekeeper.core.json_values import mapping
from webhook.admission import budgets
from webhook.dryrun.flags import CommonFlags
from webhook.dryrun.judge import manifests, objects
from webhook.dryrun.judge.assumed_cluster import AssumedCluster, flags_of, table_of
from webhook.dryrun.judge.manifests import ManifestDocument
from webhook.settings import serve

STDIN = "-"
_MAX_BYTES = 4 * manifests.MAX_CHARACTERS


class CannotReviewError(Exception):
    """An input cannot be used; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file's documents, and in ``trouble`` why the rest of it, or all, could not be read."""

    file: str
    documents: tuple[ManifestDocument, ...] = ()
    trouble: str = ""


def read(file: str, stdin: BinaryIO) -> ManifestFile:
    """The documents of a file, ``-`` for standard input."""
    name = "standard input" if file == STDIN else file
    try:
        raw = stdin.read(_MAX_BYTES + 1) if file == STDIN else _bytes_of(file)
        documents, problem = manifests.read(manifests.decoded(raw))
    except OSError as error:
        return ManifestFile(name, trouble=f"{name}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return ManifestFile(name, trouble=f"{name}:{line}: not UTF-8")
    return ManifestFile(name, documents, f"{name}:{problem.line}: {problem.sentence}" if problem else "")


def world(given: CommonFlags, stdin: BinaryIO) -> AssumedCluster:
    """A cluster whose webhook has default settings, with the budgets of the files. Raises CannotReviewError
    where a file cannot be read or is wrong."""
    flags = replace(flags_of(serve.read((), {}).policy), other_schedulers=given.other_schedulers)
    if not given.budgets:
        return AssumedCluster(flags=flags, mode=given.mode, template_paths=given.template_paths)
    reading = reader.read({name: data for file in given.budgets for name, data in _config_maps(file, stdin)})
    if reading.errors:
        wrong = "\n  ".join(error.sentence() for error in reading.errors)
        raise CannotReviewError(f"the budgets are not valid:\n  {wrong}")
    return AssumedCluster(
        flags=flags,
        table=table_of(reading),
        mode=given.mode,
        template_paths=given.template_paths,
        budgets=reading,
    )


def _config_maps(file: str, stdin: BinaryIO) -> Iterator[tuple[str, Mapping[str, str]]]:
    text = read(file, stdin)
    problems = [
        f"{text.file}:{each.problem.line}: {each.problem.sentence}" for each in text.documents if each.problem
    ]
    if text.trouble or problems:
        raise CannotReviewError(text.trouble or problems[0])
    found: list[tuple[str, Mapping[str, str]]] = [
        (objects.name_of(value), budgets.entries_of(value))
        for document in text.documents
        for _, value in objects.objects(document.value)
        if mapping(value).get("kind") == "ConfigMap" and budgets.holds_budgets("", "ConfigMap", value)
    ]
    if not found:
        raise CannotReviewError(f"{text.file}: contains no ConfigMap with budgets")
    yield from found


def _bytes_of(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(_MAX_BYTES + 1)
