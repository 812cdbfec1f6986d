"""``python -m tests.budgets``: what the parts of the repository hold, beside the budgets in `pyproject.toml`
(``[tool.bursar.budgets]``). Exits with 1 if something is above its budget. ``--lower``: lowers each budget to
what is held.

A room is a part of the product. Each of its Python files belongs to exactly one room. Lines include blank
lines and comments. A ratchet counts what docs/CONTRIBUTING.md forbids and former code still does.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRONOUNS = {"each", "found", "it", "one"}
MOST_BY_POSITION = 5
ADVICE = "Who needs more says in the commit which lines leave, and takes them from another budget."

# The folders and files of each room. A file belongs to the room with the longest of those that contain it.
ROOMS: dict[str, tuple[str, ...]] = {
    "timekeeper/core": ("timekeeper/core/",),
    "edge": ("timekeeper/edge/",),
    "wire": ("timekeeper/wire/",),
    "timekeeper/runtime, serving, process, settings, metrics": (
        *("timekeeper/runtime/", "timekeeper/serving/", "timekeeper/process/", "timekeeper/settings.py"),
        *("timekeeper/metrics.py", "timekeeper/log.py", "timekeeper/__init__.py", "timekeeper/__main__.py"),
    ),
    "webhook": ("webhook/",),
    "scheduler_ext": ("scheduler_ext/",),
    "accounts": ("timekeeper/accounts/",),
    "settler": ("timekeeper/settler/",),
    "store and migrations": ("timekeeper/store/", "migrations/"),
    "api": ("timekeeper/api/",),
    "dashboard": ("timekeeper/dashboard/",),
    "cli": ("timekeeper/cli/",),
    "operations": ("timekeeper/operations/",),
    "sidecar": ("sidecar/",),
    "node agent": ("sidecar/node/",),
    "deploy": ("deploy/",),
    "deploy/local": ("deploy/local/",),
}

Files = Mapping[str, str]  # texts by path


class BudgetError(Exception):
    """The budgets and the files do not fit together; the text says how."""


def room_of(path: str) -> str:
    """The room of a Python file: of a test ``tests`` and its role, of a file beside the roles ``tests``.
    Raises BudgetError."""
    if path.startswith("tests/"):
        return "/".join(path.split("/")[:-1][:2])
    places = [
        (len(place), room) for room, places in ROOMS.items() for place in places if path.startswith(place)
    ]
    if not places:
        raise BudgetError(f"{path} belongs to no room: add its folder to a room in tests/budgets.py")
    return max(places)[1]


def held(files: Files) -> dict[str, dict[str, int]]:
    """By budget, what each file has of it."""
    parts: dict[str, dict[str, int]] = {}
    for path, text in files.items():
        for budget, figure in figures(path, text):
            parts.setdefault(budget, {})[path] = figure
    return parts


def figures(path: str, text: str) -> Iterator[tuple[str, int]]:
    """What one file has of each budget that counts it."""
    if path.endswith(".md"):
        yield ("words of CHANGELOG.md" if path == "CHANGELOG.md" else "words of docs"), len(text.split())
        return
    yield room_of(path), len(text.splitlines())
    nodes = tuple(ast.walk(ast.parse(text)))
    yield "loop variables named each, found, it or one", sum(map(pronouns_bound, nodes))
    yield "dataclasses of more than five fields without kw_only", sum(map(is_by_position, nodes))


def pronouns_bound(node: ast.AST) -> int:
    """How many variables of this loop, or of this part of a comprehension, have a pronoun for a name."""
    if not isinstance(node, ast.For | ast.comprehension):
        return 0
    return sum(isinstance(name, ast.Name) and name.id in PRONOUNS for name in ast.walk(node.target))


def is_by_position(node: ast.AST) -> bool:
    """Whether this is a dataclass that takes too many fields by position."""
    if not isinstance(node, ast.ClassDef):
        return False
    decorator = next(
        (text for text in map(ast.unparse, node.decorator_list) if text.startswith("dataclass")), ""
    )
    fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
    named = [ast.unparse(field.annotation) for field in fields if "init=False" not in ast.unparse(field)]
    taken = [name for name in named if not name.startswith("ClassVar")]
    by_position = taken.index("KW_ONLY") if "KW_ONLY" in taken else len(taken)
    return bool(decorator) and "kw_only=True" not in decorator and by_position > MOST_BY_POSITION


def report(parts: Mapping[str, Mapping[str, int]], budgets: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """A line for each budget, and a sentence for each fault."""
    lines, faults = [], []
    for name, budget in budgets.items():
        files = parts.get(name, {})
        total = sum(files.values())
        lines.append(f"{total:>9,} of {budget:>9,}  {name}")
        if not files:
            faults.append(f"{name}: no file belongs to it; remove its budget from pyproject.toml")
        elif total > budget:
            largest = sorted(files.items(), key=lambda item: -item[1])[:3]
            shown = ", ".join(f"{path} ({figure:,})" for path, figure in largest)
            faults.append(
                f"{name}: {total:,}, above its budget of {budget:,}. Its largest files: {shown}. {ADVICE}"
            )
    faults += [f"{name}: it has no budget in pyproject.toml" for name in parts.keys() - budgets.keys()]
    return lines, faults


def lowered(settings: str, parts: Mapping[str, Mapping[str, int]], budgets: Mapping[str, int]) -> str:
    """The text of `pyproject.toml` with each budget that is higher than what is held lowered to it."""
    for name, budget in budgets.items():
        total = sum(parts.get(name, {}).values())
        settings = settings.replace(f'"{name}" = {budget}\n', f'"{name}" = {min(budget, total)}\n')
    return settings


def counted_files() -> Files:
    """The files of the repository that a budget counts."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    patterns = ["*.py", "README.md", "CHANGELOG.md", "docs/*.md"]
    listed = subprocess.run([*command, *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return {path: (ROOT / path).read_text() for path in listed.stdout.splitlines() if (ROOT / path).is_file()}


def main() -> int:
    """The exit code."""
    file = ROOT / "pyproject.toml"
    settings = file.read_text()
    budgets = tomllib.loads(settings)["tool"]["bursar"]["budgets"]
    try:
        parts = held(counted_files())
    except BudgetError as error:
        sys.exit(f"budgets: {error}")
    if sys.argv[1:] == ["--lower"]:
        file.write_text(lowered(settings, parts, budgets))
        return 0
    lines, faults = report(parts, budgets)
    print(*lines, *(f"budgets: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
