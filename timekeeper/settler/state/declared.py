"""The reservations of pods that declared their time and have no session yet: as the database has them."""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from timekeeper.accounts.held.declared import DeclaredReservation, HeldAmount
from timekeeper.core.ledger.metering import Interval


@dataclass(slots=True)
class DeclaredReservations:
    """By UID of the pod. ``changed``: namespaces whose sum changed since the last written tick."""

    rows: dict[str, DeclaredReservation] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    _by_namespace: dict[str, dict[str, DeclaredReservation]] = field(default_factory=dict)

    def add(self, found: Iterable[DeclaredReservation]) -> None:
        """These are written."""
        for each in found:
            self.rows[each.uid] = each
            self._by_namespace.setdefault(each.namespace, {})[each.uid] = each
            self.changed.add(each.namespace)

    def remove(self, uids: Iterable[str]) -> None:
        """These are written no more."""
        for uid in uids:
            gone = self.rows.pop(uid)
            mine = self._by_namespace[gone.namespace]
            del mine[uid]
            if not mine:
                del self._by_namespace[gone.namespace]

    def namespaces(self) -> Iterable[str]:
        """Those with a reservation."""
        return self._by_namespace.keys()

    def within(
        self,
        namespace: str,
        span: Interval,
        without: Set[str],
        added: Iterable[DeclaredReservation],
    ) -> int:
        """What the namespace's pods reserve of the span. ``without``: UIDs of pods that do no more;
        ``added``: pods of any namespace that do from now on."""
        mine = self._by_namespace.get(namespace, {})
        now = (each for uid, each in mine.items() if uid not in without)
        new = (each for each in added if each.namespace == namespace)
        return sum(each.within(span) for each in (*now, *new))

    def amounts(self, namespace: str) -> Iterator[HeldAmount]:
        """The same one by one, for later periods."""
        for each in self._by_namespace.get(namespace, {}).values():
            until_ms = each.reserved_ms + each.length_ms
            yield HeldAmount(each.rate_milli, Interval(each.reserved_ms, until_ms), each.length_ms)
