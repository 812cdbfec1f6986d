"""``python -m tests.growth``: what the product promises and holds, beside the commit that landed last, which
the tag ``landed`` names. Exits with 1 if a figure has grown by more than is granted.

A *promise* is what users name: a flag, a command, a column, a metric, and so on. What an issue asks for is
granted in `pyproject.toml` (``[tool.bursar.granted]``), by name, with how much it needs. A grant that the
landed commit has, too, is used up: it fails until it is removed.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
LANDED = "landed"
PRODUCT = ("deploy/", "migrations/", "scheduler_ext/", "sidecar/", "timekeeper/", "webhook/")
VALUES, ENTRIES = "deploy/chart/values.yaml", "docs/budget-settings.md"
PROMISES = "promises"
LINES = "lines of the product"
WORDS = "words of docs"
LOOPS = "loop variables named each, found, it or one"
BY_POSITION = "dataclasses of more than five fields without kw_only"
KINDS = (PROMISES, LINES, WORDS, LOOPS, BY_POSITION)
PRONOUNS = {"each", "found", "it", "one"}
MOST_BY_POSITION = 5

# Whose call with a name makes a promise of a kind.
MAKERS = {
    "Accelerator": "accelerator",
    "ApiRoute": "route",
    "Column": "column",
    "Counter": "metric",
    "DecisionKind": "decision",
    "FindingKind": "finding",
    "Gauge": "metric",
    "Histogram": "metric",
    "ObjectName": "name in objects",
    "RoleFinding": "finding",
    "Rule": "rule",
    "Summary": "metric",
    "_log": "log event",
    "command": "command",
    "log": "log event",
    "option": "option",
}
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
FLAG_MAKERS = {"argument", "choice", "flag", "repeated"}  # in modules of settings
CHART_VALUE = re.compile(r"^\s*([A-Za-z][\w-]*):", re.M)
SETTING = re.compile(r"^\| `([^`]+)`", re.M)

Files = Mapping[str, str]  # texts by path
Grants = Mapping[str, Mapping[str, int]]  # by name of what is granted: how much of each kind


@dataclass(frozen=True, slots=True)
class Held:
    """What the files hold. ``promises``: by kind and name, how often it is made."""

    promises: Counter[tuple[str, str]] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)


def held(files: Files) -> Held:
    """What these files hold."""
    promises: Counter[tuple[str, str]] = Counter()
    figures: Counter[str] = Counter()
    for path, text in files.items():
        promises.update(promised(path, text))
        if is_page(path):
            figures[WORDS] += len(text.split())
        elif path.endswith(".py"):
            figures[LINES] += len(text.splitlines()) if path.startswith(PRODUCT) else 0
            for node in ast.walk(ast.parse(text)):
                figures[LOOPS] += pronouns_bound(node)
                figures[BY_POSITION] += is_by_position(node)
    figures[PROMISES] = promises.total()
    return Held(promises, figures)


def promised(path: str, text: str) -> Iterator[tuple[str, str]]:
    """The promises of a file, by kind and name."""
    if path == VALUES:
        yield from (("chart value", name) for name in CHART_VALUE.findall(text))
    elif path == ENTRIES:
        yield from (("setting", name) for name in SETTING.findall(text))
    elif path.endswith(".py") and path.startswith(PRODUCT) and not path.startswith("deploy/"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                yield from _promised_by(node, path)


def _promised_by(call: ast.Call, path: str) -> Iterator[tuple[str, str]]:
    maker = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    texts = (ast.unparse(arg).strip("'") for arg in call.args[:2] if isinstance(arg, ast.Constant | ast.Name))
    names = (text for text in texts if " " not in text)  # the others are descriptions
    is_flag = isinstance(first, str) and FLAG.fullmatch(first) is not None and "/cli/" not in path
    if is_flag or (maker in FLAG_MAKERS and "settings" in path):
        yield "flag", " ".join(names)
    elif maker in MAKERS and (isinstance(first, str) or maker in ("ApiRoute", "option")):
        yield MAKERS[maker], " ".join(names)


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
    named = [ast.unparse(line.annotation) for line in fields if "init=False" not in ast.unparse(line)]
    taken = [name for name in named if not name.startswith("ClassVar")]
    by_position = taken.index("KW_ONLY") if "KW_ONLY" in taken else len(taken)
    return bool(decorator) and "kw_only=True" not in decorator and by_position > MOST_BY_POSITION


def report(now: Held, then: Held, granted: Grants, used_up: Grants) -> tuple[list[str], list[str]]:
    """A line for each figure, and a sentence for each fault. ``granted``: what the files grant now;
    ``used_up``: what those of the landed commit did."""
    lines, faults = [], []
    for kind in KINDS:
        more = sum(grant.get(kind, 0) for grant in granted.values())
        figure, most = now.figures[kind], then.figures[kind] + more
        lines.append(f"{figure:>9,} of {most:>9,}  {kind}{f' ({more:,} granted)' if more else ''}")
        if figure > most:
            which = f": {changed(now, then)}" if kind == PROMISES else ""
            faults.append(
                f"{kind}: {figure - most:,} more than the landed commit and the grants have{which}. Remove"
                " others, or grant by name, in [tool.bursar.granted] of pyproject.toml, what was asked for."
            )
    for name, grant in granted.items():
        at = f"[tool.bursar.granted] {name!r}"
        if name in used_up:
            faults.append(f"{at}: it has landed; remove it from pyproject.toml")
        faults += [
            f"{at}: no figure is {kind!r}; allowed: {', '.join(KINDS)}" for kind in {*grant} - {*KINDS}
        ]
    return lines, faults


def changed(now: Held, then: Held) -> str:
    """The promises that came and went."""
    came, went = now.promises - then.promises, then.promises - now.promises
    listed = (
        (sign, promise) for sign, promises in (("+", came), ("-", went)) for promise in sorted(promises)
    )
    return ", ".join(f"{sign} {kind} {name}" for sign, (kind, name) in listed)


def grants(files: Files) -> Grants:
    """What these files grant."""
    settings = tomllib.loads(files.get("pyproject.toml", ""))
    found: Grants = settings.get("tool", {}).get("bursar", {}).get("granted", {})
    return found


def is_page(path: str) -> bool:
    """Whether a file is documentation."""
    return path == "README.md" or (path.startswith("docs/") and path.endswith(".md"))


def is_counted(path: str) -> bool:
    """Whether a file of the repository is read."""
    return is_page(path) or path.endswith(".py") or path in (VALUES, "pyproject.toml")


def files_now() -> Files:
    """The files of the checkout that git does not ignore."""
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard").decode().splitlines()
    there = (path for path in listed if is_counted(path) and (ROOT / path).is_file())
    return {path: (ROOT / path).read_text() for path in there}


def files_of(commit: str) -> Files:
    """Those of a commit."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as tree:
        members = (member for member in tree if member.isfile() and is_counted(member.name))
        texts = ((member.name, tree.extractfile(member)) for member in members)
        return {name: text.read().decode() for name, text in texts if text is not None}


def _git(*command: str) -> bytes:
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, check=True).stdout


def main() -> int:
    """The exit code."""
    if not _git("tag", "--list", LANDED).strip():
        print(f"growth: nothing is compared, for no tag {LANDED!r} names the commit that landed last")
        return 0
    now, then = files_now(), files_of(LANDED)
    if now == then:
        return 0
    lines, faults = report(held(now), held(then), grants(now), grants(then))
    print(*lines, *(f"growth: {fault}" for fault in faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
