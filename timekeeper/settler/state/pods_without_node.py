"""The pods without a node: those behind our scheduling gate, and the rates that the others will have, summed
by namespace as pods come and go."""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import LedgerPod, charged_pod, charged_pods
from timekeeper.accounts.session import admitted_in_budget
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.reservation import MAX_MS
from timekeeper.core.rating.held import held_milli
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.tables import Table
from timekeeper.core.values import Card, GPURequest
from timekeeper.settler.cluster.cluster_state import ClusterState

MAX_ESTIMATES = 4_096  # cached rates by request: tenants choose the requests, so the cache needs a limit
_BY_COMPUTE = BudgetSettings(charge_by="compute")
MAX_PASSED = 1_000  # planned expiries of pods that no longer wait


def _was_payable(pod: LedgerPod) -> bool:
    """Whether it was released because it could be paid, also as a member of a gang."""
    return pod.held == "budget" or pod.gang is not None


@dataclass(slots=True, kw_only=True)
class PodsWithoutNode:
    """A pod counts for one lookahead after its creation. A namespace's pods together count for at most all
    cards of the cluster: pods that fit on no node must not demote other pods of their namespace forever.

    A pod behind the budget's gate counts nowhere. One behind Kueue's is not released either, and once that is
    gone it counts as if it were new. One that was released because it can be paid counts until it is bound,
    whatever the number of cards: the gate is gone from its object, which is the only record of that. A member
    of a gang, which may wait for cards for days, counts for one lookahead after its release, or where no
    record of that is left, after it was seen; and while cards are reserved for it.

    A claim may be allocated before its pod has a node: then its session counts, and of the pod the rest.
    """

    rates: dict[str, int] = field(default_factory=dict)  # namespace -> the rate its waiting pods will have
    held: Mapping[str, HeldPod] = field(default_factory=dict)  # by UID; a new object with each change
    queued: frozenset[str] = frozenset()  # namespaces of held pods that wait for their budget
    # UIDs of pods without node and gate that reserve their declared time: they are not in ``rates``
    declaring: set[str] = field(default_factory=set)
    seen: dict[str, int] = field(default_factory=dict)  # namespace -> number of pods without node and gate
    untried: set[str] = field(default_factory=set)  # UIDs of those that our scheduler has not tried to place
    # model -> what pods without a node ask of whole cards, in thousandths; "": of several models
    asked: Counter[str] = field(default_factory=Counter)
    # UID of a gang's member -> when it was paid; of another pod, when Kueue's gate was removed
    paid_ms: dict[str, int] = field(default_factory=dict)
    _queued: set[str] = field(default_factory=set)  # UIDs of pods behind Kueue's gate
    # the settings that the estimates are based on
    _settings: BudgetSettings = field(default_factory=BudgetSettings)
    _inventory: int = -1  # the version of the inventory that the estimates are based on
    _at_ms: int = 0
    _cards: tuple[Card, ...] = ()  # all cards of the cluster
    _kinds: tuple[Card, ...] = ()  # one card of each model and memory size
    _most_milli: int = 0  # the rate of all cards together
    # UID -> namespace and rate of a pod that counts, and whether it was released
    _waiting: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    # UID -> the request without what sessions of claims hold, where that is less
    rest: Table[str, GPURequest] = field(default_factory=Table)
    _sums: dict[str, int] = field(default_factory=dict)  # namespace -> summed rate, without the limit
    released: dict[str, int] = field(default_factory=dict)  # the same of released pods, which have no limit
    _seen: dict[str, str] = field(default_factory=dict)  # UID -> namespace of a pod that ``seen`` counts
    _asked: dict[str, tuple[str, int]] = field(default_factory=dict)  # UID -> what of ``asked`` is its
    # heap of (moment, UID): the pod counts no longer then
    _expiries: list[tuple[int, str]] = field(default_factory=list)
    _estimates: dict[GPURequest, int] = field(default_factory=dict)  # request -> rate
    _wholes: dict[GPURequest, tuple[str, int]] = field(default_factory=dict)  # request -> what of ``asked``

    def update(
        self,
        cluster: ClusterState,
        settings: BudgetSettings,
        now_ms: int,
        unallocated: Callable[[LedgerPod], GPURequest],
    ) -> set[str]:
        """Bring ``rates`` up to date; returns the namespaces whose rate changed. ``unallocated``: what of a
        pod's request no session of a claim holds."""
        before = self.rates
        if (self._settings, self._inventory) != (settings, cluster.nodes.version) or now_ms < self._at_ms:
            self._restart(cluster, settings)
        self._at_ms = now_ms
        uids = set(cluster.pods.without_node_changes)
        while self._expiries and self._expiries[0][0] <= now_ms:
            uids.add(heapq.heappop(self._expiries)[1])
        cluster.pods.without_node_changes.clear()
        if not uids and before is self.rates:
            return set()
        held = dict(self.held)
        for uid in uids:
            pod = charged_pod(cluster.pods, uid)
            pod = pod if pod is not None and pod.can_be_bound else None
            if pod is not None and pod.is_queued:
                self._queued.add(uid)
                pod = None
            elif uid in self._queued:
                self._queued.discard(uid)
                self.paid_ms[uid] = now_ms
            self.rest.pop(uid, None)
            if pod is not None and (rest := unallocated(pod)) != pod.request:
                self.rest[uid] = rest
            self._recount(uid, pod, now_ms)
            self._see(uid, pod)
            held.pop(uid, None)
            if pod is not None and pod.is_gated:
                held[uid] = self._held_pod(pod)
        if held != self.held:
            self.held = held
            self.queued = frozenset(each.namespace for each in held.values() if each.needs_budget)
        most_milli = self._most_milli
        self.rates = {name: min(most_milli, rate) for name, rate in self._sums.items() if most_milli}
        for name, rate in self.released.items():
            self.rates[name] = self.rates.get(name, 0) + rate
        names = before.keys() | self.rates.keys()
        return {name for name in names if before.get(name) != self.rates.get(name)}

    def _restart(self, cluster: ClusterState, settings: BudgetSettings) -> None:
        """The inputs of every estimate changed: recompute all."""
        self._settings, self._inventory = settings, cluster.nodes.version
        self._cards = tuple(card for node in cluster.nodes.values() for card in node.cards)
        self._kinds = tuple(
            {(each.model, each.memory_mib, each.resources): each for each in self._cards}.values()
        )
        self._most_milli = sum(weight_of(each.model, settings.weights) for each in self._cards)
        self._waiting, self._sums, self.released, self._expiries = {}, {}, {}, []
        self._estimates, self._wholes = {}, {}
        self.rates = {}
        cluster.pods.without_node_changes |= {
            pod.uid for pod in charged_pods(cluster.pods) if pod.can_be_bound
        }

    def _recount(self, uid: str, pod: LedgerPod | None, now_ms: int) -> None:
        """Remove the pod from the sums; add it again if it still waits."""
        namespace, rate, was_released = self._waiting.pop(uid, ("", 0, False))
        self._add(namespace, -rate, was_released)
        self.declaring.discard(uid)
        if pod is None:
            self.paid_ms.pop(uid, None)
        if pod is not None and pod.length_ms and not pod.is_gated:
            self.declaring.add(uid)
            return
        if pod is None or pod.is_gated or not admitted_in_budget(pod.standing, self._settings):
            return
        is_released, since_ms = _was_payable(pod), self.paid_ms.get(uid, pod.created_ms)
        if pod.gang is not None:
            since_ms = self.paid_ms.setdefault(uid, now_ms)
        until_ms, is_endless = since_ms + self._settings.lookahead_ms, is_released and pod.gang is None
        if pod.gang is not None and pod.reserved is not None:
            until_ms = max(until_ms, min(pod.reserved.until_ms, pod.reserved.since_ms + MAX_MS))
        rate = self.unallocated_rate(pod) if is_endless or now_ms < until_ms else 0
        if rate:
            self._waiting[uid] = (pod.namespace, rate, is_released)
            self._add(pod.namespace, rate, is_released)
            if not is_endless:
                self._plan_expiry(until_ms, uid)

    def _see(self, uid: str, pod: LedgerPod | None) -> None:
        """Count the pods that a scheduler sees waiting."""
        namespace = self._seen.pop(uid, None)
        if namespace is not None:
            self.seen[namespace] -= 1
            if not self.seen[namespace]:
                del self.seen[namespace]
        model, milli = self._asked.pop(uid, ("", 0))
        self.asked[model] -= milli
        if pod is not None:
            model, milli = self._asked[uid] = self._whole_cards(self.unallocated(pod))
            self.asked[model] += milli
        self.untried.discard(uid)
        if pod is not None and pod.is_untried and not pod.has_other_scheduler(self._settings.scheduler_name):
            self.untried.add(uid)
        if pod is not None and not pod.is_gated:
            self._seen[uid] = pod.namespace
            self.seen[pod.namespace] = self.seen.get(pod.namespace, 0) + 1

    def _held_pod(self, pod: LedgerPod) -> HeldPod:
        by_other = pod.has_other_scheduler(self._settings.scheduler_name)
        gang = None if by_other else pod.gang  # another scheduler starts its own gangs
        return HeldPod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            priority=pod.priority,
            created_ms=pod.created_ms,
            rate_milli=self.most_rate(pod),
            needs_budget=pod.held == "budget",
            by_other=by_other,
            length_ms=pod.length_ms,
            cards_milli=self.most_milli(pod) if by_other else 0,
            owner=pod.owner,
            gang=gang.key if gang is not None else "",
            late_devices=pod.late_devices,
        )

    def unallocated(self, pod: LedgerPod) -> GPURequest:
        """Its request, without what sessions of its claims hold already."""
        return self.rest.get(pod.uid, pod.request)

    def most_milli(self, pod: LedgerPod) -> int:
        """The most that it can hold of cards beside these sessions, unweighted."""
        return held_milli(self.unallocated(pod), {}, 0, self._kinds)

    def _plan_expiry(self, until_ms: int, uid: str) -> None:
        """Recompute the pod then. If most planned expiries are of pods that no longer wait, or duplicates,
        they are removed."""
        heapq.heappush(self._expiries, (until_ms, uid))
        if len(self._expiries) > 2 * len(self._waiting) + MAX_PASSED:
            self._expiries = sorted({each for each in self._expiries if each[1] in self._waiting})

    def _add(self, namespace: str, rate: int, is_released: bool) -> None:
        sums = self.released if is_released else self._sums
        if rate:
            sums[namespace] = sums.get(namespace, 0) + rate
            if not sums[namespace]:
                del sums[namespace]

    def most_rate(self, pod: LedgerPod) -> int:
        """The highest rate that the pod can have, with its claims."""
        return self._most_rate(pod.request)

    def _whole_cards(self, request: GPURequest) -> tuple[str, int]:
        """The model, "" of several, and the most that the request takes of whole cards, in thousandths."""
        if request not in self._wholes:
            if len(self._wholes) >= MAX_ESTIMATES:
                self._wholes.clear()
            rating = rated(Demand(request=request), NodeCards(self._kinds), _BY_COMPUTE)
            self._wholes[request] = rating.models, rating.rate_milli
        return self._wholes[request]

    def unallocated_rate(self, pod: LedgerPod) -> int:
        """The same without the claims that sessions hold already."""
        return self._most_rate(self.unallocated(pod))

    def _most_rate(self, request: GPURequest) -> int:
        if request not in self._estimates:
            if len(self._estimates) >= MAX_ESTIMATES:
                self._estimates.clear()  # each can be made again
            choices = self._cards if request.uuids or request.exclude_uuids else self._kinds
            rating = rated(Demand(request=request), NodeCards(choices), self._settings)
            self._estimates[request] = rating.rate_milli
        return self._estimates[request]
