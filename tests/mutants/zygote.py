"""A plugin of pytest that has all tests imported, and forks a child for each mutant: it runs some of them."""

import ast
import contextlib
import gc
import importlib
import math
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutants.operators import CONSTANTS, Mutant, code_of, mutated
from tests.mutants.passes import FOLDER, SHARED, Passes, cases_of, file_of

ENOUGH = 3  # killers of a mutant, each of another file
_HANGS_S, _TIMES = 15.0, 10  # a test hangs after so long and so many times what it took
_RECORDING_S = 10.0  # of a processor, for one file of tests; what comes later is not used
_MEMORY = 8 << 30
_ERRORS = f"{FOLDER}/errors"


Work = Callable[["Zygote", int], None]


class Zygote:
    """Collects the tests. Then it does each work in some forked workers, which it gives their numbers."""

    def __init__(
        self,
        root: Path,
        product: Sequence[str],
        works: Sequence[Work],
        workers: int,
        *,
        unit_s: float = 1,  # of tests' times, so that a slow machine chooses the same tests
        until: float = math.inf,  # by the monotonic clock
    ) -> None:
        self.root, self.product = root, product
        self._unit_s, self._until = unit_s, until
        self.passes = Passes(root)
        self.items: dict[str, pytest.Item] = {}
        self._works, self._workers = works, workers
        self._live: defaultdict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        self._sound: dict[str, bool] = {}
        self._tracer: Tracer | None = None
        self._failed = False

    def pytest_configure(self) -> None:
        """To shrink an example takes long, and tells nothing more here."""
        import hypothesis  # not before pytest, which would warn of it

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings.default, phases=phases)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Knows the functions of the product before they are hidden from the collector."""
        for file in self.product:
            importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for live in gc.get_objects():
            if isinstance(live, types.FunctionType) and live.__code__.co_filename.startswith(f"{self.root}/"):
                code = live.__code__
                file = str(Path(code.co_filename).relative_to(self.root))
                self._live[file, code.co_qualname, code.co_firstlineno].append(live)
        # a server for each child would take longer than its tests
        self.items = {
            item.nodeid: item for item in session.items if "postgresql" not in cases_of(item.nodeid)
        }

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of the tests: the workers."""
        session.config.pluginmanager.unregister(name="terminalreporter")
        for work in self._works:
            self.passes = Passes(self.root)
            for pid in [_forked(partial(work, self, worker)) for worker in range(self._workers)]:
                os.waitpid(pid, 0)
        return True

    def record(self, file: str) -> None:
        """Keep which lines each test of a file passes, and what it takes."""
        names = [name for name in self.items if file_of(name) == file]
        pid = _forked(lambda: self._trace(file, names))
        _end_after(pid, 10 * _RECORDING_S * self._unit_s, self._until)
        if time.monotonic() < self._until and not Passes(self.root).is_recorded(
            file, {}
        ):  # one test takes longer than all that time
            self.passes.write(file, {}, {})

    def killers(self, mutant: Mutant | None, tests: Sequence[str], enough: int = ENOUGH) -> list[str]:
        """The first of these tests that fail, each of another file. One that hangs fails. Raises
        OutOfTimeError."""
        killers: list[str] = []
        left = [name for name in tests if name in self.items]
        while left and len(killers) < enough and (failed := self._first_to_fail(mutant, left)):
            left = left[left.index(failed) + 1 :]
            if mutant is None or self._is_sound(failed):
                killers.append(failed)
                left = [name for name in left if file_of(name) != file_of(failed)]
        return killers

    def _is_sound(self, name: str) -> bool:
        """Whether the test passes alone without a mutant."""
        if name not in self._sound:
            self._sound[name] = not self.killers(None, [name])
        return self._sound[name]

    def _first_to_fail(self, mutant: Mutant | None, tests: list[str]) -> str | None:
        """The first of these tests that fails, hangs or ends its process."""
        reader, writer = os.pipe()
        pid = _forked(partial(self._live_through, mutant, tests, writer))
        os.close(writer)
        passed = 0
        while passed < len(tests):
            longest_s = _HANGS_S + _TIMES * self.passes.seconds(tests[passed]) * self._unit_s
            watch = Stopwatch(pid)
            is_over = False
            while not (ready := select.select([reader], [], [], 0.2)[0]) and not is_over:
                is_over = watch.seconds > longest_s or time.monotonic() > self._until
            ended = os.read(reader, 4096) if ready else b""
            if not ended:
                break
            passed += len(ended)
        os.close(reader)
        _end_after(pid, 0)
        if time.monotonic() > self._until:
            raise OutOfTimeError
        return tests[passed] if passed < len(tests) else None

    def _live_through(self, mutant: Mutant | None, tests: list[str], writer: int) -> None:
        """Write a byte for each test that passes, up to the first that does not."""
        if mutant is not None:
            self._become(mutant)
        for name, following in pairwise([*tests, ""]):
            if not self._passes(name, following):
                return
            os.write(writer, b".")

    def _become(self, mutant: Mutant) -> None:
        """Put the mutant into this process: in the function itself, whoever has imported it."""
        path = self.root / mutant.file
        tree = mutated(mutant, path.read_text())
        if mutant.function == CONSTANTS:
            self._set_constant(mutant, tree.body)
            return
        code = code_of(tree, str(path), mutant.function, mutant.first)
        for live in self._live[mutant.file, mutant.function, mutant.first]:
            with contextlib.suppress(ValueError):  # the only super() is gone
                live.__code__ = code

    def _set_constant(self, mutant: Mutant, body: Sequence[Any]) -> None:
        """In its own module and in each that has imported it."""
        name = mutant.operator.partition(" ")[0]
        module = sys.modules[mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")]
        assigned = next(node for node in body if getattr(node, "lineno", 0) == mutant.first)
        expression = compile(ast.Expression(assigned.value), mutant.file, "eval")
        former, new = vars(module)[name], eval(expression, vars(module))  # noqa: S307
        for other in list(sys.modules.values()):
            if vars(other).get(name, ...) is former:
                vars(other)[name] = new

    def _passes(self, name: str, following: str = "") -> bool:
        item, nextitem = self.items[name], self.items.get(following)
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        return not self._failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The outcome of a test in a child."""
        self._failed |= report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """What several tests share is passed by all of its file."""
        if self._tracer is None or fixturedef.scope == "function":
            return (yield)
        self._tracer.keep(request._pyfuncitem.nodeid)
        try:
            return (yield)
        finally:
            self._tracer.keep(SHARED)

    def _trace(self, file: str, names: list[str]) -> None:
        taken: dict[str, float] = {}
        began = time.process_time()  # what it waits for other processes depends on the machine's load
        self._tracer = tracer = Tracer(self.root, sorted({path.partition("/")[0] for path in self.product}))
        for name, following in pairwise([*names, ""]):
            if time.process_time() - began < _RECORDING_S * self._unit_s:
                before = time.process_time()
                if self._passes(name, following):
                    taken[name] = round((time.process_time() - before) / self._unit_s, 4)
                tracer.keep(name)
        self._tracer = None
        self.passes.write(file, taken, tracer.passed)


class Tracer:
    """Coverage's tracer, without its database: to write a context there takes longer than most tests."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        self.passed: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._root = root
        source = [str(root / package) for package in packages]
        traced = coverage.Coverage(data_file=None, config_file=False, source=source)
        traced.start()
        collector: Any = traced._collector
        self._lines: dict[str, set[int]] = collector.data

    def keep(self, name: str) -> None:
        """What was passed since the last time is this test's."""
        for path, lines in list(self._lines.items()):
            if lines and path.endswith(".py"):  # not a page's template
                passed = self.passed[str(Path(path).relative_to(self._root))]
                for line in lines.copy():
                    passed[line].append(name)
            lines.clear()


class OutOfTimeError(Exception):
    """What a mutant does is not known, for the run's time is over."""


class Stopwatch:
    """How long a child has run or slept: the time that it waited for a processor is others' load."""

    def __init__(self, pid: int) -> None:
        self._queue = Path(f"/proc/{pid}/schedstat")
        self._began_s = self._now_s()

    @property
    def seconds(self) -> float:
        """Since it was started, of the child's first thread."""
        return self._now_s() - self._began_s

    def _now_s(self) -> float:
        return time.monotonic() - int(self._queue.read_text().split()[1]) / 1e9


def _forked(work: Callable[[], object]) -> int:
    """Start a child that does this, in a group and a temporary folder of its own."""
    pid = os.fork()
    if pid:
        return pid
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        work()
    except BaseException:
        with Path(_ERRORS).open("a") as file:
            traceback.print_exc(file=file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _end_after(pid: int, seconds: float, until: float = math.inf) -> None:
    """Wait so long for a child, then end it and all that it has started."""
    watch = Stopwatch(pid)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if watch.seconds >= seconds or time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.002)
