"""Where the main thread waits."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from sidecar.event_loop import End, EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """An inbox; afterwards the signals are as they were."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield EventLoop()
    signal.set_wakeup_fd(-1)
    for each, handler in before.items():
        signal.signal(each, handler)


def test_events_come_in_order_and_from_any_thread(loop: EventLoop) -> None:
    def bring() -> None:
        for number in range(3):
            loop.put(number)

    thread = threading.Thread(target=bring)
    thread.start()

    assert [loop.wait(None) for _ in range(3)] == [0, 1, 2]
    thread.join()
    assert loop.wait(0) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_event_and_wakes_who_waits(loop: EventLoop, number: int) -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()

    assert loop.wait(None) == End(number)


def test_a_signal_before_the_wait_is_not_slept_over(loop: EventLoop) -> None:
    os.kill(os.getpid(), signal.SIGTERM)

    assert loop.wait(None) == End(signal.SIGTERM)


def test_more_events_than_the_pipe_holds_are_all_kept(loop: EventLoop) -> None:
    for number in range(70_000):
        loop.put(number)

    assert [loop.wait(0) for _ in range(70_000)] == list(range(70_000))
    assert loop.wait(0) is None
