"""For whose pods others were held back from a node, and since when.

The extender does not know whether kube-scheduler will bind the pod that is first in turn: affinity to other
pods, ports or volumes may keep it off. And its namespace may free cards of the node again and again. So for a
namespace's pods others are held back from a node for one second in ten.
"""

from collections.abc import Iterable

HOLD_BACK_S = 1.0
HOLD_BACK_AGAIN_S = 10.0
MAX_KNOWN = 10_000  # nodes and namespaces; beyond that the earliest are forgotten


class HoldBacks:
    """Times are seconds of one monotonic clock. One thread at a time calls `note`; `may` may be called beside
    it."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def may(self, node: str, namespace: str, now_s: float) -> bool:
        """Whether others may be held back from the node for a pod of this namespace."""
        since = self._since.get((node, namespace))
        return since is None or not HOLD_BACK_S < now_s - since < HOLD_BACK_AGAIN_S

    def note(self, held: Iterable[tuple[str, str]], now_s: float) -> None:
        """Others are held back now, by node and namespace."""
        for each in held:
            since = self._since.get(each)
            if since is None or now_s - since >= HOLD_BACK_AGAIN_S:
                self._since.pop(each, None)
                self._since[each] = now_s
        while len(self._since) > MAX_KNOWN:
            del self._since[next(iter(self._since))]
