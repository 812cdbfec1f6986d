"""Blocks of generated text in a page, each between two comments."""

import re
from collections.abc import Iterable, Mapping

END = "<!-- end of what is generated -->"


def begin(name: str) -> str:
    """The comment before a block."""
    return f"<!-- {name}: written by `python -m tests.reference` -->"


def written(page: str, blocks: Mapping[str, str]) -> str:
    """The page with the text of these blocks. Raises ValueError if it lacks one, or has another."""
    if (found := names(page)) != list(blocks):
        raise ValueError(f"the page has the blocks {found}, and the code writes {list(blocks)}")
    for name, text in blocks.items():
        head, _, rest = page.partition(begin(name) + "\n")
        page = f"{head}{begin(name)}\n\n{text.strip()}\n\n{END}{rest.partition(END)[2]}"
    return page


def names(page: str) -> list[str]:
    """The blocks of a page, in their order."""
    return re.findall(r"^<!-- ([\w -]+): written by `python -m tests\.reference` -->$", page, re.MULTILINE)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    columns = list(head)
    lines = [_row(columns), "|" + "---|" * len(columns), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(each.split()).replace("|", r"\|") for each in cells) + " |"


def marked(text: str) -> str:
    """Plain text of the code as Markdown: flags, paths, variables and URLs become code."""
    code = r"(?<![\w`/.-])((?:--[a-z][a-z-]+|(?:deploy)?/[a-z][\w./-]*\w|BURSAR_[A-Z_]+|https?://[\w./:-]*\w)(?:=[a-z]+)?)"
    return re.sub(code, r"`\1`", text) if "`" not in text else text


def with_note(text: str, note: str) -> str:
    """The text with a link after it; "": none."""
    return f"{text} ({note})" if note else text
