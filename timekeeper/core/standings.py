"""Decodes `wire.Standings`, the timekeeper's table of the standing of each namespace, and measures its age.

Ages are measured by one monotonic clock of the process. The table contains the timekeeper's time, and the
monotonic clock advances it, so a clock that differs or jumps changes no standing. Each role decodes what it
needs of the settings and of an entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from json import JSONDecodeError
from typing import Generic, Self, TypeVar, get_args

from timekeeper.core.budgets.policy import group_key
from timekeeper.core.claims.drivers import DeviceComparison, DriverRule, read_comparison
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.request.host import CardHost
from timekeeper.core.wire import StandingWord

WORDS: tuple[StandingWord, ...] = get_args(StandingWord)

Settings = TypeVar("Settings")
Entry = TypeVar("Entry")


class UndecodableStandingsError(ValueError):
    """The timekeeper's answer is not a table of standings; the last valid one stays."""


@dataclass(frozen=True, slots=True)
class Cap:
    """How much pods may hold of cards at one time by one budget, in milli-GPU; None: any amount."""

    total_milli: int | None = None  # all pods that the budget is for
    pod_milli: int | None = None  # each of them


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps that apply to a namespace's pods."""

    own: Cap = Cap()
    group: str = ""  # "": none
    of_group: Cap = Cap()

    @property
    def is_set(self) -> bool:
        """True if there is any cap."""
        return self.own != NO_CAP or self.of_group != NO_CAP


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """What the account of a namespace's group has left, in milli-GPU x ms; None: it has no limit."""

    remaining: int | None = None
    on_exhausted: str = ""  # the group's


NO_GROUP_LEFT = GroupLeft()
NO_CAP = Cap()
NO_CAPS = Caps()


@dataclass(frozen=True)  # with slots it could not be made through an alias: StandingsTable[A, B](...)
class StandingsTable(Generic[Settings, Entry]):
    """One answer of the timekeeper, as a role decodes it."""

    etag: str
    generated_ms: int  # its tick, by the timekeeper's clock: it knows pods up to then
    settings: Settings
    default: Entry  # of namespaces without an entry
    namespaces: Mapping[str, Entry]
    read_ms: int  # when it was received, by our monotonic clock
    confirmed_ms: int  # when the timekeeper last said that it is current, by our monotonic clock

    def confirmed(self, now_ms: int) -> Self:
        """The table after the timekeeper has answered that nothing changed."""
        return replace(self, confirmed_ms=now_ms)

    def entry_of(self, namespace: str) -> Entry:
        """The namespace's own entry, else the default one."""
        return self.namespaces.get(namespace, self.default)

    def is_stale(self, now_ms: int, stale_after_ms: int) -> bool:
        """Whether the table was not confirmed for more than ``stale_after_ms``."""
        return now_ms - self.confirmed_ms > stale_after_ms

    def is_unknown(self, over: bool, valid_until_ms: int | None, now_ms: int, stale_after_ms: int) -> bool:
        """Whether an entry's standing has become UNKNOWN: after its ``validUntil`` (None: it has none), and,
        unless it is OVER_BUDGET (``over``), while the timekeeper has not answered for ``stale_after_ms``."""
        timekeepers_ms = self.generated_ms + now_ms - self.read_ms
        if valid_until_ms is not None and timekeepers_ms >= valid_until_ms:
            return True
        return not over and self.is_stale(now_ms, stale_after_ms)


def decode(
    loads: Callable[[bytes], Json],
    body: bytes,
    etag: str,
    now_ms: int,
    settings: Callable[[Json], Settings],
    entry: Callable[[Json], Entry],
) -> StandingsTable[Settings, Entry]:
    """The table in a 200's body. ``loads`` parses JSON, and may raise JSONDecodeError; ``settings`` and
    ``entry`` decode their objects. Raises UndecodableStandingsError for anything but `wire.Standings`."""
    try:
        whole = loads(body)
        if whole["version"] != 1:
            raise UndecodableStandingsError("standings: not version 1")
        return StandingsTable(
            etag=etag,
            generated_ms=whole_number(whole["generated"]),
            settings=settings(whole["settings"]),
            default=entry(whole["default"]),
            namespaces={name: entry(raw) for name, raw in whole["namespaces"].items()},
            read_ms=now_ms,
            confirmed_ms=now_ms,
        )
    except (JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UndecodableStandingsError(f"standings: {type(error).__name__} {error}") from error


def standing_word(raw: object) -> StandingWord:
    """One of the words of a standing. Raises UndecodableStandingsError."""
    for word in WORDS:
        if word == raw:
            return word
    raise UndecodableStandingsError("standings: unknown standing")


def is_spent(entry: Json) -> bool:
    """Whether the entry's account has spent its grant; False in the document of a release that does not say
    so."""
    spent = entry.get("spent", False)
    if not isinstance(spent, bool):
        raise UndecodableStandingsError("standings: spent is not a boolean")
    return spent


def group(entry: Json) -> str:
    """The key of the group's budget entry; "" for a namespace without group."""
    name = _group_name(entry)
    return group_key(name) if name else ""


def deciding_group(entry: Json) -> str:
    """The same if the group's account determines the standing; "" if the namespace's does, and in the
    document of a release that does not say so."""
    return group(entry) if entry.get("groupDecides") is True else ""


def payer(namespace: str, group: str) -> str:
    """Whose account determines the standing, in a sentence. ``group``: as `deciding_group`."""
    return f"{group} (the group of namespace {namespace})" if group else f"namespace {namespace}"


def group_left(entry: Json) -> GroupLeft:
    """What the group has left; without limit in the document of a release that does not say it."""
    raw = entry if entry.get("groupDecides") is True else mapping(entry.get("groupLeft"))
    return GroupLeft(whole_number_or_none(raw.get("remaining")), str(raw.get("onExhausted", "")))


def caps(entry: Json) -> Caps:
    """The entry's caps; none in the document of a release that does not know them."""
    return Caps(_cap(entry.get("caps")), _group_name(entry), _cap(entry.get("groupCaps")))


def _group_name(entry: Json) -> str:
    name = entry.get("group", "")
    if not isinstance(name, str):
        raise UndecodableStandingsError("standings: group is not a name")
    return name


def held_by_claims(entry: Json) -> int:
    """What the namespace's device claims hold of GPUs, in milli-GPU; 0 in the document of a release that does
    not say it."""
    return max(0, whole_number(entry.get("heldByClaims", 0)))


def card_host(settings: Json) -> CardHost | None:
    """How much CPU and memory there is for each card; None where the document does not say it."""
    raw = settings.get("host")
    if raw is None:
        return None
    said = {"mostCardMib": 0, **raw}  # releases before did not say that
    fields = ("cpuMilli", "memoryBytes", "leastCardMib", "mostCardMib")
    return CardHost(*(whole_number(said.get(name)) for name in fields))


def driver_rules(settings: Json) -> tuple[DriverRule, ...]:
    """Which devices of the drivers that an administrator has named are GPUs; none in the document of a
    release that does not know them."""
    some = mapping(settings.get("gpuDevices"))
    return tuple(
        DriverRule(driver, has_gpus is True, tuple(map(_comparison, some.get(driver, ()))))
        for driver, has_gpus in mapping(settings.get("drivers")).items()
    )


def _comparison(raw: object) -> DeviceComparison:
    found = read_comparison(raw) if isinstance(raw, str) else None
    if found is None:
        raise UndecodableStandingsError("standings: not a comparison of devices")
    return found


def _cap(raw: Json | None) -> Cap:
    if raw is None:
        return NO_CAP
    return Cap(whole_number_or_none(raw.get("total")), whole_number_or_none(raw.get("pod")))


def whole_number(raw: object) -> int:
    """An integer of the document. Raises UndecodableStandingsError."""
    if type(raw) is not int:
        raise UndecodableStandingsError("standings: not a whole number")
    return raw


def whole_number_or_none(raw: object) -> int | None:
    """The same, or null. Raises UndecodableStandingsError."""
    return None if raw is None else whole_number(raw)
