"""Evicts pods whose claims hold more GPUs than the pods were judged for.

A user with the right to edit claims can replace one while its pod waits, and the pod was judged for the
former. What it holds then is neither within its caps nor known to be allowed, so it leaves at once.
"""

from collections.abc import Mapping
from dataclasses import replace

from timekeeper import metrics
from timekeeper.accounts.claims.excess import ClaimExcess
from timekeeper.accounts.exhaustion.evictions import Pods
from timekeeper.core.kube.eviction import EVICTION_RESULTS
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import evict_together
from timekeeper.settler.evictions.rounds import WRITTEN_MS
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import fencing

EXCESS_S = 1.0  # between two rounds


class ExcessRound:
    """Used by one thread for as long as the epoch lasts. A pod is tried again if it is there after a
    while."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._tried_ms: dict[str, int] = {}  # UID -> when its eviction was tried last
        for result in EVICTION_RESULTS:
            metrics.CLAIM_EXCESS_EVICTIONS.labels(result)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return EXCESS_S

    def step(self) -> None:
        """Evict what is due: all such pods of one claim, or none. Raises as `OveruseRound.step`."""
        at_ms = self._context.steady()
        self._tried_ms = {uid: each for uid, each in self._tried_ms.items() if at_ms - each < WRITTEN_MS}
        view = self._context.view()
        found = self._enforced(view)
        if found.keys() <= self._tried_ms.keys():
            return
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
        units = view.units(left=self._tried_ms.keys())
        for uid, each in found.items():
            if uid in self._tried_ms:
                continue
            whole = units.least(_sharing(each, found))
            leaving = [pod for pod in whole if pod.uid in found or pod.is_staying]
            self._tried_ms |= {pod.uid: at_ms for pod in leaving}
            whys = [(pod, reasons.excess(pod, found.get(pod.uid, each))) for pod in leaving]
            evict_together(self._context, whys)

    def _enforced(self, view: TickView) -> Mapping[str, ClaimExcess]:
        """Those of namespaces that are enforced, and were when the pod was created: near a change of the mode
        the record tells, for admission writes none where it does not enforce."""
        if view.statements is None:
            return {}
        history = view.history
        at_ms = max(self._context.clock(), history.newest_ms())
        return {
            uid: each
            for uid, each in view.excesses(at_ms).items()
            if history.mode(each.pod.namespace, at_ms) == "enforce"
            and history.was_enforced(replace(each.pod, is_governed=True))
        }


def _sharing(one: ClaimExcess, found: Mapping[str, ClaimExcess]) -> Pods:
    """The pods of these that use one of its claims. Others were judged for the claim as it is, and stay."""
    return tuple(each.pod for each in found.values() if not each.claims.isdisjoint(one.claims))
