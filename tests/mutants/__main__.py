"""``python -m tests.mutants``: the next slice, of at most 20 minutes, of the mutants of the table.

``--base REF``: mutants of the functions that differ from this commit; exit code 1 where one survives that is
no survivor of the table, and ``--accept`` adds it there, for a change that no test can notice.
``--fresh N --in PATH``: N mutants of these files that chance draws. ``--alone``: the tests of the table that
notice nothing alone. ``--license TEST...``: whether these tests, or files of tests, may go; exit code 1 where
a mutant would be noticed too few times.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import patches
from tests.mutants.operators import Mutant, mutants, shown
from tests.mutants.passes import FOLDER, LONGEST_S, Passes, family, file_of
from tests.mutants.table import TABLE, Row, Table, idle, in_doubt, needed, read, summary, write
from tests.mutants.zygote import ENOUGH, Zygote

ROOT = Path(__file__).parent.parent.parent
PRODUCT = ("timekeeper", "webhook", "scheduler_ext", "sidecar")
# Roles whose tests of these tiers have the product in their own process.
TESTED: dict[str, tuple[str, ...]] = {
    "unit": ("core", "runtime", "webhook", "scheduler_ext", "sidecar", "node", "timekeeper", "cli", "story"),
    "ledger": ("timekeeper",),
    "process": ("scheduler_ext",),
}
DEEP: tuple[str, ...] = (
    "timekeeper/core/",
    "timekeeper/accounts/",
    "timekeeper/store/",
    "timekeeper/settler/",
)
DEEP += ("webhook/admission/", "scheduler_ext/fit/")
SHARE = {"swap": 0.25, "drop": 0.7, "boundary": 2.5, "extreme": 2.5}  # of others: 1
RATE = 0.026  # of all mutants; twice that in DEEP
RESULTS = ROOT / FOLDER / "results.jsonl"
_SLICE_S = 20 * 60
_MOST_CHANGED = 400
_FRESH = 10

Source = dict[str, str]  # texts by file
Choose = Callable[[Passes], Sequence[Mutant]]  # of what the tests pass


def sources(base: str = "") -> Source:
    """The product's files of Python, as they are or as that commit has them."""
    patterns = [f"{package}/*.py" for package in PRODUCT]
    if not base:
        listed = _git("ls-files", *patterns).split()
        return {file: (ROOT / file).read_text() for file in listed if (ROOT / file).is_file()}
    changed = _git("diff", "--name-only", "--diff-filter=M", base, "--", *patterns).split()
    return {file: _git("show", f"{base}:{file}") for file in changed}


def is_sampled(mutant: Mutant) -> bool:
    """Whether it belongs to the table: by its name, its operator and its room alone."""
    return weighted(mutant) < RATE * (2 if mutant.file.startswith(DEEP) else 1)


def weighted(mutant: Mutant) -> float:
    """A mutant's rank, which is lower for operators that find more."""
    return mutant.rank / SHARE.get(mutant.operator, 1)


def of_changed(source: Source, base: str) -> list[Mutant]:
    """The mutants of functions that are not in that commit as they are now."""
    former = {
        (mutant.function, mutant.digest)
        for file, text in sources(base).items()
        for mutant in mutants(file, text)
    }
    files = _git("diff", "--name-only", base, "--", *(f"{package}/*.py" for package in PRODUCT)).split()
    new = _git(
        "ls-files", "--others", "--exclude-standard", *(f"{package}/*.py" for package in PRODUCT)
    ).split()
    all_of_them = [
        mutant for file in [*files, *new] if file in source for mutant in mutants(file, source[file])
    ]
    changed = [mutant for mutant in all_of_them if (mutant.function, mutant.digest) not in former]
    return sorted(changed, key=weighted)[:_MOST_CHANGED]


class Slice:
    """Runs mutants until its time is over."""

    def __init__(self, source: Source, choose: Choose, options: argparse.Namespace, rows: Path) -> None:
        self._source, self._choose, self._options, self._rows = source, choose, options, rows
        self._until = time.monotonic() + options.seconds
        self.is_recorded = False  # which lines each test passes; known after a run

    def run(self) -> Table:
        """What is new. First what the tests pass is recorded, where they have changed."""
        folders = [f"tests/{role}/{tier}" for tier, roles in TESTED.items() for role in roles]
        options = [
            "-q",
            "--no-header",
            "--no-summary",
            "-p",
            "no:cacheprovider",
            "-m",
            "not soak",
        ]
        zygote = Zygote(ROOT, tuple(self._source), [self._record, self._try], self._options.workers)
        if pytest.main([*options, *folders], plugins=[zygote]):
            sys.exit("the tests could not be collected")
        left = self._left(zygote)
        self.is_recorded = not left
        if left:
            print(f"no mutant was tried: of {len(left)} files of tests it is not known which lines they pass")
        return results(self._rows)

    def _record(self, zygote: Zygote, worker: int) -> None:
        for file in self._left(zygote)[worker :: self._options.workers]:
            if time.monotonic() < self._until:
                zygote.record(file)

    def _try(self, zygote: Zygote, worker: int) -> None:
        if self._left(zygote):
            return
        leaving = self._options.license
        for mutant in self._choose(zygote.passes)[worker :: self._options.workers]:
            if time.monotonic() < self._until:
                row = judged(zygote, mutant, lambda test: not leaves(test, leaving))
                if leaving and not judged(zygote, mutant, lambda test: leaves(test, leaving), 1).killers:
                    continue  # it loses nothing
                keep(self._rows, mutant.name, row)

    def _left(self, zygote: Zygote) -> list[str]:
        return [
            file for file in dict.fromkeys(map(file_of, zygote.items)) if not zygote.passes.is_recorded(file)
        ]


def leaves(test: str, leaving: Iterable[str]) -> bool:
    """Whether a test is one of these, or in one of these files."""
    return family(test) in leaving or file_of(test) in leaving


def judged(zygote: Zygote, mutant: Mutant, runs: Callable[[str], bool], enough: int = ENOUGH) -> Row:
    """Run those of the tests that pass the mutant's line. More of them while none has noticed."""
    passing = set(filter(runs, zygote.passes.of_line(mutant)))
    tests = zygote.passes.in_order(passing)
    killers = zygote.killers(mutant, tests, enough)
    if not killers:
        more = zygote.passes.in_order(passing - set(tests), LONGEST_S * 2)
        killers = zygote.killers(mutant, more, enough)
    return Row(mutant.digest, tuple(sorted(map(family, killers))), not passing)


def keep(rows: Path, name: str, row: Row) -> None:
    """Write a row at once; it stays whatever happens next."""
    with rows.open("a") as file:
        file.write(json.dumps([name, row.digest, row.killers, row.unpassed]) + "\n")


def results(rows: Path) -> Table:
    """The rows that were written there, also by an interrupted slice."""
    lines = map(json.loads, rows.read_text().splitlines() if rows.exists() else [])
    return {name: Row(digest, tuple(killers), unpassed) for name, digest, killers, unpassed in lines}


def all_mutants(source: Source, within: str = "") -> list[Mutant]:
    """Those of the files that begin so."""
    return [
        mutant for file, text in source.items() if file.startswith(within) for mutant in mutants(file, text)
    ]


def next_slice(options: argparse.Namespace, source: Source) -> int:
    """The next of the table's mutants: new ones, those of changed functions, those whose killers are gone."""
    table = read(ROOT / TABLE) | results(RESULTS)
    sampled = {mutant.name: mutant for mutant in filter(is_sampled, all_mutants(source))}
    digests = {name: mutant.digest for name, mutant in sampled.items()} | patches.digests()
    digests |= accepted(table, source)
    gone = sorted(table.keys() - digests.keys())
    table = {name: row for name, row in table.items() if name in digests}

    def is_left(name: str) -> bool:
        row = table.get(name)
        return row is None or row.digest != digests[name] or not all(map(is_there, row.killers))

    left = sorted(filter(is_left, sampled), key=lambda name: sampled[name].rank)
    until = time.monotonic() + options.seconds
    if left:
        table |= Slice(source, lambda _: [sampled[name] for name in left], options, RESULTS).run()
    for name in filter(is_left, patches.all_patches()):
        if time.monotonic() < until:
            keep(RESULTS, name, Row(digests[name], patches.killers(ROOT, name)))
    table |= results(RESULTS)
    write(ROOT / TABLE, table)
    RESULTS.unlink(missing_ok=True)
    waiting = sum(map(is_left, digests))
    print(*(f"gone: {name}" for name in gone), summary(table), sep="\n")
    print(f"{waiting} are left{'; make mutants goes on with them' if waiting else ''}")
    return 0


def accepted(table: Table, source: Source) -> dict[str, str]:
    """The digests of the survivors that the table has although chance did not draw them."""
    survivors = {name for name, row in table.items() if not row.killers}
    files = {name.partition(":")[0] for name in survivors} & source.keys()
    present = [mutant for file in sorted(files) for mutant in mutants(file, source[file])]
    return {mutant.name: mutant.digest for mutant in present if mutant.name in survivors}


def judge(options: argparse.Namespace, source: Source, choose: Choose) -> int:
    """Run these mutants, and tell of those that are noticed too few times. The exit code: 1 where the table
    did not know of one."""
    known = read(ROOT / TABLE)
    chosen = {mutant.name: mutant for mutant in all_mutants(source)}
    seen = ROOT / FOLDER / f"judged-{os.getpid()}.jsonl"
    tried = Slice(source, choose, options, seen)
    rows = tried.run()
    seen.unlink(missing_ok=True)
    if not tried.is_recorded:
        print("call it once more: it goes on with them")
        return 1
    least = needed if options.license else (lambda _: 1)
    poor = {name: row for name, row in rows.items() if len(row.killers) < least(name)}
    for name, row in poor.items():
        mutant = chosen[name]
        print(
            f"{mutant.file}:{mutant.first + mutant.line}: {name}: {row}",
            *shown(mutant, source[mutant.file]),
            sep="\n    ",
        )
    print(summary(rows))
    if options.accept:
        write(ROOT / TABLE, known | poor)
        return 0
    return int(any(options.license or name not in known or known[name].killers for name in poor))


def may_go(options: argparse.Namespace, source: Source) -> Choose:
    """What a licence is asked of: the mutants for which the table has too few other tests, and fresh ones of
    the lines that the leaving tests pass."""
    table = read(ROOT / TABLE)
    doubted = in_doubt(table, lambda test: leaves(test, options.license))
    everything = all_mutants(source, options.within)

    def choose(passes: Passes) -> list[Mutant]:
        passed = [
            mutant
            for mutant in everything
            if any(leaves(test, options.license) for test in passes.of_line(mutant))
        ]
        return [mutant for mutant in everything if mutant.name in doubted] + drawn(passed, options)

    return choose


def drawn(wanted: Iterable[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """As many as are asked for, none of them of the table."""
    known = read(ROOT / TABLE)
    fresh = [mutant for mutant in wanted if mutant.name not in known]
    return random.Random(options.seed).sample(fresh, min(options.fresh, len(fresh)))


@cache
def is_there(test: str) -> bool:
    """Whether a test of the table is still there."""
    file, _, name = test.partition("::")
    words = (ROOT / file).read_text().replace("(", " ").split() if (ROOT / file).is_file() else []
    return name.partition("::")[0] in words


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--base", default="")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--license", nargs="+", default=[], metavar="TEST")
    parser.add_argument("--fresh", type=int, default=0)
    parser.add_argument("--in", dest="within", default="", metavar="PATH")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=_SLICE_S)
    options = parser.parse_args()
    if options.alone:
        print(*sorted(idle(read(ROOT / TABLE))), sep="\n")
        return 0
    os.nice(10)
    os.environ["BURSAR_PROFILE"] = "quick"
    source = sources()
    if options.license or options.fresh:
        print(f"--seed {options.seed}")
        options.fresh = options.fresh or _FRESH
        wanted = all_mutants(source, options.within)
        return judge(
            options, source, may_go(options, source) if options.license else lambda _: drawn(wanted, options)
        )
    if options.base:
        changed = of_changed(source, options.base)
        if not changed:
            print(f"no function of the product differs from {options.base}")
            return 0
        return judge(options, source, lambda _: changed)
    return next_slice(options, source)


if __name__ == "__main__":
    sys.exit(main())
