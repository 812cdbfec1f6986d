"""What is free of the cluster's cards: looked at every few seconds and written where it has changed, in every
mode, also without an extender."""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from threading import Event
from typing import NamedTuple

from timekeeper.accounts.pods import LedgerPod
from timekeeper.accounts.session import Session
from timekeeper.core.claims.devices import DeviceSlice, FoundDevice, PublishedDevice
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.dialects.moments import most_at_once
from timekeeper.core.dialects.nvidia_parts import is_in_parts
from timekeeper.core.free_cards import FreeUnit, NodeFree, on_node
from timekeeper.core.rating.devices import MIG, model_of
from timekeeper.core.request.card_amounts import NO_AMOUNT, CardAmount
from timekeeper.core.request.cards import amounts_by_card, decode_placement
from timekeeper.core.values import WHOLE_MILLI, Card, UndecodableError
from timekeeper.log import log_exception
from timekeeper.settler.cluster.known_nodes import KnownNode
from timekeeper.settler.settler import Settler
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import cluster_map, role_findings
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.fencing import EpochOverError, FencedStore

EVERY_S = 5.0
MOST_VALUES = 100  # of a label; one with more tells single nodes apart, and is left out
Holders = list[tuple[Session, LedgerPod | None]]


class ClaimDevices(NamedTuple):
    """What drivers give out on a node by claims. ``uuids``: of the cards that these are; with "": some of
    them do not say it."""

    units: tuple[FreeUnit, ...] = ()
    uuids: frozenset[str] = frozenset()


NO_DEVICES = ClaimDevices()


class FreeWriter:
    """Looks and writes, in a thread of its own."""

    def __init__(self, store: Store, settler: Settler, now_ms: Callable[[], int]) -> None:
        self._store, self._settler, self._now_ms = store, settler, now_ms
        self._fenced = FencedStore(store, settler.epoch)
        self._written: tuple[Counter[NodeFree], int] | None = None
        self._known: dict[str, tuple[object, NodeFree]] = {}  # node -> what it was seen by, and what followed
        self._devices: tuple[object, dict[str, ClaimDevices]] = (None, {})  # likewise of all claims

    def keep(self, stop: Event) -> None:
        """Until ``stop``."""
        while not stop.wait(EVERY_S):
            try:
                self.step()
            except EpochOverError:
                return
            except (UnavailableError, ConflictError):
                continue  # the tick says it
            except Exception as error:
                log_exception("free-not-written", error)

    def step(self) -> None:
        """Look once. Raises UnavailableError, ConflictError, EpochOverError."""
        view, now_ms = self._settler.view, self._now_ms()
        if view.statements is None:  # nothing is decided yet
            return
        with self._store.reading() as connection:
            closed, kept = cluster_map.closed(connection), cluster_map.kept_empty(connection)
        nodes = self._nodes(view, closed, kept, now_ms)
        found = nodes, devices_from_ms(view, self._devices[1].values(), now_ms)
        if found != self._written:
            with self._fenced.writing() as connection:
                role_findings.record_free(connection, *found, now_ms)
            self._written = found

    def _nodes(
        self, view: TickView, closed: Container[str], kept: Mapping[str, frozenset[str]], now_ms: int
    ) -> Counter[NodeFree]:
        """How many nodes there are of each kind."""
        held: dict[str, Holders] = defaultdict(list)
        for session in view.sessions.values():
            if session.charge in ("pod", "reserved") and _holds(session, now_ms):
                held[session.node].append((session, view.pod(session.owner_uid)))
        its = view.cluster.devices.slices, view.cluster.allocated, view.freed, view.cluster.rules
        if self._devices[0] != its:
            self._devices = its, devices_of(view)
        devices, common = self._devices[1], _common(view.cluster.nodes.values())
        known = {}
        for name, node in view.cluster.nodes.items():
            seen = node, held.get(name, []), devices.get(name, NO_DEVICES), name in closed, kept.get(name)
            was = self._known.get(name)
            known[name] = was if was is not None and was[0] == seen else (seen, free_of(*seen))
        self._known = known
        return Counter(
            node._replace(labels=tuple(pair for pair in node.labels if pair[0] in common))
            for _, node in known.values()
            if node.models
        )


def _holds(session: Session, now_ms: int) -> bool:
    """Whether its cards can be given to no other pod yet."""
    if session.is_earlier or session.ended_ms is not None:
        return False
    return session.vanished_ms is None or now_ms < session.until_ms


def _common(nodes: Iterable[KnownNode]) -> set[str]:
    values: dict[str, set[str]] = defaultdict(set)
    for labels in {node.labels for node in nodes}:
        for key, value in labels:
            values[key].add(value)
    return {key for key, there in values.items() if len(there) <= MOST_VALUES}


def free_of(
    node: KnownNode, held: Holders, devices: ClaimDevices, is_closed: bool, kept: Container[str] | None
) -> NodeFree:
    """What is free of a node. ``kept``: cards that are kept empty for a gang."""
    cards = [card for card in node.cards if "" not in devices.uuids and card.uuid not in devices.uuids]
    parts = {name for card in cards if is_in_parts(card) for name, _ in card.resources}
    used, taken, unnamed = dict[str, CardAmount](), Counter[str](), list[int]()
    for session, pod in held:
        of_parts = {name: amount for name in parts if pod is not None and (amount := _asked(pod, name))}
        uses = _uses(session, pod)
        if of_parts:
            taken.update(of_parts)
        elif uses and uses.keys() <= {card.uuid for card in cards}:
            used.update({uuid: used.get(uuid, NO_AMOUNT) + use for uuid, use in uses.items()})
        elif not (cards and pod is not None and all(each.ask.device for each in pod.request.asks)):
            unnamed.append(session.requested_milli)  # it is not another vendor's device beside the cards
    apart = node.apart or ("excluded" if is_closed and not devices.units else "")
    whole, in_parts = list[FreeUnit](), list[FreeUnit]()
    for card in cards:
        its = "unhealthy" if not card.healthy else "cordoned" if card.uuid in node.cordoned else apart
        for name, amount in card.resources if is_in_parts(card) else ():
            here = min(amount, taken[name])
            taken[name] -= here
            model = f"{card.model} {name.removeprefix('nvidia.com/')}".strip()
            in_parts += [FreeUnit(model, WHOLE_MILLI * (at >= here), its) for at in range(amount)]
        if not is_in_parts(card):
            left = 0 if kept and card.uuid in kept else _left(card, used.get(card.uuid, NO_AMOUNT))
            whole.append(FreeUnit(card.model, left, its))
    if not (cards or devices.units):  # nothing describes them
        whole = [FreeUnit(", ".join(node.gpus), WHOLE_MILLI, apart)] * node.devices
    in_parts += [unit._replace(apart=unit.apart or node.apart) for unit in devices.units]
    vague = len(unnamed) if whole else 0
    return NodeFree(node.labels, vague, (*on_node(whole, unnamed), *on_node(in_parts)))


def _asked(pod: LedgerPod, resource: str) -> int:
    return most_at_once(
        pod.request.asks, lambda each: each.ask.devices * dict(each.ask.resources).get(resource, 0)
    )


def _uses(session: Session, pod: LedgerPod | None) -> dict[str, CardAmount]:
    """What it takes of each card, by UUID; empty where nothing names them."""
    read = (pod.as_read or pod) if pod is not None else None
    try:
        placement = decode_placement(session.devices or (read.devices if read else ""))
    except UndecodableError:
        return {}
    if read is not None and read.request.asks:
        return amounts_by_card(read.request, placement)
    slices = (part for _, container in placement.containers for part in container)
    return {part.uuid: CardAmount(part.share_milli, part.memory_mib) for part in slices}


def _left(card: Card, use: CardAmount) -> int:
    """What of the card may be given out, in thousandths: of the respect in which the least is left."""
    named = dict(use.resources)
    parts = [WHOLE_MILLI * named.get(name, 0) // most for name, most in card.resources if most]
    memory = -(-WHOLE_MILLI * use.memory_mib // max(1, card.memory_mib))
    return max(0, WHOLE_MILLI - max(use.share_milli, memory, *parts))


def devices_of(view: TickView) -> dict[str, ClaimDevices]:
    """The GPUs that claims give out, by node."""
    held: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for driver, pool, name in view.freed:
        held[driver, pool][name] = WHOLE_MILLI
    for claim in view.cluster.allocated.values():
        for allocated in claim.allocation.devices if claim.allocation else ():
            if not allocated.is_admin:
                there = held[allocated.driver, allocated.pool]
                key = allocated.driver, allocated.pool, allocated.device
                device = view.cluster.devices.published(*key) if allocated.share else None
                part = _part(allocated.consumed, device) if allocated.share else WHOLE_MILLI
                there[allocated.device] = there.get(allocated.device, 0) + part
    found: dict[str, ClaimDevices] = {}
    for driver, pool in view.cluster.devices.pools:
        rule = view.cluster.rules.get(driver)
        if rule is not None and rule.has_gpus:
            slices = view.cluster.devices.current(driver, pool)
            for gpu, unit in _units(slices, held.get((driver, pool), {}), rule):
                before = found.get(gpu.node, NO_DEVICES)
                uuids = (gpu.attribute(name) for name in ("uuid", "parentUUID"))
                named = {str(uuid) for uuid in uuids if uuid} or {""}
                found[gpu.node] = ClaimDevices((*before.units, unit), before.uuids | named)
    return found


def devices_from_ms(view: TickView, devices: Iterable[ClaimDevices], now_ms: int) -> int:
    """Before when no device of claims is free, if the pods that use them run for the time that they declare;
    0: for one of them none is known; -1: some device is free, or there is none."""
    units = [unit for there in devices for unit in there.units if not unit.apart]
    if not units or any(unit.free_milli for unit in units):
        return -1
    ends = [0] if view.freed else []
    for claim in view.cluster.allocated.values():
        drivers = {device.driver for device in claim.allocation.devices} if claim.allocation else set[str]()
        if any((rule := view.cluster.rules.get(driver)) is not None and rule.has_gpus for driver in drivers):
            users = filter(None, map(view.cluster.user, claim.consumers))
            known = [(pod.hold.bound_ms or now_ms) + pod.runs_ms for pod in users if pod.runs_ms]
            ends.append(max(known, default=0))
    first_ms = min(ends, default=0)
    return first_ms if first_ms > now_ms else 0


def _part(consumed: Iterable[tuple[str, int]], device: PublishedDevice | None) -> int:
    """Which part of the device a share takes, in thousandths."""
    most = dict(device.capacity) if device is not None else {}
    return max((WHOLE_MILLI * amount // most[name] for name, amount in consumed if most.get(name)), default=0)


def _units(
    slices: Iterable[DeviceSlice], held: Mapping[str, int], rule: DriverRule
) -> Iterator[tuple[PublishedDevice, FreeUnit]]:
    """The pool's GPUs. Of parts that overlap, by the counters that they consume, those that are held count,
    then whole devices, then parts in the order of their names, as far as they fit."""
    left = {
        (name, counter): amount
        for part in slices
        for name, amounts in part.counters
        for counter, amount in amounts
    }
    devices = (device for part in slices for device in part.devices.values())
    gpus = [device for device in devices if device.node and rule.is_gpu(device)]
    for gpu in sorted(gpus, key=lambda gpu: (gpu.name not in held, gpu.attribute("type") == MIG, gpu.name)):
        is_instance, is_held = gpu.attribute("type") == MIG, gpu.name in held
        takes = {(name, counter): amount for name, amounts in gpu.consumed for counter, amount in amounts}
        fits = all(left.get(key, 0) >= amount for key, amount in takes.items())
        if fits or is_held:
            left.update({key: left.get(key, 0) - amount for key, amount in takes.items()})
        elif is_instance:
            continue
        model = model_of(FoundDevice(gpu), rule)
        name = f"{model} MIG {gpu.attribute('profile')}" if is_instance else model
        free_milli = max(0, WHOLE_MILLI - held.get(gpu.name, 0)) if fits or is_held else 0
        yield gpu, FreeUnit(name, free_milli, "cordoned" if gpu.is_tainted else "")
