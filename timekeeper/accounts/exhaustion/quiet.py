"""Which pods of namespaces over budget need nothing for now, so that a look at all pods does not decide about
each of them again. Pure but for its memory, which may be lost at any time."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from timekeeper.accounts.exhaustion.evictions import (
    NO_NOTICE,
    BudgetEvictionMemory,
    EvictionNotice,
    is_valid,
)
from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.ledger.metering import FOREVER_MS

_Valid = tuple[int, int]  # since_ms and grace_ms of terms: with others, a notice may be invalid


class PlanCache:
    """Pods for which `due` finds nothing to do until a known moment, as long as pod and terms are the same.
    Used by one thread."""

    def __init__(self) -> None:
        # UID -> the pod, until when it is quiet, for which terms, and whether it has a notice
        self._known: dict[str, tuple[LedgerPod, int, _Valid, bool]] = {}
        self._at_ms = 0
        self.noticed = 0  # of the pods that `pods_to_plan` left out the last time, those with a notice

    def pods_to_plan(
        self,
        pods: Sequence[LedgerPod],
        exhausted: Mapping[str, EvictionTerms],
        past: BudgetEvictionMemory,
        now_ms: int,
        is_spared: Callable[[LedgerPod], bool] = lambda _: False,
    ) -> Iterator[LedgerPod]:
        """The pods that `due` must decide about."""
        if now_ms < self._at_ms or len(self._known) > 2 * len(pods) + 100:
            self._known.clear()
        self._at_ms, self.noticed = now_ms, 0
        known = self._known
        terms = {
            name: (each.since_ms, each.grace_ms) for name, each in exhausted.items() if not each.is_observed
        }
        unsure = past.void | past.written.keys()  # their annotations do not tell which notice counts
        for pod in pods:
            valid = terms.get(pod.namespace)
            if valid is None or pod.uid in unsure:
                yield pod
                continue
            if is_spared(pod):
                if pod.evict_after_ms is not None:
                    yield pod
                continue
            found = known.get(pod.uid)
            if found is None or found[0] is not pod or found[1] <= now_ms or found[2] != valid:
                made = _quiet(pod, exhausted[pod.namespace], now_ms)
                if made is None:
                    yield pod
                    continue
                found = known[pod.uid] = (pod, made[0], valid, made[1])
            self.noticed += found[3]


def _quiet(pod: LedgerPod, terms: EvictionTerms, now_ms: int) -> tuple[int, bool] | None:
    """Until when the pod is quiet, and whether it has a notice; None: it is not."""
    notice = EvictionNotice(pod.evict_after_ms, pod.delete_after_ms)
    if not pod.is_charged:
        return FOREVER_MS, notice != NO_NOTICE
    until_ms = notice.evict_after_ms
    if until_ms is None or until_ms <= now_ms or not is_valid(notice, terms, now_ms):
        return None
    return until_ms, True
