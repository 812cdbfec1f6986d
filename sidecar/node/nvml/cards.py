"""Reads the node's cards with NVIDIA's binding: their properties, the driver's view of their health, their
load.

One thread uses it: it reads, then waits for a driver event or the next reading. No error of NVML is raised: a
card that fails is in `DeviceReading.silent`, a failure of NVML as a whole is `DeviceReading.error`. NVML is
opened again for a driver that was restarted or a card that came back: at each reading if it fails as a whole;
at growing intervals if only some cards are silent, for it must be closed first, and driver events are lost
until it is open again.
"""

from __future__ import annotations

import ctypes
import glob
from functools import partial

from sidecar.node.nvml import card_load
from sidecar.node.nvml.driver_events import CardHandle, DriverEvents
from sidecar.node.values import CardSilent, DeviceReading, NodeCard, Vendor
from sidecar.nvml import LIBRARY, MIB
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.node.values import CardFailed

REOPEN_MS, MAX_REOPEN_MS = 20_000, 300_000  # doubles each time, for events may be lost meanwhile
MAX_NUMA_WORDS = 16  # of 64 NUMA nodes each
# XIDs that a program causes, not the card; the list is that of NVIDIA's device plugin.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
INSTANCES_FROM = 100  # the index of a MIG instance: 100 x (its card's + 1) + its number there
# levels of `NodeCard.paths`; the others lie between, as NVML's NVML_TOPOLOGY_SINGLE to _SYSTEM do, 10 to 50
BY_NVLINK, BY_SWITCH, BY_SWITCHES, ACROSS = 0, 1, 2, 5
NVIDIA = Vendor(
    ("nvidia.com/gpu", "nvidia.com/mig-"),
    frozenset({"nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine"}),
)
_Paths = tuple[tuple[str, int], ...]
WHAT_TO_DO = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "that peer traffic is drained",
    4: "that the GPU is drained and reset",
}


class NvmlReader:
    """NVML. One thread at a time may use it. ``bind`` returns NVIDIA's binding; ``clock``: monotonic
    milliseconds."""

    vendor = NVIDIA

    def __init__(
        self,
        clock: Callable[[], int],
        ignored: frozenset[int] = OF_PROGRAMS,
        bind: Callable[[], Any] | None = None,
        reopen_ms: int = REOPEN_MS,
    ) -> None:
        """``ignored``: the XIDs that do not make a card unhealthy."""
        self._clock, self._reopen_ms, self._pause_ms = clock, reopen_ms, reopen_ms
        self._bind = bind or binding
        self._nvml: Any = None
        self._events = DriverEvents(ignored)
        self._opened_at = 0
        self._handles: tuple[CardHandle, ...] = ()  # of this session
        self._properties: dict[str, tuple[str, int, int | None]] = {}  # by UUID: model, MiB, NUMA node
        self.paths: dict[str, str] = {}  # by UUID the card's device node; a MIG instance has several
        self._near: tuple[tuple[str, ...], dict[str, _Paths | None]] = ((), {})  # paths of these cards
        self._meter = card_load.LoadMeter()
        self._silent_ones: frozenset[int] = frozenset()  # indices

    def look(self) -> DeviceReading:
        """Read NVML."""
        try:
            self._open()
            return self._read()
        except Exception as error:
            # The binding raises more than NVML's errors: a library without a symbol, an undecodable name.
            self._shut()
            return DeviceReading((), (), (), (), (), (), (), said(error))

    def wait(self, most_ms: int) -> CardFailed | None:
        """Wait up to ``most_ms`` for a driver event that makes cards unhealthy. None if there is none, at
        once if events are not supported."""
        return self._events.wait(most_ms, self._clock)

    @property
    def waits(self) -> bool:
        """Whether `wait` can wait, or has an event to return."""
        return self._events.listens or self._events.has_events

    def close(self) -> None:
        """Close NVML."""
        self._shut()

    def _open(self) -> None:
        is_due = bool(self._silent_ones) and self._clock() - self._opened_at >= self._pause_ms
        if self._nvml is not None and not is_due:
            return
        if self._nvml is not None:
            self._pause_ms = min(2 * self._pause_ms, MAX_REOPEN_MS)
        self._shut()
        nvml = self._bind()
        nvml.nvmlInit()
        self._nvml, self._opened_at = nvml, self._clock()

    def _shut(self) -> None:
        self._events.end()
        nvml, self._nvml = self._nvml, None
        self._handles, self._near = (), ((), {})
        self._properties.clear()
        if nvml is None:
            return
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return  # the driver was unloaded, which has closed it already

    def _read(self) -> DeviceReading:
        nvml, silent, divided = self._nvml, list[CardSilent](), list[str]()
        handles: list[CardHandle] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handles += self._of_card(index, divided)
            except nvml.NVMLError as error:
                silent.append(self._silent(index, self._uuid_at(index), error))
        is_new = [each.uuid for each in handles] != [each.uuid for each in self._handles]
        self._handles = tuple(handles)
        if not self._events.listens or is_new:
            self._events.listen(nvml, self._handles)
        cards, measures = list[NodeCard](), list[card_load.CardReading]()
        for each in handles:
            try:
                cards.append(self._card(each))
                measures.append(self._meter.read(nvml, each.uuid, each.handle))
            except nvml.NVMLError as error:
                cards = [card for card in cards if card.uuid != each.uuid]
                silent.append(self._silent(each.index, each.uuid, error))
        self._remember_silent({each.index for each in silent})
        return DeviceReading(
            self._linked(cards),
            tuple(silent),
            tuple(divided),
            tuple(each.uuid for each in handles if self._action(each) == 0),
            tuple(process for each in measures for process in each.processes),
            tuple(each.load for each in measures),
            tuple(each.load.uuid for each in measures if each.mps),
            "",
        )

    def _remember_silent(self, silent: set[int]) -> None:
        """Reset the pause before NVML is opened again if other cards are silent than before."""
        if silent != self._silent_ones:
            self._silent_ones, self._pause_ms = frozenset(silent), self._reopen_ms

    def _of_card(self, index: int, divided: list[str]) -> list[CardHandle]:
        """The card, or its MIG instances if it is divided."""
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if (card_load.unless_unsupported(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) or 0) == 0:
            return [CardHandle(uuid, index, handle, uuid, handle, None)]
        divided.append(uuid)
        return [
            self._instance(CardHandle(uuid, index, handle, uuid, handle, None), number, part)
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
            if (part := self._part(handle, number)) is not None
        ]

    def _part(self, handle: Any, number: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except self._nvml.NVMLError_NotFound:
            return None  # there are fewer instances than the maximum

    def _instance(self, of: CardHandle, number: int, handle: Any) -> CardHandle:
        nvml = self._nvml
        profile = str(nvml.nvmlDeviceGetName(handle)).rpartition("MIG ")[2]
        uuid, index = nvml.nvmlDeviceGetUUID(handle), INSTANCES_FROM * (of.index + 1) + number
        return CardHandle(uuid, index, handle, of.uuid, of.card, profile)

    def _card(self, at: CardHandle) -> NodeCard:
        if at.uuid not in self._properties:
            self._properties[at.uuid] = self._read_properties(at)
        model, memory_mib, numa = self._properties[at.uuid]
        fault = self._driver_fault(at)
        return NodeCard(at.uuid, at.index, model, memory_mib, not fault, fault, numa, None, at.mig, ())

    def _read_properties(self, at: CardHandle) -> tuple[str, int, int | None]:
        nvml = self._nvml
        memory_mib = card_load.memory(nvml, at.handle).total // MIB
        minor = card_load.unless_unsupported(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(at.handle))
        if at.mig is None and minor is not None:
            self.paths = self.paths | {at.uuid: f"/dev/nvidia{minor}"}
        return str(nvml.nvmlDeviceGetName(at.handle)), memory_mib, self._numa(at.card)

    def _numa(self, handle: Any) -> int | None:
        """The nearest NUMA node; the lowest of several."""
        nvml = self._nvml
        words = card_load.unless_unsupported(
            nvml,
            lambda: list(
                nvml.nvmlDeviceGetMemoryAffinity(handle, MAX_NUMA_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE)
            ),
        )
        mask = sum(word << (64 * at) for at, word in enumerate(words or ()))
        return (mask & -mask).bit_length() - 1 if mask else None

    def _driver_fault(self, at: CardHandle) -> str:
        """Why the driver considers the card faulty; empty if it does not."""
        nvml = self._nvml
        action = self._action(at)
        if action:
            return f"the driver requires {WHAT_TO_DO.get(action, 'recovery action ' + str(action))}"
        rows = card_load.unless_unsupported(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(at.handle))
        return "rows of its memory could not be remapped" if rows and rows[3] else ""

    def _action(self, at: CardHandle) -> int | None:
        """The recovery action that the driver requires (0: none); None if it does not support that."""
        nvml = self._nvml
        field = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        told = card_load.unless_unsupported(
            nvml, lambda: nvml.nvmlDeviceGetFieldValues(at.handle, [field])[0]
        )
        return int(told.value.uiVal) if told is not None and told.nvmlReturn == nvml.NVML_SUCCESS else None

    def _linked(self, cards: list[NodeCard]) -> tuple[NodeCard, ...]:
        """The cards with their paths to each other, which are read once for the same cards: they do not
        change."""
        uuids = tuple(card.uuid for card in cards)
        if self._near[0] != uuids:
            whole = [each for each in self._handles if each.mig is None and each.uuid in uuids]
            self._near = (uuids, {each.uuid: self._paths(each, whole) for each in whole})
        found = ((card, self._near[1].get(card.uuid, ())) for card in cards)
        return tuple(card.but(paths=paths or (), links=linked(paths)) for card, paths in found)

    def _paths(self, one: CardHandle, all_of_them: list[CardHandle]) -> _Paths | None:
        """None if NVML reports no path to any of several other cards."""
        others = [other for other in all_of_them if other.uuid != one.uuid]
        levels = [card_load.unless_unsupported(self._nvml, partial(self._path, one, each)) for each in others]
        known = ((each.uuid, level) for each, level in zip(others, levels, strict=True) if level is not None)
        return tuple(known) if not others or any(level is not None for level in levels) else None

    def _path(self, one: CardHandle, other: CardHandle) -> int:
        """By NVLink (also through its switches), or else by the nearest common ancestor in the PCIe tree."""
        nvml = self._nvml
        by_nvlink = card_load.unless_unsupported(
            nvml,
            lambda: nvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
        )
        if by_nvlink == nvml.NVML_P2P_STATUS_OK:
            return BY_NVLINK
        level = nvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle)
        return max(BY_SWITCH, min(ACROSS, int(level) // int(nvml.NVML_TOPOLOGY_SINGLE)))

    def _uuid_at(self, index: int) -> str:
        return next((each.uuid for each in self._handles if each.index == index), "")

    def _silent(self, index: int, uuid: str, error: Exception) -> CardSilent:
        nvml = self._nvml
        sure = isinstance(error, (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired))
        return CardSilent(index, uuid, said(error), sure)


def linked(paths: _Paths | None) -> tuple[str, ...] | None:
    """The UUIDs of the cards that these paths reach without going through a CPU; None: unknown."""
    return None if paths is None else tuple(sorted(uuid for uuid, level in paths if level <= BY_SWITCHES))


def said(error: Exception) -> str:
    """The error for people."""
    return str(error) or type(error).__name__


def binding(root: str = "") -> Any:
    """NVIDIA's binding. ``root``: folder of the driver's files; empty: the loader finds them. Raises OSError
    if the driver's library cannot be loaded."""
    places = (f"{root}/usr/lib/*-linux-gnu", f"{root}/usr/lib64", f"{root}/usr/lib")
    found = (
        (path for place in places for path in sorted(glob.glob(f"{place}/{LIBRARY}"))) if root else iter(())
    )
    # the binding loads it by its name, which the loader then knows
    ctypes.CDLL(next(found, LIBRARY))
    import pynvml

    return pynvml
