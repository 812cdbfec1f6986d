"""The rounds of nodes with freed cards: one pod after another is requeued for the node.

The caller locks. ``now_s``: a monotonic clock, in seconds.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice

HOLD_BACK_S = 1.0
HOLD_BACK_AGAIN_S = 10.0
MAX_KNOWN = 10_000  # nodes and namespaces; beyond that the earliest are forgotten


class HoldBacks:
    """For whose pods others were held back from a node, and since when.

    The extender does not know whether kube-scheduler will bind the pod that is first in turn: affinity to
    other pods, ports or volumes may keep it off. And its namespace may free cards of the node again and
    again. So for a namespace's pods others are held back from a node for one second in ten.

    Times are seconds of one monotonic clock. One thread at a time calls `note`; `may` may be called beside
    it."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def may(self, node: str, namespace: str, now_s: float) -> bool:
        """Whether others may be held back from the node for a pod of this namespace."""
        since = self._since.get((node, namespace))
        return since is None or not HOLD_BACK_S < now_s - since < HOLD_BACK_AGAIN_S

    def note(self, held: Iterable[tuple[str, str]], now_s: float) -> None:
        """Others are held back now, by node and namespace."""
        for each in held:
            since = self._since.get(each)
            if since is None or now_s - since >= HOLD_BACK_AGAIN_S:
                self._since.pop(each, None)
                self._since[each] = now_s
        while len(self._since) > MAX_KNOWN:
            del self._since[next(iter(self._since))]


# kube-scheduler often notices a freed card at the same time and retries pods by itself
FIRST_LOOK_S = 0.03
TRIED_WITHIN_S = 2.0


@dataclass(slots=True)
class Round:
    """One node's round: when to look at it, until when it holds other pods back, which pods were requeued,
    which of them is awaited, and which pods were held back."""

    look_at: float
    holds_until: float
    woken: set[str] = field(default_factory=set)
    awaited: str = ""
    kept: set[str] = field(default_factory=set)

    def woke(self, uid: str, now_s: float) -> None:
        """The pod was chosen; it has some time to be tried."""
        self.woken.add(uid)
        self.awaited, self.look_at = uid, now_s + TRIED_WITHIN_S

    def keep(self, uid: str) -> None:
        """The pod was held back: it is looked at again no later than the round holds pods back."""
        self.kept.add(uid)
        self.look_at = min(self.look_at, self.holds_until)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The pods that may take a node's cards in its round: of the requeued ones only the awaited one, and none
    that another node awaits. ``woken`` keeps growing, which is harmless."""

    current: Round
    woken: Collection[str]
    awaited: str
    awaited_anywhere: Counter[str]

    def may(self, uid: str) -> bool:
        """Whether the pod may take them."""
        its = uid == self.awaited
        return self.awaited_anywhere[uid] == its and (its or uid not in self.woken)


class Rounds:
    """The rounds that have not ended, by node."""

    def __init__(self) -> None:
        self._rounds: dict[str, Round] = {}

    def __len__(self) -> int:
        return len(self._rounds)

    def begin(self, nodes: Iterable[str], now_s: float) -> None:
        """These nodes have more free than before: each gets a new round."""
        self._rounds |= {name: Round(now_s + FIRST_LOOK_S, now_s + HOLD_BACK_S) for name in nodes}

    def end(self, node: str) -> None:
        """The node's round is over."""
        del self._rounds[node]

    def get(self, node: str) -> Round | None:
        """The node's round; None if it has none."""
        return self._rounds.get(node)

    def next_look(self) -> float | None:
        """When the next look is due; None without a round."""
        return min((each.look_at for each in self._rounds.values()), default=None)

    def due(self, now_s: float) -> list[str]:
        """The nodes to look at now."""
        return [name for name, each in self._rounds.items() if each.look_at <= now_s]

    def tried(self, uid: str, now_s: float) -> bool:
        """The awaited pod was tried. True if a round awaited it, which is looked at at once."""
        awaiting = [each for each in self._rounds.values() if each.awaited == uid]
        for each in awaiting:
            each.awaited, each.look_at = "", now_s
        return bool(awaiting)

    def look(self, node: str) -> Candidates:
        """Choose the node's next pod: the one that was awaited no longer is."""
        self._rounds[node].awaited = ""
        return _candidates(self._rounds[node], self._awaited())

    def holding_back(self, nodes: Iterable[str], now_s: float, most: int) -> dict[str, Candidates]:
        """Of these nodes the first few whose rounds still hold pods back."""
        there = ((name, self._rounds[name]) for name in nodes if name in self._rounds)
        keep = dict(islice((each for each in there if now_s < each[1].holds_until), most))
        awaited = self._awaited() if keep else Counter()
        return {name: _candidates(current, awaited) for name, current in keep.items()}

    def _awaited(self) -> Counter[str]:
        return Counter(each.awaited for each in self._rounds.values() if each.awaited)


def _candidates(current: Round, awaited: Counter[str]) -> Candidates:
    return Candidates(current, current.woken, current.awaited, awaited)
