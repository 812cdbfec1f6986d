"""What other roles find wrong, as each posted it last; and, as the row of a role that finds nothing wrong,
what the settler saw to be free. Nothing is decided by it."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from sqlalchemy import bindparam, case, select

from timekeeper.core.free_cards import NodeFree
from timekeeper.core.json_values import Json
from timekeeper.store.engine.engine import Connection, Upsert, Written, write_all
from timekeeper.store.engine.schema import ROLE_FINDINGS
from timekeeper.wire.findings import PostedFindings

_LIST = Upsert(ROLE_FINDINGS, ("body", "received_ms"))
_FREE = "free"  # an earlier release reads its list alone
_NEWEST = select(
    ROLE_FINDINGS.c.received_ms,
    case((ROLE_FINDINGS.c.received_ms != bindparam("known"), ROLE_FINDINGS.c.body)).label("body"),
).where(ROLE_FINDINGS.c.role == _FREE)


class FreeSeen(NamedTuple):
    """``at_ms``: when the last look was that found a change, 0: there was none; ``nodes``: those that are
    alike, and how many; ``devices_ms``: before when no device of claims is free, 0: that is not known, -1:
    one is, or there is none."""

    at_ms: int = 0
    nodes: tuple[tuple[NodeFree, int], ...] = ()
    devices_ms: int = -1


NOT_SEEN = FreeSeen()


def replaced(role: str, findings: PostedFindings | Json, received_ms: int) -> Written:
    """What replaces the role's list. ``findings``: also as `timekeeper.core.findings.published`."""
    body = msgspec.json.encode(findings).decode()
    return _LIST, [{"role": role, "body": body, "received_ms": received_ms}]


def record(connection: Connection, role: str, findings: PostedFindings | Json, received_ms: int) -> None:
    """Replace the role's list."""
    write_all(connection, [replaced(role, findings, received_ms)])


def lists(connection: Connection, role: str = "") -> dict[str, tuple[int, PostedFindings]]:
    """Role -> when its list came, and the list; of this role, "": of all."""
    query = select(ROLE_FINDINGS).where(ROLE_FINDINGS.c.role != _FREE).order_by(ROLE_FINDINGS.c.role)
    rows = connection.execute(query.where(ROLE_FINDINGS.c.role == role) if role else query)
    return {row.role: (row.received_ms, msgspec.json.decode(row.body, type=PostedFindings)) for row in rows}


def record_free(connection: Connection, nodes: Mapping[NodeFree, int], devices_ms: int, now_ms: int) -> None:
    """Replace what was free before."""
    sets = {labels: at for at, labels in enumerate(dict.fromkeys(node.labels for node in nodes))}
    rows = [(sets[node.labels], count, *node[1:]) for node, count in nodes.items()]
    body: Json = {"findings": [], "more": {}, "labels": list(sets), "nodes": rows, "devices": devices_ms}
    record(connection, _FREE, body, now_ms)


def free(connection: Connection, known: FreeSeen = NOT_SEEN) -> FreeSeen:
    """What was free at the last look. ``known``: an earlier answer."""
    row = connection.execute(_NEWEST, {"known": known.at_ms}).first()
    if row is None or row.body is None:
        return NOT_SEEN if row is None else known
    body = msgspec.json.decode(row.body)
    sets = [tuple(map(tuple, labels)) for labels in body["labels"]]
    nodes = tuple(
        (NodeFree(sets[at], vague, tuple(map(tuple, models))), count)
        for at, count, vague, models in body["nodes"]
    )
    return FreeSeen(row.received_ms, nodes, body["devices"])
