"""For which gangs of a namespace cards are looked for next: in rounds. Pure.

Each look in vain costs time, so a look for all of them at once would come too seldom for any. In a round each
gang has one look; within it, the order of held pods counts. A gang that comes meanwhile is in the next round:
else many that come could keep the oldest one from its look.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from timekeeper.accounts.held.order import HeldPod


@dataclass(slots=True)
class LookRounds:
    """Of each namespace the keys of the gangs that have no look in vain in its present round."""

    _left: dict[str, set[str]] = field(default_factory=dict)

    def of(self, due: Mapping[str, HeldPod], unpaid: Set[str]) -> dict[str, HeldPod]:
        """Of the gangs whose cards may be looked for, each as one pod by its key, those of the present
        rounds. A round is over once none of it is due, or the budget pays none of them (``unpaid``)."""
        by_namespace: dict[str, set[str]] = {}
        for key, pod in due.items():
            by_namespace.setdefault(pod.namespace, set()).add(key)
        self._left = {
            name: left if (left := self._left.get(name, set())) & (keys - unpaid) else keys
            for name, keys in by_namespace.items()
        }
        return {key: pod for key, pod in due.items() if key in self._left[pod.namespace]}

    def in_vain(self, key: str) -> None:
        """The gang has had its look in this round."""
        self._left.get(key.partition("/")[0], set()).discard(key)
