"""What a command says about a name that nothing knows: that there is no such object, and which names are
near."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from timekeeper.cli.client import Client
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError, PrintedSheet
from timekeeper.core.request.claims import CLAIM
from timekeeper.core.texts import CREATED, NOTHING_RECORDED, gate_sentence

_MOST = "1000"  # rows whose names are compared
_NO_KIND = "doesn't have a resource type"
_RESOURCES = {"Pod": "pods", CLAIM: "resourceclaims"}


def check_subject(client: Client, kubectl: Kubectl, answer: Any) -> None:
    """Raises CommandError where neither the ledger nor the API server knows what this explanation is of.
    Where the API server cannot be asked, the ledger's answer stands."""
    if answer["steps"] or answer["charges"] or any(CREATED in said for said in answer["waitsFor"]):
        return
    namespace, subject = answer["namespace"], answer["subject"]
    kind, _, name = subject.partition("/")
    resource = _RESOURCES.get(kind, kind)
    if _is_there(kubectl, resource, name, "-n", namespace) is not False:
        return
    listed = [f"{kind}/{there}" for there in _names(kubectl, resource, "-n", namespace)]
    near = _near_subject(subject, {*listed, *_in_ledger(client, namespace)})
    raise CommandError(
        f"neither the ledger nor the API server knows {subject} in namespace {namespace}{near}"
    )


def with_suspension(kubectl: Kubectl, sheet: PrintedSheet, answer: Any) -> PrintedSheet:
    """The explanation, first of a controller that it is suspended, and of a pod which gate keeps it, where
    the API server says so: then nothing else could be recorded of it."""
    kind, _, name = answer["subject"].partition("/")
    where = "-n", answer["namespace"]
    said = _gate(kubectl, name, *where) if kind == "Pod" and not answer["charges"] else ""
    if kind not in _RESOURCES and _is_suspended(kubectl, kind, name, *where):
        subject = answer["subject"]
        said = f"{subject} is suspended: until it is resumed it has no pods, and needs no cards or budget"
    if not said:
        return sheet
    answer["waitsFor"].insert(0, said)
    known = (row for row in sheet.rows if not str(row["what"]).startswith(NOTHING_RECORDED))
    return replace(sheet, rows=({"when": "now", "pod": "", "what": said}, *known))


def check_node(client: Client, kubectl: Kubectl, node: str) -> None:
    """Raises CommandError where the map has no such node."""
    if client.get("/v1/cluster", node=node, limit="1")["nodes"]:
        return
    if _is_there(kubectl, "nodes", node):
        raise CommandError(
            f"the map has no card of node {node}: no inventory describes one, or none was reported yet"
        )
    near = _near(node, (known["name"] for known in client.whole("/v1/cluster", "nodes")["nodes"]))
    raise CommandError(f"there is no node {node} on the map{near}")


def _is_there(kubectl: Kubectl, resource: str, name: str, *where: str) -> bool | None:
    """Whether the API server has the object; None: it cannot be asked."""
    try:
        return bool(kubectl.run("get", resource, name, *where, "--ignore-not-found", "-o", "name").strip())
    except CommandError as error:
        return False if _NO_KIND in error.message else None


def _is_suspended(kubectl: Kubectl, resource: str, name: str, *where: str) -> bool:
    """False also where the API server cannot be asked."""
    form = "jsonpath={.spec.suspend}{.spec.runPolicy.suspend}"
    with suppress(CommandError):
        return kubectl.run("get", resource, name, *where, "--ignore-not-found", "-o", form).strip() == "true"
    return False


def _gate(kubectl: Kubectl, name: str, *where: str) -> str:
    """Which gate keeps the pod, "" also where the API server cannot be asked."""
    form = "jsonpath={.spec.schedulingGates[*].name}"
    with suppress(CommandError):
        return gate_sentence(
            kubectl.run("get", "pods", name, *where, "--ignore-not-found", "-o", form).split()
        )
    return ""


def _names(kubectl: Kubectl, resource: str, *where: str) -> list[str]:
    """The names of the API server's objects; none where it cannot be asked."""
    with suppress(CommandError):
        listed = kubectl.run("get", resource, *where, "-o", "name")
        return [line.rpartition("/")[2] for line in listed.split()]
    return []


def _in_ledger(client: Client, namespace: str) -> Iterator[str]:
    """Pods, claims and owners of the namespace as KIND/NAME, as far as the account may read them."""
    for path, rows in (("/v1/sessions", "sessions"), ("/v1/decisions", "decisions")):
        with suppress(CommandError):
            for row in client.get(path, namespace=namespace, limit=_MOST)[rows]:
                kind = CLAIM if row["kind"] == "claim" else "Pod"
                yield from filter(None, (row["pod"] and f"{kind}/{row['pod']}", row["owner"]))


def _near_subject(subject: str, known: Iterable[str]) -> str:
    """Of the same kind, by their names; where there are none, of all."""
    kind, _, name = subject.partition("/")
    same = {other.partition("/")[2] for other in known if other.startswith(f"{kind}/")}
    return _near(name, same) or _near(subject, known)


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, sorted(known))
    return f"; near: {', '.join(near)}" if near else ""
