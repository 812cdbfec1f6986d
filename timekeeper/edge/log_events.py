"""The types of the log. What a sidecar imports takes them for type checkers alone."""

from typing import Literal, Protocol, TypeVar

Level = Literal["info", "warning", "error"]

OfEvents = Literal["event-not-posted", "event-dropped"]
OfLease = Literal["lease-unreachable"]
OfSources = Literal["not-streamed", "object-unread"]
LogEvent = (  # of edge and runtime; each role adds its own
    OfEvents
    | OfLease
    | OfSources
    | Literal["loaded", "not-loaded"]
    | Literal["decisions-failed", "decisions-sent", "decisions-dropped", "decision-refused"]
    | Literal["malformed-request", "internal-error", "uncaught", "server"]
)
E = TypeVar("E", bound=str, contravariant=True)


class EventLog(Protocol[E]):
    """Writes one of these events with its fields. A name is kebab-case; a field that is None is left out."""

    def __call__(self, event: E, *, level: Level = "info", **fields: object) -> None:
        """Never raises: no work fails because its line cannot be written."""


class ErrorLog(Protocol[E]):
    """Writes one of these events with an error and its traceback."""

    def __call__(self, event: E, error: BaseException, **fields: object) -> None:
        """Never raises, as `EventLog`."""


Log = EventLog[str]
