"""``make quick``, ``make test``, ``make coverage``, ``make check``, ``make test-versions`` and ``make soak``:
what must pass.

Several workers (pytest-xdist) run the tests, three more than there are cores, for many tests wait. In one
session tests that compute use the processors while others wait for a control plane (tests/support/lanes.py).
The build of the control plane, and of a real node where this machine can have one, takes minutes where
nothing is cached: then it runs beside lint, types and the tests that need none. The others come after it.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("tests.run: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from deploy.local import real_node as node
from deploy.local.tools import OLDER_KUBERNETES, cache_folder
from tests import debian
from tests.support import processor_time

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
LEAST_COVERAGE = 96  # percent of branches and lines, over all test processes; raised as it rises

ALL = "not soak"
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
    [sys.executable, "-m", "tests.budgets"],
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

    @property
    def runs(self) -> bool:
        """Whether it is not done yet."""
        return self._thread.is_alive()  # until the end of its output

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


def build() -> Beside:
    """All that Go builds for the tests, also of a real node where this machine can have one."""
    hindrance = node.hindrance()
    if hindrance:
        print(f"tests/kubelet is skipped: {hindrance}", flush=True)
    command = [sys.executable, "-m", "tests.support.go_programs"]
    return Beside("control plane", command, processor_time.BUILD)


def import_tests() -> subprocess.Popen[bytes]:
    """Imports all tests once, silently, so that their bytecode is there: pytest rewrites their assertions in
    ten seconds of a processor. Otherwise each worker does it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pytest(marks: str) -> list[str]:
    """The command for the tests that these marks choose, over several workers; it ends with the slowest."""
    workers = f"--numprocesses={(os.cpu_count() or 1) + 3}"
    order = ["--no-loadscope-reorder", "--durations=15", "--durations-min=1", "--cache-clear"]
    return ["-m", "pytest", "-q", "-m", marks, workers, *order]


def tests(name: str, marks: str, python: Sequence[str]) -> None:
    """The tests that these marks choose. Raises FailedError."""
    os.environ.setdefault("GOGC", "800")  # an API server works a fifth less
    os.environ.setdefault("GOMEMLIMIT", "800MiB")
    step(name, [*python, *pytest(marks)])


def failure(name: str, marks: str) -> list[str]:
    """Run these tests; their name if one fails. A red tier does not hide the next."""
    try:
        tests(name, marks, [sys.executable])
    except FailedError as error:
        return [str(error)]
    return []


def check() -> None:
    """Lint, format, types, import contracts, budgets."""
    for command in CHECKS:
        step(" ".join([Path(command[0]).name, *command[1:]]), command)


def quick() -> None:
    """What a change must pass before it is shown: the checks and the pure tests. No control plane."""
    os.environ["BURSAR_PROFILE"] = "quick"
    checks = Beside("checks", [sys.executable, "-m", "tests.run", "--check"])
    try:
        step("pure tests", [sys.executable, *pytest("unit and not soak")])
        checks.wait()
    finally:
        checks.stop()


def test() -> None:
    """All of it. Raises FailedError after all tests, or at the first other step that fails."""
    debian.install()
    control_plane, importing = build(), import_tests()
    try:
        check()
        importing.wait()  # what fails here fails again below, with its reason
        failed = []
        is_cold = control_plane.runs
        if is_cold:
            failed += failure("tests that need no control plane", f"not cluster and {ALL}")
        control_plane.wait()
        failed += failure("tests", f"cluster and {ALL}" if is_cold else ALL)
        if failed:
            raise FailedError(", ".join(failed))
    finally:
        importing.kill()
        control_plane.stop()


def coverage() -> None:
    """The share of lines and branches that the tests of COVERED pass. Raises FailedError below the floor."""
    os.environ["BURSAR_PROFILE"] = "coverage"
    debian.install()
    step("forget old coverage", [*COVERAGE, "erase", *RCFILE])
    control_plane, importing = build(), import_tests()
    try:
        importing.wait()
        control_plane.wait()
        tests("tests under coverage", COVERED, [*COVERAGE, "run", *RCFILE])
    finally:
        importing.kill()
        control_plane.stop()
    step("collect coverage", [*COVERAGE, "combine", "--quiet", *RCFILE])
    step("coverage", [*COVERAGE, "report", *RCFILE, "--fail-under", str(LEAST_COVERAGE)])


def soak() -> None:
    """The next slice of the larger profiles: tests marked soak, and property tests with many more examples.
    Raises FailedError where this slice or an earlier one of this commit has a failure."""
    os.environ["BURSAR_PROFILE"] = "soak"
    control_plane = build()
    try:
        control_plane.wait()
        step("a slice of soak", [f"{BIN}/pytest", "-q", "-p", "tests.support.slices"])
    finally:
        control_plane.stop()


def versions() -> None:
    """What depends on the version of Kubernetes, with API server, controllers and scheduler of each older one
    that is supported. Raises FailedError at the first that fails."""
    for series in OLDER_KUBERNETES:
        os.environ["BURSAR_KUBERNETES"] = series
        code = "from deploy.local.cli import build; build()"  # without kubeadm, which no such test needs
        step(f"Kubernetes {series}, build", [sys.executable, "-c", code])
        files = [str(ROOT / file) for file in OF_VERSIONS]
        step(f"Kubernetes {series}", [f"{BIN}/pytest", "-q", "-m", "not soak", "--timeout", "900", *files])


def main() -> int:
    """Exit code 0 when all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--check", action="store_const", dest="run", const=check, help="lint, types, contracts, budgets"
    )
    which.add_argument("--quick", action="store_const", dest="run", const=quick, help="and the pure tests")
    which.add_argument(
        "--coverage", action="store_const", dest="run", const=coverage, help="the lines that tests pass"
    )
    which.add_argument("--soak", action="store_const", dest="run", const=soak, help="the larger profiles")
    which.add_argument(
        "--versions", action="store_const", dest="run", const=versions, help="older versions of Kubernetes"
    )
    parser.set_defaults(run=test)
    # Without their bytecode each worker compiles all tests anew, and each process of Bursar its modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen = parser.parse_args().run
    if processor_time.is_watched():  # a part of another run
        return outcome(chosen)
    budgets = processor_budgets() if chosen is test else {}
    return processor_time.watched(lambda: outcome(chosen), processor_time.reference_s(), budgets)


def processor_budgets() -> processor_time.Units:
    """The most units of processors that the tests of each role may take."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    units: processor_time.Units = settings["tool"]["bursar"]["budgets"]["processor_units"]
    return units


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
