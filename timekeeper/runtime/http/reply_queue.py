"""Replies that other threads give to the loop."""

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class ReplyQueue(Generic[T]):
    """``pipe``: its two ends, not blocking; a byte in it wakes the loop, once for all replies that wait."""

    def __init__(self, pipe: tuple[int, int]) -> None:
        self.fileno, self._wakes = pipe
        self._waiting: deque[T] = deque()
        self._wake_is_sent = False

    def put(self, reply: T) -> None:
        """In any thread."""
        self._waiting.append(reply)
        if not self._wake_is_sent:
            self._wake_is_sent = True
            with suppress(BlockingIOError):  # the pipe is full, so the loop wakes anyway
                os.write(self._wakes, b".")

    def take(self) -> Iterator[T]:
        """In the loop, once ``fileno`` can be read: all replies that wait."""
        os.read(self.fileno, 4096)
        self._wake_is_sent = False
        while self._waiting:
            yield self._waiting.popleft()
