"""Lists as Python-Markdown reads them.

The pages are CommonMark, where what belongs to an item of a list stands below its first word. Python-Markdown
wants four columns for each level, and an empty line before a list and after an item of several paragraphs.
"""

from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LEVEL = 4  # columns
_PARSER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of a list: its lines, and the column of its first word."""

    first: int
    end: int
    column: int


def for_python_markdown(text: str) -> str:
    """The page with its lists moved. Every line keeps its words."""
    lines = text.split("\n")
    tokens = _PARSER.parse(text)
    items = [_item(each, lines) for each in tokens if each.type == "list_item_open"]
    apart = {_lines(each)[0] for each in tokens if each.type.endswith("_list_open")}
    apart |= {each.end for each in items if not all(lines[each.first : each.end])}
    moved: list[str] = []
    for number, line in enumerate(lines):
        around = [each for each in items if each.first <= number < each.end]
        if number in apart and moved and moved[-1].strip():
            moved.append("")
        moved.append(_moved(line, number, around))
    return "\n".join(moved)


def _moved(line: str, number: int, around: list[_Item]) -> str:
    """``around``: the items that the line is in, the outermost first."""
    if not around or not line.strip():
        return line
    begins = around[-1].first == number
    outer = around[:-1] if begins else around
    column = max((each.column for each in outer), default=0)
    indented = len(line) - len(line.lstrip())
    return " " * (_LEVEL * len(outer) + max(indented - column, 0)) + line.lstrip()


def _item(token: Token, lines: list[str]) -> _Item:
    first, end = _lines(token)
    line = lines[first]
    marker = line.lstrip().split(" ", 1)
    words = marker[1].lstrip() if len(marker) > 1 else ""
    return _Item(first, end, len(line) - len(words))


def _lines(token: Token) -> tuple[int, int]:
    first, end = token.map or (0, 0)
    return first, end
