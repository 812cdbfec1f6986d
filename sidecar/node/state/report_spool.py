"""Writes and reads the usage reports that the timekeeper has not acknowledged, as text for the spool folder.
Pure.

The intervals have the same cards and pods, so their names are written once and numbered: 50,000 figures take
less than 1 MiB. Moments are milliseconds of the node's boot clock, which a restart of the agent does not
change.
"""

from __future__ import annotations

import json

from sidecar.node.state.reports import MAX_WAITING, UsageInterval, UsagePost, fold
from sidecar.node.state.use import PodLoad, UsageReading
from sidecar.node.values import CardLoad
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FILE = "uses.json"


def encode(post: UsagePost | None, waiting: tuple[UsageInterval, ...], node_boot: str) -> str:
    """The text. ``node_boot``: the ID of the boot that the moments count from."""
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    sent = post and {
        "boot": post.boot,
        "sequence": post.sequence,
        "uses": [_written(each, number) for each in post.uses],
    }
    whole = {
        "version": 1,
        "node_boot": node_boot,
        "post": sent,
        "waiting": [_written(each, number) for each in waiting],
    }
    return json.dumps({**whole, "names": list(names)}, separators=(",", ":"))


def decode(text: str, node_boot: str, now_ms: int) -> tuple[UsagePost | None, tuple[UsageInterval, ...]]:
    """The post in flight and the waiting intervals. Raises ValueError, with the reason, for any other text,
    and for one of another boot of the node: its intervals have no age."""
    try:
        read = json.loads(text)
        if read["version"] != 1 or read["node_boot"] != node_boot:
            raise _FromElsewhere
        names = [_of(str, each) for each in read["names"]]
        sent = read["post"]
        post = sent and UsagePost(
            _of(str, sent["boot"]), _whole(sent["sequence"]), _uses(sent["uses"], names, now_ms)
        )
        waiting = _uses(read["waiting"], names, now_ms)
        if post and not post.uses:
            raise ValueError
    except _FromElsewhere:
        raise ValueError("it is from another boot of the node or another version") from None
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ValueError("it contains no reports") from None
    return post or None, fold(waiting, MAX_WAITING)


class _FromElsewhere(Exception):
    """The text is valid, but of another boot or version."""


def _written(use: UsageInterval, number: Callable[[str], int]) -> list[Any]:
    def cards(loads: tuple[CardLoad, ...]) -> list[Any]:
        return [(number(each.uuid), each.utilisation, each.memory_mib) for each in loads]

    pods = [(number(pod.uid), cards(pod.cards)) for pod in use.measured.pods]
    return [use.at_ms, cards(use.measured.cards), pods]


def _uses(read: list[Any], names: list[str], now_ms: int) -> tuple[UsageInterval, ...]:
    def cards(rows: list[Any]) -> tuple[CardLoad, ...]:
        return tuple(CardLoad(names[_whole(at)], _figure(rate), _figure(mib)) for at, rate, mib in rows)

    def use(at_ms: int, loads: list[Any], pods: list[Any]) -> UsageInterval:
        seen = tuple(PodLoad(names[_whole(at)], cards(rows)) for at, rows in pods)
        if _whole(at_ms) > now_ms:
            raise ValueError
        return UsageInterval(at_ms, UsageReading(seen, cards(loads)))

    return tuple(use(*each) for each in read)


def _figure(read: object) -> int | None:
    return None if read is None else _whole(read)


def _whole(read: Any) -> int:
    number: int = _of(int, read)
    if number < 0:
        raise ValueError
    return number


def _of(kind: type, read: Any) -> Any:
    if type(read) is not kind:
        raise TypeError
    return read
