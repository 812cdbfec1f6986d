"""Which pods leave together: those that share a claim, and the members of a gang. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from timekeeper.accounts.exhaustion.evictions import Pods
from timekeeper.accounts.pods import GangKey, LedgerPod


@dataclass(slots=True)
class LeavingUnits:
    """For one look at the pods: what it has found of a gang is not read again.

    ``holds``: the sets of pods that end a hold if they leave together, the pod among them; ``mates``: the
    members of its gang that hold cards; ``left``: UIDs of pods that were asked to leave, which may not be
    seen yet."""

    holds: Callable[[LedgerPod], Iterable[Pods]]
    mates: Callable[[LedgerPod], Pods]
    left: Collection[str] = frozenset()
    _mates: dict[GangKey, Pods] = field(default_factory=dict)
    _found: dict[tuple[GangKey, bool], Pods] = field(default_factory=dict)

    def whole(self, pods: Pods) -> Pods:
        """These pods, all pods of their gangs, all pods that share a claim with one of those, and so on."""
        return self._closed(pods, shrinks=False)

    def least(self, pods: Pods) -> Pods:
        """The same, but a gang that has its minimum without these goes on."""
        return self._closed(pods, shrinks=True)

    def _closed(self, pods: Pods, shrinks: bool) -> Pods:
        key = pods[0].gang_key if len(pods) == 1 and pods[0].is_charged else None
        if key is None:
            return pods if all(each.gang is None for each in pods) else self._grown(pods, shrinks)
        if (key, shrinks) not in self._found:
            grown = self._grown(pods, shrinks)
            if grown == pods:  # another member alone may leave as well
                return pods
            self._found[key, shrinks] = grown
        return self._found[key, shrinks]

    def _grown(self, pods: Pods, shrinks: bool) -> Pods:
        found = {each.uid: each for each in pods}
        closed = set[GangKey]()
        while (key := next(self._open_gangs(found, closed, shrinks), None)) is not None:
            closed.add(key)
            for mate in self._mates[key]:
                if mate.uid not in found:
                    found[mate.uid] = mate
                    found |= {each.uid: each for some in self.holds(mate) for each in some}
        return tuple(found.values())

    def _open_gangs(
        self, found: dict[str, LedgerPod], closed: set[GangKey], shrinks: bool
    ) -> Iterator[GangKey]:
        """The gangs of which some have to leave, and so all."""
        for pod in found.values():
            key = pod.gang_key
            if key is None or key in closed or not pod.is_charged:
                continue
            if key not in self._mates:
                self._mates[key] = self.mates(pod)
            mates = self._mates[key]
            staying = sum(each.uid not in found and each.uid not in self.left for each in mates)
            if not shrinks or staying < max((it.gang.minimum for it in mates if it.gang), default=0):
                yield key
