"""The ledger, as ``bursar-timekeeper export`` writes it in the timekeeper's pod, checked to be whole."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable

from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError
from timekeeper.cli.save.folder import Folder

FILE = "ledger.jsonl"  # kubectl apply -f DIR reads files named .json, .yaml and .yml only
_WORKLOADS = (
    ("statefulset", "bursar-timekeeper", "pod/bursar-timekeeper-0"),
    ("deployment", "bursar-timekeeper", "deployment/bursar-timekeeper"),
)
_CONTAINER = "timekeeper"


def save_ledger(kubectl: Kubectl, namespace: str, folder: Folder) -> Counter[str]:
    """Write the ledger of one moment; the number of rows by table. Raises CommandError; nothing is left of an
    incomplete one."""
    target = _target(kubectl, namespace)
    command = ("exec", "-n", namespace, target, "-c", _CONTAINER, "--", "bursar-timekeeper", "export", "-")
    with folder.writing(FILE) as out:
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
