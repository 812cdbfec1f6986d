"""For which gang cards are kept empty, and until when. Pure.

One gang at a time has a drain: of those that lack cards and have waited long enough, the one with the fewest
failed drains, of these the first by priority and age. After each drain none begins for as long as it lasted,
so others have at least half of the time. Each that failed is followed by one twice as long for the same
gang, up to four times the first.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from scheduler_ext.snapshot.gang_table import GangKey, GangState

MAX_DOUBLED = 2  # the longest drain is 4 times the first

End = Literal["fit", "over", "none", "gone"]
ENDS: tuple[End, ...] = ("fit", "over", "none", "gone")


@dataclass(slots=True)
class DrainTurns:
    """``after_ms``: how long a gang waits before; ``first_ms``: how long its first drain lasts at most, 0:
    there are none. ``key``: of the gang that has the drain, "": none; ``until_ms``: when it ends at the
    latest; ``ended``: how many ended in each way."""

    after_ms: int
    first_ms: int
    key: GangKey = ""
    until_ms: int = 0
    ended: dict[End, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    _began_ms: int = 0
    _rests_ms: int = 0  # no drain begins before
    # key -> how many drains failed, and until when there is none although others may have one
    _failed: dict[GangKey, tuple[int, int]] = field(default_factory=dict)

    def follow(self, gangs: Mapping[GangKey, GangState], lacking: Set[GangKey], now_ms: int) -> None:
        """End the drain that is over, or begin one. ``lacking``: the gangs for which cards were missing when
        they were planned last."""
        self._failed = {key: past for key, past in self._failed.items() if key in gangs}
        if self.key and self.key not in gangs:
            self.end("gone", now_ms)
        elif self.key and now_ms >= self.until_ms:
            self.end("over", now_ms)
        elif not self.key and self.first_ms and now_ms >= self._rests_ms:
            self._begin(gangs, lacking, now_ms)

    def end(self, how: End, now_ms: int) -> None:
        """The drain is over: its gang has its cards (``fit``), or is gone, or its time is (``over``), or
        nothing can be kept for it (``none``)."""
        if how in ("over", "none"):
            count, _ = self._failed.get(self.key, (0, 0))
            rests_ms = now_ms + self._length_ms(count) if how == "none" else 0
            self._failed[self.key] = count + 1, rests_ms
        self._rests_ms = now_ms + (now_ms - self._began_ms)
        self.key, self.until_ms = "", 0
        self.ended[how] += 1

    def _begin(self, gangs: Mapping[GangKey, GangState], lacking: Set[GangKey], now_ms: int) -> None:
        waiting = [gangs[key] for key in lacking if key in gangs and self._may_have(gangs[key], now_ms)]
        if waiting:
            first = min(waiting, key=self._order)
            count, _ = self._failed.get(first.key, (0, 0))
            self.key, self._began_ms = first.key, now_ms
            self.until_ms = now_ms + self._length_ms(count)

    def _may_have(self, gang: GangState, now_ms: int) -> bool:
        _, rests_ms = self._failed.get(gang.key, (0, 0))
        return now_ms >= max(gang.first.asked_ms + self.after_ms, rests_ms)

    def _order(self, gang: GangState) -> tuple[int, int, int, str]:
        count, _ = self._failed.get(gang.key, (0, 0))
        return count, -min(pod.priority for pod in gang.waiting), gang.first.asked_ms, gang.key

    def _length_ms(self, failed: int) -> int:
        return self.first_ms << min(MAX_DOUBLED, failed)
