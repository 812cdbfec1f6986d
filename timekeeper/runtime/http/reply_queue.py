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
        """In any thread; the loop takes the reply at its next turn, whatever wakes it."""
        self._waiting.append(reply)

    def wake(self) -> None:
        """In any thread: the loop has its next turn at once."""
        if not self._wake_is_sent:
            self._wake_is_sent = True
            with suppress(BlockingIOError):  # the pipe is full, so the loop wakes anyway
                os.write(self._wakes, b".")

    def woken(self) -> None:
        """In the loop, once ``fileno`` can be read, before `take`."""
        os.read(self.fileno, 4096)
        self._wake_is_sent = False

    def take(self) -> Iterator[T]:
        """In the loop: all replies that wait."""
        while self._waiting:
            yield self._waiting.popleft()
