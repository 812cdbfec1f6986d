"""What each account was granted and has spent, and which pods fit on which cards, computed a second time from
what happened. Imports nothing of ours.

Times are milliseconds since 1970, amounts thousandths of a card x milliseconds.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.timekeeper.oracle_accounts import FOREVER, Books, Budget

GROUP = "_group."


@dataclass
class Charge:
    """A pod's hold of its cards, or the cards that are held for a waiting one. ``end`` None: it has not
    ended; ``is_held``: the clock alone extends it, until its end at the latest; ``promised``: until when the
    pod has reserved them, 0: it has not."""

    rate: int
    node: str
    bound: int
    end: int | None = None
    is_held: bool = False
    promised: int = 0
    uid: str = ""

    def until(self, now: int, leases: Mapping[str, int]) -> int:
        """Its end; while it has none, until when its node is known to have run it."""
        if self.end is None:
            return max(self.bound, min(now, leases[self.node]))
        return min(now, self.end) if self.is_held else self.end


@dataclass(frozen=True)
class Promise:
    """A pod without cards that has reserved so much time, at the highest rate that it can have."""

    namespace: str
    rate: int
    length: int


@dataclass
class Accounts:
    """What is due to the accounts of namespaces and groups (``_group.NAME``)."""

    books: Books = field(default_factory=Books)
    groups: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # namespace -> (since, group)
    charges: dict[str, list[Charge]] = field(default_factory=dict)  # by namespace
    by_hand: list[tuple[str, tuple[int, int], int]] = field(default_factory=list)  # subject, account, amount
    promises: dict[str, Promise] = field(default_factory=dict)  # by UID
    _open: dict[str, Charge] = field(default_factory=dict)
    # subject -> its account when last asked, and how many changes there were then
    _known: dict[str, tuple[tuple[int, int], int]] = field(default_factory=dict)

    def account(self, subject: str, now: int) -> tuple[int, int]:
        """Start and end of the subject's account at this moment."""
        changes = len(self.books.budgets.get(subject, ()))
        known = self._known.get(subject)
        if known is None or known[1] != changes or not known[0][0] <= now < known[0][1]:
            known = self._known[subject] = self.books.account(subject, now), changes
        return known[0]

    def change(self, subject: str, amount: int | None, period: str, group: str, now: int) -> None:
        """A budget takes effect."""
        self.books.change(subject, Budget(amount, period), now)
        self.groups.setdefault(subject, []).append((now, group))

    def grant(self, subject: str, amount: int, now: int) -> None:
        """A person grants an amount in the present period, or takes it back."""
        self.by_hand.append((subject, self.account(subject, now), amount))

    def binds(self, uid: str, namespace: str, node: str, rate: int, at: int) -> None:
        """A pod is bound."""
        promise = self.promises.pop(uid, None)
        self._open[uid] = Charge(rate, node, at, promised=at + promise.length if promise else 0, uid=uid)
        self.charges.setdefault(namespace, []).append(self._open[uid])

    def ends(self, uid: str, at: int) -> None:
        """A pod has ended."""
        self._open.pop(uid).end = at

    def holds(self, uid: str, namespace: str, rate: int, since: int, until: int) -> None:
        """Free cards are held for a waiting pod."""
        if uid not in self._open:
            self._open[uid] = Charge(rate, "", since, until, is_held=True)
            self.charges.setdefault(namespace, []).append(self._open[uid])

    def lets_go(self, uid: str, at: int) -> None:
        """The waiting pod was bound, or no cards are held for it any more."""
        held = self._open.pop(uid)
        held.end = max(held.bound, min(held.end or at, at))

    def promised(self, subject: str, now: int, among: Container[str] | None = None) -> int:
        """What pods that have reserved their time have used of the present account, and may still use of it
        within their time. ``among``: these pods alone, by UID."""
        start, end = self.account(subject, now)
        total = 0
        for name, since, until in self._parts(subject, start, end):
            for charge in self.charges.get(name, ()):
                if charge.promised > since and (among is None or charge.uid in among):
                    last = charge.promised if charge.end is None else min(charge.promised, charge.end)
                    total += charge.rate * max(0, min(last, until) - max(charge.bound, since))
            for uid, each in self.promises.items():
                if each.namespace == name and (among is None or uid in among):
                    total += each.rate * max(0, min(each.length, until - max(now, since)))
        return total

    def reserving(self) -> set[str]:
        """The pods that have ever reserved time."""
        held = {each.uid for charges in self.charges.values() for each in charges if each.promised}
        return held | self.promises.keys()

    def granted(self, subject: str, now: int) -> int | None:
        """The grant of the present account; None: without a limit."""
        amount = self.books.in_force(subject, now).amount
        if amount is None:
            return None
        mine = self.account(subject, now)
        return amount + sum(each for name, span, each in self.by_hand if (name, span) == (subject, mine))

    def spent(self, subject: str, now: int, leases: Mapping[str, int]) -> int:
        """What is charged for the present account's time."""
        start, end = self.account(subject, now)
        return sum(
            charge.rate * max(0, min(charge.until(now, leases), until) - max(charge.bound, since))
            for name, since, until in self._parts(subject, start, end)
            for charge in self.charges.get(name, ())
            if charge.end is None or charge.end > since
        )

    def is_spent(self, subject: str, now: int, leases: Mapping[str, int]) -> bool:
        """Whether the charges have used up the grant."""
        granted = self.granted(subject, now)
        return granted is not None and self.spent(subject, now, leases) >= granted

    def _parts(self, subject: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Whose charges count, and of which time: a group's account counts each member while it is one."""
        if not subject.startswith(GROUP):
            yield subject, start, end
            return
        group = subject.removeprefix(GROUP)
        for name, changes in self.groups.items():
            ends = [at for at, _ in changes[1:]] + [FOREVER]
            for (since, its), until in zip(changes, ends, strict=True):
                if its == group and max(since, start) < min(until, end):
                    yield name, max(since, start), min(until, end)


@dataclass(frozen=True)
class Need:
    """What one container asks of each of ``cards`` cards: thousandths of it, or MiB, or both."""

    cards: int
    share: int
    mib: int

    def of(self, whole_mib: int) -> int:
        """The memory that it takes of a card of this size."""
        return self.mib or whole_mib * self.share // 1000


@dataclass(frozen=True)
class Room:
    """A card: its memory, and what is taken of it."""

    mib: int
    share_used: int = 0
    mib_used: int = 0

    def less(self, share: int, mib: int) -> "Room":
        """The card with this much more taken."""
        return Room(self.mib, self.share_used + share, self.mib_used + mib)

    def has_room(self, need: Need) -> bool:
        """Whether the container's part fits on it; a whole card is shared with nothing."""
        if need.share == 1000:
            return not self.share_used and not self.mib_used and need.of(self.mib) <= self.mib
        return self.share_used + need.share <= 1000 and self.mib_used + need.of(self.mib) <= self.mib


def fits(needs: Sequence[Need], cards: Sequence[Room]) -> bool:
    """Whether the containers fit on these cards of one node, by trying every choice."""
    if not needs:
        return True
    need, *rest = needs
    able = [at for at, card in enumerate(cards) if card.has_room(need)]
    if not rest:
        return len(able) >= need.cards
    for chosen in combinations(able, need.cards):
        left = [
            card.less(need.share, need.of(card.mib)) if at in chosen else card
            for at, card in enumerate(cards)
        ]
        if fits(rest, left):
            return True
    return False
