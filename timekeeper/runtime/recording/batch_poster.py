"""Posts batches to the timekeeper. Of a batch that it refuses half is posted alone next, until the refused
record is alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from timekeeper.runtime.timekeeper_client import FAILURES, PostRefusedError, TimekeeperClient


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """``halved``: refused, and a smaller batch follows; ``refused``: a single record, which is given up for
    ``error``; ``failed``: no usable answer, so the batch is posted again."""

    result: Literal["sent", "refused", "halved", "failed"]
    error: str = ""


class BatchPoster:
    """For one thread. ``most``: records in one post; ``failing``: called with the error when posts begin to
    fail, and with "" when they succeed again."""

    def __init__(self, client: TimekeeperClient, most: int, failing: Callable[[str], None]) -> None:
        self._client, self._most, self._failing = client, most, failing
        self._is_failing = False
        self.size = most  # of the next batch

    def post(self, body: bytes, number: int) -> BatchOutcome:
        """Post a body that carries `number` records."""
        try:
            self._client.post(body)
        except PostRefusedError as error:
            if number > 1:
                self.size = number // 2
                return BatchOutcome("halved")
            self._grow()
            return BatchOutcome("refused", str(error))
        except FAILURES as error:
            if not self._is_failing:
                self._failing(f"{type(error).__name__}: {error}")
            self._is_failing = True
            return BatchOutcome("failed")
        if self._is_failing:
            self._failing("")
        self._is_failing = False
        self._grow()
        return BatchOutcome("sent")

    def _grow(self) -> None:
        self.size = min(self._most, 2 * self.size)
