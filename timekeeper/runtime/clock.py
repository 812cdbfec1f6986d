"""The API server's clock, as its answers tell it."""

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from threading import Lock

from timekeeper.edge.clock import monotonic_ms, now_ms

TOLERANCE_MS = 2_000  # below that our own clock is right: a Date is not finer

_SECOND_MS = 1_000
_DRIFT_INTERVAL_MS = 1_000  # the bounds widen by 1 ms for each second: clocks drift


class ServerClock:
    """Thread-safe. ``wall_ms`` and ``monotonic``: this machine's clocks, in milliseconds."""

    def __init__(
        self, wall_ms: Callable[[], int] = now_ms, monotonic: Callable[[], int] = monotonic_ms
    ) -> None:
        self._wall_ms, self._monotonic = wall_ms, monotonic
        self._lock = Lock()
        # the server's time less the monotonic one lies between these, as of ``_at``
        self._bounds: tuple[int, int] | None = None
        self._at = 0

    def sent(self) -> int:
        """The moment before a request, for `note`."""
        return self._monotonic()

    def note(self, sent: int, date: str | None) -> None:
        """An answer has arrived with this Date; None or unreadable: nothing is learned."""
        try:
            date_ms = int(parsedate_to_datetime(date or "").timestamp() * 1000)
        except (TypeError, ValueError):
            return
        received = self._monotonic()
        low, high = date_ms - received, date_ms + _SECOND_MS - sent
        with self._lock:
            if self._bounds is not None:
                drift = (received - self._at) // _DRIFT_INTERVAL_MS
                both = max(low, self._bounds[0] - drift), min(high, self._bounds[1] + drift)
                if both[0] <= both[1]:  # else the server's clock was set, or it is another server's
                    low, high = both
            self._bounds, self._at = (low, high), received

    def offset_ms(self) -> int:
        """How far this machine's clock is ahead of the server's; 0 within the tolerance, or if no answer was
        seen yet."""
        with self._lock:
            if self._bounds is None:
                return 0
            servers_ms = self._monotonic() + sum(self._bounds) // 2
        offset_ms = self._wall_ms() - servers_ms
        return offset_ms if abs(offset_ms) > TOLERANCE_MS else 0

    def now_ms(self) -> int:
        """The server's time in milliseconds since 1970; this machine's where they agree."""
        return self._wall_ms() - self.offset_ms()

    def sentence(self) -> str:
        """What is wrong with this machine's clock; "" if nothing is."""
        offset_ms = self.offset_ms()
        if not offset_ms:
            return ""
        where = "ahead of" if offset_ms > 0 else "behind"
        seconds = abs(offset_ms) / 1000
        return (
            f"clock: this machine's clock is {seconds:.1f} s {where} the API server's, whose time is used;"
            " set it right"
        )
