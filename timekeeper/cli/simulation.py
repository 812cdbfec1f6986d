"""``kubectl bursar simulate``: whether the pods of a manifest fit, and what they need."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import FORM, ClusterCommand
from timekeeper.cli.output import CommandError, unreadable
from timekeeper.core.json_values import mapping


@click.command(cls=ClusterCommand, short_help="Whether a manifest's pods fit, and are paid")
@click.pass_obj
@click.option(
    "-f",
    "--filename",
    "file",
    required=True,
    metavar="FILE",
    shell_complete=words.files,
    help="manifests of a Pod, Deployment, ReplicaSet, StatefulSet, Job, JobSet or other owner of gangs, with"
    " the claims that their pods use; - for standard input",
)
@FORM
def simulate(options: Options, file: str, form: str) -> None:
    """Whether the pods of each manifest fit, by themselves, where, what they need, and what is left of the
    budget. Nothing is created. Exit code: 1 where one is refused, or would wait."""
    manifests, claims = manifests_of(file)
    bodies = [
        {"version": 1, "namespace": namespace_of(each, options), "manifest": each, "claims": claims}
        for each in manifests
    ]
    with connected(options, bodies[0]["namespace"]) as client:
        found = [client.post(form, "/v1/simulate", body) for body in bodies]
    sheet = found[0] if len(found) == 1 else output.joined(found)
    output.show(sheet, form)
    if len(found) > 1:
        click.echo("Each manifest is simulated as if it came alone.", err=True)
    pods = [pod for one in found for pod in (one.rows or mapping(one.answer).get("pods", ()))]
    if any(str(pod["outcome"]).endswith(("refused", "waits")) for pod in pods):
        raise SystemExit(1)


def manifests_of(file: str) -> tuple[list[Any], list[Any]]:
    """The file's manifests, and the claims and templates of claims beside them. Raises CommandError."""
    documents = list(_documents(file))
    claims = [document for document in documents if _is_claim(document)]
    others = [document for document in documents if not _is_claim(document)]
    if not others:
        raise CommandError(f"{file} has no manifest of a pod, or of an owner of pods")
    return others, claims


def _is_claim(document: Any) -> bool:
    return mapping(document).get("kind") in ("ResourceClaim", "ResourceClaimTemplate")


def namespace_of(manifest: object, options: Options) -> str:
    """That of the flag, else the manifest's, else the context's."""
    named = mapping(mapping(manifest).get("metadata")).get("namespace")
    return options.namespace or (named if isinstance(named, str) else "") or options.one_namespace()


def _documents(file: str) -> Iterator[Any]:
    try:
        found = list(yaml.safe_load_all(_text(file)))
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not YAML: {error}") from error
    try:
        yield from (json.loads(json.dumps(each, default=str)) for each in found if each is not None)
    except (TypeError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} is YAML that JSON cannot say: {error}") from error


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from error
