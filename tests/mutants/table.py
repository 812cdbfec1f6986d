"""The committed table: of each mutant the digest of its function, and up to three tests that notice it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SURVIVES = "survives"
UNPASSED = "is passed by no test that runs here"
GUARDED = (  # where two tests must notice each mutant
    "timekeeper/accounts/",
    "timekeeper/store/fencing.py",
    "timekeeper/core/ledger/",
    "timekeeper/core/admission/",
    "webhook/admission/",
)

TABLE = "tests/mutants/mutants.txt"


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen of a mutant; no test: it survives, or ``unpassed``."""

    digest: str
    killers: tuple[str, ...]
    unpassed: bool = False

    def __str__(self) -> str:
        return " ".join(self.killers) or (UNPASSED if self.unpassed else SURVIVES)


Table = dict[str, Row]


def read(path: Path) -> Table:
    """The table in this file; empty where there is none."""
    table = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        name, digest, seen = line.split("\t")
        killers = () if seen in (SURVIVES, UNPASSED) else tuple(seen.split(" "))
        table[name] = Row(digest, killers, seen == UNPASSED)
    return table


def write(path: Path, table: Mapping[str, Row]) -> None:
    """A line for each mutant, in order."""
    path.write_text("".join(f"{name}\t{row.digest}\t{row}\n" for name, row in sorted(table.items())))


def idle(table: Mapping[str, Row]) -> set[str]:
    """The tests of the table that are not alone, nor one of the two that must be, in noticing any mutant."""
    alone = {test for name, row in table.items() if len(row.killers) <= needed(name) for test in row.killers}
    return {test for row in table.values() for test in row.killers} - alone


def needed(mutant: str) -> int:
    """How many tests must notice it."""
    return 2 if mutant.startswith(GUARDED) else 1


def in_doubt(table: Mapping[str, Row], leaves: Callable[[str], bool]) -> set[str]:
    """The mutants that leaving tests notice and the others of the table notice too few times."""
    return {
        name
        for name, row in table.items()
        if any(map(leaves, row.killers)) and sum(not leaves(test) for test in row.killers) < needed(name)
    }


def summary(table: Mapping[str, Row]) -> str:
    """One line."""
    seen = Counter(min(len(row.killers), 3) for row in table.values() if not row.unpassed)
    unpassed = sum(row.unpassed for row in table.values())
    return (
        f"{len(table)} mutants: {seen[3]} noticed by three files of tests or more, {seen[2]} by two,"
        f" {seen[1]} by one, {seen[0]} survive, {unpassed} {UNPASSED}"
    )
