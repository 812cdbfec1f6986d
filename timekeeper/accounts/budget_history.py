"""Which budget was in force when: entries dated by when they took effect, and the accounts that follow from
them.

A report of last month uses last month's entries. A change today affects nothing before it.
"""

import functools
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

from timekeeper.accounts.card_use.idleness import IDLE_ACTIONS, IdleAction, IdleTerms
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.modes import ModeSource
from timekeeper.core.budgets.policy import DEFAULTS as DEFAULTS
from timekeeper.core.budgets.policy import GROUP as GROUP
from timekeeper.core.budgets.policy import MODE as MODE
from timekeeper.core.budgets.policy import (
    MODES,
    UNLIMITED,
    USUAL_SHARE,
    Budget,
    BudgetSettings,
    in_mode,
    places,
)
from timekeeper.core.budgets.policy import SETTINGS as SETTINGS
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.budgets.scalars import NAME
from timekeeper.core.ledger.metering import FOREVER_MS, Interval, period_at, price_at, price_days
from timekeeper.core.ledger.months import Months
from timekeeper.core.ledger.period_rules import Account, PeriodRule, account_at, is_given, period_rules
from timekeeper.core.names import Mode

_Value = TypeVar("_Value")
DAY_MS = 86_400_000
_UTC = BudgetSettings().time_zone
# ``_mode.NAMESPACE``: the mode that the namespace's label names; no ConfigMap may have such a key
LABEL = "_mode."
# ``_period.SUBJECT``: a period, as START/END, that began before time zone data gave it other bounds
MOVED = "_period."
# Admission follows a changed mode within seconds. So long before and after a change, a pod's own label tells
# how it was created.
MODE_UNCERTAIN_MS = 60_000


@dataclass(frozen=True, slots=True)
class BudgetEntry:
    """The text of one key of the budget ConfigMaps from a moment on, of a namespace's label (`LABEL`), or a
    period (`MOVED`) from its beginning on. ``text`` None: the key was removed."""

    key: str
    text: str | None
    from_ms: int


@dataclass(frozen=True, slots=True)
class BudgetInForce:
    """The budget that applies to a namespace or group, and the key it is defined under ("": none is
    defined)."""

    key: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class BillingInterval:
    """A time during which a namespace was in one group ("": none) at one price per weighted GPU-hour (decimal
    text, "": none)."""

    interval: Interval
    group: str
    price: str
    currency: str


@dataclass(frozen=True, slots=True)
class _DatedValues:
    """One key's values and the moments from which they apply, in order."""

    texts: tuple[str | None, ...]
    values: tuple[Budget | BudgetSettings | None, ...]
    from_ms: tuple[int, ...]

    def at(self, at_ms: int) -> Budget | BudgetSettings | None:
        index = bisect_right(self.from_ms, at_ms)
        return self.values[index - 1] if index else None


_NO_VALUES = _DatedValues((), (), ())


def _of_cluster(dated: Mapping[str, _DatedValues]) -> _DatedValues:
    """The cluster's settings with the mode of ``bursar-mode``, from the moments of both."""
    own, said = dated.get(SETTINGS, _NO_VALUES), dated.get(MODE, _NO_VALUES)
    moments = tuple(sorted({*own.from_ms, *said.from_ms}))
    pairs = ((own.at(at), said.at(at)) for at in moments)
    return _DatedValues((), tuple(in_mode(*pair) if any(pair) else None for pair in pairs), moments)


@dataclass(frozen=True, slots=True)
class History:
    """All entries that ever took effect. Each keeps the values of the one before it."""

    # errors of stored texts that no longer parse: they count as never written
    unreadable_entries: tuple[EntryError, ...]
    groups: frozenset[str]  # groups that have an entry now, or that an entry names
    has_groups: bool  # whether there ever were any
    protections: Mapping[str, Protection]  # namespace -> `protect` of its entry, if it has one now
    _dated: dict[str, _DatedValues]
    always_enforced: bool = True  # no namespace ever had another mode
    labelled: frozenset[str] = frozenset()  # the namespaces whose label names a mode now
    only_meter: bool = False  # of a ledger that governs nothing: every namespace is metered
    moved: Mapping[str, Sequence[Interval]] = field(default_factory=dict)  # by subject, see `MOVED`
    _newest_ms: int = 0
    _settings: _DatedValues = _NO_VALUES  # of the cluster
    _period_rules: dict[str, tuple[PeriodRule, ...]] = field(default_factory=dict, compare=False)
    _memberships: dict[str, tuple[tuple[Interval, str], ...]] = field(default_factory=dict, compare=False)
    # the last two accounts of each subject that were requested: the present one, and perhaps its predecessor
    _recent: dict[str, tuple[Account, ...]] = field(default_factory=dict, compare=False)
    # entries with the mode of a label, of this history and of those before it
    _with_mode: dict[tuple[BudgetInForce, Mode], BudgetInForce] = field(default_factory=dict, compare=False)

    def followed_by(self, entries: Iterable[BudgetEntry]) -> "History":
        """The history with these entries too, in the order of their moments, none before its own."""
        rows: dict[str, list[tuple[str | None, Budget | BudgetSettings | None, int]]] = {}
        moved = dict(self.moved)
        unreadable_entries = [*self.unreadable_entries]
        for entry in entries:
            if entry.key.startswith(MOVED):
                subject = entry.key.removeprefix(MOVED)
                bounds = Interval(*map(int, str(entry.text).split("/")))
                moved[subject] = (*moved.get(subject, ()), bounds)
                continue
            value = None if entry.text is None else settled_value(entry.key, entry.text)
            if isinstance(value, EntryError):
                unreadable_entries.append(value)
                continue
            known = replace(value, mode="meter") if self.only_meter and value is not None else value
            rows.setdefault(entry.key, []).append((entry.text, known, entry.from_ms))
        dated = dict(self._dated)
        for key, each in rows.items():
            before, (texts, values, times) = dated.get(key, _NO_VALUES), zip(*each, strict=True)
            dated[key] = _DatedValues(
                (*before.texts, *texts), (*before.values, *values), (*before.from_ms, *times)
            )
        written = [(key, value) for key, each in rows.items() for _, value, _ in each if value is not None]
        newest = {key: dated[key].values[-1] for key in rows}
        protects = {key: value.protect for key, value in newest.items() if isinstance(value, Budget)}
        kept = {key: each for key, each in self.protections.items() if key not in newest}
        labels = {key.removeprefix(LABEL): value for key, value in newest.items() if key.startswith(LABEL)}
        return History(
            tuple(unreadable_entries),
            frozenset(_group(key, each.values[-1]) for key, each in dated.items()) - {""},
            self.has_groups or any(_group(key, value) for key, value in written),
            kept | {key: each for key, each in protects.items() if each is not None},
            dated,
            self.always_enforced and {value.mode for _, value in written} <= {"", "enforce"},
            self.labelled.difference(labels) | {name for name, value in labels.items() if value is not None},
            self.only_meter,
            moved,
            max((at for each in rows.values() for *_, at in each), default=self._newest_ms),
            _of_cluster(dated) if rows.keys() & {SETTINGS, MODE} else self._settings,
            _with_mode=self._with_mode,
        )

    def text(self, key: str) -> str | None:
        """The newest text of a key; None if it has none now."""
        dated = self._dated.get(key)
        return dated.texts[-1] if dated else None

    def current_keys(self) -> frozenset[str]:
        """The keys that have a text now."""
        return frozenset(key for key, dated in self._dated.items() if dated.texts[-1] is not None)

    def ever_held_queues(self) -> bool:
        """Whether an entry asks for holds of Kueue's queues, or ever did: some may be held still."""
        values = (value for dated in self._dated.values() for value in dated.values)
        return any(isinstance(value, Budget) and value.kueue == "hold" for value in values)

    def ended_since(self, at_ms: int) -> dict[str, int]:
        """The keys, but for labels, that have ended after that time and have no text now, and when."""
        ended = ((key, dated.from_ms[-1]) for key, dated in self._dated.items() if dated.texts[-1] is None)
        return {key: from_ms for key, from_ms in ended if from_ms > at_ms and not key.startswith(LABEL)}

    def namespaces(self) -> frozenset[str]:
        """The namespaces that have an entry, or a label that names a mode, now."""
        return frozenset(key for key in self.current_keys() if not key.startswith("_")) | self.labelled

    def newest_ms(self) -> int:
        """When the newest entry took effect; 0 without entries."""
        return self._newest_ms

    def settings(self, at_ms: int) -> BudgetSettings:
        """The settings in force at that time; the defaults if none were written."""
        value = self._settings.at(at_ms)
        if isinstance(value, BudgetSettings):
            return value
        return BudgetSettings(mode="meter") if self.only_meter else BudgetSettings()

    def cluster_names(self) -> tuple[tuple[int, str], ...]:
        """When the cluster got which name ("": none), in order."""
        dated = self._dated.get(SETTINGS)
        times = dated.from_ms if dated else ()
        return tuple((at_ms, self.settings(at_ms).cluster_name) for at_ms in times)

    def months(self, first_ms: int | None, closed: Mapping[str, Interval]) -> Months:
        """The ledger's months: a changed time zone applies from the end of the running one. ``first_ms``: of
        the first charge, None: none; ``closed``: by name, in order."""
        times = self._dated.get(SETTINGS, _NO_VALUES).from_ms
        zones = [PeriodRule(at, "month", self.settings(at).time_zone) for at in times]
        first = None if first_ms is None else period_at("month", _UTC, first_ms)
        if not zones or (first is not None and first.end_ms <= times[0]):
            zones.insert(0, PeriodRule(0, "month", _UTC))  # else the first zone is that of the beginning
        return Months(period_rules(zones, closed.values()), closed)

    def budget(self, subject: str, at_ms: int) -> BudgetInForce:
        """A namespace's own entry, else ``_defaults``, else no limit. For a group: its own, else no limit.

        Its mode is that of the namespace's own entry, else that of its label, else that of ``_defaults``
        where this is in force; "": the cluster's.
        """
        found = self._entry_in_force(subject, at_ms)
        labelled = self._mode_by_label(found, subject, at_ms)
        if labelled and (found, labelled) not in self._with_mode:
            with_mode = replace(found, budget=replace(found.budget, mode=labelled))
            self._with_mode[found, labelled] = with_mode
        return self._with_mode[found, labelled] if labelled else found

    def mode(self, namespace: str, at_ms: int) -> Mode:
        """The mode of the namespace at that time: `enforce`, `observe` or `meter`."""
        return self.budget(namespace, at_ms).budget.mode or self.settings(at_ms).mode

    def mode_source(self, namespace: str, at_ms: int) -> ModeSource:
        """What the namespace's mode comes from."""
        if self.only_meter:
            return "ledger"
        found = self._entry_in_force(namespace, at_ms)
        if self._mode_by_label(found, namespace, at_ms):
            return "label"
        if not found.budget.mode:
            return "cluster"
        return "entry" if found.key == namespace else "defaults"

    def _mode_by_label(self, found: BudgetInForce, namespace: str, at_ms: int) -> Mode | Literal[""]:
        """What the namespace's label says; "" where there is none, or where its own entry names a mode."""
        label = self._dated.get(LABEL + namespace)
        if label is None or (found.key == namespace and found.budget.mode):
            return ""
        value = label.at(at_ms)
        return value.mode if isinstance(value, Budget) else ""

    def was_enforced(self, pod: LedgerPod) -> bool:
        """Whether the pod was created under enforcement: by the mode at that time. Near a change of the mode,
        and before the first entry, by what admission wrote on the pod."""
        if pod.is_static:
            return False  # admission changes none, and its kubelet makes it again
        if self.always_enforced:
            return True
        moments = self._moments(pod.namespace)
        if not moments or pod.created_ms < moments[0]:
            return pod.is_governed
        near = (at for at in moments if abs(at - pod.created_ms) < MODE_UNCERTAIN_MS)
        times = (pod.created_ms - MODE_UNCERTAIN_MS, *near)
        modes = {self.mode(pod.namespace, at) == "enforce" for at in times}
        return pod.is_governed if len(modes) > 1 else modes.pop()

    def version(self, subject: str, at_ms: int) -> str:
        """The entry in force for a namespace or group at that time, as ``KEY@MILLISECONDS`` of when it took
        effect; "" if none is."""
        key = self._entry_in_force(subject, at_ms).key
        dated = self._dated.get(key)
        return f"{key}@{dated.from_ms[bisect_right(dated.from_ms, at_ms) - 1]}" if dated else ""

    def group(self, namespace: str, at_ms: int) -> str:
        """The group of the namespace at that time, by its own entry, else by ``_defaults``; "" if none."""
        return self.budget(namespace, at_ms).budget.group

    def covers(self, subject: str, namespace: str, at_ms: int) -> bool:
        """Whether the namespace is the subject, or is in this group then; "": each is."""
        return subject in ("", namespace) or GROUP + self.group(namespace, at_ms) == subject

    def lower_class(self, namespace: str, at_ms: int) -> str:
        """The priority class that its pods have at most over budget."""
        budget = self.budget(namespace, at_ms).budget
        group = self.budget(GROUP + budget.group, at_ms).budget if budget.group else None
        return self.settings(at_ms).classes_of(budget, group)[1]

    def price(self, namespace: str, at_ms: int) -> tuple[str, str]:
        """The price of a weighted GPU-hour at that time, as decimal text ("": none), and its currency: the
        namespace's own, else that of ``_defaults``, else that of ``_settings``."""
        settings = self.settings(at_ms)
        entries: tuple[Budget | BudgetSettings, ...] = (*self._entries(namespace, at_ms), settings)
        prices = (price_at(each, at_ms, settings.time_zone) for each in entries)
        return next(filter(None, prices), ""), settings.currency

    def fair_share(self, subject: str, at_ms: int) -> tuple[int, int]:
        """The weight, in thousandths, and the half-life of a namespace or group: each that of its entry, else
        of ``_defaults``, else the usual one."""
        entries, (weight_milli, half_life_ms) = self._entries(subject, at_ms), USUAL_SHARE
        weights = (entry.share_milli for entry in entries if entry.share_milli is not None)
        lives = (entry.half_life_ms for entry in entries if entry.half_life_ms is not None)
        return next(weights, weight_milli), next(lives, half_life_ms)

    def without_entry(self, namespace: str) -> tuple[Interval, ...]:
        """When the namespace had no entry of its own, in order; the last time may continue."""
        own = self._dated.get(namespace, _NO_VALUES)
        runs = _runs([0, *own.from_ms, FOREVER_MS], lambda at: isinstance(own.at(at), Budget))
        return tuple(during for during, has_entry in runs if not has_entry)

    def overuse_grace_ms(self, namespace: str, at_ms: int) -> int | None:
        """How long a pod of the namespace may exceed its memory share before it is evicted; None: it is not
        evicted.

        ``overuse`` and ``overuseGrace`` each come from the namespace's entry, else ``_defaults``, else
        ``_settings``. In mode ``observe`` no pod is evicted.
        """
        settings = self.settings(at_ms)
        entries = self._entries(namespace, at_ms)
        overuse = next((each.overuse for each in entries if each.overuse), settings.overuse)
        if overuse != "evict" or self.is_metered(namespace, at_ms):
            return None
        graces = (each.overuse_grace_ms for each in entries if each.overuse_grace_ms is not None)
        return next(graces, settings.overuse_grace_ms)

    def idle_terms(self, namespace: str, at_ms: int) -> IdleTerms | None:
        """What happens to idle pods of the namespace; None: nothing. ``idle`` comes from the namespace's
        entry, else ``_defaults``, else ``_settings``."""
        settings = self.settings(at_ms)
        entries = self._entries(namespace, at_ms)
        action = next((each.idle for each in entries if each.idle), settings.idle)
        known: IdleAction | None = next((word for word in IDLE_ACTIONS if word == action), None)
        if self.is_metered(namespace, at_ms) or known is None:
            return None
        if known == "reclaim" and not self.places(namespace, at_ms):
            return None
        return IdleTerms(known, settings.idle_after_ms, settings.idle_grace_ms, settings.idle_below_milli)

    def ends_overtime(self, namespace: str, at_ms: int) -> bool:
        """Whether pods of the namespace are ended past their declared time. ``overtime`` comes from the
        namespace's entry, else ``_defaults``, else ``_settings``; in mode ``observe`` none is."""
        settings = self.settings(at_ms)
        entries = self._entries(namespace, at_ms)
        action = next((each.overtime for each in entries if each.overtime), settings.overtime)
        return action == "evict" and not self.is_metered(namespace, at_ms)

    def is_metered(self, namespace: str, at_ms: int) -> bool:
        """Whether its pods are charged by their spec alone, and left alone: its mode is not `enforce`."""
        return self.mode(namespace, at_ms) != "enforce"

    def places(self, namespace: str, at_ms: int) -> bool:
        """Whether Bursar places the namespace's new pods."""
        return places(self.budget(namespace, at_ms).budget, self.settings(at_ms))

    def metered_since(self, namespace: str, at_ms: int) -> int:
        """When the mode in force at that time began, if it is not `enforce`; 0: it was never another."""
        if not self.is_metered(namespace, at_ms):
            return 0
        before = (at for at in reversed(self._moments(namespace)) if at <= at_ms)
        return next((at for at in before if not self.is_metered(namespace, at - 1)), 0)

    def billing_intervals(self, namespace: str, interval: Interval) -> Iterator[BillingInterval]:
        """The interval cut wherever the namespace's group, price or currency changed; in order, without empty
        parts."""
        cuts = _within(interval, {*self._moments(namespace), *self._price_days(namespace)})
        runs = _runs(cuts, lambda at: (self.group(namespace, at), *self.price(namespace, at)))
        return (BillingInterval(during, *billing) for during, billing in runs)

    def billing_terms(self, namespace: str, interval: Interval) -> Hashable:
        """What the namespace's own entries say of group and price in this time. Namespaces with equal terms
        have the same `billing_intervals`."""
        own = self._dated.get(namespace, _NO_VALUES)

        def terms(at_ms: int) -> Hashable:
            entry = own.at(at_ms)
            return (entry.group, entry.price, entry.later_prices) if isinstance(entry, Budget) else None

        return tuple(_runs(_within(interval, own.from_ms), terms))

    def memberships(self, namespace: str) -> tuple[tuple[Interval, str], ...]:
        """When the namespace was in which group, in order; the last one continues."""
        if namespace not in self._memberships:
            runs = _runs([*self._moments(namespace), FOREVER_MS], lambda at: self.group(namespace, at))
            self._memberships[namespace] = tuple(run for run in runs if run[1])
        return self._memberships[namespace]

    def groups_of(self, namespace: str) -> frozenset[str]:
        """The groups that the namespace was ever in."""
        return frozenset(group for _, group in self.memberships(namespace))

    def account(self, subject: str, at_ms: int) -> Account:
        """The account of a namespace or group that contains ``at_ms``: the calendar's period, cut where the
        kind of period changed.

        If a budget is removed and restored, its periods continue as if it had never been removed, so this
        refills nothing. For the same reason a changed time zone applies from the end of the running period. A
        subject that never had a budget has one account for all time.
        """
        recent = self._recent.get(subject, ())
        for account in recent:
            if account.span.start_ms <= at_ms < account.span.end_ms:
                return account
        account = self._account(subject, at_ms)
        self._recent[subject] = (account, *recent[:1])
        return account

    def moved_periods(self, newest: Mapping[str, Interval]) -> tuple[BudgetEntry, ...]:
        """The entries by which periods keep the bounds with which they began, though the time zone data of
        now gives them others. ``newest``: by subject its last period that has a grant."""
        return tuple(
            BudgetEntry(MOVED + subject, f"{span.start_ms}/{span.end_ms}", span.start_ms)
            for subject, span in sorted(newest.items())
            if not is_given(self._period_rules_of(subject), span)
        )

    def preceding(self, subject: str, account: Account) -> Account | None:
        """The account before this one, whose remainder may be carried over. None: there is none, or it was
        closed because the kind of period changed."""
        if not account.span.start_ms:
            return None
        before = self.account(subject, account.span.start_ms - 1)
        return before if before.kind == account.kind else None

    def entry_of_period(self, subject: str, span: Interval) -> Budget | None:
        """The subject's own entry when its period began; if it had no limit then, the first one with a limit
        in the period. None: none."""
        dated = self._dated.get(subject)
        if dated is None:
            return None
        later = zip(dated.from_ms, dated.values, strict=True)
        found = (dated.at(span.start_ms), *(each for at, each in later if span.start_ms < at < span.end_ms))
        return next((each for each in found if isinstance(each, Budget) and each.amount is not None), None)

    def pieces(self, namespace: str, interval: Interval) -> Iterator[Interval]:
        """The interval cut at the bounds of the namespace's accounts and at each midnight in UTC; in order,
        without empty parts. So no posting spans two days, and daily totals are exact."""
        start = interval.start_ms
        while start < interval.end_ms:
            midnight = start - start % DAY_MS + DAY_MS
            end = min(interval.end_ms, midnight, self.account(namespace, start).span.end_ms)
            yield Interval(start, end)
            start = end

    def _entry_in_force(self, subject: str, at_ms: int) -> BudgetInForce:
        for key in (subject,) if is_group(subject) else (subject, DEFAULTS):
            dated = self._dated.get(key)
            value = dated.at(at_ms) if dated else None
            if isinstance(value, Budget):
                return BudgetInForce(key, value)
        return BudgetInForce("", UNLIMITED)

    def _entries(self, namespace: str, at_ms: int) -> tuple[Budget, ...]:
        """The namespace's own entry and ``_defaults``, if they exist."""
        found = (self._dated[key].at(at_ms) for key in (namespace, DEFAULTS) if key in self._dated)
        return tuple(each for each in found if isinstance(each, Budget))

    def _account(self, subject: str, at_ms: int) -> Account:
        rules = self._period_rules_of(subject)
        return account_at(rules, at_ms) if rules else Account("once", "UTC", Interval(0, FOREVER_MS))

    def _moments(self, subject: str) -> list[int]:
        """When anything that affects the subject may have changed, in order."""
        keys = (subject,) if is_group(subject) else (subject, DEFAULTS, LABEL + subject)
        dated = (self._dated[key].from_ms for key in keys if key in self._dated)
        return sorted({at for moments in (self._settings.from_ms, *dated) for at in moments})

    def _price_days(self, namespace: str) -> frozenset[int]:
        """When later prices of the namespace's entries may begin, in each time zone that was ever set."""
        found = (self._dated[key].values for key in (namespace, DEFAULTS, SETTINGS) if key in self._dated)
        entries = [each for values in found for each in values if each is not None and each.later_prices]
        if not entries:
            return frozenset()
        set_ever = self._dated[SETTINGS].values if SETTINGS in self._dated else ()
        zones = {each.time_zone for each in set_ever if isinstance(each, BudgetSettings)} | {_UTC}
        return frozenset(at for each in entries for at in price_days(each, zones))

    def _period_rules_of(self, subject: str) -> tuple[PeriodRule, ...]:
        if subject not in self._period_rules:
            moved = self.moved.get(subject, ())
            self._period_rules[subject] = period_rules(self._changes(subject), moved)
        return self._period_rules[subject]

    def _changes(self, subject: str) -> Iterator[PeriodRule]:
        """Kind and zone at each moment when either may have changed, while there was a limit."""
        for at in self._moments(subject):
            budget = self.budget(subject, at).budget
            if budget.amount is not None:
                yield PeriodRule(at, budget.period, self.settings(at).time_zone)


def _within(interval: Interval, moments: Iterable[int]) -> list[int]:
    """The interval's bounds, and the moments between them, in order."""
    inside = (at for at in moments if interval.start_ms < at < interval.end_ms)
    return sorted({interval.start_ms, *inside, interval.end_ms})


def _runs(moments: Sequence[int], value: Callable[[int], _Value]) -> Iterator[tuple[Interval, _Value]]:
    """The time from the first moment to the last, cut where the value changed, which does so at moments
    alone; in order, without empty parts."""
    for found, run in groupby(pairwise(moments), key=lambda bounds: value(bounds[0])):
        parts = list(run)
        yield Interval(parts[0][0], parts[-1][1]), found


def protected_span(history: History, namespace: str, at_ms: int) -> Interval:
    """The period in which what protected pods use is summed: that of the namespace's account, or of its
    group's where it has no limit of its own."""
    budget = history.budget(namespace, at_ms).budget
    is_groups = budget.amount is None and budget.group
    return history.account(GROUP + budget.group if is_groups else namespace, at_ms).span


def is_group(subject: str) -> bool:
    """True for a group's account, False for a namespace's."""
    return subject.startswith(GROUP)


EntryValue = Budget | BudgetSettings | EntryError


# By kind of key, or key, and text, as long as a history or a look at the ConfigMaps holds the value. Each
# look is at all of them: with a bound on their number, each would parse them all.
_VALUES: "WeakValueDictionary[tuple[str, str], EntryValue]" = WeakValueDictionary()


def entry_value(key: str, text: str) -> EntryValue:
    """`read_entry`; a text whose value somebody holds is not parsed again."""
    kind = _kind(key)
    value = _VALUES.get((kind, text)) or _VALUES.get((key, text))
    if value is None:
        value = read_entry(key, text)
        _VALUES[key if isinstance(value, EntryError) else kind, text] = value
    return value


def settled_value(key: str, text: str) -> EntryValue:
    """The value of an entry that has taken effect: what this release no longer allows is read, too."""
    if key.startswith(LABEL):
        return _labelled(text)
    value = entry_value(key, text)
    return read_entry(key, text, lenient=True) if isinstance(value, EntryError) else value


@functools.lru_cache(maxsize=8)
def _labelled(word: str) -> Budget:
    """What a namespace's label says, as an entry that says nothing else."""
    return replace(UNLIMITED, mode=next((mode for mode in MODES if mode == word), ""))


def _kind(key: str) -> str:
    """The same for keys under which a text says the same: those of namespaces, or those of groups."""
    name = key.removeprefix(GROUP)
    if not NAME.fullmatch(name):
        return key
    return GROUP if name != key else ""


def history_of(entries: Iterable[BudgetEntry], only_meter: bool = False) -> History:
    """The history of entries in the order of their moments. ``only_meter``: of a ledger that governs
    nothing, whatever mode they name."""
    empty = History((), frozenset(), False, {}, {}, not only_meter, only_meter=only_meter)
    return empty.followed_by(entries)


def _group(key: str, value: Budget | BudgetSettings | None) -> str:
    """The group that an entry defines or names."""
    if not isinstance(value, Budget):
        return ""
    return key.removeprefix(GROUP) if is_group(key) else value.group
