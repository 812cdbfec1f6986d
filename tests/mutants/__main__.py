"""``python -m tests.mutants``: the next slice of the mutants of the table, of at most ``--minutes``, 20 by
default; ``--in PATH``: of those of these files.

``--base REF``: mutants of the functions that differ from this commit; exit code 1 where one survives that is
no survivor of the table, and ``--accept`` adds it there, for a change that no test can notice. What the
minutes do not reach is listed, and fails nothing. Rows of functions that are gone fail both, and ``--prune``
removes them.
``--fresh N --in PATH``: N mutants of these files that chance draws. ``--alone``: the tests of the table that
notice nothing alone. ``--license TEST...``: whether these tests, or files of tests, may go; exit code 1 where
a mutant would be noticed too few times.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

import pytest

from tests.mutants import patches
from tests.mutants.imports import Importers
from tests.mutants.operators import Mutant, functions, mutants, shown
from tests.mutants.passes import FOLDER, LONGEST_S, Passes, family, file_of, parsed
from tests.mutants.table import TABLE, Row, Table, idle, in_doubt, needed, read, summary, write
from tests.mutants.zygote import ENOUGH, OutOfTimeError, Zygote
from tests.support.processor_time import reference_s

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
_MINUTES = 20
_SHARES = ((0.35, 0.6), (0.8, 1.0))  # of the time, when recording and trying end, and then again
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
    return weighted(mutant) < RATE


def weighted(mutant: Mutant) -> float:
    """A mutant's rank, which is lower for operators that find more and in DEEP."""
    return mutant.rank / SHARE.get(mutant.operator, 1) / (2 if mutant.file.startswith(DEEP) else 1)


def of_changed(source: Source, base: str) -> list[Mutant]:
    """The mutants of functions that are not in that commit as they are now: first one of each function."""
    former = {
        (function.name, function.digest)
        for text in sources(base).values()
        for function in functions(ast.parse(text))
    }
    files = _git("diff", "--name-only", base, "--", *(f"{package}/*.py" for package in PRODUCT)).split()
    new = _git(
        "ls-files", "--others", "--exclude-standard", *(f"{package}/*.py" for package in PRODUCT)
    ).split()
    all_of_them = [
        mutant for file in [*files, *new] if file in source for mutant in mutants(file, source[file])
    ]
    changed = [mutant for mutant in all_of_them if (mutant.function, mutant.digest) not in former]
    of_function: Counter[tuple[str, str]] = Counter()
    places: dict[str, tuple[int, float]] = {}
    for mutant in sorted(changed, key=weighted):
        of_function[mutant.file, mutant.function] += 1
        places[mutant.name] = of_function[mutant.file, mutant.function], weighted(mutant)
    return sorted(changed, key=lambda mutant: places[mutant.name])


class Slice:
    """Runs mutants of these files until its time is over.

    Which lines a test passes is recorded first, the nearest files of tests before others; then mutants are
    tried, and that twice. A row is kept where enough tests have noticed the mutant, or where all files of
    tests that import its file are recorded.
    """

    def __init__(
        self, source: Source, files: Iterable[str], choose: Choose, options: argparse.Namespace, rows: Path
    ) -> None:
        self._source, self._choose, self._options, self._rows = source, choose, options, rows
        self._table = read(ROOT / TABLE)
        folders = tuple(f"tests/{role}/{tier}/" for tier, roles in TESTED.items() for role in roles)
        importers = Importers(ROOT, _git("ls-files", "-co", "--exclude-standard", "*.py").split())
        self._near = {
            file: {
                test: distance
                for test, distance in importers.distances(file).items()
                if test.startswith(folders) and Path(test).name.startswith("test_")
            }
            for file in files
        }
        self._digests: defaultdict[str, set[str]] = defaultdict(set)
        for file in self._near if options.base else ():
            for function in parsed(ROOT / file):
                self._digests[f"{file}:{function.name}"].add(function.digest)

    @cached_property
    def files(self) -> list[str]:
        """Those of tests that can notice one of the mutants: the nearest first, and which notice most."""
        nearest: dict[str, int] = {}
        for distances in self._near.values():
            nearest |= {
                test: min(distance, nearest.get(test, distance)) for test, distance in distances.items()
            }
        killers = Counter(file_of(test) for row in self._table.values() for test in row.killers)
        return sorted(nearest, key=lambda file: (nearest[file], -killers[file], file))

    def run(self) -> Table:
        """What is new."""
        options = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-m", "not soak"]
        pairs = [zip((self._record, self._try), shares, strict=True) for shares in _SHARES]
        works = [partial(work, share) for pair in pairs for work, share in pair]
        zygote = Zygote(
            ROOT,
            tuple(self._source),
            works,
            self._options.workers,
            unit_s=reference_s(),
            until=_until(self._options),
        )
        if self.files and pytest.main([*options, *self.files], plugins=[zygote]):
            sys.exit("the tests could not be collected")
        return results(self._rows)

    def _record(self, share: float, zygote: Zygote, worker: int) -> None:
        for file in self.left(zygote.passes)[worker :: self._options.workers]:
            if time.monotonic() < _until(self._options, share):
                zygote.record(file)

    def _try(self, share: float, zygote: Zygote, worker: int) -> None:
        left, leaving = set(self.left(zygote.passes)), self._options.license
        if leaving and left:
            return
        tried = {(name, row.digest) for name, row in results(self._rows).items()}
        for mutant in self._choose(zygote.passes)[worker :: self._options.workers]:
            if (mutant.name, mutant.digest) in tried or time.monotonic() > _until(self._options, share):
                continue
            try:
                row = judged(zygote, mutant, lambda test: not leaves(test, leaving))
                if leaving and not judged(zygote, mutant, lambda test: leaves(test, leaving), 1).killers:
                    continue  # it loses nothing
            except OutOfTimeError:
                return
            least = 1 if self._options.base else needed(mutant.name)
            if len(row.killers) >= least or not left & self._near[mutant.file].keys():
                keep(self._rows, mutant.name, row)

    def left(self, passes: Passes) -> list[str]:
        """The files of tests that are not recorded; with a base, those too whose functions differ since."""
        return [file for file in self.files if not passes.is_recorded(file, self._digests)]


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

    within = (mutant for name, mutant in sampled.items() if is_left(name) and name.startswith(options.within))
    left = sorted(within, key=weighted)
    table |= Slice(
        source, dict.fromkeys(mutant.file for mutant in left), lambda _: left, options, RESULTS
    ).run()
    for name in filter(is_left, patches.all_patches()):
        if time.monotonic() < _until(options):
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


def lost(table: Table, source: Source) -> list[str]:
    """The rows of the table whose function, or whose mutant written by hand, is there no more."""
    files = {name.partition(":")[0] for name in table} & source.keys()
    there = {f"{file}:{function.name}" for file in files for function in functions(ast.parse(source[file]))}
    there |= patches.all_patches().keys()
    return [
        name for name in sorted(table) if name not in there and ":".join(name.split(":")[:2]) not in there
    ]


def judge(options: argparse.Namespace, source: Source, files: Iterable[str], choose: Choose) -> int:
    """Run these mutants, and tell of those that are noticed too few times. The exit code: 1 where the table
    did not know of one."""
    known = read(ROOT / TABLE)
    seen = ROOT / FOLDER / f"judged-{os.getpid()}.jsonl"
    tried = Slice(source, files, choose, options, seen)
    rows = tried.run()
    seen.unlink(missing_ok=True)
    passes = Passes(ROOT)
    if options.license and tried.left(passes):
        print("of some files of tests it is not known which lines they pass: call it once more")
        return 1
    least = needed if options.license else (lambda _: 1)
    poor = {name: row for name, row in rows.items() if len(row.killers) < least(name)}
    chosen = {mutant.name: mutant for mutant in choose(passes)}
    for name, row in poor.items():
        mutant = chosen[name]
        print(
            f"{mutant.file}:{mutant.first + mutant.line}: {name}: {row}",
            *shown(mutant, source[mutant.file]),
            sep="\n    ",
        )
    left = Counter(f"{mutant.file}:{mutant.function}" for name, mutant in chosen.items() if name not in rows)
    if left and not options.license:
        print(f"not reached in {options.minutes:g} minutes: {left.total()} mutants", *left, sep="\n    ")
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


def _until(options: argparse.Namespace, share: float = 1.0) -> float:
    """When this share of its minutes is over, by the monotonic clock."""
    return float(options.began + options.minutes * 60 * share)


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
    parser.add_argument("--minutes", type=float, default=_MINUTES)
    parser.add_argument("--prune", action="store_true")
    options = parser.parse_args()
    options.began = time.monotonic()
    table = read(ROOT / TABLE)
    if options.alone:
        print(*sorted(idle(table)), sep="\n")
        return 0
    os.nice(10)
    os.environ["BURSAR_PROFILE"] = "quick"
    source = sources()
    gone = lost(table, source)
    if options.prune:
        write(ROOT / TABLE, {name: row for name, row in table.items() if name not in gone})
        return 0
    if options.license or options.fresh:
        print(f"--seed {options.seed}")
        options.fresh = options.fresh or _FRESH
        wanted = [] if options.license else drawn(all_mutants(source, options.within), options)
        choose = may_go(options, source) if options.license else lambda _: wanted
        return judge(
            options, source, source if options.license else {mutant.file for mutant in wanted}, choose
        )
    if gone:
        print("functions are gone; python -m tests.mutants --prune removes their rows:", *gone, sep="\n    ")
        return 1
    if options.base:
        changed = of_changed(source, options.base)
        if not changed:
            print(f"no function of the product differs from {options.base}")
            return 0
        return judge(options, source, {mutant.file for mutant in changed}, lambda _: changed)
    return next_slice(options, source)


if __name__ == "__main__":
    sys.exit(main())
