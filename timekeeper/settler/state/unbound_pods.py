"""The rates that admitted pods without a node will have, summed by namespace as pods come and go."""

import heapq
from dataclasses import dataclass, field

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import admitted_in_budget
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.request.cards import weight_of
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.values import Card, GPURequest
from timekeeper.settler.cluster.cluster_state import ClusterState

MOST_ESTIMATES = 4_096  # cached rates by request: tenants choose the requests, so the cache needs a limit
MOST_PASSED = 1_000  # planned expiries of pods that no longer wait


@dataclass(slots=True)
class UnboundPods:
    """A pod counts for one lookahead after its creation. A namespace's pods together count for at most all
    cards of the cluster: pods that fit on no node must not demote other pods of their namespace forever."""

    rates: dict[str, int] = field(default_factory=dict)  # namespace -> the rate its waiting pods will have
    # the settings that the estimates are based on
    _settings: BudgetSettings = field(default_factory=BudgetSettings)
    _inventory: int = -1  # the version of the inventory that the estimates are based on
    _at_ms: int = 0
    _cards: tuple[Card, ...] = ()  # all cards of the cluster
    _kinds: tuple[Card, ...] = ()  # one card of each model and memory size
    _most_milli: int = 0  # the rate of all cards together
    # UID -> namespace and rate of a pod that counts
    _waiting: dict[str, tuple[str, int]] = field(default_factory=dict)
    _sums: dict[str, int] = field(default_factory=dict)  # namespace -> summed rate, without the limit
    # heap of (moment, UID): the pod counts no longer then
    _expiries: list[tuple[int, str]] = field(default_factory=list)
    _estimates: dict[GPURequest, int] = field(default_factory=dict)  # request -> rate

    def update(self, cluster: ClusterState, settings: BudgetSettings, now_ms: int) -> set[str]:
        """Bring ``rates`` up to date; returns the namespaces whose rate changed."""
        before = self.rates
        if (self._settings, self._inventory) != (settings, cluster.inventory_version) or now_ms < self._at_ms:
            self._restart(cluster, settings)
        self._at_ms = now_ms
        uids = set(cluster.unbound_changes)
        while self._expiries and self._expiries[0][0] <= now_ms:
            uids.add(heapq.heappop(self._expiries)[1])
        cluster.unbound_changes.clear()
        if not uids and before is self.rates:
            return set()
        for uid in uids:
            self._recount(uid, cluster.pods.get(uid) if uid in cluster.unbound else None, now_ms)
        most_milli = self._most_milli
        self.rates = {name: min(most_milli, rate) for name, rate in self._sums.items() if most_milli}
        names = before.keys() | self.rates.keys()
        return {name for name in names if before.get(name) != self.rates.get(name)}

    def _restart(self, cluster: ClusterState, settings: BudgetSettings) -> None:
        """The inputs of every estimate changed: recompute all."""
        self._settings, self._inventory = settings, cluster.inventory_version
        self._cards = tuple(card for node in cluster.nodes.values() for card in node.cards)
        self._kinds = tuple(
            {(each.model, each.memory_mib, each.resources): each for each in self._cards}.values()
        )
        self._most_milli = sum(weight_of(each.model, settings.weights) for each in self._cards)
        self._waiting, self._sums, self._expiries, self._estimates = {}, {}, [], {}
        self.rates = {}
        cluster.unbound_changes.update(cluster.unbound)

    def _recount(self, uid: str, pod: LedgerPod | None, now_ms: int) -> None:
        """Remove the pod from the sums; add it again if it still waits."""
        namespace, rate = self._waiting.pop(uid, ("", 0))
        self._add(namespace, -rate)
        if pod is None or not admitted_in_budget(pod.standing, self._settings):
            return
        until_ms = pod.created_ms + self._settings.lookahead_ms
        rate = self._estimate(pod.request) if now_ms < until_ms else 0
        if rate:
            self._waiting[uid] = (pod.namespace, rate)
            self._add(pod.namespace, rate)
            self._plan_expiry(until_ms, uid)

    def _plan_expiry(self, until_ms: int, uid: str) -> None:
        """Recompute the pod then. If most planned expiries are of pods that no longer wait, or duplicates,
        they are removed."""
        heapq.heappush(self._expiries, (until_ms, uid))
        if len(self._expiries) > 2 * len(self._waiting) + MOST_PASSED:
            self._expiries = sorted({each for each in self._expiries if each[1] in self._waiting})

    def _add(self, namespace: str, rate: int) -> None:
        if rate:
            self._sums[namespace] = self._sums.get(namespace, 0) + rate
            if not self._sums[namespace]:
                del self._sums[namespace]

    def _estimate(self, request: GPURequest) -> int:
        if request not in self._estimates:
            if len(self._estimates) >= MOST_ESTIMATES:
                self._estimates.clear()  # each can be made again
            choices = self._cards if request.uuids or request.exclude_uuids else self._kinds
            self._estimates[request] = estimated_rate(
                request,
                choices,
                self._settings.weights,
                self._settings.charge_by,
                self._settings.unit_costs,
            )
        return self._estimates[request]
