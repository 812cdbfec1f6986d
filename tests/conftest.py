"""What all tests share: a worker's one control plane, and the rule that in CI a skip is a failure."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.tools import KUBERNETES
from tests import postgresql
from tests.support import processor_time, profile
from tests.support.lanes import COMPUTE, NODE, Lanes, file_of, give_way, lane_of
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.worker_control_plane import Lender

LONGEST = (
    "tests/kubelet/cluster/",
    "ledger/test_machine.py",
    "scheduler_ext/cluster/test_storms.py",
    "webhook/cluster/test_rotation.py",
    "story/cluster/",
    "ledger/test_held_is_charged.py",
)
_FOLDER = pytest.StashKey[Path]()
_LENDER = pytest.StashKey[Lender]()
_METER = processor_time.Meter()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each worker has one control plane to lend."""
    session.stash[_LENDER] = Lender()


def pytest_configure(config: pytest.Config) -> None:
    """Everything temporary goes into one folder of this run: also what processes that are killed leave
    behind. And Ctrl-C reaches what tests start, also where a shell has put this run into the background and
    has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if processor_time.is_watched():
        processor_time.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="bursar-tests-"))
    config.stash[_FOLDER] = folder
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.pluginmanager.register(_Failures(config))
    gc.disable()  # until all is collected, for nothing of that goes: a seventh of the collection's time


class _Failures:
    """Names a test that fails at once: the others may take half an hour."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shown = self._plugins.get_plugin("terminalreporter")
        if report.failed and shown is not None:
            shown.ensure_newline()
            shown.write_line(f"failed: {report.nodeid} ({report.when})", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under coverage a worker writes what it has traced before it says that it has finished. xdist kills it
    ten seconds later, which are too few on a busy machine: its part of the lines would be missing. Then
    its control plane ends, also where a run stops early."""
    traced = coverage.Coverage.current()
    if traced is not None:
        traced.save()
    session.stash[_LENDER].end()


def pytest_unconfigure(config: pytest.Config) -> None:
    """PostgreSQL ends, where a test has used it, and the folder goes, whatever is in it."""
    postgresql.end()
    shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)  # a process that is just ending may still write


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test's marker is its tier, and its tier is its folder: tests/<role>/{unit,ledger,process,cluster}."""
    item.add_marker(item.path.parent.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, so that no worker is left alone with one at the end."""
    places = {part: place for place, part in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        file = file_of(item.nodeid)
        return min((place for part, place in places.items() if part in file), default=len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What is there now, eleven thousand tests and their modules, stays to the end. The collector would walk
    over it again and again: a quarter of the processor time of the ledger's tests."""
    gc.freeze()
    gc.enable()
    if processor_time.is_watched():
        _METER.read(processor_time.REST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """Several workers share the files by lanes."""
    return Lanes(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked ``kubernetes`` is skipped on an older one, such as `make test-versions` runs."""
    for mark in item.iter_markers("kubernetes"):
        needed = tuple(int(number) for number in mark.args[0].split("."))
        if KUBERNETES.series < needed:
            pytest.skip(f"it needs Kubernetes {mark.args[0]}, and this is {KUBERNETES.version}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true nothing may be skipped but what needs a real GPU: a skip there hides a failure."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and "gpu" not in item.keywords:
        report.outcome = "failed"
        report.longrepr = f"skipped with CI=true: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """After the last test of a file its tier is charged with the processor time since the file before. After
    the last one of a lane with control planes the worker's ends."""
    give_way(item.nodeid)
    result = yield
    if nextitem is None or nextitem.path != item.path:
        if nextitem is None or lane_of(file_of(nextitem.nodeid)) in (NODE, COMPUTE):
            item.session.stash[_LENDER].end()
        if processor_time.is_watched():
            for tier, seconds in _METER.read(item.path.parent.name).items():
                processor_time.record(tier, seconds, file_of(item.nodeid))
    return result


profile.load()


@pytest.fixture(scope="session")
def lender(request: pytest.FixtureRequest) -> Lender:
    """The control plane of a worker's tests."""
    return request.session.stash[_LENDER]


@pytest.fixture(scope="module")
def control_plane(lender: Lender) -> Iterator[ControlPlane]:
    """A bare control plane that is a module's alone until its end, for webhook configurations, policies and
    nodes are objects of the whole cluster: etcd, API server, controllers, kwok; no scheduler, nothing of
    ours."""
    with lender.lent() as cp:
        yield cp


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates for loopback. A test that renews them makes its own."""
    return Tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def timekeeper(tls: Tls) -> Iterator[SimulatedTimekeeper]:
    """A simulated timekeeper with one namespace in budget."""
    with SimulatedTimekeeper(tls, standings(team_a=entry("IN_BUDGET"))) as running:
        yield running
