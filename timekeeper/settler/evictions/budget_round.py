"""Evicts the charged pods of namespaces whose budget is spent and says ``onExhausted: evict``. Runs in
the settler's thread for evictions.

Each step is decided by `accounts.exhaustion.evictions` from what the watches and the accounts say at that
moment. What must outlast a restart is in the pods' annotations.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from timekeeper import metrics
from timekeeper.accounts.exhaustion.evictions import (
    BudgetEviction,
    BudgetEvictionMemory,
    EvictionPlan,
    NoticeChange,
    Pods,
    due,
    protected_notice,
)
from timekeeper.accounts.exhaustion.terms import EvictingNamespaces, EvictionTerms, terms_of
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.kube.eviction import EVICTION_RESULTS, disruption
from timekeeper.log import log
from timekeeper.runtime.api_server import Answered, Reply
from timekeeper.settler.evictions import calls, reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import LEAVING, evict_together, tell, warn
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import fencing

BUSY_S = 0.05  # between two steps that did something
IDLE_S = 0.2
SOON_S = 2.0
STALE_MS = 10_000  # accounts that were computed longer ago are no reason for an eviction
OBSERVED_INTERVAL_MS = 300_000


class BudgetRound:
    """Used by one thread for as long as the epoch lasts. ``seconds`` measures how long looking takes."""

    def __init__(self, context: EvictorContext, seconds: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._memory = BudgetEvictionMemory(context.steady())
        self._evicting = EvictingNamespaces()
        self._seconds = seconds
        self._next_s = 0.0  # when all pods are looked at again
        # namespace -> whether its account is spent, and whether it is observed; as of the last look
        self._states: dict[str, tuple[bool, bool]] = {}
        self._observed_ms: dict[str, int] = {}  # namespace -> when its pods were last reported
        for result in EVICTION_RESULTS:
            metrics.BUDGET_EVICTIONS.labels(result)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        return BUSY_S if self.step() else IDLE_S

    def step(self) -> bool:
        """Write and withdraw notices, and evict what is due; returns whether anything was due.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        now_ms, view = self._context.clock(), self._context.view()
        exhausted = self._exhausted(view, now_ms)
        if exhausted is None:
            return False
        found = self._plan(view, exhausted, now_ms)
        if found is None:
            return False
        for each in found.evictions:
            self._evict(each)
        for change in found.changes:
            self._write(change)
        return bool(found.evictions or found.changes)

    def _plan(
        self, view: TickView, exhausted: Mapping[str, EvictionTerms], now_ms: int
    ) -> EvictionPlan | None:
        """What is to be done about all pods; if these were looked at lately, about those of namespaces whose
        standing has changed since; None if there are none."""
        together = self._together(view, exhausted.get)

        def is_spared(pod: LedgerPod) -> bool:
            return not together(pod)

        states = {name: (each.is_spent, each.is_observed) for name, each in exhausted.items()}
        changed = {name for name, _ in states.items() ^ self._states.items()}
        self._states = states
        began_s = self._seconds()
        if began_s >= self._next_s:
            pods = view.pods()
            found = due(pods, exhausted, self._memory, now_ms, self._context.steady(), is_spared, together)
            took_s = self._seconds() - began_s
            is_idle = not found.evictions and not found.changes
            self._next_s = began_s + (_pause_s(took_s) if is_idle else took_s * 2)
            self._memory = replace(self._memory, void=found.void)
            metrics.BUDGET_EVICTION_NOTICES.set(found.noticed)
            self._report_observed(found)
            return found
        if not changed:
            return None
        theirs = (pod for pod in view.pods() if pod.namespace in changed)
        found = due(theirs, exhausted, self._memory, now_ms, self._context.steady(), is_spared, together)
        self._memory = replace(self._memory, void=self._memory.void | found.void)
        return found

    def _together(
        self, view: TickView, terms_of: Callable[[str], EvictionTerms | None]
    ) -> Callable[[LedgerPod], tuple[Pods, ...]]:
        """As `TickView.together`, each with the gangs that do not go on without it. Without sets of which
        a pod stays: the budget protects it, or it was created without enforcement."""
        units = view.units(self._memory.left(self._context.steady()))
        known: dict[int, tuple[Pods, bool]] = {}  # by identity: all pods of a gang have the same set

        def stays(pod: LedgerPod) -> bool:
            if view.is_protected(pod):
                return True
            terms = terms_of(pod.namespace)
            if terms is None or terms.is_observed:
                return False
            return not view.history.was_enforced(pod)

        def leaves(some: Pods) -> bool:
            if len(some) == 1:
                return not stays(some[0])
            if id(some) not in known:
                known[id(some)] = some, not any(map(stays, some))
            return known[id(some)][1]

        return lambda pod: tuple(it for some in view.together(pod) if leaves(it := units.least(some)))

    def _exhausted(self, view: TickView, now_ms: int) -> dict[str, EvictionTerms] | None:
        """The namespaces whose pods must leave; None where that is not known now."""
        if view.statements is None or abs(now_ms - view.decided_ms) > STALE_MS:
            return None
        settings = view.history.settings(now_ms)
        return self._evicting.terms(view.statements.namespaces, settings, now_ms)

    def _in_force(self, pod: LedgerPod) -> tuple[EvictionTerms | None, tuple[Pods, ...]]:
        """The pod's terms by the last tick, and the sets in which it may leave, while this settler's epoch
        lasts; None if it stays."""
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
        now_ms, view = self._context.clock(), self._context.view()
        stated = {} if view.statements is None else view.statements.namespaces
        if pod.namespace not in stated:
            return None, ()
        terms = terms_of(pod.namespace, stated[pod.namespace], view.history.settings(now_ms), now_ms)
        sets = self._together(view, lambda _: terms)(pod)
        return (terms if sets else None), sets

    def _evict(self, leaving: BudgetEviction) -> None:
        terms, sets = self._in_force(leaving.pod)
        if terms is None or not terms.is_spent or terms.is_observed:
            return
        uids = {each.uid for each in leaving.pods}
        if not any(uids == {each.uid for each in some if each.is_staying} for some in sets):
            return  # another pod shares with them by now, or one has left: the next step decides again
        whys = [(each, reasons.spent(each, terms, leaving.deletes)) for each in leaving.pods]
        before = self._memory.attempts
        tried = evict_together(self._context, whys)
        for pod, result in tried:
            vetoed = pod.uid in self._context.vetoes
            self._memory = self._memory.after(pod.uid, terms.subject, result, self._context.steady(), vetoed)
        self._memory = self._memory.spaced(terms, sum(result in LEAVING for _, result in tried))
        for pod, result in tried:
            if result == "protected":
                known = before.get(pod.uid)
                is_first = known is None or known.result != "protected"
                self._protect(pod, terms, is_first, _gang_of(leaving))

    def _protect(self, pod: LedgerPod, terms: EvictionTerms, is_first: bool, gang: str) -> None:
        """Note on the pod until when its PodDisruptionBudget protects it, if that is not noted. ``gang``: the
        name of the one that does not leave without it."""
        notice = self._memory.notice_of(pod, self._context.steady())
        protected = protected_notice(notice, terms, self._context.clock())
        if protected != notice and self._accepted(
            calls.write_notice(self._context.api, pod, protected, None)
        ):
            self._memory = self._memory.after_writing(pod.uid, protected, self._context.steady())
        if is_first:
            until = calls.timestamp(protected.delete_after_ms) or ""
            who = "A webhook" if pod.uid in self._context.vetoes else "A PodDisruptionBudget"
            text = reasons.spent_protected(terms, until, gang, who)
            warn(self._context, pod, reasons.SPENT_PROTECTED, text)

    def _write(self, change: NoticeChange) -> None:
        pod, notice = change.pod, change.notice
        terms, _ = self._in_force(pod)
        is_needed = terms is not None and not terms.is_observed
        if is_needed != (notice.evict_after_ms is not None):
            return  # the account changed meanwhile: the next step decides again
        spared = None
        if change.is_spared:
            text = reasons.spared(pod.namespace, self._context.view().is_protected(pod))
            spared = disruption(False, reasons.SPARED, text, self._context.clock())
        reply = calls.write_notice(self._context.api, pod, notice, spared)
        if not self._accepted(reply):
            log(
                "notice-not-written",
                level="warning",
                namespace=pod.namespace,
                pod=pod.name,
                error=reply.message,
            )
            return
        self._memory = self._memory.after_writing(pod.uid, notice, self._context.steady())
        if terms is not None and is_needed:
            until = calls.timestamp(notice.evict_after_ms) or ""
            tell(self._context, pod, reasons.notice(pod, terms, until))

    def _accepted(self, reply: Reply) -> bool:
        """Whether the call succeeded; a pod that is gone needs nothing."""
        if not isinstance(reply, Answered):
            return False
        return reply.status < 300 or calls.refusal(reply) == "gone"

    def _report_observed(self, found: EvictionPlan) -> None:
        at_ms = self._context.steady()
        for namespace, pods in found.observed.items():
            last_ms = self._observed_ms.get(namespace)
            if last_ms is None or at_ms - last_ms >= OBSERVED_INTERVAL_MS:
                self._observed_ms[namespace] = at_ms
                log("would-evict", namespace=namespace, pods=pods, reason="the mode is observe")


def _gang_of(leaving: BudgetEviction) -> str:
    """The name of the gang that leaves with the pod; "": none."""
    gang = leaving.pod.gang
    return gang.name if gang is not None and leaving.others else ""


def _pause_s(took_s: float) -> float:
    """Between two looks at all pods that found nothing to do: looking takes a fiftieth of the time, or if
    that would leave more than SOON_S between them, at most a tenth."""
    return min(took_s * 50, max(took_s * 10, SOON_S))
