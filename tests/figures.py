"""`python -m tests.figures [CHECKOUT]`: the size and shape of the house, as a table.

It reads what git tracks in that checkout (this one by default), so that two commits compare:
`git worktree add DIR REF && python -m tests.figures DIR`.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from statistics import median

ROLES = ("webhook", "timekeeper", "scheduler_ext", "sidecar")
PRODUCT = (*ROLES, "deploy", "migrations")
SMALL = 40  # lines; a module below it may be part of a neighbour
SHORT = 70  # lines; so may a file below it that one file imports


def tracked(checkout: Path) -> list[PurePath]:
    """The regular files that git tracks there, by their paths in it."""
    command = ["git", "-C", str(checkout), "ls-files", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [PurePath(name) for name in names if name and (checkout / name).is_file()]


def statements(text: str) -> int:
    """How many statements `ast` finds in a module; a docstring is one."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))


def dotted(path: PurePath) -> str:
    """The name by which a file of a package is imported."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(module: ast.Module, known: Iterable[str]) -> set[str]:
    """Which of the known modules this one imports, as modules or by names from them. The project has no
    relative imports."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & set(known)


def imported_once(texts: Mapping[PurePath, str]) -> list[PurePath]:
    """The modules of the roles that exactly one file of the roles imports."""
    modules = {dotted(path): path for path in texts if path.name != "__init__.py"}
    importers = Counter(
        name
        for path, text in texts.items()
        for name in imported(ast.parse(text), modules)
        if name != dotted(path)
    )
    return [modules[name] for name, count in importers.items() if count == 1]


def share_of_imports(texts: Iterable[str]) -> float:
    """Which part of all lines are import statements, 0 to 1."""
    lines = imports = 0
    for text in texts:
        lines += len(text.splitlines())
        imports += sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
    return imports / lines


def contracts(checkout: Path) -> tuple[int, int]:
    """How many import contracts the project has, and their lines, in setup.cfg or pyproject.toml."""
    for name, begin, contract in (
        ("setup.cfg", "[importlinter]", "[importlinter:"),
        ("pyproject.toml", "[tool.importlinter]", "[[tool.importlinter."),
    ):
        text = (checkout / name).read_text()
        if begin in text:
            section = text[text.index(begin) :]
            return section.count(contract), len(section.splitlines())
    return 0, 0


def rows(checkout: Path) -> list[tuple[str, str]]:
    """What is counted, and the count."""
    paths = tracked(checkout)
    python = {path: (checkout / path).read_text() for path in paths if path.suffix == ".py"}
    roles = {path: text for path, text in python.items() if path.parts[0] in ROLES}
    pages = [path for path in paths if path.suffix == ".md"]

    def of_role(role: str) -> tuple[str, str]:
        mine = {path: text for path, text in roles.items() if path.parts[0] == role}
        sizes = [len(text.splitlines()) for path, text in mine.items() if path.name != "__init__.py"]
        packages = len({path.parent for path in mine})
        small = sum(size < SMALL for size in sizes)
        figures = f"{len(sizes)} / {packages}, median {median(sizes):.0f} lines, {small} under {SMALL}"
        return f"{role}: modules / packages", figures

    def counted(folders: Iterable[str]) -> str:
        return f"{sum(statements(text) for path, text in python.items() if path.parts[0] in folders):,}"

    def words(chosen: Iterable[PurePath]) -> str:
        return f"{sum(len((checkout / path).read_text().split()) for path in chosen):,}"

    once = imported_once(roles)
    short = sum(len(roles[path].splitlines()) < SHORT for path in once)
    modules = sum(path.name != "__init__.py" for path in roles)
    count, lines = contracts(checkout)
    docs = [path for path in pages if path.parts[0] == "docs" or str(path) == "README.md"]
    changelog = [path for path in pages if path.name == "CHANGELOG.md"]
    return [
        *map(of_role, ROLES),
        ("modules imported by one module", f"{len(once)} of {modules}, {short} under {SHORT} lines"),
        ("import lines, share of all", f"{share_of_imports(roles.values()):.1%}"),
        ("statements of the product", counted(PRODUCT)),
        ("statements of the tests", counted(["tests"])),
        ("import contracts", f"{count}, {lines} lines"),
        ("words of the docs", f"{words(docs)}, {len(docs)} pages"),
        ("words of the changelog", words(changelog)),
    ]


def main() -> None:
    """Prints the table."""
    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    for name, figure in rows(checkout):
        print(f"{name:34} {figure}")


if __name__ == "__main__":
    main()
