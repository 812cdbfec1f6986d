"""What the pods that a budget entry's ``protect`` selects have used in a period."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from timekeeper.accounts.posting import Posting, amount_within
from timekeeper.accounts.protection import selects
from timekeeper.accounts.session import Session
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.state.totals import StoredTotals

SessionOf = Callable[[str], Session | None]  # by UID
_Key = tuple[str, Interval, Protection]


@dataclass(slots=True)
class SelectedUse:
    """What is posted of these pods, as written: read once for each period and entry, and kept up to date."""

    _posted: dict[_Key, int] = field(default_factory=dict)

    def posted(self, namespace: str, span: Interval, protection: Protection, stored: StoredTotals) -> int:
        """Without the postings of a tick that is not written."""
        key = (namespace, span, protection)
        if key not in self._posted:
            rows = stored.posted_by_pods(namespace, span)
            amounts = (amount for owner, labels, amount in rows if selects(protection, owner, labels))
            self._posted[key] = sum(amounts)
        return self._posted[key]

    def apply(self, postings: Sequence[Posting], session_of: SessionOf) -> None:
        """These are written."""
        for key in self._posted if postings else ():
            self._posted[key] += posted_of(postings, session_of, *key)

    def retain(self, namespaces: Iterable[str], spans: Iterable[Interval]) -> None:
        """Drop what concerns other namespaces or periods."""
        names, these = set(namespaces), set(spans)
        self._posted = {
            key: each for key, each in self._posted.items() if key[0] in names and key[1] in these
        }


def posted_of(
    postings: Iterable[Posting],
    session_of: SessionOf,
    namespace: str,
    span: Interval,
    protection: Protection,
) -> int:
    """What these postings charge to selected pods of the namespace inside the span."""

    def is_selected(posting: Posting) -> bool:
        session = session_of(posting.session_uid)
        return session is not None and selects_session(protection, session)

    theirs = (each for each in postings if each.namespace == namespace)
    return amount_within(filter(is_selected, theirs), span)


def selects_session(protection: Protection, session: Session) -> bool:
    """Whether the pod is selected, by its controller and labels as of its binding: a later label changes
    nothing."""
    return selects(protection, session.owner, session.labels)
