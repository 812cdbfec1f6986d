"""Compares the open sessions of claims with what the API server's claims hold now.

The rate is computed anew, from what drivers publish now and the settings that were in force when the
allocation was made. So a slice that has changed since is a difference, too, and no fault.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.claims.claim_sessions import decode_devices, is_dated
from timekeeper.core.claims.allocation import DeviceAllocation, DeviceClaim
from timekeeper.core.claims.devices import DevicePools, DeviceSlice
from timekeeper.core.claims.drivers import rules_of
from timekeeper.core.rating.allocations import ClaimCharge, charge_of
from timekeeper.core.request.device_classes import DEFAULTS, ClassSettings
from timekeeper.operations.audit.finding import NotCompared
from timekeeper.store.audit_rows import StoredSession


@dataclass(frozen=True, slots=True)
class ClaimDifference:
    """``stored``: what the ledger has, ``cluster``: what follows from the API server's objects."""

    uid: str
    claim: str  # with its namespace
    what: str
    stored: str
    cluster: str

    def sentence(self) -> str:
        """One line for people."""
        values = f"stored {self.stored}, by the cluster {self.cluster}"
        return f"claim {self.uid} ({self.claim}): {self.what}: {values}"

    def wire(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "uid": self.uid,
            "claim": self.claim,
            "what": self.what,
            "stored": self.stored,
            "cluster": self.cluster,
        }


class ClaimComparison:
    """Receives the sessions, then gives what it found. ``claims`` and ``slices``: all that exist, as they
    were listed at ``at_ms``; ``serving``: namespace and name of those that serve extended resources, as the
    pods' status says; ``classes``: what an administrator says of drivers beside `_settings`, as of now."""

    def __init__(
        self,
        claims: Iterable[DeviceClaim],
        slices: Iterable[DeviceSlice],
        at_ms: int,
        serving: Set[tuple[str, str]] = frozenset(),
        classes: ClassSettings = DEFAULTS,
    ) -> None:
        self._classes = classes
        self._claims = {each.uid: each for each in claims}
        self._at_ms = at_ms
        self._pools = DevicePools()
        for each in slices:
            self._pools.put(each)
        self._serving = serving
        extended = (each for each in self._claims.values() if (each.namespace, each.name) in serving)
        self._served = {uid for each in extended for uid in each.consumers}
        self._paying: set[str] = set()  # UIDs of pods that pay for their cards, of those
        self._open: dict[str, list[StoredSession]] = {}  # UID of a claim -> its open sessions
        self.compared = 0
        self.differences: list[ClaimDifference] = []
        self.listed: list[NotCompared] = []

    def check(self, session: StoredSession) -> None:
        """One session, of any kind."""
        if session.ended_ms is not None or session.vanished_ms is not None:
            return
        if session.kind == "claim":
            self._open.setdefault(session.owner_uid, []).append(session)
        elif session.uid in self._served:
            self._paying.add(session.uid)

    def end(self, history: History) -> None:
        """After the last session."""
        for uid in sorted(self._claims.keys() | self._open.keys()):
            claim, sessions = self._claims.get(uid), self._open.get(uid, [])
            allocation = claim.allocation if claim is not None else None
            mine = [each for each in sessions if allocation is not None and is_dated(each.uid, allocation)][
                :1
            ]
            for each in sessions:
                if each not in mine:
                    self._check_left(each, claim)
            if claim is not None and allocation is not None:
                self._check_held(claim, allocation, mine[0] if mine else None, history)

    def sentences(self) -> Iterator[str]:
        """A line for each claim that differs or is not compared, and their numbers, for people."""
        yield from (each.sentence() for each in self.differences)
        yield from (each.sentence() for each in self.listed)
        yield (
            f"{self.compared} claims compared with the API server: {len(self.differences)} differences;"
            f" {len(self.listed)} not compared"
        )

    def wire(self) -> dict[str, Any]:
        """The whole, for programs."""
        return {
            "compared": self.compared,
            "differences": [each.wire() for each in self.differences],
            "notCompared": [each.wire() for each in self.listed],
        }

    def _check_left(self, session: StoredSession, claim: DeviceClaim | None) -> None:
        """A session whose allocation the cluster does not have."""
        uid, name = session.owner_uid, f"{session.namespace}/{session.name}"
        if claim is None and session.watermark_ms is not None:
            reason = "its object is gone, and it is charged until the pods that used it have ended"
            self.listed.append(NotCompared("claim", uid, name, reason))
            return
        self.compared += 1
        stored = f"charged at {_gpus(session.rate_milli)}"
        self._differs(uid, name, "charged but not held", stored, "nothing is allocated to it so")

    def _check_held(
        self,
        claim: DeviceClaim,
        allocation: DeviceAllocation,
        session: StoredSession | None,
        history: History,
    ) -> None:
        """An allocation, and its session if it has one."""
        name = f"{claim.namespace}/{claim.name}"
        made_ms = self._at_ms if allocation.stamp_ms is None else allocation.stamp_ms
        settings = history.settings(made_ms if session is None else session.bound_ms)
        rules = rules_of(settings.drivers, self._classes)
        charge = charge_of(allocation, self._pools.find, rules, settings)
        if session is None:
            self._check_missing(claim, name, charge, max(0, self._at_ms - made_ms))
            return
        self.compared += 1
        if session.namespace != claim.namespace:
            self._differs(claim.uid, name, "payer", session.namespace, claim.namespace)
        stored, devices = _stored_devices(session), _devices(charge)
        if stored != devices:
            self._differs(claim.uid, name, "devices", _named(stored), _named(devices))
        elif session.rate_milli != charge.rate_milli:
            doubt = f", which is not certain: {charge.doubt}" if charge.doubt else ""
            rates = _gpus(session.rate_milli), f"{_gpus(charge.rate_milli)}{doubt}"
            self._differs(claim.uid, name, "rate", *rates)

    def _check_missing(self, claim: DeviceClaim, name: str, charge: ClaimCharge, held_ms: int) -> None:
        if not charge.gpus:
            if charge.unknown_drivers:
                reason = f"there is no rule for {', '.join(charge.unknown_drivers)}"
                self.listed.append(NotCompared("claim", claim.uid, name, reason))
            return
        is_serving = (claim.namespace, claim.name) in self._serving
        if is_serving and any(uid in self._paying for uid in claim.consumers):
            reason = "its pod pays for the extended resources by its cards"
            self.listed.append(NotCompared("claim", claim.uid, name, reason))
            return
        self.compared += 1
        held = f"{_gpus(charge.rate_milli)} for {held_ms / 1000:.3f} s"
        self._differs(claim.uid, name, "held but not charged", "no open session", held)

    def _differs(self, uid: str, name: str, what: str, stored: str, cluster: str) -> None:
        self.differences.append(ClaimDifference(uid, name, what, stored, cluster))


def _stored_devices(session: StoredSession) -> set[str]:
    held = decode_devices(session.devices)
    return {_name(each.driver, each.pool, each.device, each.share) for each in held}


def _devices(charge: ClaimCharge) -> set[str]:
    held = (each.device for each in charge.gpus)
    return {_name(each.driver, each.pool, each.device, each.share) for each in held}


def _name(*parts: str) -> str:
    return "/".join(each for each in parts if each)


def _named(devices: Iterable[str]) -> str:
    return ", ".join(sorted(devices)) or "no GPU"


def _gpus(milli: int) -> str:
    return f"{milli / 1000:g} GPU" if milli == 1000 else f"{milli / 1000:g} GPUs"
