"""Times as Kubernetes writes them."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at_ms: int) -> str:
    """Milliseconds since 1970 as a timestamp of the API server, with microseconds unless they are 0."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    precision = "milliseconds" if at_ms % 1000 else "seconds"
    return at.isoformat(timespec=precision).replace("+00:00", "Z")


def at_ms(text: str) -> int:
    """A timestamp with its zone as milliseconds since 1970."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
