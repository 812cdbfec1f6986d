"""``kubectl bursar simulate``: the pods of manifests, and what would happen to them."""

import json
import sys
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from timekeeper.cli import output, words
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import FORM, ClusterCommand
from timekeeper.cli.output import CommandError, unreadable
from timekeeper.cli.views import simulation
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.kube.owned_pods import GROUPS

_ENOUGH = 1_000  # pods of a workload: more than the server takes
_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")
_REPLICAS = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "StatefulSet": "replicas",
}


@click.command(cls=ClusterCommand, short_help="What would happen to these pods")
@click.pass_obj
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    shell_complete=words.files,
    help="manifests of Pods, Deployments, ReplicaSets, StatefulSets, Jobs, JobSets and other owners of gangs,"
    " and claims; - for standard input",
)
@click.option(
    "--budget",
    default=None,
    metavar="FILE",
    shell_complete=words.files,
    help="the namespace's entry of bursar-budgets that is supposed; without it, the present one",
)
@FORM
def simulate(options: Options, files: tuple[str, ...], budget: str | None, form: str) -> None:
    """What would happen to these pods: class, place, victims, cost, and when the budget is gone. Nothing is
    created."""
    documents = [document for file in files for document in _documents(file)]
    namespace = namespace_of(documents, options)
    body: dict[str, Any] = {"version": 1, "namespace": namespace, "pods": []}
    claims = [each for document in documents for each in claims_of(document)]
    if claims:
        body["claims"] = claims
    for document in documents:
        body["pods"] += list(pods_of(document, namespace))
    owners = [each for document in documents for each in owners_of(document)]
    if owners:
        body["owners"] = owners
    if budget is not None:
        body["budget"] = _text(budget)
    with connected(options, namespace) as client:
        answer = client.post("/v1/simulate", body, {"Content-Type": "application/json"})
    output.show(simulation.pods(answer), form)
    if form == "table":
        for sentence in simulation.sentences(answer):
            print(sentence)


def namespace_of(documents: Iterable[Any], options: Options) -> str:
    """That of the flag, else the first that the manifests name, else the context's."""
    return options.namespace or next(_namespaces_of(documents), "") or options.one_namespace()


def _namespaces_of(documents: Iterable[Any]) -> Iterator[str]:
    """The namespaces that manifests name, in their order."""
    for each in documents:
        items = each.get("items") if isinstance(each, dict) and each.get("kind") == "List" else None
        if isinstance(items, list):
            yield from _namespaces_of(items)
        elif isinstance(each, dict) and isinstance(each.get("metadata"), dict):
            found = each["metadata"].get("namespace")
            if isinstance(found, str) and found:
                yield found


def pods_of(document: Any, namespace: str) -> Iterator[dict[str, Any]]:
    """The pods of a manifest: itself, or one for each replica; none of an owner of gangs, whose pods the
    timekeeper knows. Raises CommandError."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind in _CLAIMS:
        return
    if not isinstance(kind, str) or kind not in ("Pod", "List", *_REPLICAS, *GROUPS):
        what = kind if isinstance(kind, str) else "a document without a kind"
        allowed = ", ".join(("Pod", "List", *_REPLICAS, *GROUPS, *_CLAIMS))
        raise CommandError(f"{what} has no pods; allowed: {allowed}")
    if kind == "List":
        for item in sequence(document.get("items")):
            yield from pods_of(item, namespace)
        return
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    if (metadata.get("namespace") or namespace) != namespace:
        raise CommandError(
            f"{kind} {metadata.get('name')} is in namespace {metadata['namespace']}, and {namespace} is"
            " simulated; --namespace names another one"
        )
    if kind == "Pod":
        yield document
        return
    if kind in GROUPS:
        return
    template = mapping(spec.get("template"))
    controller = {"kind": kind, "name": metadata.get("name"), "controller": True}
    count = spec.get(_REPLICAS[kind], 1)
    for at in range(min(count, _ENOUGH) if isinstance(count, int) else 1):
        named = {**mapping(template.get("metadata")), "name": f"{metadata.get('name')}-{at}"}
        if controller["name"]:
            named["ownerReferences"] = [controller]
        yield {"metadata": named, "spec": template.get("spec")}


def claims_of(document: Any) -> Iterator[dict[str, Any]]:
    """The claims and templates of claims of a manifest, which its pods may use."""
    return _of_kinds(document, _CLAIMS)


def owners_of(document: Any) -> Iterator[dict[str, Any]]:
    """The owners of gangs of a manifest."""
    return _of_kinds(document, GROUPS)


def _of_kinds(document: Any, kinds: Container[str]) -> Iterator[dict[str, Any]]:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == "List":
        for item in sequence(document.get("items")):
            yield from _of_kinds(item, kinds)
    elif isinstance(kind, str) and kind in kinds:
        yield document


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
