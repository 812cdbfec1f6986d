"""The calls of NVML that figures take. NVIDIA's binding, which the node agent uses, takes 3 MiB more in each
GPU pod."""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
# of nvmlReturn_t
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13
_MEMORY_V2 = 2 << 24 | 40  # version and size of nvmlMemory_v2_t


class NvmlError(Exception):
    """A call failed. ``code``: an nvmlReturn_t."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class NvmlLibrary:
    """The driver's library, initialised. Raises OSError if there is none; each method raises `NvmlError`."""

    def __init__(self) -> None:
        from _ctypes import dlopen

        dlopen(LIBRARY, 0)
        import ctypes  # 0.5 MiB, only where there is a library

        self._ctypes = ctypes
        self._library = ctypes.CDLL(LIBRARY)
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInitWithFlags", 0)

    def close(self) -> None:
        """Ends what the constructor began."""
        self._call("nvmlShutdown")

    def handle(self, uuid: str) -> Any:
        """Of a card or MIG instance, for the other calls."""
        handle = self._ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), self._ctypes.byref(handle))
        return handle

    def percent(self, handle: Any) -> int:
        """Utilisation."""
        rates = (self._ctypes.c_uint * 2)()  # of the card, of its memory
        self._call("nvmlDeviceGetUtilizationRates", handle, rates)
        return int(rates[0])

    def used_bytes(self, handle: Any) -> int:
        """Memory in use, without the driver's own if the library distinguishes the two."""
        memory = (self._ctypes.c_ulonglong * 5)(_MEMORY_V2)  # version, total, reserved, free, used
        try:
            self._call("nvmlDeviceGetMemoryInfo_v2", handle, memory)
            return int(memory[4])
        except NvmlError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
        self._call("nvmlDeviceGetMemoryInfo", handle, memory)  # total, free, used
        return int(memory[2])

    def _call(self, name: str, *given: object) -> None:
        try:
            code = getattr(self._library, name)(*given)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, f"the library has no {name}") from None
        if code:
            raise NvmlError(code, self._library.nvmlErrorString(code).decode("utf-8", "replace"))
