"""The one drain of the cluster: cards that are kept empty for a gang that lacks them. It is in this process's
memory alone, so a killed extender keeps no card."""

from collections.abc import Callable, Mapping, Set

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.gangs.capacity import PlanInput, shape_of, takes_empty
from scheduler_ext.gangs.drain_choice import choose
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.log import Log
from scheduler_ext.snapshot.drains import Drain
from scheduler_ext.snapshot.gang_table import GangKey, GangState
from scheduler_ext.snapshot.node_info import NodeInfo
from scheduler_ext.snapshot.snapshot import Snapshot


class GangDrains:
    """``given``: what a plan reads of this snapshot. Used by the thread that starts gangs."""

    def __init__(
        self,
        cache: ClusterCache,
        given: Callable[[Snapshot], PlanInput],
        turns: DrainTurns,
        log: Log,
    ) -> None:
        self._cache, self._given, self.turns, self._log = cache, given, turns, log
        self._grows_for: GangKey = ""  # the gang for which an autoscaler makes nodes

    def follow(self, gangs: Mapping[GangKey, GangState], lacking: Set[GangKey], now_ms: int) -> None:
        """Begin or end a drain. ``lacking``: as in `DrainTurns.follow`."""
        if self._grows_for:
            return
        before = self.turns.key
        self.turns.follow(gangs, lacking, now_ms)
        if before and before != self.turns.key:
            self._undrain(before)
        if self.turns.key and not self._is_good():
            self._begin(gangs[self.turns.key], now_ms)

    def fits(self, key: GangKey, now_ms: int) -> None:
        """The gang has its cards."""
        if key == self.turns.key:
            self.turns.end("fit", now_ms)
            self._undrain(key)

    def end_growth(self) -> None:
        """No node comes for a gang any more."""
        if self._grows_for:
            self._undrain(self._grows_for)
            self._grows_for = ""

    def grow(self, gang: GangState, now_ms: int, until_ms: int) -> None:
        """Keep all cards of the nodes that come from now on, and that its members could use, for this gang
        until then. Another gang's drain ends."""
        if self.turns.key:
            self.turns.end("none", now_ms)
        self._grows_for = gang.key
        snapshot = self._cache.snapshot
        before = frozenset(node.name for node in snapshot.nodes.values())
        shapes = {shape_of(pod): pod for pod in gang.paid}.values()
        policies = self._given(snapshot).policies

        def comes(node: NodeInfo) -> bool:
            return node.name not in before and any(takes_empty(pod, node, policies(pod)) for pod in shapes)

        self._cache.drain(Drain(gang.namespace, gang.gang.key, gang.gang.name, 0, until_ms, (), comes))

    @property
    def has_grown(self) -> bool:
        """Whether nodes with cards have come for a gang."""
        drain = self._cache.snapshot.drain
        return bool(self._grows_for) and drain is not None and bool(drain.cards)

    def _begin(self, gang: GangState, now_ms: int) -> None:
        pods = gang.paid[: max(1, gang.needed - len(gang.bound))]
        chosen = choose(pods, self._given(self._cache.snapshot), self.turns.until_ms, now_ms, gang.bound)
        if chosen is None:
            self.turns.end("none", now_ms)
            self._undrain(gang.key)
            return
        where = gang.namespace, gang.gang.key, gang.gang.name
        drain = Drain(*where, chosen.starts_ms, self.turns.until_ms, chosen.cards)
        self._cache.drain(drain)
        self._log("drain", gang=gang.key, nodes=len(drain.cards), kept=drain.text)

    def _undrain(self, key: GangKey) -> None:
        if self._cache.snapshot.drain is not None:
            self._cache.undrain()
            self._log("drain-ends", gang=key)

    def _is_good(self) -> bool:
        """Whether it is the drain that is wanted, and its nodes can still be used."""
        drain = self._cache.snapshot.drain
        if drain is None or f"{drain.namespace}/{drain.key}" != self.turns.key:
            return False
        nodes = (self._cache.snapshot.node(name) for name, _ in drain.cards)
        usable = all(node.node_object is not None and not node.closed for node in nodes)
        return usable and drain.until_ms == self.turns.until_ms
