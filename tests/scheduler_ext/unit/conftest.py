"""An extender in front of a store of objects, without threads: what is asked is answered, and what its
threads do is done, in the test's own thread."""

from collections.abc import Iterator

import pytest

from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.store import Store


@pytest.fixture
def api() -> Store:
    return Store()


@pytest.fixture
def start(api: Store) -> Iterator[Start]:
    """Starts an extender; ``wait=False`` does not wait for its books."""
    started: list[Stepped] = []

    def begin(*flags: str, wait: bool = True) -> Stepped:
        started.append(Stepped(api, *flags, wait=wait))
        return started[-1]

    yield begin
    for world in started:
        world.extender.stop()


@pytest.fixture
def running(start: Start) -> Stepped:
    """An extender whose books are complete, and empty."""
    return start()
