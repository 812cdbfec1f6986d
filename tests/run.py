"""What must pass: ``make quick``, ``make check``, ``make test``, ``make all``, ``make coverage``, ``make
test-versions`` and ``make soak``.

`make test` is what a contributor runs. `make all` is everything: it adds PostgreSQL, a real node, other
projects' programs, most of the tests on a cluster, and what is dear. A mark decides
(tests/support/compositions.py). First all that Go builds is built, beside lint and types, and then the tests
run; no test waits for a compiler.

Several workers (pytest-xdist) run the tests, three more than there are cores, for many tests wait. In one
session tests that compute use the processors while others wait for a control plane (tests/support/lanes.py).
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("tests.run: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from deploy.local import real_node as node
from deploy.local.tools import OLDER_KUBERNETES, cache_folder
from tests import debian
from tests.support import processor_time
from tests.support.compositions import ALL, REST, TEST, ignored

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LEAST_COVERAGE = 96  # percent of branches and lines, over all test processes; raised as it rises

# Coverage triples the time of what it traces. It traces no test that computes for long over lines that others
# pass too, and of those with a control plane only those that pass lines that no other test passes.
COVERED = "not soak and not untraced and (not cluster or traced)"

# the tests that `make test-versions` runs on each older Kubernetes
OF_VERSIONS = (
    "tests/deploy/cluster/test_accepted.py",
    "tests/docs/cluster/test_install.py",
    "tests/webhook/cluster/test_policies.py",
    "tests/webhook/cluster/test_cluster.py",
    "tests/webhook/cluster/test_claims.py",
    "tests/webhook/cluster/test_claim_reclaim.py",
    "tests/webhook/cluster/test_device_classes.py",
    "tests/scheduler_ext/cluster/test_cluster.py",
    "tests/timekeeper/cluster/test_claims.py",
    "tests/timekeeper/cluster/test_metering.py",
    "tests/story/cluster/test_demo.py",
)

COVERAGE = (f"{BIN}/coverage",)
RCFILE = ("--rcfile", "setup.cfg")

CHECKS = (
    [f"{BIN}/ruff", "check", "--quiet", "."],
    [f"{BIN}/ruff", "format", "--check", "--quiet", "."],
    [f"{BIN}/mypy", "--no-error-summary", "--cache-dir", str(cache_folder() / "mypy")],
    [f"{BIN}/lint-imports", "--config", "pyproject.toml"],
    [sys.executable, "-m", "tests.growth"],
)


class FailedError(Exception):
    """A step failed; its own output has said why."""


class Beside:
    """A command that runs beside the others; its lines come through behind its name. ``charged``: the name
    under which the run tells what it took."""

    def __init__(self, name: str, command: list[str], charged: str = processor_time.REST) -> None:
        self._name, self._charged = name, charged
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def _relay(self) -> None:
        for line in self._process.stdout or ():
            print(f"[{self._name}] {line}", end="", flush=True)

    def wait(self) -> None:
        """Until it is done. Raises FailedError."""
        self._thread.join()
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        processor_time.record(self._charged, usage.ru_utime + usage.ru_stime)
        if self._process.returncode:
            raise FailedError(self._name)

    def stop(self) -> None:
        """Ends it where it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def step(name: str, command: list[str]) -> None:
    """One command, timed. Raises FailedError where it fails."""
    began = time.monotonic()
    print(f"== {name}", flush=True)
    if subprocess.run(command, cwd=ROOT).returncode:
        raise FailedError(name)
    print(f"== {name}: {time.monotonic() - began:.0f} s", flush=True)


def build(programs: str) -> Beside:
    """All that Go builds for these tests: ``test`` or ``all``."""
    command = [sys.executable, "-m", "tests.support.go_programs", programs]
    return Beside("control plane", command, processor_time.BUILD)


def import_tests(marks: str) -> subprocess.Popen[bytes]:
    """Imports these tests once, silently, so that their bytecode is there: pytest rewrites their assertions
    in ten seconds of a processor. Otherwise each worker does it."""
    collecting = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *collecting, *ignored(marks)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pytest(marks: str) -> list[str]:
    """The command for the tests that these marks choose, over several workers; it ends with the slowest."""
    workers = f"--numprocesses={(os.cpu_count() or 1) + 3}"
    order = ["--no-loadscope-reorder", "--durations=15", "--durations-min=1", "--cache-clear"]
    return ["-m", "pytest", "-q", "-m", marks, workers, *order, *ignored(marks)]


def tests(name: str, marks: str, python: Sequence[str], *options: str) -> None:
    """The tests that these marks choose. Raises FailedError."""
    os.environ.setdefault("GOGC", "800")  # an API server works a fifth less
    os.environ.setdefault("GOMEMLIMIT", "800MiB")
    step(name, [*python, *pytest(marks), *options])


def check() -> None:
    """Lint, format, types, import contracts, growth."""
    for command in CHECKS:
        step(" ".join([Path(command[0]).name, *command[1:]]), command)


def quick() -> None:
    """What a change must pass before it is shown: the checks and the pure tests. No control plane."""
    os.environ["BURSAR_PROFILE"] = "quick"
    checks = Beside("checks", [sys.executable, "-m", "tests.run", "--check"])
    try:
        step("pure tests", [sys.executable, *pytest(f"unit and {TEST}")])
        checks.wait()
    finally:
        checks.stop()


def prepare(programs: str, marks: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """What tests need: Debian packages; then what Go builds (``test`` or ``all``) and the bytecode of the
    tests with these marks, and ``meanwhile`` beside them. Raises FailedError."""
    try:
        debian.install()
    except subprocess.CalledProcessError as error:
        raise FailedError("Debian's packages could not be installed; are its archives reachable?") from error
    built, importing = build(programs), import_tests(marks)
    try:
        meanwhile()
        importing.wait()  # what fails here fails again in the tests, with its reason
        built.wait()
    finally:
        importing.kill()
        built.stop()


def test() -> None:
    """What a contributor runs. Raises FailedError."""
    prepare("test", TEST, check)
    tests("tests", TEST, [sys.executable])


def everything() -> None:
    """All of it. Raises FailedError."""
    say_what_is_skipped()
    prepare("all", ALL, check)
    tests("tests", ALL, [sys.executable])


def rest(base: str, minutes: float) -> None:
    """What `make all` adds to `make test`, begun within so many minutes, first what differs from ``base``.
    Raises FailedError."""
    begun = time.monotonic()
    say_what_is_skipped()
    prepare("all", REST)
    left = max(0.0, minutes - (time.monotonic() - begun) / 60)
    order = ["-p", "tests.support.touched", f"--touched-since={base}", f"--minutes={left:.1f}"]
    tests("the rest of the tests", REST, [sys.executable], *order)


def say_what_is_skipped() -> None:
    """Where this machine can have no real node, why."""
    hindrance = node.hindrance()
    if hindrance:
        print(f"tests/kubelet is skipped: {hindrance}", flush=True)


def coverage() -> None:
    """The share of lines and branches that the tests of COVERED pass. Raises FailedError below the floor."""
    os.environ["BURSAR_PROFILE"] = "coverage"
    step("forget old coverage", [*COVERAGE, "erase", *RCFILE])
    prepare("all", ALL)
    tests("tests under coverage", COVERED, [*COVERAGE, "run", *RCFILE])
    step("collect coverage", [*COVERAGE, "combine", "--quiet", *RCFILE])
    step("coverage", [*COVERAGE, "report", *RCFILE, "--fail-under", str(LEAST_COVERAGE)])


def soak() -> None:
    """The next slice of the larger profiles: tests marked soak, and property tests with many more examples.
    Raises FailedError where this slice or an earlier one of this commit has a failure."""
    os.environ["BURSAR_PROFILE"] = "soak"
    prepare("all", ALL)
    step("a slice of soak", [f"{BIN}/pytest", "-q", "-p", "tests.support.slices"])


def versions() -> None:
    """What depends on the version of Kubernetes, with API server, controllers and scheduler of each older one
    that is supported. Raises FailedError at the first that fails."""
    for series in OLDER_KUBERNETES:
        os.environ["BURSAR_KUBERNETES"] = series
        step(f"Kubernetes {series}, build", [sys.executable, "-m", "tests.support.go_programs", "test"])
        files = [str(ROOT / file) for file in OF_VERSIONS]
        step(f"Kubernetes {series}", [f"{BIN}/pytest", "-q", "-m", "not soak", "--timeout", "900", *files])


RUNS: dict[str, tuple[Callable[[], None], str]] = {
    "check": (check, "lint, types, contracts, growth"),
    "quick": (quick, "and the pure tests"),
    "test": (test, "what a contributor runs (the default)"),
    "all": (everything, "everything"),
    "coverage": (coverage, "the lines that tests pass"),
    "soak": (soak, "the larger profiles"),
    "versions": (versions, "older versions of Kubernetes"),
}


def main() -> int:
    """Exit code 0 when all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    for name, (_, purpose) in RUNS.items():
        which.add_argument(f"--{name}", action="store_const", dest="name", const=name, help=purpose)
    which.add_argument(
        "--rest-since", metavar="COMMIT", help="what --all adds, first what differs from COMMIT"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="within which tests of the rest begin")
    # Without their bytecode each worker compiles all tests anew, and each process of Bursar its modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = parser.parse_args()
    name = "rest" if asked.rest_since else asked.name or "test"
    run = partial(rest, asked.rest_since, asked.minutes) if asked.rest_since else RUNS[name][0]
    if processor_time.is_watched():  # a part of another run
        return outcome(run)
    kept = processor_time.Kept.of(name)
    return processor_time.watched(lambda: outcome(run), processor_time.reference_s(), kept)


def outcome(run: Callable[[], None]) -> int:
    """Exit code 0 when all passed."""
    try:
        run()
    except FailedError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
