"""Each module, function and file of ours that a docstring or a page names in back quotes exists.

Decisions and the changelog are history and keep the names of their time.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.modules import PACKAGES, ROOT, exists, inner_packages, is_there

ROOMS = (*PACKAGES, "migrations")
FILES = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
PRODUCT = [file for file in FILES if ROOT / "tests" not in file.parents]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts),
]

_QUOTED = re.compile(r"(?<!`)(`{1,2})([^`\n]+)\1(?!`)")
_FIRST = "|".join(sorted({*PACKAGES, *inner_packages()}))
_DOTTED = re.compile(rf"(?:{_FIRST})(?:\.\w+)+")
_PATH = re.compile(rf"(?:{'|'.join(ROOMS)}|docs)/[\w/.-]+")
_ENDINGS = ("py", "md", "yaml", "json", "toml", "cfg", "key", "crt")  # of files, which are no modules
_SCHEMA = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())


def missing_in(text: str) -> list[str]:
    """The names in back quotes that do not exist."""
    quoted = [words.partition(":")[0].strip() for _, words in _QUOTED.findall(text)]
    paths = [words for words in quoted if _PATH.fullmatch(words)]
    dotted = [
        words for words in quoted if _DOTTED.fullmatch(words) and words.rpartition(".")[2] not in _ENDINGS
    ]
    return [path for path in paths if not (ROOT / path).exists()] + [
        name for name in dotted if not exists(name) and not is_value_of_the_chart(name)
    ]


def is_value_of_the_chart(dotted: str) -> bool:
    """`timekeeper.extraArgs` is one. Below `settings` are fields of `_settings`, which the schema does not
    list."""
    part = _SCHEMA
    for name in dotted.removesuffix(".wholeCards").split("."):
        part = part.get("properties", {}).get(name)
        if part is None:
            return False
    return True


def docstrings(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def of_the_root(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_docstrings_name_what_exists() -> None:
    missing = {
        of_the_root(file): names
        for file in FILES
        if (names := [name for text in docstrings(file.read_text()) for name in missing_in(text)])
    }

    assert missing == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_what_exists(page: Path) -> None:
    assert missing_in(page.read_text()) == []


def test_code_names_decisions_that_exist() -> None:
    there = {page.name[:4] for page in (ROOT / "docs/decisions").glob("*.md")}

    assert [
        (of_the_root(file), number) for file in FILES for number in decisions_in(file.read_text()) - there
    ] == []


def decisions_in(code: str) -> set[str]:
    """The numbers of the decisions that docstrings and comments name."""
    return {number.zfill(4) for number in re.findall(r"\bdecisions?[/ ](\d{2,4})\b", code)}


def test_a_decision_is_found_by_path_and_by_number() -> None:
    assert decisions_in("# docs/decisions/0029, decision 52; 3 decisions, decision_30") == {"0029", "0052"}


def test_the_page_of_the_tests_names_what_exists() -> None:
    quoted = [words for _, words in _QUOTED.findall((ROOT / "tests/README.md").read_text()) if "/" in words]

    assert len(quoted) > 40
    assert [path for path in quoted if not (ROOT / "tests" / path).exists()] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    text = (
        "`store.writes.fencing`, ``store.fencing``, `webhook/none.py`, `webhook/metrics.py`, `webhook.none.x`"
    )

    assert missing_in(text) == ["webhook/none.py", "store.writes.fencing", "webhook.none.x"]


_WORD = re.compile(r"[a-z_][a-z0-9_]*(?:[./][a-z0-9_]+)*")


def missing_modules(package: Path, text: str) -> list[str]:
    """The names in back quotes, written as modules are, that are no module, function or value in this package
    or in one around it."""
    words = [words.replace("/", ".") for _, words in _QUOTED.findall(text) if _WORD.fullmatch(words)]
    around = [package, *package.parents]
    homes = ["".join(f"{part}." for part in home.parts) for home in around if home.parts] + [""]
    return [word for word in words if not any(is_there(f"{home}{word}") for home in homes)]


@pytest.mark.parametrize("file", [file for file in PRODUCT if file.name == "__init__.py"], ids=of_the_root)
def test_the_docstring_of_a_package_names_modules_that_exist(file: Path) -> None:
    (docstring, *_) = docstrings(file.read_text())

    assert missing_modules(file.parent.relative_to(ROOT), docstring) == []


def test_a_module_that_a_package_does_not_have_is_found() -> None:
    text = "`loop` and `server` run; `worker`, ``http.loop``, `worker.run` and `framing.RequestReader` too"

    assert missing_modules(Path("timekeeper/runtime/http"), text) == ["worker", "worker.run"]
