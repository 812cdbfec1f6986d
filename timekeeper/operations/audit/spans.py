"""The accounts that charges belong to: by all entries, and by those that existed when a row was written."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.core.ledger.metering import Interval

_HISTORIES = 512  # in the cache


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
        """The account of a time, by all entries."""
        span = self._last.get(namespace)
        if span is None or not span.start_ms <= at_ms < span.end_ms:
            span = self._last[namespace] = self.history.account(namespace, at_ms).span
        return span.start_ms, span.end_ms

    def accounts(self, namespace: str, from_ms: int, to_ms: int) -> Iterator[tuple[int, int]]:
        """The time range cut at the bounds of the namespace's accounts."""
        while from_ms < to_ms:
            end_ms = min(to_ms, self.account(namespace, from_ms)[1])
            yield from_ms, end_ms
            from_ms = end_ms

    def crossed(self, namespace: str, from_ms: int, to_ms: int, created_ms: int) -> int | None:
        """The account bound at which a posting should have been cut; None if it lies in one account.

        A bound created by a later entry does not cut earlier postings.
        """
        if to_ms <= self.account(namespace, from_ms)[1]:
            return None
        end_ms = self.at(namespace, created_ms).account(namespace, from_ms).span.end_ms
        return end_ms if end_ms < to_ms else None

    def at(self, subject: str, created_ms: int) -> History:
        """A subject's budget history as of the time a row was written."""
        entries = self._of(subject)
        return self._then(subject, bisect_right(entries, created_ms, key=lambda entry: entry.from_ms))

    def _history_of_first(self, subject: str, count: int) -> History:
        return history_of(self._of(subject)[:count])

    def _entries_of(self, subject: str) -> tuple[BudgetEntry, ...]:
        """The entries that concern a subject, in the order they took effect."""
        own = self._own.get(subject, [])
        return tuple(sorted((*own, *self._shared), key=lambda entry: entry.from_ms))
