"""The one drain of the cluster: begun and renewed by the calls for its gang, and over without them.

It is in this process's memory alone. So a killed extender keeps no card, and a killed timekeeper none for
longer than `LASTS_MS`.
"""

from collections.abc import Callable, Collection, Sequence

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.gangs.asked import GangAsked
from scheduler_ext.gangs.drain_choice import choose
from scheduler_ext.gangs.rooms import PlanInput
from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.drains import Drain
from scheduler_ext.snapshot.snapshot import Snapshot

LASTS_MS = 30_000  # the timekeeper asks again about every five seconds


class GangDrains:
    """``given``: what a plan reads of this snapshot."""

    def __init__(
        self,
        cache: ClusterCache,
        given: Callable[[Snapshot], PlanInput],
        now_ms: Callable[[], int],
        log: Log,
    ) -> None:
        self._cache, self._given, self._now_ms, self._log = cache, given, now_ms, log

    def keep(
        self, pods: Sequence[Pod], asked: GangAsked, beside: Collection[str], late: Sequence[Pod] = ()
    ) -> str:
        """Keep cards for these members and those that follow (``late``), which do not fit now, if the call
        wants it; ends their drain if it does not. Returns what is kept, for people; "": nothing."""
        now_ms = self._now_ms()
        if asked.drain_ms <= now_ms:
            self.end(pods[0])
            return ""
        drain = self._cache.snapshot.drain
        if drain is not None and drain.epoch > asked.epoch:
            return ""  # a late call
        lasts_ms = min(now_ms + LASTS_MS, asked.drain_ms)
        if drain is not None and drain.is_of(pods[0]) and self._is_good(drain, asked.drain_ms):
            self._cache.renew_drain(lasts_ms)
            return self._text(drain)
        return self._begin((*pods[: asked.needed], *late), asked, beside, lasts_ms)

    def end(self, pod: Pod) -> None:
        """No cards are kept for the pod's gang any more."""
        drain = self._cache.snapshot.drain
        if drain is not None and drain.is_of(pod):
            self._cache.undrain()
            self._log("drain-ends", gang=f"{drain.namespace}/{drain.key}")

    def _begin(self, pods: Sequence[Pod], asked: GangAsked, beside: Collection[str], lasts_ms: int) -> str:
        gang, now_ms = pods[0].gang, self._now_ms()
        found = choose(pods, self._given(self._cache.snapshot), asked.drain_ms, now_ms, beside)
        if found is None or gang is None:
            self.end(pods[0])
            return ""
        where = pods[0].namespace, gang.key, gang.name
        drain = Drain(*where, found.starts_ms, asked.drain_ms, lasts_ms, found.cards, asked.epoch)
        self._cache.drain(drain)
        self._log("drain", gang=f"{drain.namespace}/{drain.key}", nodes=len(drain.cards), kept=drain.text)
        return self._text(drain)

    def _is_good(self, drain: Drain, until_ms: int) -> bool:
        """Whether it is the drain that is wanted, and its nodes can still be used."""
        nodes = (self._cache.snapshot.node(name) for name, _ in drain.cards)
        usable = all(node.node_object is not None and not node.closed for node in nodes)
        return drain.until_ms == until_ms and usable

    def _text(self, drain: Drain) -> str:
        cards, nodes = sum(len(each) for _, each in drain.cards), len(drain.cards)
        return f"{cards} cards on {nodes} {'node' if nodes == 1 else 'nodes'} are kept for it {drain.text}"
