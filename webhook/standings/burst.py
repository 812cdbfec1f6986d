"""What one worker has admitted in the last seconds, so that a burst cannot outrun a table that is a second
old.

Each worker counts only itself: with W workers a namespace can be admitted in budget at most W times past what
was left, each time by less than one pod. It is never written anywhere, and it dies with the worker.
"""

from collections import Counter, deque

from timekeeper.core.values import GPURequest

LIFE_MS = 5_000


def cost(request: GPURequest, lookahead_ms: int | None) -> int:
    """What admitting the pod takes of the budget until the table knows of it, in milli-GPU x ms.

    As the timekeeper reserves before a card is known (design D5): the compute share at weight 1, over the
    lookahead; where the table does not tell the lookahead, over the estimate's own life.
    """
    together = alone = 0
    for each in request.asks:
        share_milli = each.ask.devices * each.ask.share_milli
        if each.init:
            alone = max(alone, share_milli)
        else:
            together += share_milli
    return max(together, alone) * (LIFE_MS if lookahead_ms is None else lookahead_ms)


class AdmissionBurst:
    """The admissions of the last five seconds, by namespace. For one thread."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, str, int]] = deque()
        self._sums: Counter[str] = Counter()

    def add(self, namespace: str, amount: int, now_ms: int) -> None:
        """A pod was governed now."""
        self._forget(now_ms)
        self._recent.append((now_ms, namespace, amount))
        self._sums[namespace] += amount

    def spent(self, namespace: str, now_ms: int) -> int:
        """The sum of what is not yet five seconds old."""
        self._forget(now_ms)
        return self._sums[namespace]

    def _forget(self, now_ms: int) -> None:
        """Whatever is older goes, whosever it is: a namespace may never come again."""
        while self._recent and now_ms - self._recent[0][0] >= LIFE_MS:
            _, namespace, amount = self._recent.popleft()
            self._sums[namespace] -= amount
            if not self._sums[namespace]:
                del self._sums[namespace]
