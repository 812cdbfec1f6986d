"""Driver events: XIDs and double-bit ECC errors, by NVML's event sets.

An event goes to the sets that exist when it happens, and a set ends with its session of NVML. So a set is
drained before it is freed, and if the session continues, only after the next set exists.
"""

from __future__ import annotations

import ctypes

from sidecar.node.values import CardFailed
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DRAINED = 1_000


@value
class CardHandle:
    """A card or MIG instance in this session of NVML."""

    uuid: str
    index: int
    handle: Any
    parent: str  # the UUID of an instance's card; a card's own
    card: Any  # the handle of that card
    mig: str | None  # the MIG profile


class DriverEvents:
    """The events of successive sessions of NVML. One thread at a time may use it. ``ignored``: the XIDs that
    do not make a card unhealthy."""

    def __init__(self, ignored: frozenset[int]) -> None:
        self._ignored = ignored
        self._nvml: Any = None
        self._events: Any = None
        self._failed = False
        self._handles: tuple[CardHandle, ...] = ()
        self._drained: tuple[CardFailed, ...] = ()  # events that were read, but not returned yet

    @property
    def listens(self) -> bool:
        """Whether some card of the session sends events, and `wait` can wait for them."""
        return self._events is not None and not self._failed

    @property
    def has_events(self) -> bool:
        """Whether `wait` returns an event at once."""
        return bool(self._drained)

    def listen(self, nvml: Any, handles: tuple[CardHandle, ...]) -> None:
        """Register for events of these cards in this session; has no effect if no card supports them."""
        fresh = self._made(nvml, handles)
        self._drain()
        if self._events is not None:
            self._free()
        self._nvml, self._events, self._handles, self._failed = nvml, fresh, handles, False

    def end(self) -> None:
        """The session is about to end: read the events that are left."""
        self._drain()
        self._events, self._failed = None, False

    def wait(self, most_ms: int, clock: Callable[[], int]) -> CardFailed | None:
        """Wait up to ``most_ms`` for an event that makes cards unhealthy. None if there is none, at once if
        events are not supported."""
        if self._drained:
            first, self._drained = self._drained[0], self._drained[1:]
            return first
        if not self.listens:
            return None
        until = clock() + most_ms
        try:
            while (remaining := until - clock()) > 0:
                if failed := self._judged(self._nvml.nvmlEventSetWait_v2(self._events, remaining)):
                    return failed
        except self._nvml.NVMLError_Timeout:
            return None
        except Exception:
            # The next reading finds the cause, if there is one. The set is drained when it is replaced.
            self._failed = True
        return None

    def _made(self, nvml: Any, handles: tuple[CardHandle, ...]) -> Any:
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None  # the driver has no events: readings must suffice
        cards = {each.parent: each.card for each in handles}
        registered = [_registered(nvml, card, events) for card in cards.values()]  # each of them
        return events if any(registered) else None

    def _drain(self) -> None:
        if self._events is None:
            return
        try:
            for _ in range(MAX_DRAINED):
                if (failed := self._judged(self._nvml.nvmlEventSetWait_v2(self._events, 0))) is not None:
                    self._drained = (*self._drained, failed)
        except Exception:
            return  # almost always a timeout: there is no further event

    def _free(self) -> None:
        try:
            self._nvml.nvmlEventSetFree(self._events)
        except self._nvml.NVMLError:
            return  # the driver was unloaded, which has freed it already

    def _judged(self, event: Any) -> CardFailed | None:
        nvml = self._nvml
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            if event.eventData in self._ignored:
                return None
            fault = f"XID {event.eventData}"
        else:
            fault = "a double-bit ECC error"
        parent = self._uuid_of(event)
        uuids = tuple(each.uuid for each in self._handles if parent in ("", each.parent))
        return CardFailed(uuids, fault) if uuids else None

    def _uuid_of(self, event: Any) -> str:
        """The UUID of the event's card; empty if unknown, and then the event concerns every card."""
        try:
            return str(self._nvml.nvmlDeviceGetUUID(event.device))
        except self._nvml.NVMLError:
            mine = ctypes.cast(event.device, ctypes.c_void_p).value
            found = (h for h in self._handles if ctypes.cast(h.card, ctypes.c_void_p).value == mine)
            return next((each.parent for each in found), "")


def _registered(nvml: Any, card: Any, events: Any) -> bool:
    try:
        types = nvml.nvmlDeviceGetSupportedEventTypes(card) & (
            nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        )
        if types:
            nvml.nvmlDeviceRegisterEvents(card, types, events)
    except nvml.NVMLError:
        return False  # the card has no events, or is lost, which the next reading finds
    return bool(types)
