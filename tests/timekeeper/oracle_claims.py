"""The sessions of device claims, computed a second time by another method. Imports nothing of ours but the
oracle of pods.

The oracle receives what reached the timekeeper. Times are milliseconds since 1970, rates thousandths of a
device.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any

from tests.timekeeper.oracle import SOON, kubelet_says, last_times, moment
from tests.worlds import Json

PATIENCE = 5_000  # for a slice that describes the device
UNITS = {"": 1, "Mi": 2**20, "Gi": 2**30}


@dataclass
class Charge:
    """One allocation. ``end`` None: it is held; ``floor``: it was held until then at least; ``lost``: its
    claim was removed, and it is held until its users have ended."""

    claim: str
    begin: int
    rate: int
    stamp: int | None
    devices: frozenset[tuple[str, ...]]
    users: tuple[str, ...]
    end: int | None = None
    lost: bool = False
    floor: int = 0
    ever: tuple[str, ...] = ()  # the pods that it was ever reserved for
    kept: "Gone | None" = None  # it was freed at its end, and pods that were removed may use its devices
    until: int = 0  # until then, as it is written; 0: it was not so


@dataclass
class Gone:
    """A pod whose removal was seen before its end. ``quick``: within which a kubelet that hears of it ends
    it, None: nobody knows; ``renewals``: the first and the last of its kubelet since."""

    at: int
    grace: int
    quick: int | None = SOON
    renewals: tuple[int, int] | None = None
    floor: int = 0

    def until(self) -> int:
        until = self.at + self.grace
        if self.quick is not None and self.renewals is not None:
            ends = max(self.at, self.renewals[0] - 10_000) + self.quick
            until = min(until, ends) if self.renewals[1] >= ends else until
        return max(until, self.floor)

    def renews(self, at: int) -> None:
        if at > self.at:
            self.renewals = (self.renewals or (at, at))[0], at


@dataclass
class Sight:
    """What was seen of a claim, in the order of arrival."""

    raw: Json
    gone: bool
    at: int
    look: int
    listed: bool


@dataclass
class User:
    """A pod as it is known, and when its removal was seen."""

    raw: Json
    gone: int | None = None

    def end(self) -> int | None:
        """When it used its claims last, or was removed; None: it uses them."""
        if not self.raw["spec"].get("nodeName"):
            return 0
        end = kubelet_says(self.raw)[1]
        if end is not None:
            return end or max(last_times(self.raw))
        return self.gone


@dataclass
class Claims:
    """What the settler knows of claims. ``unwritten``: since its last tick, with the last list; ``mark``: as
    it is written; ``rules``: by driver, whether its devices are GPUs; ``units``: by driver, the capacity that
    says how many each is; ``slices``: those that exist, by name; ``past``: what they were before, in order.
    """

    rules: dict[str, bool]
    weights: dict[str, Fraction]
    most_grace: int
    slices: dict[str, Json] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    past: list[Json] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)
    held: dict[str, Json] = field(default_factory=dict)  # UID -> allocated claim, as it was seen last
    users: dict[str, User] = field(default_factory=dict)
    unwritten: list[Sight] = field(default_factory=list)
    listing: tuple[int, int, dict[str, Json]] | None = None
    heard: int = 0
    mark: int = 0
    gone: dict[str, Gone] = field(default_factory=dict)  # by UID
    settle_after: int = 600_000

    def sees(self, raw: Json, gone: bool, now: int) -> None:
        """The watch reports a claim."""
        self._note(Sight(raw, gone, now, self.heard, False))
        self.hears(now)

    def publishes(self, body: Json, gone: bool = False) -> None:
        """The watch reports a slice."""
        before = self.slices.pop(body["metadata"]["name"], None)
        if before is not None:
            self.past.append(before)
        if not gone:
            self.slices[body["metadata"]["name"]] = body

    def hears(self, now: int) -> None:
        """The watch is alive."""
        if self.heard:
            self.heard = max(self.heard, now)

    def lists(self, raws: list[Json], asked: int) -> None:
        """A list of all claims."""
        there = {raw["metadata"]["uid"]: raw for raw in raws}
        look = self.heard
        for uid, raw in list(self.held.items()):
            if uid not in there:
                self._note(Sight(raw, True, asked, look, True))
        for raw in raws:
            self._note(Sight(raw, False, asked, look, True))
        first = self.listing[1] if self.listing else look
        self.listing = asked, first, there
        self.heard = max(self.heard, asked)

    def _note(self, sight: Sight) -> None:
        uid, holds = sight.raw["metadata"]["uid"], bool(results(sight.raw))
        known = self.held.get(uid)
        if holds and not sight.gone:
            if known is not None and said(known) == said(sight.raw):
                return
            self.held[uid] = sight.raw
        elif known is None and not holds:
            return
        else:
            self.held.pop(uid, None)
        self.unwritten.append(sight)

    def sees_pod(self, raw: Json, gone: bool, now: int) -> None:
        """The watch reports a pod that uses claims."""
        uid = raw["metadata"]["uid"]
        self.users[uid] = User(raw, now if gone else None)
        self.gone.pop(uid, None)  # it may live again
        if gone and raw["spec"].get("nodeName") and kubelet_says(raw)[1] is None:
            grace = max(1000 * int(raw["spec"]["terminationGracePeriodSeconds"]), 2_000)
            self.gone[uid] = Gone(now, min(grace, self.most_grace))

    def renews(self, at: int) -> None:
        """The kubelet of all pods, which ends those that were removed by force, renewed its Lease."""
        for gone in (*self.gone.values(), *(charge.kept for charge in self.charges if charge.kept)):
            gone.renews(at)

    def _ends(self, charge: Charge, at: int) -> None:
        """It was freed then; pods that were removed, and may run on, keep it."""
        charge.end = max(charge.begin, at)
        held = [self.gone[uid] for uid in charge.ever if uid in self.gone]
        held = [gone for gone in held if gone.until() > charge.end]
        if held:
            longest = max(held, key=Gone.until)
            charge.kept = replace(longest, quick=max(gone.quick or 0 for gone in held), floor=charge.end)

    def _says_users(self, charge: Charge, users: tuple[str, ...]) -> None:
        charge.users = users
        charge.ever += tuple(uid for uid in users if uid not in charge.ever)

    def lists_pods(self, raws: list[Json]) -> None:
        """A list of all pods, after a restart."""
        self.users = {raw["metadata"]["uid"]: User(raw) for raw in raws}

    def restarts(self) -> None:
        """The settler is killed: what it had not written is lost. Of a claim that was removed in use the next
        one knows that its users ran until the mark."""
        for charge in self.charges:
            if charge.lost and charge.end is None and charge.users:
                charge.floor = max(charge.floor, self.mark)
            if charge.kept is not None:  # of a pod that is gone nothing else is known to the next one
                charge.kept = Gone(charge.kept.at, charge.until - charge.kept.at, quick=None)
        self.gone.clear()
        self.held.clear()
        self.users.clear()
        self.unwritten.clear()
        self.past.clear()
        self.listing, self.heard = None, 0

    def tick(self, now: int) -> None:
        """What is known is decided and written."""
        self.gone = {uid: gone for uid, gone in self.gone.items() if gone.until() > self.mark}
        waiting: list[Sight] = []
        waits: set[str] = set()
        newest = {each.raw["metadata"]["uid"]: each for each in self.unwritten}
        for sight in self.unwritten:
            uid = sight.raw["metadata"]["uid"]
            is_last = newest[uid] is sight
            if uid in waits or not self._decide(sight, now, is_last):
                waits.add(uid)
                waiting.append(sight)
        if self.listing is not None:
            self._miss(*self.listing)
        self._follow_lost(now)
        for charge in self.charges:
            if charge.kept is not None:
                charge.until = charge.kept.until()
                if now >= charge.until + self.settle_after:
                    charge.kept = None
        self.unwritten, self.listing = waiting, None
        self.users = {uid: user for uid, user in self.users.items() if user.gone is None}
        self.mark = max(self.mark, min([self.heard, *(each.look for each in waiting)]))

    def running(self, uid: str) -> Charge | None:
        found = [each for each in self.charges if each.claim == uid and each.end is None and not each.lost]
        return found[0] if found else None

    def _decide(self, sight: Sight, now: int, is_last: bool) -> bool:
        """False: it waits for a slice."""
        uid = sight.raw["metadata"]["uid"]
        charge, gpus = self.running(uid), results(sight.raw) if not sight.gone else []
        if charge and sight.gone and results(sight.raw):
            self._lose(charge, sight, reserved(sight.raw))
            charge = None
        elif charge and not (gpus and is_same(charge, sight.raw)):
            self._ends(charge, self._end(charge, sight))
            charge = None
        if not gpus:
            return True
        if charge:
            self._says_users(charge, reserved(sight.raw))
            return True
        rated = self.rate(sight.raw)
        if rated is None:
            return True
        rate, is_described = rated
        if is_last and not is_described and now - sight.at < PATIENCE:
            return False
        ends = [each.end for each in self.charges if each.claim == uid and each.end is not None]
        begin = max([self._begin(sight), *ends])
        devices = frozenset(map(of_one, gpus))
        users = reserved(sight.raw)
        self.charges.append(Charge(uid, begin, rate, stamp(sight.raw), devices, users, ever=users))
        return True

    def _look(self, sight: Sight) -> int:
        return sight.look or self.mark

    def _begin(self, sight: Sight) -> int:
        made, look = stamp(sight.raw), self._look(sight)
        if made is None or not look or made > sight.at or made + 1_000 <= look:
            return sight.at
        return made if made >= look else min(sight.at, made + 1_000)

    def _end(self, charge: Charge, sight: Sight) -> int:
        if not sight.listed:
            return sight.at
        ends = [self.users[uid].end() or 0 for uid in charge.users if uid in self.users]
        limit = sight.at
        made = stamp(sight.raw) if results(sight.raw) else None
        if made is not None:
            limit = min(limit, max(made, charge.begin))
        return min(max([self._look(sight), *ends]), limit)

    def _lose(self, charge: Charge, sight: Sight, users: tuple[str, ...]) -> None:
        charge.lost, charge.users = True, users
        charge.floor = max(charge.floor, self._look(sight) if sight.listed else sight.at)

    def _miss(self, asked: int, look: int, there: dict[str, Json]) -> None:
        seen = {each.raw["metadata"]["uid"] for each in self.unwritten}
        for charge in self.charges:
            if charge.end is not None or charge.lost or charge.claim in self.held or charge.claim in seen:
                continue
            raw = there.get(charge.claim)
            if raw is None:
                self._lose(charge, Sight({}, True, asked, look, True), charge.users)
            else:
                self._ends(charge, self._end(charge, Sight(raw, False, asked, look, True)))

    def _follow_lost(self, now: int) -> None:
        for charge in self.charges:
            if not charge.lost or charge.end is not None:
                continue
            ends = {uid: self.users[uid].end() if uid in self.users else 0 for uid in charge.users}
            charge.users = tuple(uid for uid, end in ends.items() if end is None)
            charge.floor = max([charge.floor, *(end or 0 for end in ends.values())])
            if not charge.users and now >= charge.floor:
                self._ends(charge, charge.floor)

    def rate(self, raw: Json) -> tuple[int, bool] | None:
        """What the allocation costs, and whether all of it is described; None: it has no GPU."""
        total, is_gpu, is_described = 0, False, True
        for result in results(raw):
            if not self.rules.get(result["driver"], False):
                continue
            is_gpu = True
            found = self._device(result)
            is_described &= found is not None
            if not result.get("adminAccess"):
                total += 1000 if found is None else self._one(result, *found)
        return (total, is_described) if is_gpu else None

    def _one(self, result: Json, device: Json, beside: list[Json]) -> int:
        part = Fraction(1)
        for taken in device.get("consumesCounters", []):
            (whole,) = [
                each["counters"]
                for body in beside
                for each in body["spec"].get("sharedCounters", [])
                if each["name"] == taken["counterSet"]
            ]
            counters = taken["counters"].items()
            part = max(
                Fraction(quantity(value["value"]), quantity(whole[name]["value"])) for name, value in counters
            )
        if result["driver"] in self.units:
            part = Fraction(quantity(device["capacity"][self.units[result["driver"]]]["value"]))
        if "shareID" in result:
            has, took = device["capacity"], result.get("consumedCapacity", {})
            parts = [Fraction(quantity(took[name]), quantity(has[name]["value"])) for name in took]
            part *= min(Fraction(1), max([Fraction(1, 100), *parts]))
        weight = self.weights.get(device["attributes"]["model"]["string"], Fraction(1))
        return ceil(max(1, ceil(1000 * part)) * weight)

    def _device(self, result: Json) -> tuple[Json, list[Json]] | None:
        """As of the newest generation that is whole and has it, else of the newest that has it; with the
        slices of that generation."""
        pool = result["driver"], result["pool"]
        bodies = [*self.past, *self.slices.values()]
        mine = [each for each in bodies if (each["spec"]["driver"], each["spec"]["pool"]["name"]) == pool]
        found: list[tuple[bool, int, int, Json, list[Json]]] = []
        for age, body in enumerate(mine):
            number, of = body["spec"]["pool"]["generation"], body["spec"]["pool"]["resourceSliceCount"]
            beside = {
                each["metadata"]["name"]: each
                for each in mine
                if each["spec"]["pool"]["generation"] == number
            } | {body["metadata"]["name"]: body}
            found += [
                (len(beside) == of, number, age, device, list(beside.values()))
                for device in body["spec"].get("devices", [])
                if device["name"] == result["device"]
            ]
        if not found:
            return None
        *_, device, beside_it = max(found, key=lambda each: each[:3])
        return device, beside_it

    def copy_of_charges(self) -> list[Charge]:
        """As they are now."""
        return [replace(each) for each in self.charges]


def results(raw: Json) -> list[Json]:
    """What the claim holds."""
    found: list[Json] = raw.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found


def reserved(raw: Json) -> tuple[str, ...]:
    """The pods that it is reserved for."""
    return tuple(each["uid"] for each in raw["status"].get("reservedFor", []))


def stamp(raw: Json) -> int | None:
    """When its allocation says that it was made."""
    return moment(raw["status"]["allocation"].get("allocationTimestamp"))


def said(raw: Json) -> tuple[Any, ...]:
    """All that counts of a claim."""
    return results(raw), reserved(raw), stamp(raw)


def of_one(result: Json) -> tuple[str, ...]:
    """Which device it is, and which share of it."""
    return result["driver"], result["pool"], result["device"], result.get("shareID", "")


def is_same(charge: Charge, raw: Json) -> bool:
    """Whether the claim holds what is charged, by its time and its devices."""
    made = stamp(raw)
    return (made is None or charge.stamp == made) and charge.devices <= set(map(of_one, results(raw)))


def quantity(text: str) -> int:
    """A quantity as a number."""
    digits = text.rstrip("GiM")
    return int(digits) * UNITS[text[len(digits) :]]
