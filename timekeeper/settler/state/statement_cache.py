"""The statements of the last tick, and which of them a tick must recompute.

A statement follows from its namespace's totals and grants, its budget, its group's, and time: its period
ends, and while something is reserved it changes throughout the lookahead before that end.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from timekeeper.accounts.budget_history import DEFAULTS, GROUP, History, is_group
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.statements import Statements, statements, working_set
from timekeeper.settler.state.totals import TickTotals

_ALL_INTERVAL_MS = 3_600_000  # everything is recomputed at least this often

_DEFAULT = ""  # the subject of the statement ``default``: namespaces without an entry


@dataclass(frozen=True, slots=True)
class Invalidation:
    """Which cached statements are out of date."""

    namespaces: Set[str]  # namespaces whose totals or grants changed
    moved: Set[str]  # those of them that not time alone changed, beside those whose sessions changed
    keys: Set[str]  # budget entries that changed
    everything: bool  # no cached statement may be used


@dataclass(frozen=True, slots=True)
class StatementCache:
    """The statements as of ``at_ms``."""

    at_ms: int
    names: tuple[str, ...]
    statements: Statements
    until_ms: Mapping[str, int]  # subject -> when time alone changes its statement
    members: Mapping[str, Set[str]]  # group -> names that were ever in it
    fresh: Set[str]  # subjects that were recomputed in the last tick


@dataclass(frozen=True, slots=True)
class StatementInputs:
    """The arguments of `statements`."""

    history: History
    names: tuple[str, ...]
    spenders: Set[str]
    sums: TickTotals
    now_ms: int


def refreshed(
    cache: StatementCache | None, invalid: Invalidation, inputs: StatementInputs
) -> tuple[StatementCache, tuple[Grant, ...]]:
    """The statements now, and the grants that are due. Returns the cached object if nothing changed."""
    if cache is None or invalid.everything or any(key.startswith("_") for key in invalid.keys):
        return _all(inputs)
    if cache.at_ms // _ALL_INTERVAL_MS != inputs.now_ms // _ALL_INTERVAL_MS:
        return _all(inputs)
    if inputs.history.has_groups and not set(cache.names) <= set(inputs.names):
        return _all(inputs)  # a group may have lost its last listed member
    stale = _stale(cache, invalid, inputs)
    return _some(cache, stale, inputs) if stale or cache.names != inputs.names else (cache, ())


def _stale(cache: StatementCache, invalid: Invalidation, inputs: StatementInputs) -> set[str]:
    """Names to recompute. A group's standing affects all its members, and the spending of a former member
    affects the group."""
    stale = {name for name, until_ms in cache.until_ms.items() if until_ms <= inputs.now_ms}
    stale |= invalid.namespaces | invalid.keys
    if cache.names != inputs.names:
        stale.update(set(inputs.names).difference(cache.names))
    groups = {name.removeprefix(GROUP) for name in stale if is_group(name)}
    groups |= {group for name in stale if not is_group(name) for group in inputs.history.groups_of(name)}
    for group in groups:
        stale |= cache.members.get(group, frozenset())
    return stale


def _all(inputs: StatementInputs) -> tuple[StatementCache, tuple[Grant, ...]]:
    made = _made(inputs, inputs.names)
    wanted = working_set(inputs.history, inputs.names, inputs.spenders, inputs.now_ms)
    inputs.sums.retain(wanted.accounts, wanted.parts)
    members: dict[str, set[str]] = {}
    for name in inputs.names:
        for group in inputs.history.groups_of(name):
            members.setdefault(group, set()).add(name)
    until_ms = _until_ms(inputs, made, (*inputs.names, _DEFAULT))
    return StatementCache(
        inputs.now_ms, inputs.names, made, until_ms, members, {*inputs.names, *made.groups, DEFAULTS}
    ), made.grants


def _some(
    cache: StatementCache, stale: set[str], inputs: StatementInputs
) -> tuple[StatementCache, tuple[Grant, ...]]:
    names = set(inputs.names)
    fresh = sorted(stale & names)
    made = _made(inputs, fresh)
    old = {
        name: each
        for name, each in cache.statements.namespaces.items()
        if name in names and name not in stale
    }
    groups = {**cache.statements.groups, **made.groups}
    still = {each for each in cache.until_ms if each in names or is_group(each)} - made.groups.keys()
    until_ms = {each: cache.until_ms[each] for each in still}
    until_ms |= _until_ms(inputs, made, (*fresh, _DEFAULT))
    members: dict[str, Set[str]] = dict(cache.members)
    for name in fresh:
        for group in inputs.history.groups_of(name):
            members[group] = members.get(group, frozenset()) | {name}
    statements = Statements({**old, **made.namespaces}, made.default, groups)
    return StatementCache(
        inputs.now_ms, inputs.names, statements, until_ms, members, {*fresh, *made.groups, DEFAULTS}
    ), made.grants


def _made(inputs: StatementInputs, names: Iterable[str]) -> Statements:
    return statements(inputs.history, names, inputs.spenders, inputs.sums, inputs.now_ms)


def _until_ms(inputs: StatementInputs, made: Statements, names: Iterable[str]) -> dict[str, int]:
    """From when time alone changes each statement: reservations shrink within a lookahead of the period's
    end."""
    history, now_ms = inputs.history, inputs.now_ms
    lookahead_ms = history.settings(now_ms).lookahead_ms
    ends: dict[str, int] = {
        subject: each.account.span.end_ms - lookahead_ms for subject, each in made.groups.items()
    }
    until_ms = {}
    for name in names:
        rates = inputs.sums.rates(name)
        reserves = rates.reserving_milli or rates.waiting_milli
        end_ms = history.account(name, now_ms).span.end_ms - (lookahead_ms if reserves else 0)
        group = history.group(name, now_ms)
        again = (made.again_ms.get(each, end_ms) for each in (name, GROUP + group))
        until_ms[name] = min(end_ms, ends.get(GROUP + group, end_ms), *again)
    for subject, at_ms in made.again_ms.items():
        until_ms[subject] = min(at_ms, until_ms.get(subject, at_ms))
    return until_ms
