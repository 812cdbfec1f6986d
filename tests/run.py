"""``make quick``, ``make test``, ``make check``, ``make test-versions`` and ``make soak``: what must pass.

Several workers (pytest-xdist) run the tests, one more than there are cores, for many tests wait. `make test`
runs all tiers in one session, so that tests that compute use the processors while others wait for a control
plane. The build of the control plane, and of a real node where this machine can have one, takes minutes if
nothing is cached: then it runs beside lint, types and the tests that need none, and the others come after it.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

# Before anything is imported that an old Python could not even read.
if sys.version_info < (3, 11):  # noqa: UP036  (it is the people with older ones that this is for)
    sys.exit("tests.run: Python 3.11 or newer is needed, and this is " + sys.version.split()[0])

from deploy.local import real_node as node
from deploy.local.tools import OLDER_KUBERNETES
from tests import debian

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"  # pytest's own record, by test
MOST_TRIED_AGAIN = 8  # files; more that fail are no accident of a busy machine
LEAST_COVERAGE = 96  # percent of branches and lines, over all test processes; raised as it rises

# the tests that `make test-versions` runs on each older Kubernetes
OF_VERSIONS = (
    "tests/deploy/cluster/test_accepted.py",
    "tests/docs/cluster/test_install.py",
    "tests/webhook/cluster/test_policies.py",
    "tests/webhook/cluster/test_cluster.py",
    "tests/webhook/cluster/test_device_classes.py",
    "tests/scheduler_ext/cluster/test_cluster.py",
    "tests/timekeeper/cluster/test_metering.py",
    "tests/story/cluster/test_demo.py",
)

CHECKS = (
    [f"{BIN}/ruff", "check", "--quiet", "."],
    [f"{BIN}/ruff", "format", "--check", "--quiet", "."],
    [f"{BIN}/mypy", "--no-error-summary"],
    [f"{BIN}/lint-imports", "--config", "setup.cfg"],
)


class FailedError(Exception):
    """A step failed; its own output has said why."""


class Beside:
    """A command that runs beside the others; its lines come through behind its name."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
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
        return self._process.poll() is None

    def wait(self) -> None:
        """Until it is done. Raises FailedError."""
        code = self._process.wait()
        self._thread.join()
        if code:
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
    """The binaries of the control plane, helm and, where there can be one, those of a real node: found or
    built."""
    hindrance = node.hindrance()
    if hindrance:
        print(f"tests/kubelet is skipped: {hindrance}", flush=True)
    real_node = [] if hindrance else ["--node"]
    return Beside("control plane", [sys.executable, "-m", "deploy.local", "build", "--helm", *real_node])


def import_tests() -> subprocess.Popen[bytes]:
    """Imports all tests once, silently, so that their bytecode is there: pytest rewrites their assertions in
    ten seconds of a processor. Otherwise each worker does it, at half the speed, for coverage traces it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pytest(marks: str) -> list[str]:
    """The command for the tests that these marks choose, over several workers; it ends with the slowest. With
    one more worker the processors never rest, the whole takes longer, and waits run out."""
    workers = f"--numprocesses={(os.cpu_count() or 1) + 1}"
    order = ["--no-loadscope-reorder", "--durations=15", "--durations-min=1", "--cache-clear"]
    return ["-m", "pytest", "-q", "-m", marks, workers, *order]


def tried_again(failed: Iterable[str]) -> list[str]:
    """The files of these tests, if they may be tried once more: a few that use processes, sockets or
    databases. A pure test fails for a reason of its own."""
    files = sorted({test.partition("::")[0] for test in failed})
    is_pure = any(Path(file).parent.name == "unit" for file in files)
    return [] if is_pure or len(files) > MOST_TRIED_AGAIN else files


def tests(name: str, marks: str) -> None:
    """The tests that these marks choose. What failed beside others is tried once more, alone; both outcomes
    are told. Raises FailedError."""
    try:
        step(name, covered(pytest(marks)))
    except FailedError:
        failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
        files = tried_again(failed)
        if not files:
            raise
        print(
            "== these failed beside others; their files run once more, alone:", *failed, sep="\n", flush=True
        )
        step(f"{name}, once more", covered(["-m", "pytest", "-q", "-m", marks, *files]))
        print("== these failed beside others and passed alone; mend them:", *failed, sep="\n", flush=True)


def covered(command: list[str]) -> list[str]:
    """The same under coverage, in all its processes."""
    return [f"{BIN}/coverage", "run", "--rcfile", "setup.cfg", *command]


def check() -> None:
    """Lint, format, types, import contracts."""
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
    """All of it. Raises FailedError at the first step that fails."""
    debian.install()
    step("forget old coverage", [f"{BIN}/coverage", "erase", "--rcfile", "setup.cfg"])
    control_plane, importing = build(), import_tests()
    try:
        check()
        importing.wait()  # what fails here fails again below, with its reason
        is_cold = control_plane.runs
        if is_cold:
            tests("tests that need no control plane", "not cluster and not soak")
        control_plane.wait()
        os.environ.setdefault("GOGC", "300")  # each of many API servers starts with a fifth less work
        tests("tests", "cluster and not soak" if is_cold else "not soak")
    finally:
        importing.kill()
        control_plane.stop()
    step("collect coverage", [f"{BIN}/coverage", "combine", "--quiet", "--rcfile", "setup.cfg"])
    step(
        "coverage",
        [f"{BIN}/coverage", "report", "--rcfile", "setup.cfg", "--fail-under", str(LEAST_COVERAGE)],
    )


def soak() -> None:
    """The larger profiles: tests marked soak, and the property tests with many more examples."""
    os.environ["BURSAR_PROFILE"] = "soak"
    control_plane = build()
    try:
        control_plane.wait()
        step("soak", [f"{BIN}/pytest", "-q", "-m", "not cluster or soak", "--timeout", "7200"])
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
        "--check", action="store_const", dest="run", const=check, help="lint, types, contracts"
    )
    which.add_argument("--quick", action="store_const", dest="run", const=quick, help="and the pure tests")
    which.add_argument("--soak", action="store_const", dest="run", const=soak, help="the larger profiles")
    which.add_argument(
        "--versions", action="store_const", dest="run", const=versions, help="older versions of Kubernetes"
    )
    parser.set_defaults(run=test)
    # Without their bytecode each worker compiles all tests anew, and each process of Bursar its modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        parser.parse_args().run()
    except FailedError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
