"""What one worker has admitted in the last seconds, so that a burst cannot outrun a table that is a second
old.

Each worker counts only itself: with W workers a namespace can be admitted in budget at most W times past what
was left, each time by less than one pod. It is never written anywhere, and it dies with the worker.
"""

from collections import deque

from timekeeper.core.values import GPURequest

LIFE_MS = 5_000


def cost(request: GPURequest, lookahead_ms: int | None) -> int:
    """What admitting the pod takes of the budget until the table knows of it, in milli-GPU x ms.

    As the timekeeper reserves before a card is known (design D5): the compute share at weight 1, over the
    lookahead; where the table does not tell the lookahead, over the estimate's own life.
    """
    together = sum(each.ask.devices * each.ask.share_milli for each in request.asks if not each.init)
    alone = max((each.ask.devices * each.ask.share_milli for each in request.asks if each.init), default=0)
    return max(together, alone) * (LIFE_MS if lookahead_ms is None else lookahead_ms)


class Admitted:
    """The admissions of the last five seconds, by namespace. For one thread."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[tuple[int, int]]] = {}
        self._sums: dict[str, int] = {}

    def add(self, namespace: str, amount: int, now_ms: int) -> None:
        """A pod was governed now."""
        self._recent.setdefault(namespace, deque()).append((now_ms, amount))
        self._sums[namespace] = self._sums.get(namespace, 0) + amount

    def spent(self, namespace: str, now_ms: int) -> int:
        """The sum of what is not yet five seconds old; the rest is forgotten."""
        recent = self._recent.get(namespace)
        if recent is None:
            return 0
        while recent and now_ms - recent[0][0] >= LIFE_MS:
            self._sums[namespace] -= recent.popleft()[1]
        if not recent:
            del self._recent[namespace], self._sums[namespace]
            return 0
        return self._sums[namespace]
