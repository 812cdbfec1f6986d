"""Pages, docstrings and comments use plain words: things are "it", and nothing is told, asked or let.

`ROOMS` lists the folders whose code is checked, beside the README and every page of docs/. Decisions and the
changelog are history and keep their words.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT

ROOMS = ("deploy", "migrations", "scheduler_ext", "sidecar", "timekeeper", "webhook")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/coming-from").glob("*.md")),
]

PRIVATE = re.compile(
    r"\b(nobody|whoever|whom|anybody|(?:is|are) told|so many|manieth|for want of|let back|dearest|ladders?"
    r"|reckon\w*|in vain|(?<!`)rooms?)\b",
    re.IGNORECASE,
)


def private(text: str) -> list[str]:
    """The private words in a text, over line breaks too."""
    return [" ".join(found.split()) for found in PRIVATE.findall(" ".join(text.split()))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_private_word(page: Path) -> None:
    assert private(page.read_text()) == []


def sentences(code: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module, with the line where each begins; neighbouring comments are one."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield node.body[0].lineno, docstring
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != block[-1][0] + 1:
            yield block[0][0], " ".join(text for _, text in block)
            block = []
        block.append((token.start[0], token.string.lstrip("# ")))
    if block:
        yield block[0][0], " ".join(text for _, text in block)


def may_have_one(code: str) -> bool:
    """Whether a private word is anywhere in a module. Most have none, and to parse them all takes seconds."""
    return private(re.sub(r"\n[\s#]*", " ", code)) != []


def test_no_docstring_or_comment_of_these_rooms_has_a_private_word() -> None:
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    codes = {file.relative_to(ROOT): file.read_text() for file in files}

    words = [
        f"{file}:{line}: {word}"
        for file, code in codes.items()
        if may_have_one(code)
        for line, text in sentences(code)
        for word in private(text)
    ]

    assert words == []
    assert [room for room in ROOMS if not (ROOT / room).is_dir()] == []


def test_words_are_found_in_docstrings_and_over_the_lines_of_a_comment() -> None:
    code = '"""Nobody\nis told."""\n\nx = 1  # for want\n# of a name\n\n\n# let\n\n# back\ny = "whoever"\n'

    assert may_have_one(code)
    assert all(
        map(may_have_one, ('"""It\n    is\n    told."""', "# for want\n  # of it", "x = 1  # so\n#  many\n"))
    )
    assert [(line, private(text)) for line, text in sentences(code)] == [
        (1, ["Nobody", "is told"]),
        (4, ["for want of"]),
        (8, []),
        (10, []),
    ]
