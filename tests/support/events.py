"""Kubernetes Events that are sent before the test goes on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from timekeeper.edge.events import EventRecorder, EventType


class Until(Event):
    """Set once the condition is true. Waits take no time."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self._condition = condition

    def is_set(self) -> bool:
        return self._condition()

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


@contextmanager
def sending(events: EventRecorder[str]) -> Iterator[None]:
    """Afterwards the Event that was recorded inside has its result."""
    before = sum(events.results().values())
    yield
    events.run(Until(lambda: sum(events.results().values()) > before))


class UnqueuedRecorder(EventRecorder[str]):
    """Sends each Event about a pod, or gives it up, before `post` returns."""

    def post(
        self, namespace: str, name: str, uid: str, reason: str, note: str, event_type: EventType = "Normal"
    ) -> None:
        with sending(self):
            super().post(namespace, name, uid, reason, note, event_type)
