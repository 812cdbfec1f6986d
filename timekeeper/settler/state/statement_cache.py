"""The statements of the last tick, and which of them a tick has to make anew.

A statement follows from its namespace's sums and grants, from its budget, from those of its group, and from
time: where its period ends, and, while anything is reserved, through the lookahead before that end.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from timekeeper.accounts.budget_history import GROUP, History, is_group
from timekeeper.accounts.grants import Grant
from timekeeper.accounts.statements import Statements, statements, working_set
from timekeeper.settler.state.totals import TickTotals

_ALL_EACH_MS = 3_600_000  # how long anything is kept without a look at all of it

_NOBODY = ""  # stands for all who have no entry: the statement ``default``


@dataclass(frozen=True, slots=True)
class Invalidation:
    """What moved since the last tick that was written: ``namespaces`` whose sums or grants did, ``keys`` of
    entries; ``everything`` where nothing that was kept is to be trusted."""

    namespaces: Set[str]
    keys: Set[str]
    everything: bool


@dataclass(frozen=True, slots=True)
class StatementCache:
    """``until_ms``: for each subject, from when on time alone makes its statement another; ``members``: for
    each group the names that ever were in it; ``fresh``: the names that were last made anew."""

    at_ms: int
    names: tuple[str, ...]
    statements: Statements
    until_ms: Mapping[str, int]
    members: Mapping[str, Set[str]]
    fresh: Set[str]


@dataclass(frozen=True, slots=True)
class StatementInputs:
    """What the statements of a tick are made of: see `statements`."""

    history: History
    names: tuple[str, ...]
    spenders: Set[str]
    sums: TickTotals
    now_ms: int


def renewed(
    kept: StatementCache | None, moved: Invalidation, asked: StatementInputs
) -> tuple[StatementCache, tuple[Grant, ...]]:
    """The statements now, and the grants that are due; the kept ones themselves where nothing moved."""
    if kept is None or moved.everything or any(key.startswith("_") for key in moved.keys):
        return _all(asked)
    if kept.at_ms // _ALL_EACH_MS != asked.now_ms // _ALL_EACH_MS:
        return _all(asked)
    if asked.history.has_groups and not set(kept.names) <= set(asked.names):
        return _all(asked)  # a group may have lost its last member that is listed
    stale = _stale(kept, moved, asked)
    return _some(kept, stale, asked) if stale or kept.names != asked.names else (kept, ())


def _stale(kept: StatementCache, moved: Invalidation, asked: StatementInputs) -> set[str]:
    """The names to make anew. A group's standing counts for all its members, and what a former one spent
    counts for the group."""
    stale = {name for name, until_ms in kept.until_ms.items() if until_ms <= asked.now_ms}
    stale |= moved.namespaces | moved.keys
    if kept.names != asked.names:
        stale.update(set(asked.names).difference(kept.names))
    groups = {group for name in stale for group in _groups(asked.history, name)}
    for group in groups:
        stale |= kept.members.get(group, frozenset())
    return stale


def _groups(history: History, subject: str) -> Set[str]:
    """The groups whose accounts a subject's figures count in."""
    return {subject.removeprefix(GROUP)} if is_group(subject) else history.groups_of(subject)


def _all(asked: StatementInputs) -> tuple[StatementCache, tuple[Grant, ...]]:
    made = _made(asked, asked.names)
    kept = working_set(asked.history, asked.names, asked.spenders, asked.now_ms)
    asked.sums.keep(kept.accounts, kept.parts)
    members: dict[str, set[str]] = {}
    for name in asked.names:
        for group in asked.history.groups_of(name):
            members.setdefault(group, set()).add(name)
    until_ms = _until_ms(asked, made, (*asked.names, _NOBODY))
    return StatementCache(
        asked.now_ms, asked.names, made, until_ms, members, frozenset(asked.names)
    ), made.grants


def _some(
    kept: StatementCache, stale: set[str], asked: StatementInputs
) -> tuple[StatementCache, tuple[Grant, ...]]:
    names = set(asked.names)
    fresh = sorted(stale & names)
    made = _made(asked, fresh)
    old = {
        name: each for name, each in kept.statements.namespaces.items() if name in names and name not in stale
    }
    groups = {**kept.statements.groups, **made.groups}
    still = {each for each in kept.until_ms if each in names or is_group(each)} - made.groups.keys()
    until_ms = {each: kept.until_ms[each] for each in still}
    until_ms |= _until_ms(asked, made, (*fresh, _NOBODY))
    members: dict[str, Set[str]] = dict(kept.members)
    for name in fresh:
        for group in asked.history.groups_of(name):
            members[group] = members.get(group, frozenset()) | {name}
    statements = Statements({**old, **made.namespaces}, made.default, groups)
    return StatementCache(
        asked.now_ms, asked.names, statements, until_ms, members, frozenset(fresh)
    ), made.grants


def _made(asked: StatementInputs, names: Iterable[str]) -> Statements:
    return statements(asked.history, names, asked.spenders, asked.sums, asked.now_ms)


def _until_ms(asked: StatementInputs, made: Statements, names: Iterable[str]) -> dict[str, int]:
    """From when on time alone changes each: what is reserved shrinks within a lookahead of the period's
    end."""
    history, now_ms = asked.history, asked.now_ms
    lookahead_ms = history.settings(now_ms).lookahead_ms
    ends: dict[str, int] = {
        subject: each.account.span.end_ms - lookahead_ms for subject, each in made.groups.items()
    }
    until_ms = {}
    for name in names:
        rates = asked.sums.rates(name)
        reserves = rates.reserving_milli or rates.waiting_milli
        end_ms = history.account(name, now_ms).span.end_ms - (lookahead_ms if reserves else 0)
        group = history.group(name, now_ms)
        again = (made.again_ms.get(each, end_ms) for each in (name, GROUP + group))
        until_ms[name] = min(end_ms, ends.get(GROUP + group, end_ms), *again)
    for subject, at_ms in made.again_ms.items():
        until_ms[subject] = min(at_ms, until_ms.get(subject, at_ms))
    return until_ms
