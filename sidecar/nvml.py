"""Reads utilisation and memory of the pod's cards, with NVIDIA's binding for NVML. No failure ends the
process.

NVML is opened for the first heartbeat, and only if ``NVIDIA_VISIBLE_DEVICES`` names cards by UUID. A failure
is logged once; after `RETRY_MS` NVML is opened again, for a driver that was restarted or a card that came
back. A call that hangs blocks only its own thread.

Scope: NVML counts a whole card or MIG instance. Figures are marked ``exclusive`` if the pod requests whole
cards only (the webhook passes that to the sidecar), else ``shared``, so that a neighbour's load is not taken
for the pod's.
"""

from __future__ import annotations

from sidecar.log import log
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.log_events import EventName

LIBRARY = "libnvidia-ml.so.1"
RETRY_MS = 300_000
MIB = 1 << 20
# Anything greater is no figure: NVML returns all ones for an unknown value, which the timekeeper would
# refuse.
MAX_PERCENT = 100
MAX_MIB = 1 << 24


class PodCardReader:
    """Reads the cards. One thread at a time may use it."""

    def __init__(
        self,
        uuids: tuple[str, ...],
        clock: Callable[[], int],
        retry_ms: int = RETRY_MS,
        bind: Callable[[], Any] | None = None,
        exclusive: bool = False,
    ) -> None:
        """``exclusive``: no other pod uses the cards. ``bind`` returns NVIDIA's binding; by default it is
        imported when it is first needed."""
        self._uuids = uuids
        self._clock = clock
        self._retry_ms = retry_ms
        self._bind = bind or _binding
        self._exclusive = exclusive
        self._retry_at = 0
        self._binding: Any = None
        self._handles: dict[str, Any] = {}
        self._logged: set[str] = set()

    def read(self) -> tuple[dict[str, Any], ...]:
        """The figures of each card that has any, in the order of the variable. Never raises."""
        try:
            self._open()
            figures = tuple(figure for uuid in self._uuids if (figure := self._figure(uuid)))
        except Exception as error:
            # The binding raises more than NVML's errors (a library without a symbol, an undecodable string).
            self._give_up(f"{type(error).__name__}: {error}")
            return ()
        self._note_recovery()
        return figures

    def _open(self) -> None:
        """Open NVML and find each card's handle, if one is missing and it is time to try."""
        now = self._clock()
        missing = len(self._handles) < len(self._uuids)
        if not missing or now < self._retry_at:
            return
        self._retry_at = now + self._retry_ms
        self._shut()
        self._binding = self._bind()
        self._binding.nvmlInit()
        for uuid in self._uuids:
            self._attempt(uuid, self._find)

    def _find(self, uuid: str) -> None:
        self._handles[uuid] = self._binding.nvmlDeviceGetHandleByUUID(uuid)

    def _figure(self, uuid: str) -> dict[str, Any] | None:
        return self._attempt(uuid, self._measure) if uuid in self._handles else None

    def _measure(self, uuid: str) -> dict[str, Any] | None:
        handle = self._handles[uuid]
        utilisation = self._unless_unsupported(
            lambda: self._binding.nvmlDeviceGetUtilizationRates(handle).gpu, MAX_PERCENT
        )
        memory_mib = self._unless_unsupported(lambda: self._used(handle) // MIB, MAX_MIB)
        if utilisation is None and memory_mib is None:
            return None
        return {
            "uuid": uuid,
            "utilisation": utilisation,
            "memory_mib": memory_mib,
            "scope": "exclusive" if self._exclusive else "shared",
        }

    def _used(self, handle: Any) -> int:
        """Bytes in use, without the driver's own if NVML distinguishes the two."""
        nvml = self._binding
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
        except nvml.NVMLError_FunctionNotFound:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def _unless_unsupported(self, ask: Callable[[], int], most: int) -> int | None:
        try:
            figure = ask()
            return figure if 0 <= figure <= most else None
        except (self._binding.NVMLError_NotSupported, self._binding.NVMLError_NoPermission):
            return None  # no fault: a MIG instance has no utilisation, for example

    def _attempt(self, uuid: str, ask: Callable[[str], Any]) -> Any:
        """The result of ``ask``. A card that fails is left out until NVML is opened again."""
        try:
            return ask(uuid)
        except self._binding.NVMLError as error:
            self._handles.pop(uuid, None)
            self._log_once("card-silent", f"{uuid} {error}", uuid=uuid, reason=error)
            return None

    def _give_up(self, reason: str) -> None:
        self._handles.clear()
        self._log_once("no-figures", reason, reason=reason)

    def _note_recovery(self) -> None:
        if self._logged and len(self._handles) == len(self._uuids):
            self._logged.clear()
            log("figures-back")

    def _shut(self) -> None:
        self._handles.clear()
        if self._binding is None:
            return
        try:
            self._binding.nvmlShutdown()
        except self._binding.NVMLError:
            return  # the driver was unloaded, which has shut it already

    def _log_once(self, event: EventName, what: str, **pairs: object) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log(event, level="warning", **pairs)


def _binding() -> Any:
    """NVIDIA's binding. The library is loaded first: if there is none, the binding's 4 MiB are not
    imported."""
    from _ctypes import dlopen  # ctypes.CDLL calls it, and takes 0.5 MiB more

    dlopen(LIBRARY, 0)
    import pynvml

    return pynvml
