"""Devices on their way to their heir."""

from collections.abc import Sequence
from dataclasses import dataclass

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.reclaim.choice import FAR_MS
from timekeeper.core.claims.heirs import DeviceKey, TaintRule

KEEP_MS = 30_000  # a device is kept for its heir for so long beyond the grace period of the pods that leave


@dataclass(frozen=True, slots=True)
class KeptDevice:
    """A device that is kept for one claim of the heir. ``device_class``: "" of what an earlier settler began;
    ``claim``: "" of the claim that is made for its limits; ``rule``: the name of its taint's rule, "": it has
    none."""

    device: DeviceKey
    device_class: str
    claim: str
    rule: str


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The devices of one node on their way to their heir. Times are of a monotonic clock."""

    heir: LedgerPod
    kept: tuple[KeptDevice, ...]
    node: str
    due_ms: int  # before that no pod is evicted
    until_ms: int
    victims: frozenset[str] = frozenset()  # UIDs of the pods that are to leave
    has_evicted: bool = False

    @property
    def claims(self) -> frozenset[str]:
        """The names of the heir's claims that get them, "" for one that is still to be made."""
        return frozenset(each.claim for each in self.kept)

    @property
    def keys(self) -> frozenset[DeviceKey]:
        """The devices' drivers, pools and names."""
        return frozenset(each.device for each in self.kept)

    @property
    def rules(self) -> list[str]:
        """The names of the rules that keep them."""
        return [each.rule for each in self.kept if each.rule]


def adopted(heir: LedgerPod, rules: Sequence[TaintRule], node: str, now_ms: int, at_ms: int) -> UnderWay:
    """What an earlier settler began, by its rules for this heir. ``now_ms``, ``at_ms``: the time, and that of
    the monotonic clock."""
    known = [each for each in rules if each.heir is not None]
    kept = (KeptDevice(each.selected, "", each.heir.claim, each.name) for each in known if each.heir)
    until_ms = max((each.heir.until_ms for each in known if each.heir), default=now_ms)
    left_ms = min(until_ms - now_ms, FAR_MS + KEEP_MS)
    return UnderWay(heir, tuple(kept), node, at_ms, at_ms + left_ms, has_evicted=True)
