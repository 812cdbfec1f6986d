"""Which pods are on a node's cards, as reported by its agent: the reader of ``bursar.dev/holders`` for
extender and ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.core import names
from timekeeper.core.json_values import annotations_of, decoded, mapping, sequence
from timekeeper.core.values import UndecodableError

MAX_CLOSED = 400  # characters


@dataclass(frozen=True, slots=True)
class NodeHolders:
    """What a node's agent reports (`wire.Holders`)."""

    boot: str  # the boot ID that the report is about
    known: bool  # the agent has completed a full scan; before that an absent pod proves nothing
    # UID -> UUIDs of its cards, for the pods whose GPU containers are on the node
    pods: Mapping[str, tuple[str, ...]]
    closed: str = ""  # why no card may be allocated; "": they may


UNREADABLE_HOLDERS = NodeHolders("", False, {})  # there is an agent, but its report proves nothing


def read_holders(node: Mapping[str, Any]) -> NodeHolders | None:
    """The agent's report about the node's present boot; None without a report, or if it is about an earlier
    boot than the kubelet's. A node that was closed then stays closed until the agent reports again. Raises
    UndecodableError."""
    text = annotations_of(node).get(names.HOLDERS)
    if text is None:
        return None
    present = decode_holders(str(text))
    boot = kubelets_boot(node)
    if not boot or not present.boot or boot == present.boot:
        return present
    return replace(UNREADABLE_HOLDERS, closed=present.closed) if present.closed else None


def fresh_holders(node: Mapping[str, Any]) -> NodeHolders | None:
    """The agent's report while it is *fresh*: it is about the present boot, it can be read, and the node is
    not silent. Only a fresh report says whether a pod without an object is still there. Never raises."""
    if is_silent(node):
        return None
    try:
        return read_holders(node)
    except UndecodableError:
        return None


def is_silent(node: Mapping[str, Any]) -> bool:
    """True if the Node's condition Ready is Unknown: its kubelet has not renewed its Lease for
    kube-controller-manager's ``--node-monitor-grace-period``."""
    return ready_status(node) == "Unknown"


def ready_status(node: Mapping[str, Any]) -> str:
    """The status of the Node's condition Ready; "": it has none."""
    conditions = map(mapping, sequence(mapping(node.get("status")).get("conditions")))
    return next((str(each.get("status")) for each in conditions if each.get("type") == "Ready"), "")


def kubelets_boot(node: Mapping[str, Any]) -> str:
    """The boot ID in the Node's status, written by the kubelet; "" if absent."""
    boot = mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID")
    return boot if isinstance(boot, str) else ""


def decode_holders(text: str) -> NodeHolders:
    """Decodes the annotation. Raises UndecodableError if it is not the JSON of `wire.Holders`."""
    try:
        whole = decoded(text)
    except ValueError as error:
        raise UndecodableError(f"holders: not JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("version") != 1:
        raise UndecodableError("holders: not version 1")
    boot, known, pods, closed = (whole.get(key) for key in ("boot", "known", "pods", "closed"))
    if not isinstance(boot, str) or not isinstance(known, bool) or not isinstance(closed, str):
        raise UndecodableError("holders: boot, known or closed is missing")
    if not isinstance(pods, dict):
        raise UndecodableError("holders: pods is not an object")
    return NodeHolders(
        boot, known, {uid: _cards(uid, cards) for uid, cards in pods.items()}, closed[:MAX_CLOSED]
    )


def _cards(uid: str, cards: object) -> tuple[str, ...]:
    if not uid or not isinstance(cards, list) or not all(isinstance(each, str) for each in cards):
        raise UndecodableError("holders: a pod without UID, or with cards that are not UUIDs")
    return tuple(cards)
