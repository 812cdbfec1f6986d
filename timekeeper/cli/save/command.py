"""``kubectl bursar save``: manifests that ``kubectl apply -f`` takes, and commands that write marks again."""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import FORM, ClusterCommand
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError, PrintedColumn, PrintedSheet, Say, progress
from timekeeper.cli.save.folder import LEDGER as LEDGER
from timekeeper.cli.save.folder import Folder, save_ledger
from timekeeper.core import __version__, names
from timekeeper.core.budgets.config_maps import is_read
from timekeeper.core.json_values import mapping

_KEPT = ("apiVersion", "kind", "data", "binaryData", "immutable", "type")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_PREFIXES = (f"{names.DOMAIN}/", "bursar.node-restriction.kubernetes.io/")
# the certificates' process and the API server's controllers write these, and clusters' own software
_WRITTEN = ("bursar-device-classes", "kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert")
_PART_OF = ("app.kubernetes.io/part-of", "bursar")
_TOKENS = ("kubernetes.io/service-account-token", "helm.sh/release.v1")

_GRANTS, _MARKS, _README = "grants.jsonl", "labels.sh", "README.txt"
_COLUMNS = (
    PrintedColumn("what", "WHAT"),
    PrintedColumn("count", "COUNT", True),
    PrintedColumn("file", "LEDGER", blank="-"),
    PrintedColumn("note", "NOTE"),
)
_SAVED = "Saved from Bursar's namespace {namespace} by kubectl bursar save {version} at {moment}.\n\n"
_BACK = """
To come back, see "Come back" in docs/uninstall.md. kubectl apply -f takes the files of this folder that are
named .yaml. labels.sh writes Bursar's labels and annotations on nodes and namespaces again. bursar-timekeeper
import takes ledger.jsonl.
"""


def manifest(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap or Secret without what its API server alone gives, so that another one creates it."""
    read = mapping(raw.get("metadata"))
    annotations = {
        key: text for key, text in mapping(read.get("annotations")).items() if key != _LAST_APPLIED
    }
    metadata = {
        "name": read["name"],
        "namespace": read["namespace"],
        "labels": mapping(read.get("labels")),
        "annotations": annotations,
    }
    kept = {key: raw[key] for key in _KEPT if raw.get(key) is not None}
    return {**kept, "metadata": {key: value for key, value in metadata.items() if value}}


def is_operators(config_map: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap without budgets is neither of the manifests nor written by a process."""
    metadata = mapping(config_map.get("metadata"))
    key, value = _PART_OF
    return metadata.get("name") not in _WRITTEN and mapping(metadata.get("labels")).get(key) != value


def is_token(secret: Mapping[str, Any]) -> bool:
    """Whether a Secret is of one installation: a token of an account, or a release of Helm."""
    return secret.get("type") in _TOKENS


def marks(kind: str, listed: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The shell commands that write Bursar's labels and annotations on these nodes or namespaces again.
    ``kind``: as kubectl names it. What the node agent reports at each start is none of them."""
    for raw in listed:
        metadata = mapping(raw.get("metadata"))
        for verb, field in (("label", "labels"), ("annotate", "annotations")):
            for key, text in sorted(mapping(metadata.get(field)).items()):
                if key.startswith(_PREFIXES) and key != names.HOLDERS:
                    words = ("kubectl", verb, kind, metadata["name"], "--overwrite", f"{key}={text}")
                    yield shlex.join(words)


@dataclass(frozen=True, slots=True)
class Saved:
    """A line of the list. ``file``: "" if nothing was written. ``is_missing``: the folder lacks something
    that exists or may exist, and that was not left out on purpose."""

    what: str
    count: int = 0
    file: str = ""
    note: str = ""
    is_missing: bool = False


@click.command(cls=ClusterCommand, without=("namespace",), short_help="Save what is needed to come back")
@click.pass_obj
@click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), shell_complete=words.files
)
@click.option("--secrets", is_flag=True, help="also the Secrets of Bursar's namespace, with private keys")
@FORM
def save(options: Options, folder: Path, secrets: bool, form: str) -> None:
    """Save budgets, settings, grants, the ledger, and Bursar's labels on nodes and namespaces into a new or
    empty folder; exit code 1 if something that exists was not saved."""
    home = options.system_namespace
    if options.kubectl.get("namespace", home) is None:
        raise CommandError(f"there is no namespace {home}; --system-namespace names where Bursar runs")
    place = Folder(folder)
    with progress() as say:
        saved = (*_objects(options, place, secrets, say), *_accounts(options, place, say))
    place.write(_README, _readme(home, saved))
    output.show(_sheet(saved), form)
    if missing := [each.what for each in saved if each.is_missing]:
        raise CommandError(f"not everything was saved: {', '.join(missing)}; {folder / _README} says why")


def _objects(options: Options, place: Folder, secrets: bool, say: Say) -> Iterator[Saved]:
    """What the API server has."""
    say("kubectl reads ConfigMaps")
    yield from _tried("budgets and settings", lambda: _config_maps(options, place))
    say("kubectl reads labels of nodes and namespaces")
    yield from _tried("labels and annotations", lambda: _marks(options.kubectl, place))
    say("kubectl reads Secrets")
    if secrets:
        yield from _tried("Secrets", lambda: _secrets(options, place))
    else:
        yield Saved("Secrets", note="left out; --secrets saves them")


def _accounts(options: Options, place: Folder, say: Say) -> Iterator[Saved]:
    """What the timekeeper has. The ledger has the grants, too."""
    say("the timekeeper exports the ledger")
    (ledger,) = _tried("ledger", lambda: [_ledger(options, place)])
    yield ledger
    say("the timekeeper lists grants")
    (grants,) = _tried("grants", lambda: [_grants(options, place)])
    yield grants if ledger.is_missing else replace(grants, is_missing=False)


def _tried(what: str, saving: Callable[[], list[Saved]]) -> list[Saved]:
    """What was saved, or why it was not."""
    try:
        return saving()
    except CommandError as error:
        return [Saved(what, note=f"not saved: {error.message}", is_missing=True)]


def _config_maps(options: Options, place: Folder) -> list[Saved]:
    found = options.kubectl.get("configmaps", "-n", options.system_namespace)["items"]
    saved = [_object(finding, place) for finding in found if is_read(finding)]
    others = [finding for finding in found if not is_read(finding) and is_operators(finding)]
    return [*saved, *(Saved(_name(each), note="left out: Bursar does not read it") for each in others)]


def _secrets(options: Options, place: Folder) -> list[Saved]:
    found = options.kubectl.get("secrets", "-n", options.system_namespace)["items"]
    return [_object(each, place) for each in found if not is_token(each)]


def _object(raw: Any, place: Folder) -> Saved:
    return Saved(_name(raw), len(raw.get("data") or ()), place.write_manifest(manifest(raw)))


def _name(raw: Any) -> str:
    return f"{raw['kind']} {raw['metadata']['name']}"


def _marks(kubectl: Kubectl, place: Folder) -> list[Saved]:
    commands = [
        command for kind in ("node", "namespace") for command in marks(kind, kubectl.get(f"{kind}s")["items"])
    ]
    place.write(_MARKS, "".join(f"{command}\n" for command in commands))
    return [Saved("labels and annotations", len(commands), _MARKS, "of nodes and namespaces")]


def _ledger(options: Options, place: Folder) -> Saved:
    rows = save_ledger(options.kubectl, options.system_namespace, place)
    note = ", ".join(f"{rows[table]} {table}" for table in ("sessions", "postings", "grants"))
    return Saved("ledger", rows.total(), LEDGER, note)


def _grants(options: Options, place: Folder) -> Saved:
    with connected(options, "", is_quiet=True) as client:
        listed = client.whole("/v1/grants", "grants")["grants"]
    place.write(_GRANTS, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in listed))
    return Saved("grants", len(listed), _GRANTS, "to read; the ledger has them, too")


def _sheet(saved: Sequence[Saved]) -> PrintedSheet:
    rows = tuple(
        {"what": each.what, "count": str(each.count), "file": each.file, "note": each.note} for each in saved
    )
    return PrintedSheet(_COLUMNS, rows, [asdict(each) for each in saved])


def _readme(namespace: str, saved: Sequence[Saved]) -> str:
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = _SAVED.format(namespace=namespace, version=__version__, moment=moment)
    lines = (f"{each.count:>8}  {each.what}: {each.file or each.note}" for each in saved)
    notes = (f" ({each.note})" if each.file and each.note else "" for each in saved)
    return head + "".join(f"{line}{note}\n" for line, note in zip(lines, notes, strict=True)) + _BACK
