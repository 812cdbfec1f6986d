"""The accounts that charges lie in: by all entries, and by those that were there when a row was written."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.core.ledger.metering import Interval

_HISTORIES = 512  # kept at a time


class Spans:
    """The spans of namespaces' accounts."""

    def __init__(self, entries: tuple[BudgetEntry, ...]) -> None:
        self.history = history_of(entries)
        self._last: dict[str, Interval] = {}
        self._then = lru_cache(_HISTORIES)(self._history_of_first)
        self._of = lru_cache(_HISTORIES)(self._entries_of)
        self._shared = tuple(entry for entry in entries if entry.key.startswith("_"))
        self._own: dict[str, list[BudgetEntry]] = {}
        for entry in entries:
            if not entry.key.startswith("_"):
                self._own.setdefault(entry.key, []).append(entry)

    def account(self, namespace: str, at_ms: int) -> tuple[int, int]:
        """The account that a moment lies in, by all entries."""
        span = self._last.get(namespace)
        if span is None or not span.start_ms <= at_ms < span.end_ms:
            span = self._last[namespace] = self.history.account(namespace, at_ms).span
        return span.start_ms, span.end_ms

    def accounts(self, namespace: str, from_ms: int, to_ms: int) -> Iterator[tuple[int, int]]:
        """The time cut at the bounds of the namespace's accounts."""
        while from_ms < to_ms:
            end_ms = min(to_ms, self.account(namespace, from_ms)[1])
            yield from_ms, end_ms
            from_ms = end_ms

    def crossed(self, namespace: str, from_ms: int, to_ms: int, created_ms: int) -> int | None:
        """The bound of an account at which a posting had to be cut and was not; None where it lies in one.

        A bound that a later entry has drawn cuts nothing that was posted before.
        """
        if to_ms <= self.account(namespace, from_ms)[1]:
            return None
        end_ms = self.at(namespace, created_ms).account(namespace, from_ms).span.end_ms
        return end_ms if end_ms < to_ms else None

    def at(self, subject: str, created_ms: int) -> History:
        """The history of a subject as it was when a row was written."""
        entries = self._of(subject)
        return self._then(subject, bisect_right(entries, created_ms, key=lambda entry: entry.from_ms))

    def _history_of_first(self, subject: str, count: int) -> History:
        return history_of(self._of(subject)[:count])

    def _entries_of(self, subject: str) -> tuple[BudgetEntry, ...]:
        """The entries that can matter to a subject, in the order they took effect."""
        own = self._own.get(subject, [])
        return tuple(sorted((*own, *self._shared), key=lambda entry: entry.from_ms))
