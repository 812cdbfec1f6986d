"""The loop, in this process: what it does about faults that are its own."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.identity import LocalAuthority
from sidecar import __main__, beats, run, settings
from sidecar.background import run_in_background
from sidecar.event_loop import End, EventLoop
from sidecar.heartbeat_client import Delivered
from sidecar.log import log
from sidecar.nvml import PodCardReader
from sidecar.reporter import Reporter, ReporterPorts
from sidecar.run import PostDone
from sidecar.spool import SpooledBeat
from tests.sidecar.worlds import Arrival, Timekeeper, events, fine, variables
from timekeeper.edge.outbox import Post
from timekeeper.edge.saved_outbox import OutboxPorts


@pytest.fixture
def signals() -> Iterator[None]:
    """Afterwards the signals are as they were."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    signal.set_wakeup_fd(-1)
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture
def loop(signals: None) -> EventLoop:
    """The inbox of this process."""
    return EventLoop()


def once_there_are(posts: int, timekeeper: Timekeeper, what: Callable[[], object]) -> None:
    """Have it done when so many posts have arrived."""

    def answer(arrival: Arrival) -> tuple[int, Any]:
        if len(timekeeper.arrivals) + 1 == posts:
            what()
        return fine(arrival)

    timekeeper.answer = answer


def test_the_loop_beats_until_the_end_and_leaves_no_thread_behind(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority, loop: EventLoop
) -> None:
    environ = variables(tmp_path, timekeeper.url, authority, NVIDIA_VISIBLE_DEVICES="GPU-a")
    once_there_are(3, timekeeper, lambda: loop.put(End(signal.SIGTERM)))

    assert run.until_the_end(settings.read([], environ), loop) is False
    assert len(timekeeper.moments()) == 4


@pytest.mark.parametrize(("last", "said"), [(fine, 0), (lambda _: (503, {}), 1)])
def test_beats_that_are_unacknowledged_at_the_end_are_logged(
    tmp_path: Path,
    timekeeper: Timekeeper,
    authority: LocalAuthority,
    loop: EventLoop,
    capfd: pytest.CaptureFixture[str],
    last: Callable[[Arrival], Any],
    said: int,
) -> None:
    def answer(arrival: Arrival) -> Any:
        if len(timekeeper.arrivals) < 2:
            return fine(arrival)
        loop.put(End(signal.SIGTERM))
        return last(arrival)

    timekeeper.answer = answer
    run.until_the_end(settings.read([], variables(tmp_path, timekeeper.url, authority)), loop)

    lines = events(capfd.readouterr().err)
    assert sum(line.startswith("event=unacknowledged beats=") for line in lines) == said


def test_the_role_runs_from_its_entry_point(
    tmp_path: Path,
    timekeeper: Timekeeper,
    authority: LocalAuthority,
    signals: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables(tmp_path, timekeeper.url, authority).items():
        monkeypatch.setenv(name, text)
    once_there_are(2, timekeeper, lambda: os.kill(os.getpid(), signal.SIGTERM))

    assert __main__.main([]) == 0
    assert len(timekeeper.moments()) == 3


def test_a_fault_in_the_loop_is_logged_once_and_survived(
    loop: EventLoop, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = [OSError("odd"), ValueError("odd"), ValueError("odd")]
    posts: list[Post[SpooledBeat]] = []

    def save(*_: object) -> bool:
        if faults:
            raise faults.pop()
        return True

    def post(each: Post[SpooledBeat]) -> None:
        posts.append(each)
        loop.put(PostDone(Delivered(beats.HeartbeatReply(None, None, None))))
        loop.put(End(signal.SIGTERM))

    ports = ReporterPorts(OutboxPorts(post, save), None, lambda: 0.5, log)
    reporter = Reporter(ports, "r", run.boot_ms())
    run.run_loop(reporter, loop, after_a_fault_ms=1)

    assert len(posts) == 2
    assert events(capfd.readouterr().err) == [
        'event=fault where=loop reason="ValueError: odd"',
        'event=fault where=loop reason="OSError: odd"',
    ]


def test_background_work_puts_its_result_into_the_loop(loop: EventLoop) -> None:
    main = threading.get_ident()
    run_in_background(loop, threading.get_ident, "otherwise")

    assert loop.wait(None) not in (main, "otherwise")


def test_background_work_that_fails_is_logged_without_its_text(
    loop: EventLoop, capfd: pytest.CaptureFixture[str]
) -> None:
    def quoting() -> None:
        raise RuntimeError("Bearer secret")

    run_in_background(loop, quoting, "otherwise")

    assert loop.wait(None) == "otherwise"
    assert events(capfd.readouterr().err) == ["event=fault where=background kind=RuntimeError"]


def test_background_work_without_a_thread_fails(loop: EventLoop) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    run_in_background(loop, lambda: "done", "otherwise", refuse)

    assert loop.wait(None) == "otherwise"


def test_a_binding_that_fails_in_its_own_way_costs_the_figures_only(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def bind() -> None:
        raise ImportError("no module named pynvml")

    reader = PodCardReader(("GPU-a",), lambda: 0, 0, bind)

    assert [reader.read() for _ in range(3)] == [()] * 3
    assert events(capfd.readouterr().err) == ['event=no-figures reason="ImportError: no module named pynvml"']
