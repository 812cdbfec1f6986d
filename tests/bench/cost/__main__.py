"""What operations cost, in counts; and the ratio to another commit.

``python -m tests.bench.cost [--json FILE]`` prints what this tree's operations take. ``--write`` writes it to
``counts.json``, which a test compares. ``--base REF`` (``make bench-compare BASE=REF``) runs the same
operations with the product of that commit, by turns, and prints the ratios. The exit code is 1 where a count
is more than a tenth worse, or an operation cannot be run in either tree. CPU is named where it is worse, too,
but does not decide: on a machine in use it differs from run to run.
"""

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.command import write
from tests.bench.cost import counters
from tests.bench.cost.comparison import Figures, named, rows, table
from tests.bench.cost.operations import OPERATIONS

ROOT = Path(__file__).parents[3]
COUNTS = Path(__file__).parent / "counts.json"
PYTHON = "{}.{}".format(*sys.version_info)
CHILD = [sys.executable, "-m", "tests.bench.cost.child"]
TURNS = 15
ENDS_S = 30
CALLS = 24  # under perf stat

Json = dict[str, Any]


def environment() -> dict[str, str]:
    """Sets have one order in all runs, and coverage does not trace what is counted."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return inherited | {"PYTHONHASHSEED": "0", "PYTHONPATH": ""}


def counted(tree: Path = ROOT) -> Json:
    """The counts of each operation with the product of this tree. Raises SystemExit where nothing runs."""
    done = subprocess.run([*CHILD, "count"], cwd=tree, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the operations cannot be run in {tree}: {done.stderr.strip()[-1_000:]}")
    found: Json = json.loads(done.stdout)
    return found


def expected() -> Json:
    """The counts that are committed for this Python; empty where there are none for it."""
    found: Json = json.loads(COUNTS.read_text()).get(PYTHON, {})
    return found


@contextmanager
def product_of(ref: str) -> Iterator[Path]:
    """The files of a commit with this tree's benchmarks, in a folder that is removed at the end. The worlds
    that the benchmarks use are the commit's own, which fit its product."""
    listed = subprocess.run(
        ["git", "archive", "--format=tar", ref, "--", ".", ":(exclude)tests/bench"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        raise SystemExit(f"there is no commit {ref}: {listed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="bursar-base-") as name:
        with tarfile.open(fileobj=io.BytesIO(listed.stdout)) as tar:
            tar.extractall(name, filter="data")
        (Path(name) / "tests/bench").symlink_to(ROOT / "tests/bench")
        yield Path(name)


class _Turns:
    """A process that measures CPU in one tree, an operation's turn at a time."""

    def __init__(self, tree: Path) -> None:
        command = [*CHILD, "turns"]
        self._process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def turn(self, name: str) -> Json:
        """The CPU time of a call as a ratio to the reference loop's, or a fault."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        found: Json = json.loads(self._process.stdout.readline() or '{"fault": "the process has ended"}')
        return found

    def stop(self) -> None:
        """Ends it, with its input: it removes what it has written."""
        try:
            self._process.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def add_cpu(found: Mapping[str, Json], trees: Mapping[str, Path], turns: int) -> None:
    """Adds to each tree's figures the median of its turns."""
    with ExitStack() as ending:
        processes = {name: _Turns(tree) for name, tree in trees.items()}
        for process in processes.values():
            ending.callback(process.stop)
        for operation in OPERATIONS:
            taken: dict[str, list[Json]] = {name: [] for name in processes}
            for number in range(turns):
                for name in list(processes)[:: 1 if number % 2 else -1]:
                    taken[name].append(processes[name].turn(operation))
            for name, each in taken.items():
                if not any("fault" in one for one in [*each, found[name][operation]]):
                    found[name][operation]["CPU"] = round(statistics.median(one["CPU"] for one in each), 4)


def add_instructions(found: Mapping[str, Json], trees: Mapping[str, Path]) -> None:
    """Adds the processor's instructions of a call: what a run of calls takes beyond getting them ready."""
    for name, tree in trees.items():
        for operation, figures in found[name].items():
            if "fault" in figures:
                continue
            whole, idle = (
                counters.instructions([*CHILD, mode, operation, str(CALLS)], tree, environment())
                for mode in ("run", "prepare")
            )
            figures["instructions"] = round((whole - idle) / CALLS)


def compare(ref: str, turns: int, file: Path | None) -> int:
    """Prints the table and what is worse."""
    with product_of(ref) as base:
        os.environ["TMPDIR"] = str(base)  # what the processes write is removed with it, however they end
        trees = {"here": ROOT, "base": base}
        found = {name: counted(tree) for name, tree in trees.items()}
        fault = counters.perf_fault()
        if not fault:
            add_instructions(found, trees)
        add_cpu(found, trees, turns)
    compared = list(rows(found["here"], found["base"]))
    print(how(fault))
    print(f"CPU: of a call by that of a reference loop, median of {turns} turns; it varies with other work")
    print(table(compared, ref))
    print(named(compared, ref))
    write(file, found | {"ref": ref, "load": os.getloadavg()})
    return int(any(row.is_worse and row.figure != "CPU" for row in compared))


def how(perf_fault: str) -> str:
    """What counts here."""
    counts = "counted: bytecodes (sys.settrace), C calls (sys.setprofile), peak KiB (tracemalloc)"
    if perf_fault:
        return f"{counts}; no instructions, for perf stat counts none here: {perf_fault}"
    return f"{counts}, instructions (perf stat -e {counters.EVENT})"


def show(found: Figures) -> Iterable[str]:
    """A line for each operation."""
    for operation, figures in found.items():
        yield f"{operation:<22}" + ", ".join(f"{figure}: {value}" for figure, value in figures.items())


def write_counts() -> None:
    """This Python's counts, beside those of others. Raises SystemExit where an operation cannot be run."""
    found = counted()
    faults = [f"{name}: {each['fault']}" for name, each in found.items() if "fault" in each]
    if faults:
        raise SystemExit("\n".join(faults))
    known = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    COUNTS.write_text(json.dumps(known | {PYTHON: found}, indent=1) + "\n")


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cost", description=__doc__)
    parser.add_argument("--base", default="", help="a commit to compare with")
    parser.add_argument("--turns", type=int, default=TURNS, help="of CPU, by turns (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the counts that the test compares")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    if given.write:
        write_counts()
        return 0
    if given.base:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: nothing is left behind
        return compare(given.base, given.turns, given.json)
    found = counted()
    print(how(counters.perf_fault()), *show(found), sep="\n")
    write(given.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
