"""Prints a sheet in the form that the user asked for. Colours only on a terminal."""

import csv
import json
import sys
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from timekeeper.cli.sheet import Sheet

FORMS = ("table", "json", "yaml", "csv")
_UNLIMITED_WIDTH = 100_000  # a table is never cut: a terminal wraps its lines
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes such a text for a formula


class _Dumper(yaml.SafeDumper):
    """Writes every mapping as one."""


_Dumper.add_multi_representer(dict, yaml.SafeDumper.represent_dict)


def console(width: int | None = None) -> Console:
    """The console of standard output, which is read anew, so that a test can replace it. ``width``: of its
    lines; None: the terminal's."""
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=True)


def show(sheet: Sheet, form: str) -> None:
    """Print it."""
    if form == "csv":
        _print_csv(sheet)
    elif form in ("json", "yaml"):
        print_answer(sheet.answer if sheet.answer is not None else [dict(each) for each in sheet.rows], form)
    elif sheet.rows:
        _print_table(sheet)
    else:
        print(f"{sheet.empty[:1].upper()}{sheet.empty[1:]}.", file=sys.stderr)


def print_answer(answer: Any, form: str) -> None:
    """Print JSON, or the same as YAML."""
    if form == "yaml":
        print(yaml.dump(answer, Dumper=_Dumper, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(answer, indent=2, ensure_ascii=False))


def _print_table(sheet: Sheet) -> None:
    """Without blanks at the ends of lines, which a terminal would wrap too."""
    made = console(_UNLIMITED_WIDTH)
    with made:  # it writes all at once
        for line in made.render_lines(table(sheet), pad=False):
            shown = Text.assemble(*((each.text, each.style or "") for each in line))
            shown.rstrip()
            made.print(shown)


def table(sheet: Sheet) -> Table:
    """The sheet as kubectl prints tables: no lines, headings in capitals."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in sheet.columns:
        made.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=True)
    for row in sheet.rows:
        cells = (row.get(column.key) or column.blank for column in sheet.columns)
        made.add_row(*(Text(printable(cell), style=sheet.styles.get(cell, "")) for cell in cells))
    return made


def printable(text: str) -> str:
    """Text of tenants without control characters, which could move a terminal's cursor."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _print_csv(sheet: Sheet) -> None:
    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerow(column.key for column in sheet.columns)
    for row in sheet.rows:
        written.writerow(_cell(row.get(column.key, ""), column.is_number) for column in sheet.columns)


def _cell(text: str, is_number: bool) -> str:
    return f"'{text}" if not is_number and text.startswith(_FORMULA) else text
