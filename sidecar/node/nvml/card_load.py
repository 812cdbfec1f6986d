"""The present load and processes of a card, by NVML."""

from __future__ import annotations

from sidecar.node.values import CardLoad, GPUProcess
from sidecar.nvml import MIB
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


@value
class CardReading:
    """One card's figures."""

    load: CardLoad
    processes: tuple[GPUProcess, ...]
    mps: bool  # processes use the card through MPS


class LoadMeter:
    """Reads cards, and remembers for each up to when the driver's samples were read."""

    def __init__(self) -> None:
        self._seen_us: dict[str, int] = {}

    def read(self, nvml: Any, uuid: str, handle: Any) -> CardReading:
        """The card's present figures; None for those that it does not support. Raises NVML's error if the
        card does not answer."""
        used = unless_unsupported(nvml, lambda: memory(nvml, handle).used // MIB)
        rate = unless_unsupported(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        running = unless_unsupported(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        through_mps = unless_unsupported(nvml, lambda: nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
        shares = self._shares(nvml, uuid, handle)
        by_pid = {each.pid: each.usedGpuMemory for each in [*(through_mps or ()), *(running or ())]}
        processes = tuple(
            GPUProcess(pid, uuid, None if taken is None else int(taken) // MIB, _share_of(pid, shares))
            for pid, taken in sorted(by_pid.items())
        )
        return CardReading(CardLoad(uuid, rate, used), processes, bool(through_mps))

    def _shares(self, nvml: Any, uuid: str, handle: Any) -> dict[int, int] | None:
        """Percent of the card's time by PID, over the samples since the last reading; None if the card takes
        no samples."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us.get(uuid, 0))
        except _unsupported(nvml):
            return None
        except nvml.NVMLError as error:
            # No sample since then. pynvml raises even the success of a driver without samples.
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                return {}
            raise
        self._seen_us[uuid] = max((each.timeStamp for each in samples), default=0)
        by_pid: dict[int, list[int]] = {}
        for each in samples:
            by_pid.setdefault(each.pid, []).append(min(each.smUtil, 100))  # some drivers return more
        return {pid: sum(rates) // len(rates) for pid, rates in by_pid.items()}


def memory(nvml: Any, handle: Any) -> Any:
    """Total and used bytes; the used ones without the driver's own if NVML distinguishes the two."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def unless_unsupported(nvml: Any, ask: Callable[[], T]) -> T | None:
    """The answer, or None if card, driver or rights do not support the call, which is no fault."""
    try:
        return ask()
    except _unsupported(nvml):
        return None


def _unsupported(nvml: Any) -> tuple[type[Exception], ...]:
    return (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound)


def _share_of(pid: int, shares: dict[int, int] | None) -> int | None:
    return None if shares is None else shares.get(pid, 0)
