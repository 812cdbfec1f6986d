"""A claim's session, and what was looked at for a claim without one, in sentences for people."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from timekeeper.accounts.claims.claim_sessions import HeldDevice, decode_devices
from timekeeper.accounts.session import Session
from timekeeper.core.object_names import timestamp
from timekeeper.core.request.device_classes import DeviceClass, why_unknown
from timekeeper.core.values import WHOLE_MILLI

_MOST_NAMED = 8  # devices, and pods, in a sentence


def claim_sentence(session: Session, hours: str, is_orphan: bool = False) -> str:
    """What the claim holds and costs, why, who pays, since when, and for which pods. ``hours``: charged;
    ``is_orphan``: no pod that it is reserved for is left."""
    return " ".join((_charged(session, hours), _rate(session), *_shared(session, is_orphan)))


def searched(classes: Iterable[DeviceClass], pools_of: Callable[[str], Mapping[str, int]]) -> str:
    """Where devices of these classes were looked for. ``pools_of``: a driver's pools, each with the number of
    its devices."""
    return "; ".join(f"class {each.name}: {_pools(each, pools_of(each.driver))}" for each in classes)


def _pools(one: DeviceClass, pools: Mapping[str, int]) -> str:
    if not one.driver:
        return why_unknown(one)
    named = [f"{pool} ({number} device{'' if number == 1 else 's'})" for pool, number in pools.items()]
    if not named:
        return f"driver {one.driver} publishes no devices"
    return f"driver {one.driver}, pool{'' if len(named) == 1 else 's'} {_named(named, 'pools')}"


def names_of_users(session: Session) -> tuple[str, ...]:
    """Of the pods that the claim was ever reserved for."""
    return tuple(each.partition("/")[2] for each in session.users.split())


def _charged(session: Session, hours: str) -> str:
    since = timestamp(session.bound_ms)
    span = f"from {since} to {timestamp(session.ended_ms)}" if session.ended_ms else f"since {since}"
    held = "held" if session.ended_ms else "holds"
    devices = _named([_device(each) for each in decode_devices(session.devices)], "devices")
    return (
        f"Charged {hours} GPU-hours to namespace {session.namespace}: claim {session.name} {held} {devices}"
        f" of node {session.node} {span}."
    )


def _device(held: HeldDevice) -> str:
    what = "admin access to " if held.is_admin else "a share of " if held.share else ""
    return f"{what}{held.driver} {held.pool}/{held.device} (class {held.device_class or 'unknown'})"


def _rate(session: Session) -> str:
    """The rate and why: what each device counts as, and the weights where they differ from 1."""
    parts = [each.milli for each in decode_devices(session.devices)]
    counted = " + ".join(f"{milli / WHOLE_MILLI:g}" for milli in parts[:_MOST_NAMED])
    more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    models = f" of model {session.models}" if session.models else ""
    weighed = "" if session.rate_milli == sum(parts) else ", times the weight of the model"
    unit = "GPU" if sum(parts) == WHOLE_MILLI else "GPUs"
    return f"Its rate is {session.rate_milli / WHOLE_MILLI:g}: {counted}{more} {unit}{models}{weighed}."


def _shared(session: Session, is_orphan: bool) -> Iterator[str]:
    if session.doubt:
        yield f"The rate is not certain: {session.doubt}."
    users = list(names_of_users(session))
    if users:
        paid = "They pay once." if len(users) > 1 else ""
        yield f"It was reserved for {_named(users, 'pods')}.{' ' if paid else ''}{paid}"
    if not session.is_over and not session.consumers:
        yield "It is reserved for no pod now, and charged until it is deleted, or a pod has used it."
    elif not session.is_over and is_orphan:
        yield (
            "The pods that it is reserved for do not exist or have ended; it is charged until it is deleted,"
            " or a pod has used it."
        )


def _named(texts: list[str], what: str) -> str:
    rest = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {rest} more {what}" if rest > 0 else "")
