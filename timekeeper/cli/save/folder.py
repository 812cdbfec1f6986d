"""The folder that is saved into: a new or empty one, which its user alone may read; and the ledger in it, as
``bursar-timekeeper export`` writes it in the timekeeper's pod, checked to be whole."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600

LEDGER = "ledger.jsonl"  # kubectl apply -f DIR reads files named .json, .yaml and .yml only
_WORKLOADS = (
    ("statefulset", "bursar-timekeeper", "pod/bursar-timekeeper-0"),
    ("deployment", "bursar-timekeeper", "deployment/bursar-timekeeper"),
)
_CONTAINER = "timekeeper"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines are blocks, as people write them."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


class Folder:
    """``path``: of the folder, which is made. Raises CommandError where it has a file already, or where
    something cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            if next(path.iterdir(), None) is not None:
                raise CommandError(
                    f"DIR: {path} is not empty: it must be a new or an empty folder, so that no older file is"
                    " taken for a part of what is saved"
                )
        except OSError as error:
            raise CommandError(f"DIR: {path} cannot be used: {error.strerror}") from error

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A new file that gets its name once it is complete, and that no failure leaves behind."""
        unfinished = self.path / f".{name}.unfinished"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(os.open(unfinished, flags, _FILE_MODE), "w+b") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            unfinished.rename(self.path / name)
        except OSError as error:
            raise CommandError(f"DIR: {self.path / name} cannot be written: {error.strerror}") from error
        finally:
            unfinished.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """A new file with this text."""
        with self.writing(name) as out:
            out.write(text.encode())

    def write_manifest(self, document: dict[str, Any]) -> str:
        """An object as a file of its own; returns the file's name."""
        name = f"{document['kind'].lower()}-{document['metadata']['name']}.yaml"
        self.write(name, yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
        return name


def save_ledger(kubectl: Kubectl, namespace: str, folder: Folder) -> Counter[str]:
    """Write the ledger of one moment; the number of rows by table. Raises CommandError; nothing is left of an
    incomplete one."""
    target = _target(kubectl, namespace)
    command = ("exec", "-n", namespace, target, "-c", _CONTAINER, "--", "bursar-timekeeper", "export", "-")
    with folder.writing(LEDGER) as out:
        kubectl.write(out, *command)
        out.seek(0)
        return rows_of(out)


def rows_of(lines: Iterable[bytes]) -> Counter[str]:
    """The number of rows by table. Raises CommandError where the trailer does not say that they are all."""
    digest, found, number, last = hashlib.sha256(), Counter[str](), 0, b""
    for line in lines:
        digest.update(last)
        last, number = line, number + 1
        if line.startswith(b'{"table":"'):
            found[line.removeprefix(b'{"table":"').partition(b'"')[0].decode()] += 1
    if _trailer(last) != {"lines": number - 1, "sha256": digest.hexdigest()}:
        raise CommandError(f"bursar-timekeeper export: it was cut off after {number} lines")
    return found


def _trailer(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _target(kubectl: Kubectl, namespace: str) -> str:
    for kind, name, target in _WORKLOADS:
        if kubectl.get(kind, name, "-n", namespace):
            return target
    raise CommandError(
        f"namespace {namespace} has no StatefulSet and no Deployment bursar-timekeeper, in whose pod"
        " the ledger is exported"
    )
