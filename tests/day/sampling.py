"""What Bursar's processes and their database hold, again and again."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from deploy.local.limits import LONGEST_S
from tests.day.judge import Record

# Rows that are there while something is under way, and none once all pods are gone.
PASSING = {
    "sessions": "SELECT count(*) FROM sessions WHERE settled_ms IS NULL",
    "waiting": "SELECT count(*) FROM waiting",
    "held_pods": "SELECT count(*) FROM held_pods",
    "declared_pods": "SELECT count(*) FROM declared_pods",
}


@dataclass(frozen=True)
class Held:
    """What a process has: MiB of resident memory, threads, open files."""

    pid: int
    mib: float
    threads: int
    files: int


def held_by(pid: int) -> Held:
    """A process as /proc shows it. Raises OSError where it has ended."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    if "VmRSS" not in lines:
        raise ProcessLookupError(pid)  # it has ended, and its parent does not know yet
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Held(pid, int(lines["VmRSS"].split()[0]) / 1024, int(lines["Threads"]), files)


def family(name: str, pid: int) -> Iterator[tuple[str, int]]:
    """A process and all below it, by name: the timekeeper's children have theirs, others their order."""
    yield name, pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for number, child in enumerate(sorted(map(int, children))):
        name_of = Path(f"/proc/{child}/comm").read_text().strip()
        part = name_of if name_of in ("settle", "workers") and name == "timekeeper" else str(number)
        yield from family(f"{name}/{part}", child)


def count_rows(url: str, queries: Mapping[str, str]) -> dict[str, int]:
    """The answers of counting queries."""
    with psycopg.connect(url.replace("+psycopg", ""), connect_timeout=int(LONGEST_S)) as connection:
        return {name: connection.execute(query).fetchone()[0] for name, query in queries.items()}  # type: ignore[index]


@dataclass
class Sampler:
    """Looks every ``each_s`` seconds at the ``roles``, a function that gives their process IDs by name; calls
    ``also`` beside it."""

    record: Record
    roles: Callable[[], Mapping[str, int]]
    now: Callable[[], float]
    each_s: float
    also: Callable[[], None] = lambda: None
    errors: list[str] = field(default_factory=list)

    def look(self) -> None:
        """One sample of each process; one that is just being replaced is passed over."""
        for role, pid in self.roles().items():
            with suppress(OSError):
                for name, each in family(role, pid):
                    held = held_by(each)
                    at = self.now()
                    self.record.sizes.setdefault(name, []).append((at, held.mib))
                    self.record.files.setdefault(name, []).append((at, held.files))
                    self.record.threads.setdefault(name, []).append((at, held.threads))
        with suppress(OSError):
            self.also()

    @contextmanager
    def looking(self) -> Iterator["Sampler"]:
        """In a thread, until exit."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.is_set():
                begun = time.monotonic()
                try:
                    self.look()
                except Exception as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                ended.wait(max(0.1, self.each_s - (time.monotonic() - begun)))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join(timeout=LONGEST_S)
