"""The usage reports that the timekeeper has not acknowledged, as text for the spool folder. Pure.

The intervals have the same cards and pods, so their names are written once and numbered: 50,000 figures take
less than 1 MiB.
"""

from __future__ import annotations

from sidecar.node.state.reports import MAX_WAITING, UsageInterval
from sidecar.node.state.use import PodLoad, UsageReading
from sidecar.node.values import CardLoad
from timekeeper.edge import saved_outbox
from timekeeper.edge.saved_outbox import whole
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from timekeeper.edge.outbox import Left, Post

FILE = "uses.json"
_MAX_FIGURE = 2**53


def encode(post: Post[UsageInterval] | None, waiting: Sequence[UsageInterval], node_boot: str) -> str:
    """The text. ``node_boot``: the ID of the boot that the moments count from."""
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    def cards(loads: tuple[CardLoad, ...]) -> list[Any]:
        return [(number(load.uuid), load.utilisation, load.memory_mib) for load in loads]

    def written(use: UsageInterval) -> list[Any]:
        pods = [(number(pod.uid), cards(pod.cards)) for pod in use.measured.pods]
        return [use.at_ms, cards(use.measured.cards), pods]

    return saved_outbox.encode(post, waiting, node_boot, "uses", written, lambda: {"names": list(names)})


def decode(text: str, node_boot: str, now_ms: int) -> Left[UsageInterval]:
    """The post in flight and the waiting intervals. Raises ValueError, with the reason, for any other
    text."""
    return saved_outbox.decode(
        text, node_boot, "uses", lambda read: _reader(read["names"], now_ms), MAX_WAITING
    )


def _reader(names: Any, now_ms: int) -> Callable[[Any], UsageInterval]:
    if not all(type(name) is str for name in names):
        raise TypeError

    def cards(rows: list[Any]) -> tuple[CardLoad, ...]:
        return tuple(CardLoad(name(at), _figure(rate), _figure(mib)) for at, rate, mib in rows)

    def name(at: object) -> str:
        found: str = names[whole(at, len(names))]
        return found

    def use(read: Any) -> UsageInterval:
        at_ms, loads, pods = read
        seen = tuple(PodLoad(name(at), cards(rows)) for at, rows in pods)
        return UsageInterval(whole(at_ms, now_ms), UsageReading(seen, cards(loads)))

    return use


def _figure(read: object) -> int | None:
    return None if read is None else whole(read, _MAX_FIGURE)
