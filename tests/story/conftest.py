"""All of Bursar, lent to one module's tests after another's."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.support.scenes import Lived, Meeting, lived_by
from tests.support.worker_control_plane import Lender


@pytest.fixture(scope="module")
def stack(lender: Lender) -> Iterator[Stack]:
    """Every role as a process, ready; sidecars are asked to beat five times a second."""
    with lender.stack() as running:
        yield running


@pytest.fixture(scope="module")
def sidecars(stack: Stack) -> Iterator[Sidecars]:
    """A real sidecar for each governed pod that runs."""
    with Sidecars(stack) as running:
        yield running


@pytest.fixture(scope="module")
def reader(stack: Stack) -> str:
    """A token that may read budgets and usage."""
    return stack.reader_token()


@pytest.fixture(scope="module")
def scenes(request: pytest.FixtureRequest, stack: Stack) -> dict[str, Lived]:
    """The module's scenes, lived together."""
    return lived_by(request, stack.check)


@dataclass(frozen=True, slots=True)
class Absence:
    """The timekeeper is killed, all of its processes at once, and is ready again."""

    begins: Meeting
    ends: Meeting


@pytest.fixture(scope="module")
def absence(stack: Stack) -> Absence:
    """One absence for all scenes of the module."""

    def end() -> None:
        stack.start("timekeeper")
        stack.wait("the timekeeper", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")

    return Absence(Meeting(lambda: stack.stop("timekeeper", signal.SIGKILL)), Meeting(end))
