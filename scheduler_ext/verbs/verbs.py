"""What kube-scheduler asks of us, decided: filter, prioritize, preempt and bind, each on one
snapshot."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from scheduler_ext.binding.binder import Binder, BindingArgs
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.controllers.requeuer import Requeuer
from scheduler_ext.fit import refusal
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.model.cpu import requested_milli
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.preemption.victims import PreemptionContext
from scheduler_ext.scoring.policy import Policy
from scheduler_ext.scoring.rank import MOST, foremost, ranked
from scheduler_ext.scoring.selection import Policies, for_fits
from scheduler_ext.snapshot.node_info import without_pod
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.dry_run import DryRun, dry_run
from scheduler_ext.verbs.expected_binds import ExpectedBinds
from scheduler_ext.verbs.fit_cache import FilterResult, FitCache, FitKey, fit_key
from scheduler_ext.verbs.preempt_verb import NodeVictims, with_cards
from scheduler_ext.verbs.protocol import ExtenderArgs, PreemptionArgs
from scheduler_ext.waiting.order import waiting_pod
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.values import GPURequest

LOOK_FOR_S = 1.0  # kube-scheduler waits two for an answer
INCOMPLETE = "the extender's books are not complete yet"


class Verbs:
    """filter, prioritize and preempt change nothing but the memory of who waits and of who is on its way;
    bind is `Binder`'s. ``patience`` waits while nothing could be bound yet: so filter does, for pods that ask
    for cards. ``most_offered``: as many nodes as filter tells of those that fit, the best; 0: all."""

    def __init__(
        self,
        cache: ClusterCache,
        policies: Policies,
        requeuer: Requeuer,
        binder: Binder,
        context: Callable[[Snapshot], PreemptionContext],
        patience: Callable[[], object],
        most_offered: int = 0,
    ) -> None:
        self._cache, self._policies, self._requeuer, self._binder = cache, policies, requeuer, binder
        self._context, self._patience, self._most_offered = context, patience, most_offered
        self._fit_cache = FitCache()
        self._expected_binds = ExpectedBinds()

    @property
    def complete(self) -> bool:
        """False until both first lists are in."""
        return self._cache.complete

    def filter(self, asked: ExtenderArgs) -> FilterResult | str:
        """The nodes sorted into those that fit and the others; an error's text before the books are
        complete."""
        if not self.complete:
            return INCOMPLETE
        pod = _pod(asked, self._cache.snapshot)
        if pod is None:
            return FilterResult(asked.names, {}, {})
        if pod.request is None:
            why = refusal.malformed(pod.malformed)
            return FilterResult([], {}, dict.fromkeys(asked.names, why))
        self._patience()
        snapshot = self._cache.snapshot
        policy = self._policies(pod)
        about = fit_key(pod.request, for_fits(policy), pod.amounts)
        found = self._fit_cache.sort(about, snapshot.nodes, asked.names)
        found = _beside_itself(found, pod, pod.request, policy, snapshot)
        kept = self._requeuer.kept(lambda: waiting_pod(pod, policy, asked.names), found.fits)
        if kept:
            found = _without(found, kept, refusal.not_enough_free(pod.request))
        if not found.fits and asked.names:
            self._requeuer.refused(waiting_pod(pod, policy, asked.names), snapshot)
        return self._offered(found, pod, policy, snapshot)

    def _offered(self, found: FilterResult, pod: Pod, policy: Policy, snapshot: Snapshot) -> FilterResult:
        """The best of the nodes that fit, where they are more than are to be told. A pod for which a certain
        node was made free is told all of them."""
        fits = found.fits
        is_expected = pod.reserved is not None or pod.nominated != "" or pod.uid in snapshot.allocated_on
        if pod.request is None or is_expected or not 0 < self._most_offered < len(fits):
            return found
        about = fit_key(pod.request, policy, pod.amounts)
        scores = self._fit_cache.scores(about, self._expected_binds.over(snapshot, pod.uid), fits)
        best = foremost(policy, pod.uid, scores, fits, self._most_offered)
        return replace(found, fits=best)

    def dry_run(self, asked: ExtenderArgs) -> DryRun | str:
        """What filter would answer; nobody remembers that it was asked. The nodes may be templates that the
        books do not know (`dryrun`)."""
        if not self.complete:
            return INCOMPLETE
        snapshot = self._cache.snapshot
        pod = _pod(asked, snapshot)
        if pod is None:
            return DryRun(FilterResult(asked.names, {}, {}), {})
        if pod.request is None:
            why = refusal.malformed(pod.malformed)
            return DryRun(FilterResult([], {}, dict.fromkeys(asked.names, why)), {})
        about = fit_key(pod.request, self._policies(pod), pod.amounts)
        return dry_run(asked, about, pod.uid, snapshot)

    def prioritize(self, asked: ExtenderArgs) -> list[int]:
        """A rank for each node, 10 for the best; 0 for one that the pod does not fit on.

        A pod that asks for no GPU, where kube-scheduler sends such, is kept from taking the CPU that free
        GPUs need; a policy that looks at no CPU has no opinion on it.
        """
        if not self.complete:
            return [0] * len(asked.names)
        snapshot = self._cache.snapshot
        pod = _pod(asked, snapshot)
        if pod is None:
            about = _without_gpu(asked.pod, self._policies)
        elif pod.request is not None:
            about = fit_key(pod.request, self._policies(pod), pod.amounts)
        else:
            about = None
        if about is None:
            return [0] * len(asked.names)
        uid = pod.uid if pod is not None else ""
        scores = self._fit_cache.scores(about, self._expected_binds.over(snapshot, uid), asked.names)
        ranks = ranked(about.policy, uid, scores, asked.names)
        if pod is not None and uid in snapshot.pods and MOST in ranks:
            self._expected_binds.note(pod, about.policy, asked.names[ranks.index(MOST)])
        return ranks

    def preempt(self, offer: PreemptionArgs) -> Mapping[str, NodeVictims]:
        """Of the nodes where kube-scheduler would make room for the pod those where it then has its cards,
        with all who must leave (`preempt`). Of very many nodes only as many as can be looked at in time: it
        needs one."""
        if not self.complete:
            return {}
        snapshot = self._cache.snapshot
        pod = _pod(offer, snapshot)
        if pod is None:
            return offer.nodes
        if pod.request is None or pod.reserved is not None:
            return {}  # others leave already for a pod that cards are held for
        found: dict[str, NodeVictims] = {}
        until = time.monotonic() + LOOK_FOR_S
        policy = self._policies(pod)
        for name, leaving in with_cards(pod, offer.nodes, snapshot, self._context(snapshot), policy):
            if leaving is not None:
                found[name] = leaving
            if found and time.monotonic() > until:
                break
        return found

    def bind(self, order: BindingArgs) -> str:
        """Why the pod is not bound, "" where it is."""
        if not self.complete:
            return INCOMPLETE
        error = self._binder.bind(order)
        self._expected_binds.drop(order.uid)
        return error


def _without_gpu(raw: Json, policies: Policies) -> FitKey | None:
    namespace = str(mapping(raw.get("metadata")).get("namespace", ""))
    policy = policies.for_cpu_only(namespace, requested_milli(raw))
    return FitKey(None, policy, ()) if policy.per_node is not None and policy.per_node.batch else None


def _pod(asked: ExtenderArgs | PreemptionArgs, snapshot: Snapshot) -> Pod | None:
    """The pod as the watch has read it already, where that is the very one; else read from the call."""
    metadata = mapping(asked.pod.get("metadata"))
    known = snapshot.pods.get(str(metadata.get("uid", "")))
    if known is not None and known.version == metadata.get("resourceVersion"):
        return known
    return read_pod(asked.pod)


def _without(found: FilterResult, kept: set[str], why: Refusal) -> FilterResult:
    """Without the nodes that are kept for another pod, and so have no room for this one."""
    return FilterResult(
        [name for name in found.fits if name not in kept],
        found.short,
        {**found.refused, **dict.fromkeys(kept, why)},
    )


def _beside_itself(
    found: FilterResult, pod: Pod, request: GPURequest, policy: Policy, snapshot: Snapshot
) -> FilterResult:
    """A pod for which cards are assumed already does not stand in its own way on that node: a bind that was
    not answered in time is asked again."""
    name = snapshot.allocated_on.get(pod.uid)
    if name is None or name not in {**found.short, **found.refused}:
        return found
    if isinstance(fit(request, without_pod(snapshot.node(name), pod.uid), policy), Refusal):
        return found
    return FilterResult(
        [*found.fits, name],
        {node: why for node, why in found.short.items() if node != name},
        {node: why for node, why in found.refused.items() if node != name},
    )
