"""Posts batches to the timekeeper. Of a batch that it refuses half is posted alone next, until the refused
record is alone."""

from collections.abc import Callable
from typing import Literal

from timekeeper.runtime.timekeeper_client import FAILURES, PostRefusedError, TimekeeperClient

# called with the result of a batch that is done with, and the reason why a single record is given up; returns
# whether more records wait
Ended = Callable[[Literal["sent", "refused"], str], bool]


class BatchPoster:
    """For one thread. ``most``: records in one post; ``failing``: called with the error when posts begin to
    fail, and with "" when they succeed again; ``failed``: called for each post that fails."""

    def __init__(
        self,
        client: TimekeeperClient,
        most: int,
        failing: Callable[[str], None],
        failed: Callable[[], None],
    ) -> None:
        self._client, self._most, self._failing, self._failed = client, most, failing, failed
        self._is_failing = False
        self.size = most  # of the next batch

    def post(self, body: bytes, number: int, ended: Ended) -> bool:
        """Post a body that carries `number` records. True if another post should follow at once: more records
        wait, or half of these. Without a usable answer they are posted again later."""
        try:
            self._client.post(body)
        except PostRefusedError as error:
            if number > 1:
                self.size = number // 2
                return True
            self._grow()
            return ended("refused", str(error))
        except FAILURES as error:
            if not self._is_failing:
                self._failing(f"{type(error).__name__}: {error}")
            self._is_failing = True
            self._failed()
            return False
        if self._is_failing:
            self._failing("")
        self._is_failing = False
        self._grow()
        return ended("sent", "")

    def _grow(self) -> None:
        self.size = min(self._most, 2 * self.size)
