"""What the driver tells of its own accord: XIDs and double-bit ECC errors, by NVML's event sets.

An event is told to the sets that were there when it happened, and a set ends with the session of NVML. So
before a set is given up, what it still holds is taken out, and where the session goes on, only after another
has been made.
"""

from __future__ import annotations

import ctypes

from sidecar.node.values import CardFailed
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_DRAINED = 1_000


@value
class CardHandle:
    """A card or MIG instance as NVML knows it in this session; ``parent`` and ``card``: UUID and handle of
    the card that an instance is of, else its own."""

    uuid: str
    index: int
    handle: Any
    parent: str
    card: Any
    mig: str | None


class DriverEvents:
    """The events of one session of NVML after another; used by one thread at a time. ``ignored``: the XIDs
    that say nothing against a card."""

    def __init__(self, ignored: frozenset[int]) -> None:
        self._ignored = ignored
        self._nvml: Any = None
        self._events: Any = None
        self._failed = False
        self._handles: tuple[CardHandle, ...] = ()
        self._held: tuple[CardFailed, ...] = ()

    @property
    def listens(self) -> bool:
        """Whether some card of the session sends events, and they can be waited for."""
        return self._events is not None and not self._failed

    @property
    def holds(self) -> bool:
        """Whether `wait` has something to tell at once."""
        return bool(self._held)

    def listen(self, nvml: Any, handles: tuple[CardHandle, ...]) -> None:
        """Hear of these cards from now on, of this session; of none where no card sends events."""
        fresh = self._made(nvml, handles)
        self._drain()
        if self._events is not None:
            self._free()
        self._nvml, self._events, self._handles, self._failed = nvml, fresh, handles, False

    def end(self) -> None:
        """The session is about to end: keep what it has told and nobody has heard."""
        self._drain()
        self._events, self._failed = None, False

    def wait(self, most_ms: int, clock: Callable[[], int]) -> CardFailed | None:
        """Wait for an event that tells against cards, until ``most_ms`` are over at the latest; None where
        none came, or none can be waited for (then at once)."""
        if self._held:
            first, self._held = self._held[0], self._held[1:]
            return first
        if not self.listens:
            return None
        until = clock() + most_ms
        try:
            while (left := until - clock()) > 0:
                broke = self._judged(self._nvml.nvmlEventSetWait_v2(self._events, left))
                if broke:
                    return broke
        except self._nvml.NVMLError_Timeout:
            return None
        except Exception:
            # The next look says what is the matter, if something is; until then nothing can be waited for.
            # What the set holds is taken out when it is replaced.
            self._failed = True
        return None

    def _made(self, nvml: Any, handles: tuple[CardHandle, ...]) -> Any:
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None  # a driver without events: the looks alone must do
        cards = {each.parent: each.card for each in handles}
        registered = [_registered(nvml, card, events) for card in cards.values()]  # each of them
        return events if any(registered) else None

    def _drain(self) -> None:
        if self._events is None:
            return
        try:
            for _ in range(MOST_DRAINED):
                if (broke := self._judged(self._nvml.nvmlEventSetWait_v2(self._events, 0))) is not None:
                    self._held = (*self._held, broke)
        except Exception:
            return  # by far most often: no more has come

    def _free(self) -> None:
        try:
            self._nvml.nvmlEventSetFree(self._events)
        except self._nvml.NVMLError:
            return  # it went with a driver that is gone

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
        """Whose event it is; empty where that cannot be told, and then every card is meant."""
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
        return False  # not one that sends events, or it is lost, which the looks find
    return bool(types)
