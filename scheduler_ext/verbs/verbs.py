"""kube-scheduler's verbs: filter, prioritize, preempt and bind, each decided on one snapshot."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from scheduler_ext.binding.binder import Binder
from scheduler_ext.binding.outcome import NotBound, NotBoundReason, Outcome
from scheduler_ext.binding.values import BindingArgs
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.fit import refusal
from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.card_sets import Steps
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.cpu import requested_milli
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.preferences import has_preferences
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.scoring.rank import MOST, behind_others, foremost, level, ranked
from scheduler_ext.scoring.selection import Policies, for_fits
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.drained import DrainedFits, beside_drained
from scheduler_ext.verbs.dry_run import DryRun, dry_run
from scheduler_ext.verbs.expected_binds import ExpectedBinds
from scheduler_ext.verbs.fit_cache import CALL_STEPS, FilterResult, FitCache, FitKey, fit_key
from scheduler_ext.verbs.preempt_verb import NodeVictims, with_cards
from scheduler_ext.verbs.protocol import ExtenderArgs, PreemptionArgs
from scheduler_ext.waiting.order import waiting_pod
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.values import GPURequest
from timekeeper.edge.clock import monotonic_ms, now_ms

MAX_SEARCH_MS = 2_000
SEARCH_PART = 5  # of this many milliseconds a namespace may search one
MAX_NAMESPACES = 4096

LOOK_FOR_S = 1.0  # kube-scheduler waits two seconds for an answer
INCOMPLETE = "the extender's cache is not complete yet"


class SearchShares:
    """The time that each namespace may still search: at most MAX_SEARCH_MS, and a fifth of the time that
    passes. A call that begins in time may end later; its namespace then waits for as long as it took."""

    def __init__(self, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._now_ms, self._lock = now_ms, threading.Lock()
        # by namespace: SEARCH_PART times the milliseconds that it has left, and when it had them
        self._saved: OrderedDict[str, tuple[int, int]] = OrderedDict()

    @contextmanager
    def steps_of(self, namespace: str) -> Iterator[Steps]:
        """The steps of one call: CALL_STEPS, or none while the namespace has no time left."""
        began = self._now_ms()
        given = CALL_STEPS if self._take(namespace, 0) > 0 else 0
        steps = Steps(given)
        try:
            yield steps
        finally:
            if steps.left < given:
                self._take(namespace, self._now_ms() - began)

    def _take(self, namespace: str, spent_ms: int) -> int:
        """Takes this time from the namespace. Gives SEARCH_PART times the milliseconds that are left."""
        with self._lock:
            now = self._now_ms()
            saved, before = self._saved.pop(namespace, (SEARCH_PART * MAX_SEARCH_MS, now))
            saved = min(SEARCH_PART * MAX_SEARCH_MS, saved + now - before) - SEARCH_PART * spent_ms
            self._saved[namespace] = (saved, now)
            if len(self._saved) > MAX_NAMESPACES:
                self._saved.popitem(last=False)
            return saved


class Verbs:
    """filter, prioritize and preempt change nothing but hints: which pods wait, and which binds to expect.
    bind is `Binder`'s. ``patience`` waits while no replica can bind, and says whether it waited; filter
    calls it for GPU pods.
    ``answered``: called with the pod and the time when preempt names victims.
    ``most_offered``: maximum number of best-fitting nodes returned by filter; 0 = all.
    ``search_shares``: how long each namespace may search.
    ``tried``: called with the UID of a member of a gang that filter was asked about.
    ``was_polled``: whether a poll of the standings was attempted; before it no cap would be known."""

    def __init__(
        self,
        cache: ClusterCache,
        policies: Policies,
        requeuer: Requeuer,
        binder: Binder,
        context: Callable[[Snapshot], PreemptionContext],
        patience: Callable[[], bool],
        standings: Callable[[], NamespaceStandings],
        answered: Callable[[Pod, int], object],
        most_offered: int = 0,
        caps: CapChecks | None = None,
        was_polled: Callable[[], bool] = lambda: True,
        search_shares: SearchShares | None = None,
        tried: Callable[[str], object] = lambda _uid: None,
    ) -> None:
        self._cache, self._policies, self._requeuer, self._binder = cache, policies, requeuer, binder
        self._context, self._patience, self._most_offered = context, patience, most_offered
        self._standings, self._answered = standings, answered
        self._caps, self._was_polled = caps or CapChecks(standings), was_polled
        self._fit_cache, self._search_shares = FitCache(), search_shares or SearchShares()
        self._expected_binds, self._drained_fits = ExpectedBinds(), DrainedFits()
        self._tried = tried
        self._last_key: tuple[Pod, Policy, FitKey] | None = None

    @property
    def complete(self) -> bool:
        """False until both first lists are in the cache, and a poll of the standings was attempted."""
        return self._cache.complete and self._was_polled()

    def filter(self, args: ExtenderArgs) -> FilterResult | str:
        """The nodes that fit, and the others with their reasons; an error text before the cache is
        complete."""
        # 1. The pod, in the one snapshot of this call: without a GPU request it fits everywhere; a malformed
        # request fits nowhere, nor does a pod whose namespace has spent a budget that says `deny`, `evict` or
        # `hold`, nor one above a cap. A takeover may change everything.
        if not self.complete:
            return INCOMPLETE
        snapshot = self._cache.snapshot
        pod = _pod(args, snapshot)
        if pod is not None and pod.request is not None and self._patience():
            snapshot = self._cache.snapshot
            pod = _pod(args, snapshot)
        if pod is None:
            return FilterResult(args.names, {}, {})
        if pod.request is None:
            return _malformed(pod, args.names)
        denied = self._denied(pod, snapshot)
        if denied is not None:
            self._requeuer.denied(waiting_pod(pod, self._policies(pod), args.names), denied)
            return _all_refused(args.names, denied)
        if pod.gang is not None:
            self._tried(pod.uid)
            return self._of_gang(pod, pod.request, args.names, snapshot)
        # 2. Which nodes fit.
        policy = self._policies(pod)
        key = self._key(pod, pod.request, for_fits(policy))
        with self._search_shares.steps_of(pod.namespace) as steps:
            result = self._fit_cache.partition(key, snapshot.nodes, args.names, steps)
        # 3. Cards assumed for this very pod are no obstacle to it.
        result = _beside_itself(result, pod, pod.request, policy, snapshot)
        # 4. Cards that are kept for a gang: a pod that ends before it starts may use them.
        if snapshot.drain is not None and not result.fits:
            result = beside_drained(result, pod, key, snapshot, now_ms(), self._drained_fits)
        # 5. Nodes whose freed cards are held back for a pod that is first in turn.
        own = partial(waiting_pod, pod, policy, args.names)
        held_back = self._requeuer.held_back(own, result.fits, snapshot)
        if held_back:
            why = refusal.not_enough_free(pod.request)
            result = _without(result, dict.fromkeys(held_back, why))
        # 6. Nodes whose cards are so small that the pod would exceed a cap.
        too_small = self._caps.refused_nodes(pod, result.fits, snapshot)
        result = _without(result, too_small)
        # 7. A pod that fits nowhere waits for cards to be freed, or for a cap.
        if not result.fits and args.names:
            self._requeuer.refused(own(), snapshot)
            for why in set(too_small.values()):
                self._requeuer.denied(own(), why)
        # 8. Only the best nodes are returned, if the operator limits their number; all to a pod that prefers
        # some of them, for kube-scheduler knows which.
        return result if has_preferences(args.pod) else self._truncated(result, pod, policy, snapshot)

    def _of_gang(
        self, pod: Pod, request: GPURequest, offered: Sequence[str], snapshot: Snapshot
    ) -> FilterResult:
        """A member of a gang gets the node where cards are kept for it, and none before they are for all that
        start with it."""
        allocation = snapshot.allocation(pod.uid)
        is_reserved = allocation is not None and allocation.state == "reserved"  # until its gang starts
        node = None if is_reserved else snapshot.allocated_on.get(pod.uid)
        refused: dict[str, Refusal] = dict.fromkeys(
            offered, refusal.GANG_WAITS if node is None else refusal.GANG_ELSEWHERE
        )
        if node is None or node not in refused:
            return FilterResult([], {}, refused)
        found = fit(request, as_found_by(pod.uid, snapshot.node(node)), self._policies(pod))
        if isinstance(found, Refusal):
            return FilterResult([], {}, refused | {node: found})
        return FilterResult([node], {}, {name: why for name, why in refused.items() if name != node})

    def _key(self, pod: Pod, request: GPURequest, policy: Policy) -> FitKey:
        """The pod's key, the same object as in the last call for it: prioritize follows filter."""
        last = self._last_key
        if last is not None and last[0] is pod and last[1] is policy:
            return last[2]
        key = fit_key(request, policy, pod.amounts)
        self._last_key = pod, policy, key
        return key

    def _truncated(self, result: FilterResult, pod: Pod, policy: Policy, snapshot: Snapshot) -> FilterResult:
        """At most ``most_offered`` fitting nodes, the best ones. All of them for a pod that expects a certain
        node: it is nominated, or cards are reserved or assumed for it."""
        fits = result.fits
        expects_node = pod.reserved is not None or pod.nominated != "" or pod.uid in snapshot.allocated_on
        if pod.request is None or expects_node or not 0 < self._most_offered < len(fits):
            return result
        key = self._key(pod, pod.request, policy)
        with self._search_shares.steps_of(pod.namespace) as steps:
            nodes = self._expected_binds.over(snapshot, pod.uid)
            scores, by_name = self._fit_cache.scored(key, nodes, fits, steps)
        scores = behind_others(scores, fits, snapshot.comes_last(pod.namespace))
        best = foremost(policy, pod.uid, scores, by_name, fits, self._most_offered)
        return replace(result, fits=best)

    def dry_run(self, args: ExtenderArgs) -> DryRun | str:
        """What filter would answer, without any effect. The nodes may be templates that the cluster does not
        have (`scheduler_ext.verbs.dry_run`)."""
        if not self.complete:
            return INCOMPLETE
        snapshot = self._cache.snapshot
        pod = _pod(args, snapshot)
        if pod is None:
            return DryRun(FilterResult(args.names, {}, {}), {})
        if pod.request is None:
            return DryRun(_malformed(pod, args.names), {})
        denied = self._denied(pod, snapshot)
        if denied is not None:
            return DryRun(_all_refused(args.names, denied), {})
        key = fit_key(pod.request, self._policies(pod), pod.amounts)
        found = dry_run(args, key, pod.uid, snapshot)
        if snapshot.drain is None or found.sorted_nodes.fits or pod.gang is not None:
            return found
        beside = beside_drained(found.sorted_nodes, pod, key, snapshot, now_ms(), DrainedFits())
        return replace(found, sorted_nodes=beside)

    def prioritize(self, args: ExtenderArgs) -> NDArray[np.int64]:
        """A rank for each node, 10 for the best; 0 for a node that the pod does not fit on.

        For a pod with preferences of its own all others that fit get 9, and none is expected to be chosen.
        A pod without a GPU request, if kube-scheduler sends such pods, is kept from the CPU that free GPUs
        need; a policy that ignores CPU ranks all nodes 0 for it.
        """
        if not self.complete:
            return np.zeros(len(args.names), np.int64)
        snapshot = self._cache.snapshot
        pod = _pod(args, snapshot)
        if pod is None:
            key = _without_gpu(args.pod, self._policies)
        elif pod.request is not None:
            key = self._key(pod, pod.request, self._policies(pod))
        else:
            key = None
        if key is None:
            return np.zeros(len(args.names), np.int64)
        uid = pod.uid if pod is not None else ""
        with self._search_shares.steps_of(pod.namespace if pod is not None else "") as steps:
            nodes = self._expected_binds.over(snapshot, uid)
            scores, by_name = self._fit_cache.scored(key, nodes, args.names, steps)
        if pod is not None:
            scores = behind_others(scores, args.names, snapshot.comes_last(pod.namespace))
        ranks = ranked(key.policy, uid, scores, by_name)
        if has_preferences(args.pod):
            return level(ranks, scores)
        if pod is not None and uid in snapshot.pods and (best := np.flatnonzero(ranks == MOST)).size:
            self._expected_binds.note(pod, key.policy, args.names[best[0]])
        return ranks

    def preempt(self, args: PreemptionArgs) -> Mapping[str, NodeVictims]:
        """Of kube-scheduler's candidate nodes those where the pod gets its cards, with all victims needed for
        that. It stops after 1 s once one node qualifies: kube-scheduler needs only one."""
        if not self.complete:
            return {}
        snapshot = self._cache.snapshot
        pod = _pod(args, snapshot)
        if pod is None:
            return args.nodes
        if pod.request is None or pod.reserved is not None or pod.gang is not None:
            return {}  # cards are reserved for the pod already, and their holders are being evicted
        if pod.uid in snapshot.pods:
            self._requeuer.asked_to_preempt(pod, self._policies(pod), args.nodes)
        capped = self._caps.refusal(pod, snapshot)
        if capped is not None:
            self._requeuer.capped(pod, capped)
            return {}
        context = self._context(snapshot)
        if context.cooldown.is_exhausted(pod, context.now_ms):
            return {}
        found: dict[str, NodeVictims] = {}
        until = time.monotonic() + LOOK_FOR_S
        policy = self._policies(pod)
        for name, victims in with_cards(pod, args.nodes, snapshot, context, policy):
            if victims is not None:
                found[name] = victims
            if found and time.monotonic() > until:
                break
        if found and pod.uid in snapshot.pods:
            self._answered(pod, context.now_ms)
        return found

    def bind(self, args: BindingArgs) -> Outcome:
        """Bind the pod to the node; see `Binder`."""
        if not self.complete:
            return NotBound(NotBoundReason.NOT_READY, INCOMPLETE)
        outcome = self._binder.bind(args)
        self._expected_binds.drop(args.uid)
        return outcome

    def _denied(self, pod: Pod, snapshot: Snapshot) -> Refusal | None:
        """Why the pod may have no node, if its namespace has spent a budget that says ``deny``, ``evict``
        or ``hold``, or for a cap. A pod that is assumed may be bound already: its bind decides. A member of a
        plan was asked when it was made."""
        allocation = snapshot.allocation(pod.uid)
        if allocation is not None and allocation.state in ("assumed", "planned"):
            return None
        standing = self._standings().of_pod(pod)
        if standing.refuses:
            return refusal.spent(pod.namespace, standing.deciding_group)
        return self._caps.refusal(pod, snapshot)


def _all_refused(names: list[str], why: Refusal) -> FilterResult:
    return FilterResult([], {}, dict.fromkeys(names, why))


def _malformed(pod: Pod, names: list[str]) -> FilterResult:
    return FilterResult([], {}, dict.fromkeys(names, refusal.malformed(pod.malformed)))


def _without_gpu(raw: Json, policies: Policies) -> FitKey | None:
    namespace = str(mapping(raw.get("metadata")).get("namespace", ""))
    policy = policies.for_cpu_only(namespace, requested_milli(raw))
    return FitKey(None, policy, ()) if policy.per_node is not None and policy.per_node.batch else None


def _pod(asked: ExtenderArgs | PreemptionArgs, snapshot: Snapshot) -> Pod | None:
    """The pod from the cache if it has the same version, else parsed from the call."""
    metadata = mapping(asked.pod.get("metadata"))
    known = snapshot.pods.get(str(metadata.get("uid", "")))
    if known is not None and known.version == metadata.get("resourceVersion"):
        return known
    return read_pod(asked.pod)


def _without(found: FilterResult, kept: Mapping[str, Refusal]) -> FilterResult:
    """Without the nodes that are kept from this pod."""
    if not kept:
        return found
    return FilterResult(
        [name for name in found.fits if name not in kept], found.short, {**found.refused, **kept}
    )


def _beside_itself(
    found: FilterResult, pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot
) -> FilterResult:
    """Adds the node on which cards are assumed for this very pod, if the pod fits there without them:
    kube-scheduler retries a bind whose answer came too late."""
    name = snapshot.allocated_on.get(pod.uid)
    if name is None or name not in {**found.short, **found.refused}:
        return found
    if isinstance(fit(request, as_found_by(pod.uid, snapshot.node(name)), policy), Refusal):
        return found
    return FilterResult(
        [*found.fits, name],
        {node: why for node, why in found.short.items() if node != name},
        {node: why for node, why in found.refused.items() if node != name},
    )
