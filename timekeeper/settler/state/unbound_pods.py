"""The rates that admitted pods without a node will have, added up by namespace as pods come and go."""

import heapq
from dataclasses import dataclass, field

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import admitted_in_budget, estimated_rate
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.request.cards import weight_of
from timekeeper.core.values import Card, GPURequest
from timekeeper.settler.cluster.cluster_state import ClusterState

MOST_ESTIMATES = 4_096  # of requests: their texts are the tenants' to choose
MOST_PASSED = 1_000  # moments planned for pods that wait no more


@dataclass(slots=True)
class UnboundPods:
    """``rates``: what each namespace's waiting pods will have. A pod counts for one lookahead after its
    creation, and all of a namespace together for no more than all the cluster's cards: pods that can be
    placed nowhere must not demote their siblings for ever."""

    rates: dict[str, int] = field(default_factory=dict)
    _settings: BudgetSettings = field(default_factory=BudgetSettings)
    _inventory: int = -1
    _at_ms: int = 0
    _cards: tuple[Card, ...] = ()
    _kinds: tuple[Card, ...] = ()
    _most_milli: int = 0
    _waiting: dict[str, tuple[str, int]] = field(default_factory=dict)
    _sums: dict[str, int] = field(default_factory=dict)
    _too_old: list[tuple[int, str]] = field(default_factory=list)
    _estimates: dict[GPURequest, int] = field(default_factory=dict)

    def follow(self, world: ClusterState, settings: BudgetSettings, now_ms: int) -> set[str]:
        """Bring ``rates`` to this moment; the namespaces whose rate is another now."""
        before = self.rates
        if (self._settings, self._inventory) != (settings, world.inventory) or now_ms < self._at_ms:
            self._begin(world, settings)
        self._at_ms = now_ms
        looked_at = set(world.stirred)
        while self._too_old and self._too_old[0][0] <= now_ms:
            looked_at.add(heapq.heappop(self._too_old)[1])
        world.stirred.clear()
        if not looked_at and before is self.rates:
            return set()
        for uid in looked_at:
            self._count(uid, world.pods.get(uid) if uid in world.unbound else None, now_ms)
        most_milli = self._most_milli
        self.rates = {name: min(most_milli, rate) for name, rate in self._sums.items() if most_milli}
        names = before.keys() | self.rates.keys()
        return {name for name in names if before.get(name) != self.rates.get(name)}

    def _begin(self, world: ClusterState, settings: BudgetSettings) -> None:
        """What every estimate rests on is another: all anew."""
        self._settings, self._inventory = settings, world.inventory
        self._cards = tuple(card for node in world.nodes.values() for card in node.cards)
        self._kinds = tuple({(each.model, each.memory_mib): each for each in self._cards}.values())
        self._most_milli = sum(weight_of(each.model, settings.weights) for each in self._cards)
        self._waiting, self._sums, self._too_old, self._estimates = {}, {}, [], {}
        self.rates = {}
        world.stirred.update(world.unbound)

    def _count(self, uid: str, pod: LedgerPod | None, now_ms: int) -> None:
        """Take the pod out of the sums, and in again where it still waits."""
        namespace, rate = self._waiting.pop(uid, ("", 0))
        self._add(namespace, -rate)
        if pod is None or not admitted_in_budget(pod.standing, self._settings):
            return
        until_ms = pod.created_ms + self._settings.lookahead_ms
        rate = self._estimate(pod.request) if now_ms < until_ms else 0
        if rate:
            self._waiting[uid] = (pod.namespace, rate)
            self._add(pod.namespace, rate)
            self._plan(until_ms, uid)

    def _plan(self, until_ms: int, uid: str) -> None:
        """Look at the pod again then. Once most that is planned is of pods that wait no more, or twice of the
        same, that is let go."""
        heapq.heappush(self._too_old, (until_ms, uid))
        if len(self._too_old) > 2 * len(self._waiting) + MOST_PASSED:
            self._too_old = sorted({each for each in self._too_old if each[1] in self._waiting})

    def _add(self, namespace: str, rate: int) -> None:
        if rate:
            self._sums[namespace] = self._sums.get(namespace, 0) + rate
            if not self._sums[namespace]:
                del self._sums[namespace]

    def _estimate(self, request: GPURequest) -> int:
        if request not in self._estimates:
            if len(self._estimates) >= MOST_ESTIMATES:
                self._estimates.clear()  # each can be made again
            choices = self._cards if request.uuids else self._kinds
            self._estimates[request] = estimated_rate(request, choices, self._settings)
        return self._estimates[request]
