"""A lock per name that exists only while it is in use."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Locks:
    """Holders of different names do not wait for each other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Inside the context no other thread holds this name."""
        with self._guard:
            lock, wanted = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = lock, wanted + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, wanted = self._locks[name]
                if wanted == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = lock, wanted - 1
