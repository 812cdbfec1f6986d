"""Claims on devices, what drivers publish, and the pods that use claims, as the watches show them.

What happens to a claim between two ticks is kept in order: it may be allocated, freed and allocated again.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace

from timekeeper.accounts.claims.consumers import ClaimPod
from timekeeper.core.claims.allocation import DeviceClaim
from timekeeper.core.claims.devices import DevicePools

SOURCES = ("resourceclaims", "resourceslices")
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


@dataclass(slots=True)
class DeviceClaims:
    """All that is known of claims. ``current_ms``: until when that is complete; 0: nothing follows them."""

    current_ms: int = 0
    allocated: dict[str, DeviceClaim] = field(default_factory=dict)  # by UID
    sights: dict[str, list[ClaimSight]] = field(default_factory=dict)  # by UID; not written yet
    relisted: ClaimSight | None = None  # the last list since the last written tick; its claim says nothing
    pools: DevicePools = field(default_factory=DevicePools)
    pods: dict[str, ClaimPod] = field(default_factory=dict)  # by UID; those that use claims
    served: set[str] = field(default_factory=set)  # UIDs of pods whose extended resources a claim serves
    # UIDs of sessions of claims whose object was removed while it was allocated
    lost: set[str] = field(default_factory=set)
    _names: dict[tuple[str, str], str] = field(default_factory=dict)  # namespace and name -> UID
    _count: int = 0  # of sights

    @property
    def is_followed(self) -> bool:
        """Whether the API server serves claims, and they were listed."""
        return self.current_ms > 0

    def is_allocated(self, namespace: str, name: str) -> bool:
        """Whether a claim of this name holds devices."""
        return (namespace, name) in self._names

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
        self.relisted = ClaimSight(DeviceClaim("", "", ""), at_ms, look_ms, is_listed=True)
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
        if is_held:
            self.allocated[claim.uid] = claim
            self._names[claim.namespace, claim.name] = claim.uid
        elif before is not None:
            del self.allocated[claim.uid]
            self._names.pop((claim.namespace, claim.name), None)
        mine = self.sights.setdefault(claim.uid, [])
        if mine and self._count >= MAX_SIGHTS:
            mine[-1] = sight
        else:
            mine.append(sight)
            self._count += 1

    def see_pod(self, pod: ClaimPod, deleted: bool, at_ms: int) -> None:
        """A pod that uses claims, as it is now, or its last state if it was deleted."""
        self.pods[pod.uid] = replace(pod, gone_ms=at_ms) if deleted else pod

    def relist_pods(self, there: Set[str], at_ms: int) -> None:
        """The UIDs of those that exist."""
        for uid, pod in self.pods.items():
            if uid not in there and pod.gone_ms is None:
                self.pods[uid] = replace(pod, gone_ms=at_ms)

    def mark_written(self, deferred: dict[str, list[ClaimSight]]) -> None:
        """All of it is written to the ledger, but the ``deferred`` sights."""
        self.sights = deferred
        self._count = sum(map(len, deferred.values()))
        self.relisted = None
        for uid in [uid for uid, pod in self.pods.items() if pod.gone_ms is not None]:
            del self.pods[uid]
            self.served.discard(uid)
