"""What a command says about a name that nothing knows: that there is no such object, and which names are
near."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from timekeeper.cli.client import Client
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError, PrintedSheet
from timekeeper.core.decisions import HELD, QUEUE
from timekeeper.core.request.claims import CLAIM
from timekeeper.core.texts import CREATED, KUEUES_GATE, NOTHING_RECORDED, gate_sentence

_MOST = "1000"  # rows whose names are compared
_NO_KIND = "doesn't have a resource type"
_RESOURCES = {"Pod": "pods", CLAIM: "resourceclaims"}
_WORKLOADS = ("workload", "workloads", "wl")
_GATES = "{.spec.schedulingGates[*].name}"
# of a Workload: whether it is admitted
_SUSPENDED = '{.spec.suspend}{.spec.runPolicy.suspend}{.status.conditions[?(@.type=="Admitted")].status}'
_QUEUE = r"{.metadata.labels.kueue\.x-k8s\.io/queue-name}{.spec.queueName}"


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


def with_suspension(client: Client, kubectl: Kubectl, sheet: PrintedSheet, answer: Any) -> PrintedSheet:
    """The explanation, first of a controller that it is suspended, and of a pod which gate keeps it, where
    the API server says so: then nothing else could be recorded of it. Then which of Kueue's queues is held,
    also of a Workload that is not admitted."""
    subject = answer["subject"]
    kind, _, name = subject.partition("/")
    where, said, queue = ("-n", answer["namespace"]), "", ""
    if kind == "Pod" and not answer["charges"]:
        gates, queue = _fields(kubectl, "pods", name, _GATES, *where)
        said = gate_sentence(gates.split())
        queue = queue if KUEUES_GATE in said else ""
    elif kind not in _RESOURCES:
        state, queue = _fields(kubectl, kind, name, _SUSPENDED, *where)
        if state == "true":
            said = f"{subject} is suspended: until it is resumed it has no pods, and needs no cards or budget"
        elif state or kind.lower() not in _WORKLOADS:
            queue = ""
    said = "; ".join(filter(None, (said, _held_queue(client, answer["namespace"], queue) if queue else "")))
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


def _fields(kubectl: Kubectl, resource: str, name: str, form: str, *where: str) -> tuple[str, str]:
    """What ``form`` says of the object, and its queue of Kueue; "" also where the API server cannot be
    asked."""
    with suppress(CommandError):
        asked = f"jsonpath={form}|{_QUEUE}"
        said = kubectl.run("get", resource, name, *where, "--ignore-not-found", "-o", asked).strip()
        return said.partition("|")[0], said.partition("|")[2]
    return "", ""


def _held_queue(client: Client, namespace: str, queue: str) -> str:
    """By whose budget Kueue's queue is held; "": by none, as far as the account may read it."""
    with suppress(CommandError):
        path = f"/v1/explain/{quote(namespace)}/{QUEUE}/{quote(queue)}"
        last = next(iter(client.get(path)["steps"][-1:]), None)
        return str(last["sentence"]).rstrip(".") if last and last["kind"] == HELD else ""
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
