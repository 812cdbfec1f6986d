"""Compares the budget ConfigMaps with the ledger: which entries take effect now, and what is wrong with the
others."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from timekeeper import metrics
from timekeeper.accounts.budget_history import (
    DAY_MS,
    LABEL,
    MODE,
    SETTINGS,
    BudgetEntry,
    EntryValue,
    History,
    entry_value,
    settled_value,
)
from timekeeper.core.budgets import reader as budgets
from timekeeper.core.budgets.config_maps import newest_of
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.modes import EFFECTS
from timekeeper.core.budgets.policy import MODES, group_key, in_mode, ineffective_fields
from timekeeper.core.budgets.reader import ended_fields, precedence
from timekeeper.core.findings import some_of
from timekeeper.core.ledger.metering import late_price
from timekeeper.core.names import BUDGET_CONFIG_MAPS, BUDGETS, CLUSTER_MODE, CLUSTER_SETTINGS
from timekeeper.core.texts import moment
from timekeeper.settler.cluster.cluster_state import GONE_MS, BudgetConfigMap, ClusterState

EntryReason = (
    Literal["BrokenBudget", "EntriesGone", "IneffectiveField", "LatePrice"]
    | Literal["MissingGroup", "MissingNamespace", "ModeChanged", "UsedBefore"]
)


_HOMES = {SETTINGS: CLUSTER_SETTINGS, MODE: CLUSTER_MODE}  # other entries are in `BUDGETS`


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The mode of the cluster (key `MODE`) or of one entry differs from the one in force before."""

    key: str
    before: str
    now: str

    def sentence(self) -> str:
        """The change and its effect, for the log."""
        return f"{self.key}: the mode changes from {self.before} to {self.now}: {EFFECTS[self.now]}"


def mode_changes(entries: Sequence[BudgetEntry], history: History) -> Iterator[ModeChange]:
    """The changes of mode that ``entries``, new, changed and ended, make to the newest entries of the
    history. An entry without a mode has the cluster's, and is named only where its own mode changes. A
    ledger that governs nothing has one mode."""
    if history.only_meter:
        return
    texts = {each.key: each.text for each in entries}
    of_cluster = [entry for entry in entries if entry.key in (SETTINGS, MODE)]
    after = history.followed_by(of_cluster) if of_cluster else history
    cluster_before, cluster_now = (known.settings(known.newest_ms()).mode for known in (history, after))
    if cluster_before != cluster_now:
        yield ModeChange(MODE, cluster_before, cluster_now)
    for key in sorted(texts.keys() - {SETTINGS, MODE}):
        own_before, own_now = _mode(key, history.text(key)), _mode(key, texts[key])
        before, now = own_before or cluster_before, own_now or cluster_now
        if own_before != own_now and before != now:
            yield ModeChange(key, before, now)


def _mode(key: str, text: str | None) -> str:
    """The mode that an entry names; "" where it names none, or is no valid entry."""
    value = None if text is None else entry_value(key, text)
    return "" if value is None or isinstance(value, EntryError) else value.mode


@dataclass(frozen=True, slots=True)
class BudgetNotice:
    """A message for the author of a ConfigMap: becomes a Kubernetes Event and a log line. ``key``: of the
    entry that it is about, "" if it is about none."""

    config_map: BudgetConfigMap
    reason: EntryReason
    message: str
    key: str = ""


def _once(notices: Iterable[BudgetNotice]) -> Iterator[BudgetNotice]:
    """One notice of those in a ConfigMap that differ by their entry alone: the first, with their number."""
    alike: dict[tuple[str, str, str], list[BudgetNotice]] = {}
    for notice in notices:
        text = notice.message.replace(notice.key, "\0") if notice.key else notice.message
        alike.setdefault((notice.config_map.name, notice.reason, text), []).append(notice)
    for same in alike.values():
        text = f"{len(same):,} entries ({some_of(each.key for each in same)}), as {same[0].message}"
        yield replace(same[0], message=text) if len(same) > 1 else same[0]


@dataclass(frozen=True, slots=True)
class EntryChanges:
    """What the ConfigMaps change in this tick."""

    entries: tuple[BudgetEntry, ...]  # new, changed and ended entries
    # key -> everything that is wrong with the entry now; name of a ConfigMap -> what went with it
    errors: Mapping[str, str]
    notices: tuple[BudgetNotice, ...]  # the errors and warnings that have not been reported before
    # what the ConfigMaps' texts say: while these are held, `entry_value` parses none of the texts again
    values: tuple[EntryValue, ...] = ()


def read_entries(
    config_maps: Mapping[str, BudgetConfigMap],
    history: History,
    reported: Mapping[str, str],
    at_ms: int,
    labels: Mapping[str, str] | None = None,
    is_first: bool = False,
) -> EntryChanges:
    """Entries that differ from the newest version in the ledger, dated ``at_ms``. ``reported``: errors that
    were already reported, by key; ``labels``: the label ``bursar.dev/mode`` of each namespace, None where
    they are not known; ``is_first``: the first look of a settler, which names the fields that have ended with
    an upgrade.

    A broken entry produces no change, so the last good version stays in force. An entry that is in no
    ConfigMap any more ends.
    """
    newest = newest_of({name: (not known.gone_ms, known.created) for name, known in config_maps.items()})
    config_maps = {name: config_maps[name] for name in newest}
    data = {name: dict(each.data) for name, each in config_maps.items()}
    values: list[EntryValue] = []

    def read_one(key: str, text: str) -> EntryValue:
        values.append(entry_value(key, text))
        return values[-1]

    reading = _settled(budgets.read(data, read_one), history)
    texts = _texts(config_maps)
    read_keys = (SETTINGS, reading.settings), (MODE, reading.mode)
    good = [*reading.budgets, *(key for key, value in read_keys if value)]
    changed = [BudgetEntry(key, texts[key][0], at_ms) for key in good if history.text(key) != texts[key][0]]
    ended = [BudgetEntry(key, None, at_ms) for key in _unread(config_maps, history)]
    labelled = [] if labels is None else list(_labelled(labels, history, at_ms))
    elsewhere = {error.key: config_maps[error.config_map] for error in reading.errors if error.config_map}
    homes = {error.key: elsewhere.get(error.key, texts[error.key][1]) for error in reading.errors}
    errors = _errors(reading, homes)
    gone = {entry.key: at_ms for entry in ended} | history.ended_since(at_ms - DAY_MS)
    absent = reported.keys() - config_maps.keys()
    lost = dict(_lost(absent, {key: gone[key] for key in gone.keys() - texts.keys()}))
    lost |= dict(_going(gone_map) for gone_map in config_maps.values() if gone_map.gone_ms)
    notices = [
        BudgetNotice(BudgetConfigMap(name, "", ()), "EntriesGone", sentence)
        for name, sentence in lost.items()
        if reported.get(name) != sentence
    ]
    notices += [
        BudgetNotice(homes[key], "BrokenBudget", f"{sentence}; {_in_force(history, key)}", key)
        for key, sentence in errors.items()
        if reported.get(key) != sentence
    ]
    notices += [
        BudgetNotice(texts[key][1], "IneffectiveField", f"{key}: {sentence}", key)
        for key, sentence in _ineffective(reading, {each.key for each in changed}, history, at_ms, is_first)
    ]
    notices += [
        BudgetNotice(texts[entry.key][1], "LatePrice", f"{entry.key}: {sentence}", entry.key)
        for entry in changed
        if (sentence := _late_price(entry, history))
    ]
    fresh = {entry.key for entry in (*changed, *ended)}
    concerned = (key for key, each in reading.budgets.items() if {key, group_key(each.group)} & fresh)
    notices += [
        BudgetNotice(texts[missing.key][1], "MissingGroup", missing.sentence(), missing.key)
        for missing in reading.missing_groups(concerned)
    ]
    notices += [
        BudgetNotice(_config_map_of(change.key, texts), "ModeChanged", change.sentence(), change.key)
        for change in mode_changes((*changed, *ended), history)
    ]
    return EntryChanges((*changed, *ended, *labelled), errors | lost, tuple(_once(notices)), tuple(values))


def _unread(config_maps: Mapping[str, BudgetConfigMap], history: History) -> list[str]:
    """The keys, but for labels, that are in force and that none of the ConfigMaps has."""
    there = {key for config_map in config_maps.values() for key, _ in config_map.data}
    return [key for key in sorted(history.current_keys() - there) if not key.startswith(LABEL)]


def missed(
    config_maps: Mapping[str, BudgetConfigMap], history: History, at_ms: int
) -> Mapping[str, BudgetConfigMap]:
    """ConfigMaps that may have gone before ``at_ms``, a settler's first look, with what is in none now."""
    data: dict[str, dict[str, str]] = {}
    for key in _unread(config_maps, history):
        home = _HOMES.get(key, BUDGETS)
        data.setdefault("" if home in config_maps else home, {})[key] = history.text(key) or ""
    return {
        name: BudgetConfigMap(name, "", tuple(texts.items()), gone_ms=at_ms) for name, texts in data.items()
    }


def _settled(reading: budgets.ParsedBudgets, history: History) -> budgets.ParsedBudgets:
    """Without what `bursar-mode` says while it would change the mode of an earlier release's `_settings`."""
    fields = {error.field for error in ended_fields(SETTINGS, reading.texts.get(SETTINGS, ""))}
    mode = history.settings(history.newest_ms()).mode
    if history.text(MODE) or "mode" not in fields or reading.mode is None or reading.mode.mode == mode:
        return reading
    problem = f"it does not count yet, for mode: {mode} in _settings, of an earlier release, is in force"
    error = EntryError(MODE, 1, "mode", problem, f"{mode}, or no mode in _settings")
    return replace(reading, mode=None, errors=(*reading.errors, error))


def _going(config_map: BudgetConfigMap) -> tuple[str, str]:
    """Name and sentence of a ConfigMap that is gone and counts on."""
    since, until = (moment(config_map.gone_ms + more, to="seconds") for more in (0, GONE_MS))
    keys = some_of(key for key, _ in config_map.data)
    what = f"ConfigMap {config_map.name} is gone" if config_map.name else "ConfigMaps are gone"
    in_force = f"in force until {until}, unless another one has it"
    return config_map.name or BUDGETS, f"{what} since {since}, and with it {keys}: {in_force}"


def _lost(absent: Collection[str], gone: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Name and sentence of each ConfigMap of `BUDGET_CONFIG_MAPS` that is absent, and with it entries.
    ``gone``: key -> since when."""
    for name in BUDGET_CONFIG_MAPS:
        keys = [key for key in sorted(gone) if _HOMES.get(key, BUDGETS) == name]
        if keys and name in absent:
            since, number = moment(min(gone[key] for key in keys)), len(keys)
            yield (
                name,
                f"ConfigMap {name} is gone, and {number} entries of it ended at {since}:"
                f" {some_of(keys)}. Without an entry a namespace has that of _defaults, else no"
                " limit; without _settings or bursar-mode, each setting and the mode has its default",
            )


def _late_price(entry: BudgetEntry, history: History) -> str:
    """What is said of an entry whose price was to begin before it was written; "": nothing."""
    earlier = history.text(entry.key)
    before = None if earlier is None else settled_value(entry.key, earlier)
    now = settled_value(entry.key, entry.text or "")
    if isinstance(now, EntryError):
        return ""
    known = None if isinstance(before, EntryError) else before
    late = late_price(known, now, entry.from_ms, history.settings(entry.from_ms).time_zone)
    if late is None:
        return ""
    day, price = late
    return (
        f"price: {price} counts from now on, and not from {day}: no charge of before gets another price;"
        " kubectl bursar correct corrects a bill"
    )


def _labelled(labels: Mapping[str, str], history: History, at_ms: int) -> Iterator[BudgetEntry]:
    """The labels that differ from the newest in the ledger. A word that is no mode says nothing."""
    words = {LABEL + name: word for name, word in labels.items() if word in MODES}
    for key in sorted(words.keys() | {LABEL + name for name in history.labelled}):
        if history.text(key) != words.get(key):
            yield BudgetEntry(key, words.get(key), at_ms)


def _ineffective(
    reading: budgets.ParsedBudgets, changed: Set[str], history: History, at_ms: int, is_first: bool
) -> Iterator[tuple[str, str]]:
    """Key and sentence of each field without effect, of the entries that changed; and of the others, what has
    lost its effect by the settings, or by an upgrade."""
    before = history.settings(at_ms)
    settings = in_mode(reading.settings or before, reading.mode)
    for key, budget in reading.budgets.items():
        known = () if key in changed else ineffective_fields(budget, before.placement, before.fair_share)
        now = ineffective_fields(budget, settings.placement, settings.fair_share)
        yield from ((key, sentence) for sentence in now if sentence not in known)
        if is_first and key not in changed:
            yield from ((key, sentence) for sentence in budget.ended)
    if SETTINGS in changed and reading.settings is not None:
        yield from ((SETTINGS, each) for each in ineffective_fields(settings))
    elif is_first and reading.settings is not None:
        yield from ((SETTINGS, sentence) for sentence in reading.settings.ended)


def _config_map_of(key: str, texts: Mapping[str, tuple[str, BudgetConfigMap]]) -> BudgetConfigMap:
    """The ConfigMap of a key. Of a key that has gone, any that is left, else the name under which people look
    for the cluster's settings."""
    if key in texts:
        return texts[key][1]
    return next((each for _, each in texts.values()), BudgetConfigMap(CLUSTER_SETTINGS, "", ()))


def _in_force(history: History, key: str) -> str:
    if history.text(key) is not None:
        return "the last valid entry stays in force"
    return "there is no earlier valid entry, so the key has no effect"


def _texts(config_maps: Mapping[str, BudgetConfigMap]) -> dict[str, tuple[str, BudgetConfigMap]]:
    """Each key's effective text, and its ConfigMap."""
    texts: dict[str, tuple[str, BudgetConfigMap]] = {}
    for each in sorted(config_maps.values(), key=lambda each: precedence(each.name)):
        for key, text in each.data:
            texts.setdefault(key, (text, each))
    return texts


def _errors(reading: budgets.ParsedBudgets, homes: Mapping[str, BudgetConfigMap]) -> dict[str, str]:
    """By key, with the ConfigMap to correct: a ledger on somebody's machine posts no Event on it."""
    sentences: dict[str, list[str]] = {}
    for error in reading.errors:
        sentences.setdefault(error.key, []).append(error.sentence())
    return {key: f"ConfigMap {homes[key].name}: {'; '.join(each)}" for key, each in sentences.items()}


class MissingNamespaces:
    """Reports each such entry once, until its namespace exists or the entry is removed."""

    def __init__(self) -> None:
        self._compared: tuple[int, int] | None = None
        self._reported = frozenset[str]()

    def notices(self, cluster: ClusterState) -> tuple[BudgetNotice, ...]:
        """Notices on entries that have not been reported; none before the namespaces are listed."""
        versions = cluster.config_maps.version, cluster.existing_namespaces.version
        if "namespaces" not in cluster.listed_sources or versions == self._compared:
            return ()
        self._compared = versions
        entries = {key: each for each in cluster.config_maps.values() for key, _ in each.data}
        missing = frozenset(
            key for key in entries if not key.startswith("_") and key not in cluster.existing_namespaces
        )
        fresh, self._reported = missing - self._reported, missing
        metrics.MISSING_NAMESPACES.set(len(missing))
        gone = (BudgetNotice(entries[key], "MissingNamespace", _sentence(key), key) for key in sorted(fresh))
        return tuple(_once(gone))


def _sentence(key: str) -> str:
    return f"{key}: namespace {key} does not exist. The budget applies once it does; is the name right?"
