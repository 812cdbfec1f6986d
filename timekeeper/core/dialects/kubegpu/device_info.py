"""The JSON that KubeGPU and KubeDevice put into annotations: names of cards in two levels of groups.

``resource/group/gpugrp1/<socket>/gpugrp0/<pair>/gpu/<card>/cards`` is one card, and ``.../memory`` its memory
in bytes. A pod may leave out both groups or the upper one, and chooses the names itself; a node names its
cards by UUID.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from timekeeper.core.dialects.amounts import MAX_CARDS, Container
from timekeeper.core.json_values import decoded
from timekeeper.core.names import MODELS
from timekeeper.core.quantity import LARGEST
from timekeeper.core.values import Card, CardSet
from timekeeper.core.violation import Violation, shown

MIB = 1024 * 1024

_T = TypeVar("_T", bound=Hashable)
_Kind = tuple[str, tuple[str, str], int]  # of cards: socket, pair with its socket, least memory in MiB
_NO_PAIR = ("", "")
_MAX_CHARACTERS = 64 * 1024
_NAME = re.compile(r"/(?:gpugrp1/([^/]+)/)?(?:gpugrp0/([^/]+)/)?gpu/([^/]+)/(cards|memory)", re.ASCII)


class DeviceInfoError(ValueError):
    """The annotation cannot be read; `violation` says why."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.sentence())
        self.violation = violation


@dataclass(frozen=True, slots=True)
class CardPlace:
    """A card by the names of its groups, "" where there is none."""

    socket: str
    pair: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one container requests. ``sets``: empty where its cards are alike and may be anywhere."""

    cards: int
    sets: tuple[CardSet, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfoNames:
    """The names of one version.

    ``pod`` and ``node``: their annotations. ``prefix``: what names of cards begin with. ``counts``: resources
    that count cards. ``generates``: requests of groups, 1 for the best that there are, 0 for none;
    ``absent``: which of these it is without one; ``of_pod``: they stand among the pod's own requests alone.
    Of several names the first is written; the others were written by former versions.
    """

    pod: str
    node: str
    prefix: str
    counts: tuple[str, ...]
    generates: tuple[str, ...]
    absent: int
    of_pod: bool

    @property
    def count(self) -> str:
        """The resource that is written."""
        return self.counts[0]

    @property
    def path(self) -> str:
        """The field of a pod, as a message names it."""
        return f"metadata.annotations[{self.pod}]"

    def decode(self, text: object) -> Mapping[str, Any]:
        """Raises DeviceInfoError."""
        if not isinstance(text, str) or len(text) > _MAX_CHARACTERS:
            raise self.error("", text, "not a text, or too long", f"at most {_MAX_CHARACTERS} characters")
        try:
            found = decoded(text, parse_constant=_no_number)
        except ValueError:
            raise self.error("", text, "not JSON", "a JSON object") from None
        return self.objects(found, self.path)

    def objects(self, value: object, path: str) -> Mapping[str, Any]:
        """A JSON object, empty where it is absent. Raises DeviceInfoError."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(path.removeprefix(self.path), value, "not a JSON object", "a JSON object")
        return value

    def generate(self, requests: object, path: str) -> int | None:
        """0 or 1, None where it is absent. Raises DeviceInfoError."""
        amounts = self.objects(requests, path)
        name = next((name for name in self.generates if amounts.get(name) is not None), "")
        given = amounts.get(name)
        if given is not None and (type(given) is not int or given not in (0, 1)):
            raise self.error(f"{path.removeprefix(self.path)}[{name}]", given, "neither 0 nor 1", "0 or 1")
        return given

    def is_init(self, container: Container) -> bool:
        """True for native sidecars too: they stand among the init containers."""
        return container.path.startswith("spec.initContainers")

    def place(self, name: str, what: str) -> CardPlace | None:
        """The card of an amount of this kind, None for other names."""
        found = _NAME.fullmatch(name, len(self.prefix)) if name.startswith(self.prefix) else None
        if found is None or found[4] != what:
            return None
        return CardPlace(found[1] or "", found[2] or "", found[3])

    def allocated(self, container: object) -> tuple[str, ...]:
        """The UUIDs of a bound container's cards. Raises DeviceInfoError."""
        parts = self.objects(container, self.path).get("allocatefrom")
        values = self.objects(parts, self.path).values()
        places = (self.place(each, "cards") for each in values if isinstance(each, str))
        return tuple(dict.fromkeys(place.uuid for place in places if place is not None))

    def container(self, cards: Sequence[tuple[int, int, str]], sets: Sequence[CardSet]) -> dict[str, Any]:
        """What is written of a bound container. ``cards``: socket, pair and UUID of each, in the order of the
        sets."""
        sockets = list(dict.fromkeys(socket for socket, _, _ in cards))
        pairs = list(dict.fromkeys(pair for _, pair, _ in cards))
        requests: dict[str, int] = {self.count: len(cards)}
        devrequests: dict[str, int] = {}
        allocatefrom: dict[str, str] = {}
        for at, ((socket, pair, uuid), (group, least)) in enumerate(
            zip(cards, _groups(sets) or [("", 0)] * len(cards), strict=True)
        ):
            place = f"{self.prefix}/gpugrp1/{sockets.index(socket)}/gpugrp0/{pairs.index(pair)}/gpu/{at}"
            card = f"{self.prefix}/gpugrp1/{socket}/gpugrp0/{pair}/gpu/{uuid}"
            for what, amount in (("cards", 1), ("memory", least)):
                if amount:
                    requests |= {f"{self.prefix}{group}/gpu/{at}/{what}": amount} if group or least else {}
                    devrequests[f"{place}/{what}"] = amount
                    allocatefrom[f"{place}/{what}"] = f"{card}/{what}"
        parts: dict[str, dict[str, Any]] = {
            "requests": requests,
            "devrequests": devrequests,
            "allocatefrom": allocatefrom,
        }
        return {field: dict(sorted(part.items())) for field, part in parts.items()}  # as Go writes maps

    def error(self, at: str, got: object, problem: str, allowed: str) -> DeviceInfoError:
        """``at``: where in the annotation."""
        example = f'{self.pod}: {{"runningcontainer":{{"main":{{"requests":{{"{self.count}":2}}}}}}}}'
        return DeviceInfoError(
            Violation("unreadable-request", f"{self.path}{at}", shown(got), problem, allowed, example)
        )


def read_wanted(names: DeviceInfoNames, requests: object, path: str, limit: int) -> Wanted:
    """What a container requests in the annotation and, of cards, by its limit. Raises DeviceInfoError."""
    at = path.removeprefix(names.path)
    given = names.objects(requests, path)
    amounts = {name: amount for name, amount in given.items() if type(amount) is not int or amount}
    for name in names.generates:
        if name in amounts and names.of_pod:
            problem, allowed = "it is no request of a container", f"{names.path}.requests[{name}]"
            raise names.error(f"{at}[{name}]", amounts[name], problem, allowed)
        amounts.pop(name, None)
    for name, amount in amounts.items():
        if type(amount) is not int or not 0 <= amount <= LARGEST:
            raise names.error(f"{at}[{name}]", amount, "not a whole number", "a whole number from 0 on")
    count = max(amounts.pop(name, 0) for name in names.counts)
    places: dict[CardPlace, int] = {}
    for name, amount in amounts.items():
        card, memory = names.place(name, "cards"), names.place(name, "memory")
        place = card or memory
        if name.rpartition("/")[2].startswith("enum"):
            problem = "bits that a card must have are not supported"
            raise names.error(
                f"{at}[{name}]", amount, problem, f"models of cards, in the annotation {MODELS}"
            )
        if place is None or (card is not None and amount != 1):
            allowed = f"{names.count}, and 1 of {names.prefix}/.../gpu/NAME/cards, and its memory in bytes"
            raise names.error(f"{at}[{name}]", amount, "this request is not supported", allowed)
        places[place] = max(places.get(place, 0), amount if memory is not None else 0)
    cards = max(count, limit, len(places))
    if cards > MAX_CARDS:
        problem = "more cards than any node has"
        raise names.error(at, ", ".join(amounts) or count, problem, f"at most {MAX_CARDS} cards")
    kinds = Counter((each.socket, each.pair, -(-least // MIB)) for each, least in places.items())
    kinds["", "", 0] += cards - len(places)
    return Wanted(cards, _sets(+kinds))


def _sets(kinds: Mapping[tuple[str, str, int], int]) -> tuple[CardSet, ...]:
    """How many cards of each socket, pair and least memory, as sets: those without a group first. A group of
    one card is none, and neither is a socket whose cards are all of one pair."""
    of_pair: Counter[tuple[str, str]] = Counter()
    for (socket, pair, _), count in kinds.items():
        of_pair[socket, pair] += count
    joined = {each for each, count in of_pair.items() if each[1] and count > 1}
    sockets = Counter(socket for socket, pair in of_pair.elements() if socket)
    loose = {each for each, count in sockets.items() if count > 1}
    loose -= {socket for socket, pair in joined if sockets[socket] == of_pair[socket, pair]}

    found: Counter[_Kind] = Counter()
    for (socket, pair, least), count in kinds.items():
        pair_of = (socket, pair) if (socket, pair) in joined else _NO_PAIR
        found[socket if socket in loose else "", pair_of, least] += count
    ordered = sorted(found, key=_order)
    socket_numbers = _numbered(socket for socket, _, _ in ordered if socket)
    pair_numbers = _numbered(pair for _, pair, _ in ordered if pair != _NO_PAIR)
    if ordered == [("", _NO_PAIR, 0)]:
        return ()
    return tuple(
        CardSet(found[each], each[2], pair_numbers.get(each[1], 0), socket_numbers.get(each[0], 0))
        for each in ordered
    )


def _order(kind: _Kind) -> tuple[object, ...]:
    socket, pair, least = kind
    return socket != "", number_of(socket), pair != _NO_PAIR, *map(number_of, pair), -least


def _numbered(names: Iterable[_T]) -> dict[_T, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names), start=1)}


def number_of(text: str) -> tuple[int, str]:
    """Sort key: numbers by value, before other names."""
    return (int(text), "") if text.isascii() and text.isdigit() and len(text) < 10 else (10**9, text)


def _groups(sets: Sequence[CardSet]) -> list[tuple[str, int]]:
    """For each card of the sets its group's name and the least memory in bytes, so that reading these names
    gives the same sets."""
    sockets: list[tuple[int, int]] = []
    pairs = {each.pair for each in sets}
    found: list[tuple[str, int]] = []
    for each in sets:
        socket = (each.socket, 0 if each.socket else each.pair)
        sockets += [socket] if socket != (0, 0) and socket not in sockets else []
        for _ in range(each.devices):
            pair = each.pair - 1 if each.pair else len(pairs) + len(found)
            name = f"/gpugrp1/{sockets.index(socket)}/gpugrp0/{pair}" if socket != (0, 0) else ""
            found.append((name, each.min_memory_mib * MIB))
    return found


def groups_of(cards: Sequence[Card]) -> dict[str, tuple[int, int]]:
    """The numbers of each card's upper and lower group, as the node side gives them: in the order of the
    cards each that has no group yet opens one, with those that it is connected to."""
    ordered = sorted(cards, key=lambda card: card.index)
    pairs: dict[str, int] = {}
    sockets: dict[str, int] = {}
    for card in ordered:
        if card.uuid not in pairs:
            group = len(set(pairs.values()))
            near = [each.uuid for each in ordered if each.uuid in (card.links or ())]
            pairs.update(dict.fromkeys((card.uuid, *(uuid for uuid in near if uuid not in pairs)), group))
        if card.uuid not in sockets:
            group = len(set(sockets.values()))
            same = [each.uuid for each in ordered if card.numa is not None and each.numa == card.numa]
            sockets.update(dict.fromkeys((card.uuid, *same), group))
    return {card.uuid: (sockets[card.uuid], pairs[card.uuid]) for card in ordered}


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
