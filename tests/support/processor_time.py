"""The processor time of a run: of all its processes, by the tier of the tests that started them, by the file
of tests that ran meanwhile, and by kind of process.

Machines differ by half, and so does one machine from day to day. So the table by role is in units: one unit
is the processor time that the reference loop takes, which each run measures at its start. No run fails by
what it took; `.ci/run` prints the table beside that of the commit before (`Kept`).
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

REST = "checks and start-up"
BUILD = "build of the control plane"  # of what is not in the cache

Units = Mapping[str, float]  # what the tests of a role (tests/<role>) and REST took

_FILE = "BURSAR_PROCESSOR_TIME"  # the environment variable that names the file of a run's records
_UNITS = "BURSAR_UNITS"  # the one that names the file of `Kept`
_ROUNDS = 1_550_000  # a second of an AMD EPYC of 2026
_SET_CHILD_SUBREAPER = 36  # of prctl
_ENDING_S = 2.0
_COSTLIEST = 20  # files of tests that a report names
_LOOK_EVERY_S = 2.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def reference_s() -> float:
    """What the reference loop takes here, in seconds of a processor: the mean of one loop a processor, all at
    once, for so the tests run."""
    command = [sys.executable, "-c", "from tests.support.processor_time import loop; print(loop())"]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return sum(float(each.communicate()[0]) for each in loops) / len(loops)


def loop() -> float:
    """The reference loop: integers, a table, a little text. Its processor time, in seconds."""
    begun = time.process_time()
    table: Counter[int] = Counter()
    text = ""
    for number in range(_ROUNDS):
        table[number * 2_654_435_761 % 1_009] += number
        if number % 64 == 0:
            text = f"{text[-40:]} {sorted(table)[:8]}"
    return time.process_time() - begun


def is_watched() -> bool:
    """Whether this process belongs to a run that collects what its parts take."""
    return _FILE in os.environ


def record(tier: str, seconds: float, tested: str = "") -> None:
    """Add to what this tier took, and to what was taken while this file of tests ran, where a run collects
    it; from any of its processes."""
    if path := os.environ.get(_FILE):
        with open(path, "a") as file:
            file.write(json.dumps([tier, tested, seconds]) + "\n")


@dataclass(frozen=True, slots=True)
class Kept:
    """A file on this machine with the units by role of the last run of each name, for the next one of that
    name to print beside its own."""

    file: Path
    name: str

    @classmethod
    def of(cls, name: str) -> "Kept | None":
        """For the run with this name, in the file that BURSAR_UNITS names; None without it."""
        path = os.environ.get(_UNITS)
        return cls(Path(path), name) if path else None

    def replace(self, units: Units) -> Units:
        """What the last run of this name took; from now on ``units``."""
        runs: dict[str, Units] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.file.write_text(json.dumps(runs | {self.name: units}))
        return runs.get(self.name, {})


def watched(run: Callable[[], int], unit_s: float, kept: Kept | None = None) -> int:
    """Call this in a process of its own, and print afterwards what it and all that it started has taken.
    Returns its exit code.

    The kernel adds a process's time to that of the process which waits for it. So this one also waits for
    those that outlive their parents.
    """
    with tempfile.NamedTemporaryFile(prefix="bursar-processor-time-") as records:
        os.environ[_FILE] = records.name
        adopt_orphans()
        before = _waited_for_s()
        child = os.fork()
        if not child:
            _leave_with(run)
        kinds = Kinds()
        kinds.start()
        code = _outlived_by(child)
        total_s = _waited_for_s() - before
        tiers, files = _sums(Path(records.name))
        roles = by_role(tiers, files, total_s, unit_s)
        former = kept.replace(roles) if kept and not code else {}
        lines = [*by_tier(tiers, total_s, unit_s), *beside(roles, former), *dearest(files)]
        print(*lines, *kinds.report(total_s), sep="\n", flush=True)
    return code


def by_tier(tiers: Mapping[str, float], total_s: float, unit_s: float) -> list[str]:
    """The lines that tell what the tiers took of ``total_s``."""
    rest_s = total_s - sum(seconds for name, seconds in tiers.items() if name != REST)
    rows = [*sorted((name, seconds) for name, seconds in tiers.items() if name != REST), (REST, rest_s)]
    all_s = total_s - tiers.get(BUILD, 0.0)
    return [
        f"== seconds of processors, and units; the reference loop, the unit, took {unit_s:.2f}",
        *(f"{seconds:8.0f} {seconds / unit_s:6.0f}  {name}" for name, seconds in rows),
        f"{all_s:8.0f} {all_s / unit_s:6.0f}  all but the build",
    ]


def by_role(
    tiers: Mapping[str, float], files: Mapping[str, float], total_s: float, unit_s: float
) -> dict[str, float]:
    """What the tests of each role took, in units, and what was no test's."""
    taken: defaultdict[str, float] = defaultdict(float)
    for file, seconds in files.items():
        taken["/".join(file.split("/")[:2])] += seconds / unit_s
    taken[REST] = (total_s - sum(files.values()) - tiers.get(BUILD, 0.0)) / unit_s
    return dict(sorted(taken.items()))


def beside(units: Units, before: Units) -> list[str]:
    """The lines that tell units by role, beside those of the run before, where they are known."""
    head = "== units by role" + (", and in the run before" if before else "")
    rows = [(name, taken, f"{before[name]:8.0f}" if name in before else "") for name, taken in units.items()]
    return [head, *(f"{taken:8.0f}{then}  {name}" for name, taken, then in rows)]


def dearest(files: Mapping[str, float]) -> list[str]:
    """The lines that name the files of tests that took most, with their seconds."""
    rows = sorted(files.items(), key=lambda row: -row[1])[:_COSTLIEST]
    return ["== the dearest files", *(f"{seconds:8.0f} {file}" for file, seconds in rows)] if rows else []


class Kinds(threading.Thread):
    """The processor time of the processes below this one by their kind, as a look every two seconds shows it.
    What a process takes after the last look, and all of a shorter one, is of no kind."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._taken_s: dict[Child, tuple[str, float]] = {}

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """See who runs, and what each has taken."""
        seen = running()
        for pid in family(os.getpid(), seen)[1:]:
            taken_s = sum(map(int, seen[pid][11:13])) / _TICKS_A_SECOND
            child, command = (pid, int(seen[pid][19])), _command(pid)
            before, _ = self._taken_s.get(child, ("ended", 0.0))
            self._taken_s[child] = kind_of(command) if command else before, taken_s

    def report(self, total_s: float) -> list[str]:
        """The lines that tell what the kinds took of ``total_s``, from one second on."""
        sums: defaultdict[str, float] = defaultdict(float)
        for kind, seconds in dict(self._taken_s).values():
            sums[kind] += seconds
        sums["not seen"] = total_s - sum(sums.values())
        rows = sorted(sums.items(), key=lambda row: -row[1])
        return [
            "== by kind of process",
            *(f"{seconds:8.0f} {kind}" for kind, seconds in rows if seconds >= 1),
        ]


def kind_of(command: list[str]) -> str:
    """What a process is: the module or script that Python runs, with the verb of a role, else the program."""
    program = Path(command[0].partition(" ")[0]).name
    if not program.startswith("python") or len(command) < 2:
        return program
    rest = command[1:]
    named = rest[rest.index("-m") + 1 :] if "-m" in rest[:-1] else [word for word in rest if word[0:1] != "-"]
    if "-c" in rest[:2] or not named:
        return "worker of tests" if "exec(eval(" in rest[-1] else "python -c"
    module = Path(named[0]).name
    verb = named[1] if len(named) > 1 and named[1].isalpha() else ""
    return f"{module} {verb}".strip()


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def adopt_orphans() -> None:
    """From now on what outlives its parent, at whatever depth below this process, becomes its child."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


Child = tuple[int, int]  # its id, and when it was started


@dataclass(slots=True)
class Meter:
    """The time of this process and of all that it starts, by tier."""

    _spent_s: float = 0.0
    _began: dict[Child, str] = field(default_factory=dict)  # the tier in which a child was first seen
    _charged_s: dict[Child, float] = field(default_factory=dict)

    def read(self, tier: str) -> dict[str, float]:
        """The seconds since the last reading: what serves several tiers, such as a shared control plane, was
        spent by the tier that began it, all else by ``tier``."""
        own_s, children = _tree()
        spent: defaultdict[str, float] = defaultdict(float)
        for child, seconds in children.items():
            spent[self._began.setdefault(child, tier)] += seconds - self._charged_s.get(child, 0.0)
        all_s = own_s + sum(children.values())
        spent[tier] += all_s - self._spent_s - sum(spent.values())
        self._spent_s, self._charged_s = all_s, children
        return dict(spent)


def _tree() -> tuple[float, dict[Child, float]]:
    """The seconds of this process and of those it has waited for; and, of each of its children that still
    runs, the seconds of it and of all below."""
    _wait_for_adopted()
    own, seen = os.getpid(), running()
    children = [pid for pid, fields in seen.items() if int(fields[1]) == own]
    return spent_s([own], seen), {
        (child, int(seen[child][19])): spent_s(family(child, seen), seen) for child in children
    }


def family(pid: int, seen: Mapping[int, list[str]]) -> list[int]:
    """The process and all below it, of those that are `running`."""
    children = [child for child, fields in seen.items() if int(fields[1]) == pid]
    return [pid, *(member for child in children for member in family(child, seen))]


def spent_s(pids: Iterable[int], seen: Mapping[int, list[str]]) -> float:
    """The processor time of these processes, and of the ended children that each has waited for."""
    return sum(sum(map(int, seen[pid][11:15])) for pid in pids) / _TICKS_A_SECOND


def _wait_for_adopted() -> None:
    """Wait for the ended processes whose parent was killed with its process group. What was started by this
    process is the first of a group or belongs to its own; others of it wait for that."""
    for process in Path("/proc").glob("[0-9]*"):
        fields = _status(process)
        is_ended_child = fields[:2] == ["Z", str(os.getpid())]
        if is_ended_child and fields[2] not in (process.name, str(os.getpgrp())):
            os.waitpid(int(process.name), 0)


def running() -> dict[int, list[str]]:
    """The `_status` of each process by its ID."""
    seen = {int(process.name): _status(process) for process in Path("/proc").glob("[0-9]*")}
    return {pid: fields for pid, fields in seen.items() if fields}


def _status(process: Path) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, process group; 11 to 14 are the ticks in
    user and system mode, and of the ended children (proc_pid_stat(5)). None if it has just ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _leave_with(run: Callable[[], int]) -> None:
    """End this process with what ``run`` returns. It never returns."""
    code = 1
    try:
        code = run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _outlived_by(child: int) -> int:
    """Wait for the end of ``child`` and of all that others leave; its exit code. Ctrl-C is for it alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    while True:
        pid, status = os.wait()
        if pid == child:
            _wait_for_the_killed()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _wait_for_the_killed() -> None:
    """What was killed at the end is adopted as soon as it has ended: a moment later, on a busy machine."""
    until = time.monotonic() + _ENDING_S
    try:
        while time.monotonic() < until:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)
    except ChildProcessError:
        return


def _waited_for_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _sums(records: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The seconds of each tier, and of each file of tests."""
    tiers: defaultdict[str, float] = defaultdict(float)
    files: defaultdict[str, float] = defaultdict(float)
    for line in records.read_text().splitlines():
        tier, tested, seconds = json.loads(line)
        tiers[tier] += seconds
        if tested:
            files[tested] += seconds
    return tiers, files
