"""What a sidecar costs its pod: memory after an hour's worth of beats, CPU a beat, and how soon it beats.

``python -m tests.bench.sidecar [--beats N] [--interval MS] [--json FILE]``. A real sidecar beats N times over
verified TLS, faster than it would, against a timekeeper that is played (in this process): without a card,
with a card but no driver, and with the C stand-in for NVML loaded. Python finds nothing but the binding and
what a sidecar imports of our code. ``rss_mib`` and ``pss_mib`` at the end; ``cpu_ms``:
of a beat, between the tenth and the last; ``core``: that, in percent of a core, at the default interval of
ten seconds; ``first_s``: from the start of the process to its first beat. ``[{way, beats, rss_mib, pss_mib,
cpu_ms, core, first_s}]``.
"""

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from deploy.local.identity import new_authority
from tests.bench.command import arguments, write
from tests.nvml.build import fake_nvml
from tests.packaging.checkout import OF_A_SIDECAR, copy
from tests.sidecar.worlds import Arrival, Timekeeper, fine, variables
from tests.support.shape import installed, shape_of

Json = dict[str, Any]

CARD = "GPU-8f3c2a51-0000-4000-8000-000000000001"
DEFAULT_INTERVAL_MS = 10_000
SETTLED = 10  # beats until all that is loaded late has been
WITHIN_S = 600.0


def environments(folder: Path) -> dict[str, dict[str, str]]:
    """What each way adds to the sidecar's variables."""
    card = {"NVIDIA_VISIBLE_DEVICES": CARD}
    return {
        "no card": {},
        "a card, no driver": card,
        "NVML loaded": card | fake_nvml(folder, f"card {CARD} 40 2048 16384\n"),
    }


def measured(way: str, more: dict[str, str], beats: int, interval_ms: int, folder: Path) -> Json:
    """One way."""
    folder.mkdir()
    authority = new_authority("timekeeper")

    def answer(arrival: Arrival) -> tuple[int, Any] | str:
        return fine(arrival, interval_ms=interval_ms)

    timekeeper = Timekeeper(folder, authority)
    timekeeper.answer = answer
    timekeeper.start()
    began_s = time.monotonic()
    spool = {"BURSAR_SPOOL": f"{folder}/bursar-spool"}
    with (
        installed(shape_of("sidecar"), folder, folder.parent) as here,
        beating(folder, variables(folder, timekeeper.url, authority, **spool, **more), here.prefix) as pid,
    ):
        timekeeper.wait(lambda: timekeeper.arrivals, WITHIN_S)
        first_s = time.monotonic() - began_s
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= SETTLED, WITHIN_S)
        before_s = cpu_s(pid)
        timekeeper.wait(lambda: len(timekeeper.arrivals) >= beats, WITHIN_S)
        count = len(timekeeper.arrivals)
        cpu_ms = 1000 * (cpu_s(pid) - before_s) / (count - SETTLED)
        memory = memory_mib(pid)
    timekeeper.stop()
    return {
        "way": way,
        "beats": count,
        "rss_mib": memory["Rss"],
        "pss_mib": memory["Pss"],
        "cpu_ms": round(cpu_ms, 2),
        "core": round(100 * cpu_ms / DEFAULT_INTERVAL_MS, 4),
        "first_s": round(first_s, 2),
    }


@contextmanager
def beating(folder: Path, environ: dict[str, str], prefix: list[str]) -> Iterator[int]:
    """The process of a sidecar in an installation as bare as can be."""
    library = folder / "library"
    library.mkdir()
    shutil.copy(pynvml.__file__, library)
    copy(library, OF_A_SIDECAR)
    compileall.compile_dir(library, quiet=1)
    bare = {"PYTHONPATH": str(library), "PATH": os.environ["PATH"]}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-m", "sidecar"], cwd=folder, stderr=log, env=bare | environ
        )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def cpu_s(pid: int) -> float:
    """The CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """What a process holds, by the kernel's words for it (Rss, Pss)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    words = (line.split() for line in lines)
    return {name.rstrip(":"): round(int(kib) / 1024, 1) for name, kib, _ in words}


def main() -> None:
    """Measure, print, and write what was asked for."""
    given = arguments(__doc__, beats=(360, "an hour's"), interval=(50, "between two beats, ms"))
    with tempfile.TemporaryDirectory() as temporary:
        ways = environments(Path(temporary))
        found = [
            measured(way, more, given.beats, given.interval, Path(temporary) / f"way-{at}")
            for at, (way, more) in enumerate(ways.items())
        ]
    columns = list(found[0])
    print("".join(name.rjust(19) for name in columns))
    for one in found:
        print("".join(str(one[name]).rjust(19) for name in columns))
    write(given.json, found)


if __name__ == "__main__":
    main()
