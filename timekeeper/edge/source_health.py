"""What is wrong with one source, a collection that a role follows: that it does not get on, and objects that
our reader fails on."""

from __future__ import annotations

from timekeeper.edge.clock import moment
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from timekeeper.edge.log_events import EventLog, OfSources

STUCK_MS = 120_000
RESTORED_MS = 24 * 3_600_000  # for so long a restore of etcd is said
_LONGEST = 200  # characters of a reason


@value
class UnreadObject:
    """An object that is skipped, and why."""

    kind: str
    namespace: str
    name: str
    reason: str


class SourceHealth:
    """Of the source ``name``. The thread that follows it writes; others read. ``now_ms``: a clock."""

    def __init__(self, name: str, log: EventLog[OfSources], now_ms: Callable[[], int]) -> None:
        self.name, self.log, self._now_ms = name, log, now_ms
        self.unread: dict[str, UnreadObject] = {}  # by UID
        self._failing: tuple[int, str] | None = None  # since when, and why
        self._restored_ms: int | None = None

    def failed(self, why: str) -> None:
        """It is not whole, from the first failure on."""
        self._failing = self._failing[0] if self._failing else self._now_ms(), why

    def is_whole(self) -> None:
        """It was listed, and its changes arrive."""
        self._failing = None

    def stuck(self) -> tuple[int, str] | None:
        """Since when and why, where it has not been whole for two minutes."""
        failing = self._failing
        return failing if failing and self._now_ms() - failing[0] >= STUCK_MS else None

    def went_back(self) -> None:
        """Its versions are older than those that were seen: etcd was restored from a backup."""
        self._restored_ms = self.restored_ms() or self._now_ms()

    def restored_ms(self) -> int | None:
        """When it went back, within the last day."""
        at_ms = self._restored_ms
        return at_ms if at_ms is not None and self._now_ms() - at_ms < RESTORED_MS else None

    def skip(self, uid: str, item: Mapping[str, Any], error: Exception) -> None:
        """The reader fails on this object: the log has it once."""
        metadata = item.get("metadata")
        names = metadata if isinstance(metadata, dict) else {}
        reason = f"{type(error).__name__}: {error}"[:_LONGEST]
        skipped = UnreadObject(
            str(item.get("kind") or self.name),
            str(names.get("namespace") or ""),
            str(names.get("name")),
            reason,
        )
        if uid not in self.unread:
            self.log(
                "object-unread",
                level="warning",
                kind=skipped.kind,
                namespace=skipped.namespace,
                name=skipped.name,
                reason=reason,
            )
        self.unread[uid] = skipped


def readiness_lines(sources: Iterable[SourceHealth]) -> Iterator[str]:
    """For ``/readyz``: no names of objects, for it needs no token."""
    for source in sources:
        if stuck := source.stuck():
            yield f"watch of {source.name}: it has not got on since {moment(stuck[0])}Z"
        if unread := len(source.unread):
            yield f"watch of {source.name}: {unread} objects are skipped"
