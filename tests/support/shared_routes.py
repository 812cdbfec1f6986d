"""Compiled routes that the applications of a process share.

Werkzeug compiles a route to Python when an application adds it. Each test of the REST API has an application
of its own with the same routes: 15 ms of a processor, a third of many a test.
"""

from typing import Any

from flask import Flask
from werkzeug.routing import Map, Rule, RuleFactory

Key = tuple[str, str, frozenset[str]]


class _SharedMap(Map):
    """A route that is in it is not added again."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[Key] = set()

    def add(self, rulefactory: RuleFactory) -> None:
        """Compile and add what is new."""
        for rule in rulefactory.get_rules(self):
            if (key := _key(rule)) not in self._known:
                self._known.add(key)
                super().add(rule)


def _key(rule: Rule) -> Key:
    return rule.rule, rule.endpoint, frozenset(rule.methods or ())


_SHARED = _SharedMap()


def _shared(**_: Any) -> Map:
    return _SHARED


class SharingFlask(Flask):
    """An application whose routes are those of all others of this class; what it does there is its own."""

    url_map_class = staticmethod(_shared)  # type: ignore[assignment]
