"""Claims on devices, and what drivers publish, as the watches show them.

What happens to a claim between two ticks is kept in order: it may be allocated, freed and allocated again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from timekeeper.accounts.claims.claim_findings import ClaimFindings, claim_findings
from timekeeper.accounts.pods import LedgerPod, claim_user
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.claims.devices import DevicePools
from timekeeper.core.claims.drivers import DriverRule, rules_of
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.tables import Table

SOURCES = ("resourceclaims", "resourceslices")
ORPHAN_MS = 30_000  # Kubernetes frees a claim within seconds after its last pod
_STEP_MS = 10_000  # as kubelets renew their Leases
MAX_SIGHTS = 100_000  # of claims, that are not written yet; beyond it, the last of each claim counts


@dataclass(frozen=True, slots=True)
class ClaimSight:
    """A claim as it was seen at ``at_ms``. ``look_ms``: until when all claims were known before that; 0: they
    were not; ``is_gone``: its object was removed, and this is its last state; ``is_listed``: by a list, which
    does not show what happened since then."""

    claim: DeviceClaim
    at_ms: int
    look_ms: int
    is_gone: bool = False
    is_listed: bool = False


@dataclass(frozen=True, slots=True)
class Relist:
    """A list of all claims. ``free``: by UID those that hold nothing."""

    at_ms: int
    look_ms: int
    free: Mapping[str, DeviceClaim]

    def sight(self, uid: str) -> ClaimSight:
        """A claim that holds nothing in it, or is not in it."""
        claim = self.free.get(uid)
        gone = claim or DeviceClaim(uid=uid, namespace="", name="")
        return ClaimSight(gone, self.at_ms, self.look_ms, is_gone=claim is None, is_listed=True)


@dataclass(slots=True, kw_only=True)
class DeviceClaims:
    """All that is known of claims. ``pods``: those that may use them; ``current_ms``: until when that is
    complete; 0: nothing follows them."""

    pods: Mapping[str, LedgerPod]
    current_ms: int = 0
    # of the sights that this tick does not write: until when all claims were known before them
    deferred_ms: tuple[int, ...] = (FOREVER_MS,)
    allocated: Table[str, DeviceClaim] = field(default_factory=Table)  # by UID
    sights: dict[str, list[ClaimSight]] = field(default_factory=dict)  # by UID; not written yet
    relisted: Relist | None = None  # the last list since the last written tick
    pools: DevicePools = field(default_factory=DevicePools)
    # UIDs of sessions of claims whose object was removed while it was allocated
    lost: set[str] = field(default_factory=set)
    names: Table[tuple[str, str], str] = field(default_factory=Table)  # namespace and name -> UID
    rules: Mapping[str, DriverRule] = field(default_factory=lambda: rules_of(()))  # by which they are judged
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)  # UID -> its drivers without a rule
    admin: set[str] = field(default_factory=set)  # UIDs of claims with admin access to GPUs
    # UID of a pod -> UIDs of the allocated claims that are reserved for it
    _reserved: dict[str, set[str]] = field(default_factory=dict)
    # UIDs of allocated claims of whose pods one has changed since the last written tick
    changed: set[str] = field(default_factory=set)
    _orphans: dict[str, int] = field(default_factory=dict)  # UID -> since when no pod uses it
    _version: int = 0  # of what is found
    _found: tuple[object, ClaimFindings] | None = None
    _count: int = 0  # of sights

    @property
    def is_followed(self) -> bool:
        """Whether the API server serves claims, and they were listed."""
        return self.current_ms > 0

    @property
    def watermark_ms(self) -> int | None:
        """Until when claims are known, as it is written: in steps, for the charges of all claims advance
        with it."""
        return self.current_ms // _STEP_MS * _STEP_MS or None

    @property
    def seen_ms(self) -> int | None:
        """The same to the millisecond: until when the next settler knows of all claims. Not beyond the look
        before a sight that is not written yet."""
        return min(self.current_ms, *self.deferred_ms) or None

    def is_allocated(self, namespace: str, name: str) -> bool:
        """Whether a claim of this name holds devices."""
        return (namespace, name) in self.names

    def allocated_claim(self, namespace: str, name: str) -> DeviceClaim | None:
        """The claim of this name, while it holds devices."""
        return self.allocated.get(self.names.get((namespace, name), ""))

    def confirm(self, at_ms: int) -> None:
        """All that happened to claims until then has arrived."""
        if self.is_followed:
            self.current_ms = max(self.current_ms, at_ms)

    def relist(self, claims: Iterable[DeviceClaim], at_ms: int) -> None:
        """The claims that exist."""
        found = {each.uid: each for each in claims}
        look_ms = self.current_ms
        for gone in [each for uid, each in self.allocated.items() if uid not in found]:
            self._see(ClaimSight(gone, at_ms, look_ms, is_gone=True, is_listed=True))
        for each in found.values():
            self._see(ClaimSight(each, at_ms, look_ms, is_listed=True))
        free = {uid: each for uid, each in found.items() if each.allocation is None}
        first = self.relisted  # of two, it says until when claims were known
        self.relisted = Relist(at_ms, first.look_ms if first else look_ms, free)
        self.current_ms = max(self.current_ms, at_ms)

    def see(self, claim: DeviceClaim, deleted: bool, at_ms: int) -> None:
        """The claim as it is now, or its last state if it was deleted."""
        self._see(ClaimSight(claim, at_ms, self.current_ms, is_gone=deleted))
        self.confirm(at_ms)

    def _see(self, sight: ClaimSight) -> None:
        claim = sight.claim
        before = self.allocated.get(claim.uid)
        is_held = claim.allocation is not None and not sight.is_gone
        if (claim == before and is_held) or (before is None and claim.allocation is None):
            return
        for user in set(before.consumers) if before is not None else ():
            self._reserved[user].discard(claim.uid)
            if not self._reserved[user]:
                del self._reserved[user]
        if is_held:
            for user in claim.consumers:
                self._reserved.setdefault(user, set()).add(claim.uid)
            self.allocated[claim.uid] = claim
            self.names[claim.namespace, claim.name] = claim.uid
        elif before is not None:
            del self.allocated[claim.uid]
            self.names.pop((claim.namespace, claim.name), None)
        if not is_held:
            self.unknown.pop(claim.uid, None)
            self.admin.discard(claim.uid)
        self._note_orphan(claim.uid, sight.at_ms)
        self._version += 1
        mine = self.sights.setdefault(claim.uid, [])
        if mine and self._count >= MAX_SIGHTS:
            mine[-1] = sight
        else:
            mine.append(sight)
            self._count += 1

    def judge(self, uid: str, unknown: tuple[str, ...], is_admin: bool) -> None:
        """What is found of an allocated claim's devices."""
        if uid not in self.allocated:
            return
        if unknown:
            self.unknown[uid] = unknown
        if is_admin:
            self.admin.add(uid)
        self._version += 1

    def judge_again(self, rules: Mapping[str, DriverRule], now_ms: int) -> None:
        """With other rules, claims on devices of unknown drivers may hold GPUs, from now on."""
        if rules == self.rules:
            return
        self.rules = rules
        for uid in self.unknown:
            self.sights.setdefault(uid, [ClaimSight(self.allocated[uid], now_ms, now_ms)])
        self.unknown.clear()
        self._version += 1

    def findings(self, orphans: Iterable[DeviceClaim]) -> ClaimFindings:
        """What people must know of the claims. ``orphans``: those that are charged for no pod."""
        named = [(each.namespace, each.name) for each in orphans]
        key = self._version, named
        if self._found is None or self._found[0] != key:
            drivers = Counter(driver for each in self.unknown.values() for driver in each)
            self._found = key, claim_findings(named, drivers, len(self.admin))
        return self._found[1]

    def orphans(self, now_ms: int) -> Iterator[DeviceClaim]:
        """The claims that no pod has used for a while: they are reserved for none, or for pods alone that do
        not exist, by their UIDs, or have ended."""
        for uid, since_ms in self._orphans.items():
            if now_ms - since_ms >= ORPHAN_MS:
                yield self.allocated[uid]

    def _note_orphan(self, uid: str, at_ms: int) -> None:
        claim = self.allocated.get(uid)
        if claim is None or claim.other_consumers or any(map(self._is_there, claim.consumers)):
            self._orphans.pop(uid, None)
        else:
            self._orphans.setdefault(uid, at_ms)

    def _is_there(self, uid: str) -> bool:
        pod = claim_user(self.pods, uid)
        return pod is not None and pod.uses.gone_ms is None and not pod.hold.over

    def see_user(self, uid: str, at_ms: int) -> None:
        """A pod that uses claims has changed."""
        for claim in self._reserved.get(uid, ()):
            self._note_orphan(claim, at_ms)
            self.changed.add(claim)

    def mark_written(self, deferred: dict[str, list[ClaimSight]], withheld: Set[str] = frozenset()) -> None:
        """All of it is written to the ledger, but the ``deferred`` sights, and those of the ``withheld``
        namespaces."""
        of = {uid: sights for uid, sights in self.sights.items() if sights[-1].claim.namespace in withheld}
        self.sights = {**of, **deferred}
        self._count = sum(map(len, self.sights.values()))
        self.relisted = self.relisted if withheld else None
        self.changed.clear()
