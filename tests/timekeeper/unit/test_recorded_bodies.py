"""Bodies that were read before msgspec, good, bad and made at random, with what was said of each: the same is
said now, but where the row says what else and why."""

import base64
import hashlib
import json
import lzma
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from timekeeper.accounts.grants import CORRECTION
from timekeeper.api import months
from timekeeper.api.resources import (
    bindings,
    cluster_map,
    decisions,
    ends,
    heartbeats,
    legacy_gpusharing,
    node_usage,
)
from timekeeper.api.resources.grants import granted, read_grant
from timekeeper.api.resources.group_grants import read_passing_on
from timekeeper.api.resources.simulated import bodies as simulated
from timekeeper.runtime.http.problem_details import Problem

RECORDED = Path(__file__).parents[1] / "recorded/bodies.jsonl.xz"
NOW = 10**12


def correction(body: bytes) -> object:
    new = months.BODY.read(body)
    return [new.namespace, new.month or "", new.pod or "", granted(new, CORRECTION), new.reason]


def minutes(body: bytes) -> object:
    new = legacy_gpusharing._INCREASE.read(body)
    return [int(Decimal(bytes(new.minutes).decode()) * legacy_gpusharing.GPU_MINUTE), new.reason]


def grant(body: bytes) -> object:
    new = read_grant(body)
    return [new.subject, new.giver, new.amount, new.reason, new.kind]


def passed_on(body: bytes) -> object:
    new = read_passing_on(body)
    return [new.namespace, new.amount, new.reason]


READ: dict[str, Callable[[bytes], object]] = {
    "heartbeats": heartbeats.BODY.read,
    "node usage": node_usage.BODY.read,
    "bindings": lambda body: bindings.read_bindings(body, NOW) and bindings.BODY.read(body),
    "ends": ends.BODY.read,
    "decisions": decisions.BODY.read,
    "cluster": cluster_map.BODY.read,
    "simulation": lambda body: simulated.read_simulation(body) and simulated.BODY.read(body),
    "grant": grant,
    "passing on": passed_on,
    "correction": correction,
    "minutes": minutes,
}


def recorded() -> Iterator[tuple[str, bytes, Any, Any, str]]:
    """Route, body, what was said of it, what is said now, and the name of the difference, "" without one."""
    with lzma.open(RECORDED, "rt") as file:
        for row in map(json.loads, file):
            body = row["text"].encode() if "text" in row else base64.b64decode(row["base64"])
            yield row["route"], body, row["before"], row.get("now", row["before"]), row.get("why", "")


def verdict(route: str, body: bytes) -> Any:
    """A digest of what is read, or the field and the sentence."""
    try:
        read = READ[route](body)
    except Problem as problem:
        return [problem.where, problem.detail]
    text = json.dumps(lean(msgspec.to_builtins(read)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lean(read: Any) -> Any:
    """Without what is as if it were absent."""
    if isinstance(read, dict):
        return {name: lean(each) for name, each in read.items() if each not in (None, "", {}, [], 0)}
    return [lean(each) for each in read] if isinstance(read, list) else read


@pytest.mark.parametrize("route", READ)
def test_of_each_recorded_body_is_said_what_was_said_before(route: str) -> None:
    wrong = [
        (body, now, found)
        for name, body, _, now, _ in recorded()
        if name == route and (found := verdict(route, body)) != now
    ]

    assert wrong == []


def test_what_was_taken_and_refused_changes_for_named_reasons_only() -> None:
    turned = {why for _, _, before, now, why in recorded() if isinstance(before, str) != isinstance(now, str)}

    assert turned == {"unread", "true", "mark", "ended"}
