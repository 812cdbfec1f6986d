"""Those who wait, in the order of their turns, kept so that nobody is sorted while kube-scheduler waits."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from scheduler_ext.model.standing import UNHEARD, Standings
from scheduler_ext.waiting.order import ANYWHERE, Turn, Waiter, turn


class Turns:
    """Waiters by UID and by turn, where no cards are held for any. Not safe for threads by itself."""

    def __init__(self) -> None:
        self._waiters: dict[str, Waiter] = {}
        self._turns: dict[str, Turn] = {}
        self._order: list[Turn] = []
        self._standings = UNHEARD

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiters

    def get(self, uid: str) -> Waiter | None:
        """The waiter of this UID."""
        return self._waiters.get(uid)

    def all(self) -> list[Waiter]:
        """In the order in which they came."""
        return list(self._waiters.values())

    def put(self, waiting: Waiter) -> None:
        """This one waits, or is now as given."""
        uid, its = waiting.pod.uid, turn(waiting.pod, ANYWHERE, self._standings)
        self._waiters[uid] = waiting
        if self._turns.get(uid) != its:
            self._out_of_order(uid)
            self._turns[uid] = its
            insort(self._order, its)

    def discard(self, uids: Iterable[str]) -> None:
        """These wait no more."""
        for uid in uids:
            if self._waiters.pop(uid, None) is not None:
                self._out_of_order(uid)

    def some(
        self, standings: Standings, most: int, after: Turn | None = None, before: Turn | None = None
    ) -> list[Waiter]:
        """Those whose turn comes after the one and before the other, at most so many, the first one first."""
        if standings is not self._standings:
            self._standings = standings
            self._turns = {uid: turn(each.pod, ANYWHERE, standings) for uid, each in self._waiters.items()}
            self._order = sorted(self._turns.values())
        start = 0 if after is None else bisect_right(self._order, after)
        end = len(self._order) if before is None else bisect_left(self._order, before)
        return [self._waiters[its[-1]] for its in self._order[start : min(end, start + most)]]

    def _out_of_order(self, uid: str) -> None:
        its = self._turns.pop(uid, None)
        if its is not None:
            del self._order[bisect_left(self._order, its)]
