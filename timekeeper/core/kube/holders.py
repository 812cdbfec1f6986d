"""Who is really on a node's cards, as its agent tells: the one reading of ``bursar.dev/holders``, for
extender and ledger alike."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from timekeeper.core import names
from timekeeper.core.request.cards import UndecodableError
from timekeeper.core.request.request import annotations_of, mapping

MOST_CLOSED = 400  # characters of the agent's own sentence


@dataclass(frozen=True, slots=True)
class NodeHolders:
    """What a node's agent says (`wire.Holders`): the boot that it speaks of; whether it has seen everything
    since it began, for before that what it does not list says nothing; the pods whose GPU containers are
    there, by UID, with the cards that it knows them to have; and why no card is to be given out, or ""."""

    boot: str
    known: bool
    pods: Mapping[str, tuple[str, ...]]
    closed: str = ""


UNREADABLE_HOLDERS = NodeHolders("", False, {})  # there is an agent, and nothing follows from its words


def read_holders(node: Mapping[str, Any]) -> NodeHolders | None:
    """What the agent of a Node's JSON says of its present boot; None where it says nothing, or speaks of a
    boot before the one that the kubelet runs on. A node that was closed then stays so until the agent has
    looked again. Raises UndecodableError."""
    text = annotations_of(node).get(names.HOLDERS)
    if text is None:
        return None
    present = decode_holders(str(text))
    boot = kubelets_boot(node)
    if not boot or not present.boot or boot == present.boot:
        return present
    return replace(UNREADABLE_HOLDERS, closed=present.closed) if present.closed else None


def kubelets_boot(node: Mapping[str, Any]) -> str:
    """The boot ID that the kubelet wrote into the Node's status, "" where it wrote none."""
    boot = mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID")
    return boot if isinstance(boot, str) else ""


def decode_holders(text: str) -> NodeHolders:
    """The annotation's text. Raises UndecodableError where it is not the JSON of `wire.Holders`."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"holders: not JSON: {error}") from error
    if not isinstance(whole, dict) or whole.get("version") != 1:
        raise UndecodableError("holders: not version 1")
    boot, known, pods, closed = (whole.get(key) for key in ("boot", "known", "pods", "closed"))
    if not isinstance(boot, str) or not isinstance(known, bool) or not isinstance(closed, str):
        raise UndecodableError("holders: boot, known or closed is missing")
    if not isinstance(pods, dict):
        raise UndecodableError("holders: pods is no object")
    return NodeHolders(
        boot, known, {uid: _cards(uid, cards) for uid, cards in pods.items()}, closed[:MOST_CLOSED]
    )


def _cards(uid: str, cards: object) -> tuple[str, ...]:
    if not uid or not isinstance(cards, list) or not all(isinstance(each, str) for each in cards):
        raise UndecodableError("holders: a pod without UID, or whose cards are no UUIDs")
    return tuple(cards)
