"""Which tests pass which lines of the product: what each file of tests has passed when it was last recorded.

A line counts from the beginning of its function, so that a change elsewhere leaves the record true.
"""

import ast
import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.operators import CONSTANTS, Function, Mutant, functions

FOLDER = ".mutants"
SHARED = "*"  # all tests of the file: what a fixture of theirs passes
_TIERS = ("unit", "ledger", "process")
_DEAR_S = 3.0  # of a test with processes or sockets: it is not used
LONGEST_S = 8.0  # of all tests of a mutant; twice that again while none has noticed it
_FIRST = 4  # tests of each file that go before others of the same file


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def family(test: str) -> str:
    """A test with all its cases, as the table names it."""
    return test.partition("[")[0]


def cases_of(test: str) -> str:
    """The parameters of a test, as its id has them."""
    return test.partition("[")[2]


@cache
def parsed(path: Path) -> tuple[Function, ...]:
    """The functions of a file."""
    return tuple(functions(ast.parse(path.read_text())))


class Passes:
    """The records of all files of tests, under FOLDER."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / FOLDER / "passes"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._taken: dict[str, float] = {}
        self._recorded: dict[str, str] = {}  # the digest of each file of tests
        self._functions: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)  # that it passes
        self._passed: defaultdict[str, list[tuple[str, list[int], list[str]]]] = defaultdict(list)
        for record in self._folder.glob("*.json"):
            self._add(json.loads(record.read_text()))

    def _add(self, record: dict[str, Any]) -> None:
        self._recorded[record["file"]] = record["digest"]
        self._taken |= record["taken"]
        names = list(record["taken"])
        for function, digest, lines, tests in record["passed"]:
            self._functions[record["file"]].add((function, digest))
            self._passed[function].append((digest, lines, [names[at] for at in tests]))

    def is_recorded(self, file: str, functions: Mapping[str, Collection[str]]) -> bool:
        """Whether this file of tests was recorded as it is now, and so was what it passes of these functions,
        which have one of these digests now."""
        return self._recorded.get(file) == _digest(self._root / file) and all(
            digest in functions.get(function, (digest,)) for function, digest in self._functions[file]
        )

    def seconds(self, test: str) -> float:
        """What a test takes, as far as known."""
        return self._taken.get(test, 1.0)

    def write(
        self, file: str, taken: Mapping[str, float], lines: Mapping[str, Mapping[int, list[str]]]
    ) -> None:
        """Keep the lines by the contexts that passed them, of the tests of a file that have passed."""
        numbers = {name: at for at, name in enumerate(taken)}
        passed: list[tuple[str, str, list[int], list[int]]] = []
        for path, contexts in lines.items():
            groups: defaultdict[tuple[str, str, tuple[int, ...]], list[int]] = defaultdict(list)
            for function in parsed(self._root / path):
                for line in function.lines:
                    names = numbers if SHARED in contexts.get(line, ()) else contexts.get(line, ())
                    tests = tuple(sorted(numbers[name] for name in names if name in numbers))
                    if tests:
                        key = f"{path}:{function.name}", function.digest, tests
                        groups[key].append(line - function.first)
            passed += [(name, digest, lines, list(tests)) for (name, digest, tests), lines in groups.items()]
        record = {"file": file, "digest": _digest(self._root / file), "taken": taken, "passed": passed}
        target = self._folder / f"{file.replace('/', '.')}.json"
        target.with_suffix(".new").write_text(json.dumps(record))
        target.with_suffix(".new").rename(target)

    def of_line(self, mutant: Mutant) -> set[str]:
        """The tests that pass the line of a mutant; where its function has changed since, any line of it. All
        that pass the module's code for a constant."""
        if mutant.function == CONSTANTS:
            wanted = [name for name in self._passed if name.startswith(f"{mutant.file}:")]
            return {test for name in wanted for _, _, tests in self._passed[name] for test in tests}
        rows = self._passed.get(f"{mutant.file}:{mutant.function}", [])
        return {
            test
            for digest, lines, tests in rows
            if digest != mutant.digest or mutant.line in lines
            for test in tests
        }

    def in_order(self, tests: Iterable[str], longest_s: float = LONGEST_S) -> list[str]:
        """The cheapest of each file first, those with processes or sockets last, and no more than so long."""
        files: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self.seconds(test), test)):
            if "/process/" not in test or self.seconds(test) < _DEAR_S:
                files[file_of(test)].append(test)
        places = {}
        for file, names in files.items():
            tier = Path(file).parent.name
            for at, name in enumerate(names):
                rank = (at > 0) + (at >= _FIRST)
                places[name] = (_TIERS.index(tier) > 1, rank, self.seconds(names[0]), file, at)
        chosen, left_s = [], longest_s
        for name in sorted(places, key=places.__getitem__):
            left_s -= self.seconds(name)
            if left_s > 0:
                chosen.append(name)
        return chosen


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
