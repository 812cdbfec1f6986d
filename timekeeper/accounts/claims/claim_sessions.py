"""A session of a claim: one allocation of devices, from when it is made until it is cleared.

Its UID is the claim's, and a number: the allocation's own time, in whole seconds, and a millisecond more for
each earlier one of that second; or when it was first seen. The payer is the claim's namespace, however many
pods share it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from sys import intern

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import CLAIM, MAX_DOUBT, Session
from timekeeper.core.claims.allocation import AllocatedDevice, DeviceAllocation, DeviceClaim
from timekeeper.core.decisions import recordable
from timekeeper.core.rating.allocations import ClaimCharge, DeviceCharge

SECOND_MS = 1_000  # the resolution of an allocation's time
_MOST_USERS = 256  # Kubernetes reserves a claim for no more pods at one time
_MOST_A_SECOND = 32  # allocations of one claim that can be told apart


def consumers_of(session: Session) -> tuple[str, ...]:
    """The UIDs of the pods that hold GPUs by the session's claim; none once it is over, or if its access is
    an administrator's."""
    return () if session.is_over or not session.requested_milli else tuple(session.consumers.split())


def user_uids(session: Session) -> tuple[str, ...]:
    """The UIDs of the pods that its claim was ever reserved for."""
    return tuple(user.partition("/")[0] for user in session.users.split())


def held_by_claim(session: Session) -> int:
    """What the claim holds of GPUs, in milli-GPU, unweighted; 0 once the session is over."""
    return 0 if session.is_over else session.requested_milli


def held_by_driver(session: Session) -> dict[str, int]:
    """The same for each driver of its devices."""
    found: dict[str, int] = {}
    for each in decode_devices(session.devices) if held_by_claim(session) else ():
        found[each.driver] = found.get(each.driver, 0) + each.milli
    return found


def session_uids(claim: DeviceClaim, begin_ms: int) -> tuple[str, ...]:
    """The UIDs that the session of this claim's allocation may have; the first free one is its own.
    ``begin_ms``: when it began."""
    stamp_ms = claim.allocation.stamp_ms if claim.allocation else None
    first_ms = begin_ms if stamp_ms is None else stamp_ms
    return tuple(f"{claim.uid}{CLAIM}{first_ms + more}" for more in range(_MOST_A_SECOND))


def begin_ms(allocation: DeviceAllocation, seen_ms: int, look_ms: int) -> int:
    """When the allocation began: at its own time, if that lies between the last look without it, at
    ``look_ms`` (0: there was none), and when it was seen; else when it was seen. Its time has no parts of a
    second: one in the second of the look ends with that second at the latest."""
    stamp_ms = allocation.stamp_ms
    if stamp_ms is None or not look_ms or not look_ms - SECOND_MS < stamp_ms <= seen_ms:
        return seen_ms
    return stamp_ms if stamp_ms >= look_ms else min(seen_ms, stamp_ms + SECOND_MS)


def is_dated(session_uid: str, allocation: DeviceAllocation) -> bool:
    """Whether the session is of an allocation that was made at this time. Without a time it may be of any."""
    number = int(session_uid.rpartition(":")[2])
    return allocation.stamp_ms in (None, number // SECOND_MS * SECOND_MS)


def is_of(session: Session, allocation: DeviceAllocation) -> bool:
    """Whether the session is of this allocation, and of no earlier one of its claim."""
    if not is_dated(session.uid, allocation):
        return False
    return set(map(_key, decode_devices(session.devices))) <= set(map(_key, allocation.devices))


@dataclass(frozen=True, slots=True)
class Opening:
    """``uid``: of the session; ``begin_ms``: when the allocation was made; ``now_ms``: when it is opened;
    ``is_admitted``: the pod was admitted in budget, so that the claim reserves as its cards would."""

    uid: str
    node: str
    begin_ms: int
    now_ms: int
    is_admitted: bool = False


def open_claim_session(
    claim: DeviceClaim, charge: ClaimCharge, pod: LedgerPod | None, opening: Opening
) -> Session:
    """The session of the claim's allocation. ``pod``: the first that uses it, if it is known; of a claim that
    a template made for it, owner and labels are its."""
    is_pods = pod is not None and claim.owner.startswith("Pod/")
    return Session(
        uid=opening.uid,
        owner_uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        owner=(pod.owner or claim.owner) if pod and is_pods else claim.owner,
        node=opening.node,
        models=intern(",".join(sorted({gpu.rating.models for gpu in charge.gpus if gpu.rating.models}))),
        devices=encode_devices(charge),
        rate_milli=charge.rate_milli,
        admitted_in_budget=opening.is_admitted,
        bound_ms=opening.begin_ms,
        opened_ms=opening.now_ms,
        labels=pod.labels if pod and is_pods else claim.labels,
        requested_milli=sum(gpu.share_milli for gpu in charge.gpus),
        requested_mib=sum(gpu.rating.requested.memory_mib for gpu in charge.gpus),
        doubt=intern(recordable(charge.doubt, MAX_DOUBT)) if charge.doubt else None,
        charge="claim",
        consumers=" ".join(claim.consumers),
        users=" ".join(claim.users),
    )


def used_by(session: Session, claim: DeviceClaim) -> Session:
    """The session, now that the claim is reserved for these pods."""
    before = session.users.split()
    users = [*before, *(each for each in claim.users if each not in before)][:_MOST_USERS]
    return replace(session, consumers=" ".join(claim.consumers), users=" ".join(users))


def reserving(session: Session, pods: Iterable[LedgerPod]) -> Session:
    """The session with the time that these pods declare, which use the claim: from the binding of each until
    its declared time and grace period are over. A pod without a node reserves by itself, and the claim
    nothing for it."""
    bound = [(pod, pod.hold.bound_ms or session.bound_ms) for pod in pods if pod.length_ms]
    ends_ms = [bound_ms + pod.length_ms if pod.node else 0 for pod, bound_ms in bound]
    until_ms = max(ends_ms, default=None)
    return session if until_ms == session.reserves_until_ms else replace(session, reserves_until_ms=until_ms)


def end_claim_session(session: Session, end_ms: int) -> Session:
    """The session ended then, or when it began, if that is later."""
    return replace(session, ended_ms=max(end_ms, session.bound_ms, 1), watermark_ms=None, settled_ms=None)


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A GPU that a claim's session has on record. ``milli``: which part of a whole device it is, in
    thousandths; ``share``: the ID of a share, "" for all of it; ``is_admin``: by admin access; ``uuid``: as
    its driver published it, "": it did not; ``rate_milli``: what it costs."""

    driver: str
    pool: str
    device: str
    device_class: str
    milli: int
    share: str = ""
    is_admin: bool = False
    uuid: str = ""
    rate_milli: int = 0


def encode_devices(charge: ClaimCharge) -> str:
    """The GPUs of a claim as JSON."""
    return json.dumps([_encoded(each) for each in charge.gpus], separators=(",", ":"))


def _encoded(charge: DeviceCharge) -> dict[str, object]:
    device = charge.device
    more: dict[str, object] = {"share": device.share, "admin": device.is_admin, "uuid": charge.uuid}
    rate_milli = charge.rating.rate_milli
    more |= {"rate": rate_milli} if rate_milli != charge.share_milli else {}
    return {
        "driver": device.driver,
        "pool": device.pool,
        "device": device.device,
        "class": device.device_class,
        "milli": charge.share_milli,
        **{name: value for name, value in more.items() if value},
    }


def decode_devices(devices: str) -> list[HeldDevice]:
    """What `encode_devices` wrote."""
    return [
        HeldDevice(
            each["driver"],
            each["pool"],
            each["device"],
            each["class"],
            each["milli"],
            each.get("share", ""),
            each.get("admin", False),
            each.get("uuid", ""),
            each.get("rate", each["milli"]),
        )
        for each in json.loads(devices)
    ]


def _key(device: HeldDevice | AllocatedDevice) -> tuple[str, ...]:
    return device.driver, device.pool, device.device, device.share
