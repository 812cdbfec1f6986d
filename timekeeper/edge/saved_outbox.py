"""An outbox on disk, for a process with an event loop: its records outlive the process, but not the pod.

Moments are milliseconds of the node's boot clock, which a restart of the process does not change; they become
ages when a post is sent. The file is replaced before a post is sent, so a process that is killed in between
repeats the same post: no record is lost, and none is counted twice. Of too many records the one goes whose
absence leaves the smallest gap, but never the first or the last: they still cover the same time.
"""

from __future__ import annotations

import json
import re

from timekeeper.edge.outbox import Outbox, Post, R
from timekeeper.edge.value import TYPE_CHECKING, Of, value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from timekeeper.edge.outbox import Left, OutboxLimits, Result

    class Timed(Protocol):
        """A record with its moment."""

        @property
        def at_ms(self) -> int: ...


FIRST_PAUSE_MS = 1_000
MAX_PAUSE_MS = 60_000
MAX_SEQUENCE = 2**53
_VERSION = 1
_BOOT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


@value
class OutboxPorts(Of[R]):
    """The effects of a `SavedOutbox`."""

    post: Callable[[Post[R]], None]  # starts a post; its end is passed to `on_posted`
    # replaces the saved post in flight and the waiting records on the disk; False if that failed
    save: Callable[[Post[R] | None, Sequence[R]], bool]


class SavedOutbox(Outbox[R]):
    """Call `tick` after each event and at `due_ms`."""

    def __init__(
        self,
        ports: OutboxPorts[R],
        limits: OutboxLimits[R],
        notice: Callable[[Result, Sequence[R], str], None],
        boot: str,
        left: Left[R] = (None, ()),
    ) -> None:
        super().__init__(limits, notice, boot, left)
        self._ports = ports
        self.is_saved = True

    def tick(self, now_ms: int) -> None:
        """Save what has changed, and start the post that is due."""
        post = self.next(now_ms)
        if self.is_changed:
            self.is_changed = False
            self.is_saved = self._ports.save(self.post, self.waiting)
        if post:
            self.start()
            self._ports.post(post)


def pause_ms(failures: int, fraction: float) -> int:
    """The pause after this number of failures in a row: it doubles from 1 s to 60 s, its upper half random.
    ``fraction``: a random number from 0 to 1."""
    most = min(MAX_PAUSE_MS, FIRST_PAUSE_MS << min(failures - 1, 16))
    return most // 2 + int(most * fraction / 2)


def smallest_gap(records: Sequence[Timed]) -> int:
    """The place of the record whose absence leaves the smallest gap, of three or more; neither the first nor
    the last."""
    gaps = ((records[at + 1].at_ms - records[at - 1].at_ms, at) for at in range(1, len(records) - 1))
    return min(gaps)[1]


def encode(
    post: Post[R] | None,
    waiting: Sequence[R],
    node_boot: str,
    key: str,
    written: Callable[[R], object],
    more: Callable[[], dict[str, object]] = dict,
) -> str:
    """The text for the disk. ``node_boot``: the ID of the boot that the moments count from; ``key``: of the
    post's records; ``more``: called last, for further fields."""
    sent = post and {
        "boot": post.boot,
        "sequence": post.sequence,
        key: [written(record) for record in post.records],
    }
    whole = {"version": _VERSION, "node_boot": node_boot, "post": sent}
    whole["waiting"] = [written(record) for record in waiting]
    return json.dumps({**whole, **more()}, separators=(",", ":"))


def decode(
    text: str, node_boot: str, key: str, reader: Callable[[dict[str, Any]], Callable[[Any], R]], most: int
) -> Left[R]:
    """The post in flight and the waiting records, at most ``most`` of each. ``reader``: makes, from all that
    the text says, what reads a record; both raise ValueError, TypeError or LookupError for another form.
    Raises ValueError, with the reason, for any other text, and for one of another boot of the node: its
    records have no age."""
    try:
        read = json.loads(text)
        if read["version"] == _VERSION and read["node_boot"] == node_boot:
            record = reader(read)
            waiting = tuple(map(record, rows(read["waiting"], most)))
            return _post(read["post"], key, record, most) if read["post"] else None, waiting
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ValueError("it contains no records") from None
    raise ValueError("it is from another boot of the node or another version")


def whole(read: Any, most: int) -> int:
    """A whole number from 0 to ``most``. Raises ValueError for anything else."""
    if type(read) is not int or not 0 <= read <= most:
        raise ValueError
    return read


def rows(read: Any, most: int) -> list[Any]:
    """A list of at most ``most``. Raises ValueError for anything else."""
    if type(read) is not list or len(read) > most:
        raise ValueError
    return read


def _post(read: dict[str, Any], key: str, record: Callable[[Any], R], most: int) -> Post[R]:
    boot, records = read["boot"], tuple(map(record, rows(read[key], most)))
    if type(boot) is not str or not _BOOT.fullmatch(boot) or not records:
        raise ValueError
    return Post(boot, whole(read["sequence"], MAX_SEQUENCE), records)
