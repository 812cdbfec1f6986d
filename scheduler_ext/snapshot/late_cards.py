"""Cards that are kept for members of a gang that do not exist yet: their controller creates them only after
others run. Pure.

Each place is an allocation of the state `late` on its node, so nothing else is placed there. It ends when a
pod takes it, when its time is over, or when no member that it was kept beside has cards any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.allocation import Allocation, allocation_of
from timekeeper.core.values import Placement

LATE = "late/"  # before the UIDs of these allocations
RESTS = 10  # times as long as they were kept; they are not charged, and a user can ask for them


@dataclass(frozen=True, slots=True)
class LatePlace:
    """Node and cards for a pod that does not exist. ``pod``: as its template has it, with the allocation's
    UID; ``taken_by``: the UID of the pod that has them now, or had them."""

    pod: Pod
    node: str
    placement: Placement
    taken_by: str = ""


@dataclass(frozen=True, slots=True)
class LateCards:
    """Those of one gang, from ``since_ms`` until ``until_ms``. ``members``: UIDs of the pods that they were
    kept beside."""

    namespace: str
    key: str
    since_ms: int
    until_ms: int
    members: tuple[str, ...]
    places: tuple[LatePlace, ...]

    @property
    def free(self) -> Iterator[LatePlace]:
        """The places that no pod has taken."""
        return (each for each in self.places if not each.taken_by)


def late_uid(namespace: str, key: str, number: str) -> str:
    """The UID of the allocation for a pod of this gang that does not exist."""
    return f"{LATE}{namespace}/{key}/{number}"


def kept(place: LatePlace) -> Allocation:
    """kube-scheduler counts nothing of it, and caps count its cards."""
    found = allocation_of(place.pod, place.placement, "late")
    return replace(found, amounts=(), cpu_milli=0, others=())
