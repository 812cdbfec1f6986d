"""The figures of the pod's cards, by NVIDIA's own binding; none of them is worth the process.

NVML is opened when the first beat asks for it and only where ``NVIDIA_VISIBLE_DEVICES`` names cards by UUID.
What fails is said once and tried again after a long while, with NVML opened afresh: a driver that was
restarted, a card that came back. A call that hangs keeps only the thread that it was made on.

Scope: NVML counts a whole card (or MIG instance). Figures are marked ``exclusive`` where the pod asked for
whole cards alone, as the webhook tells the sidecar, and else ``shared``, so that no one takes a neighbour's
load for the pod's.
"""

from __future__ import annotations

from sidecar.log import say
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from timekeeper.core.wire import BeatDevice

LIBRARY = "libnvidia-ml.so.1"
RETRY_MS = 300_000
MIB = 1 << 20
# What is more is no figure: all ones is NVML's word for what it cannot tell, and the timekeeper would refuse
# a beat with it.
MOST_PERCENT = 100
MOST_MIB = 1 << 24


class PodCardReader:
    """Reads the cards; used by one thread at a time."""

    def __init__(
        self,
        uuids: tuple[str, ...],
        clock: Callable[[], int],
        retry_ms: int = RETRY_MS,
        bind: Callable[[], Any] | None = None,
        exclusive: bool = False,
    ) -> None:
        """``exclusive``: nobody else is on the cards. ``bind`` gives NVIDIA's binding; by default it is
        imported when it is first wanted."""
        self._uuids = uuids
        self._clock = clock
        self._retry_ms = retry_ms
        self._bind = bind or _binding
        self._exclusive = exclusive
        self._retry_at = 0
        self._binding: Any = None
        self._handles: dict[str, Any] = {}
        self._said: set[str] = set()

    def read(self) -> tuple[BeatDevice, ...]:
        """A figure for each card that gives one, in the order of the variable; never an exception of
        NVML's."""
        try:
            self._open()
            figures = tuple(figure for uuid in self._uuids if (figure := self._figure(uuid)))
        except Exception as error:
            # A binding can fail in ways of its own (a library without a symbol, a string it cannot decode):
            # the beat goes without figures, the line is said once.
            self._give_up(f"{type(error).__name__}: {error}")
            return ()
        self._note_recovery()
        return figures

    def _open(self) -> None:
        """Have NVML open and each card's handle at hand, if it is time to try."""
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

    def _figure(self, uuid: str) -> BeatDevice | None:
        return self._attempt(uuid, self._measure) if uuid in self._handles else None

    def _measure(self, uuid: str) -> BeatDevice | None:
        handle = self._handles[uuid]
        utilisation = self._unless_unsupported(
            lambda: self._binding.nvmlDeviceGetUtilizationRates(handle).gpu, MOST_PERCENT
        )
        memory_mib = self._unless_unsupported(lambda: self._used(handle) // MIB, MOST_MIB)
        if utilisation is None and memory_mib is None:
            return None
        return {
            "uuid": uuid,
            "utilisation": utilisation,
            "memory_mib": memory_mib,
            "scope": "exclusive" if self._exclusive else "shared",
        }

    def _used(self, handle: Any) -> int:
        """Bytes in use, without what the driver keeps for itself where NVML tells the two apart."""
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
            return None  # as a MIG instance answers for its utilisation: not a fault

    def _attempt(self, uuid: str, ask: Callable[[str], Any]) -> Any:
        """What ``ask`` gives; a card that fails is left out until NVML is opened again."""
        try:
            return ask(uuid)
        except self._binding.NVMLError as error:
            self._handles.pop(uuid, None)
            self._once("card-silent", f"{uuid} {error}", uuid=uuid, reason=error)
            return None

    def _give_up(self, reason: str) -> None:
        self._handles.clear()
        self._once("no-figures", reason, reason=reason)

    def _note_recovery(self) -> None:
        if self._said and len(self._handles) == len(self._uuids):
            self._said.clear()
            say("figures-back")

    def _shut(self) -> None:
        self._handles.clear()
        if self._binding is None:
            return
        try:
            self._binding.nvmlShutdown()
        except self._binding.NVMLError:
            return  # a driver that is gone has already shut it

    def _once(self, event: str, what: str, **pairs: object) -> None:
        if what not in self._said:
            self._said.add(what)
            say(event, **pairs)


def _binding() -> Any:
    """NVIDIA's binding. The library is looked for first: where there is none, the binding's 4 MiB stay
    out."""
    from _ctypes import dlopen  # what ctypes.CDLL calls, without the half MiB of the rest

    dlopen(LIBRARY, 0)
    import pynvml

    return pynvml
