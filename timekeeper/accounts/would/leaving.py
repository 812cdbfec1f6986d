"""Which running pods would have been evicted for a spent budget.

`accounts.exhaustion.evictions` decides as if nothing were observed; what it would write on pods is remembered
here instead. After a restart the time of grace begins anew.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from timekeeper.accounts.exhaustion.evictions import (
    BudgetEviction,
    BudgetEvictionMemory,
    EvictionNotice,
    due,
)
from timekeeper.accounts.exhaustion.terms import EvictionTerms
from timekeeper.accounts.pods import LedgerPod


@dataclass(frozen=True, slots=True)
class LeavingMemory:
    """What would have been done. ``notices``: UID -> the notice that a pod would have; ``gone``: UIDs of pods
    that would not be there any more."""

    evictions: BudgetEvictionMemory
    notices: Mapping[str, EvictionNotice] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def after(self, leaving: BudgetEviction, at_ms: int) -> "LeavingMemory":
        """With one more pod evicted."""
        uid = leaving.pod.uid
        evictions = self.evictions.after(uid, leaving.terms.subject, "evicted", at_ms)
        return replace(self, evictions=evictions, gone=self.gone | {uid})

    def without(self, uids: Iterable[str]) -> "LeavingMemory":
        """With these pods gone, or never admitted: no pod has to leave in their place."""
        return replace(self, gone=self.gone | set(uids))


def leaving(
    pods: Iterable[LedgerPod],
    exhausted: Mapping[str, EvictionTerms],
    memory: LeavingMemory,
    now_ms: int,
    at_ms: int,
    is_protected: Callable[[LedgerPod], bool] = lambda _: False,
) -> tuple[tuple[BudgetEviction, ...], LeavingMemory]:
    """The pods whose eviction is due now, at most one of each account, and what is remembered of the others.
    ``exhausted``: namespace -> terms; ``at_ms``: by a monotonic clock; ``is_protected``: whether the budget
    protects the pod."""
    there = [each for each in pods if each.namespace in exhausted]
    if not there:
        return (), replace(memory, notices={}, gone=frozenset())
    terms = {name: replace(each, is_observed=False) for name, each in exhausted.items()}
    known = {each.uid for each in there}
    noticed = [_noticed(each, memory.notices) for each in there if each.uid not in memory.gone]
    found = due(noticed, terms, memory.evictions, now_ms, at_ms, is_protected)
    changed = {each.pod.uid: each.notice for each in found.changes}
    notices = {uid: each for uid, each in memory.notices.items() if uid in known} | changed
    return found.evictions, replace(memory, notices=notices, gone=memory.gone & known)


def _noticed(pod: LedgerPod, notices: Mapping[str, EvictionNotice]) -> LedgerPod:
    notice = notices.get(pod.uid)
    return replace(pod, evict_after_ms=notice.evict_after_ms if notice else None, delete_after_ms=None)
