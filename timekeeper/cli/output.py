"""Prints a sheet in the form that the user asked for: the server's Table, or a command's own. Colours only
on a terminal."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import click
import yaml
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.budgets.sentences import account_name
from timekeeper.core.texts import only_printable


@dataclass(frozen=True, slots=True)
class PrintedColumn:
    """``key``: the name in CSV; ``title``: the heading of the table."""

    key: str
    title: str
    is_number: bool = False  # aligned to the right
    blank: str = "<none>"  # what the table shows without a cell
    _: KW_ONLY
    is_wide: bool = False  # only wide tables have it
    wraps: bool = False  # in a terminal its sentences go on in the next line


@dataclass(frozen=True, slots=True)
class PrintedSheet:
    """Rows by the columns' keys. ``answer``: what JSON and YAML print instead of rows: an object of the API,
    a `listing`, or a list, which becomes the ``items`` of an object. ``totals``: rows below the others, in
    the table alone. ``notes``: sentences below the table; ``warnings``: beside it, also of CSV."""

    columns: tuple[PrintedColumn, ...] = ()
    rows: tuple[Mapping[str, str | None], ...] = ()
    answer: Any = None
    empty: str = "nothing found"
    totals: tuple[Mapping[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def sheet_of(table: Any) -> PrintedSheet:
    """A Table of the server as a sheet."""
    columns = tuple(map(_column, table["columnDefinitions"]))
    rows = tuple(
        {
            column.key: None if cell is None else str(cell)
            for column, cell in zip(columns, row["cells"], strict=True)
        }
        for row in table["rows"]
    )
    notes, warnings = tuple(table["notes"]), tuple(table["warnings"])
    return PrintedSheet(columns, rows, empty=table["empty"], notes=notes, warnings=warnings)


def joined(sheets: Iterable[PrintedSheet]) -> PrintedSheet:
    """Pages of one table, or tables of one kind, as one sheet; of answers a list."""
    every = tuple(sheets)
    return PrintedSheet(
        tuple(dict.fromkeys(column for each in every for column in each.columns)),
        tuple(row for each in every for row in each.rows),
        [each.answer for each in every if each.answer is not None] or None,
        every[-1].empty,
        notes=tuple(dict.fromkeys(sentence for each in every for sentence in each.notes)),
        warnings=tuple(dict.fromkeys(sentence for each in every for sentence in each.warnings)),
    )


def _column(defined: Mapping[str, Any]) -> PrintedColumn:
    is_number = defined["type"] == "integer" or defined["format"] in _NUMBERS
    return PrintedColumn(defined["key"], defined["name"].upper(), is_number, is_wide=defined["priority"] > 0)


def listing(answer: Mapping[str, Any], *lists: str) -> dict[str, Any]:
    """An answer of the API as a list object of kubectl's kind: the members of these lists of it are its
    ``items``, and its other fields stay beside them."""
    rest = {name: value for name, value in answer.items() if name not in lists}
    return {**rest, "items": [each for name in lists for each in answer[name]]}


def within(namespace: str | None) -> str:
    """The part of a sentence about nothing found that names the only namespace or group looked at; "" for
    all."""
    if namespace and namespace.startswith(GROUP):
        return f" in {account_name(namespace)}"
    return f" in namespace {namespace} (-A looks at all)" if namespace else ""


FORMS = ("table", "wide", "json", "yaml", "csv")
OBJECTS = ("json", "yaml")
FOCUS = "focus"
_NUMBERS = ("gpu-hours", "gpus", "decimal", "duration", "percent")
# text of a cell -> its style on a terminal
_STYLES = {
    **dict.fromkeys(("IN_BUDGET", "fits", "ok", "unchanged"), "green"),
    **dict.fromkeys(("UNKNOWN", "cordoned", "unknown", "waits", "warning"), "yellow"),
    **dict.fromkeys(("OVER_BUDGET", "changed", "error", "over budget", "refused", "unhealthy"), "bold red"),
}
_UNLIMITED_WIDTH = 100_000  # a table is never cut: a terminal wraps its lines
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes such a text for a formula


class _Dumper(yaml.SafeDumper):
    """Writes every mapping as one."""


_Dumper.add_multi_representer(dict, yaml.SafeDumper.represent_dict)


def console(width: int | None = None) -> Console:
    """The console of standard output, which is read anew, so that a test can replace it. ``width``: of its
    lines; None: the terminal's."""
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=True)


def show(sheet: PrintedSheet, form: str, more: str = "") -> None:
    """Print it. ``more``: how the sentence goes on that is said where there are no rows."""
    if form == "csv":
        _print_csv(sheet)
    elif form in OBJECTS:
        answer = [dict(each) for each in sheet.rows] if sheet.answer is None else sheet.answer
        _print_answer({"items": answer} if isinstance(answer, list) else answer, form)
    elif sheet.rows:
        _print_table(sheet, form == "wide")
    else:
        print(f"{sheet.empty[:1].upper()}{sheet.empty[1:]}{more}.", file=sys.stderr)
    for sentence in () if form in (*OBJECTS, "csv") else sheet.notes:
        print(sentence)
    for sentence in () if form in OBJECTS else sheet.warnings:
        print(sentence, file=sys.stderr)


def _print_answer(answer: Any, form: str) -> None:
    """Print JSON, or the same as YAML."""
    if form == "yaml":
        print(yaml.dump(answer, Dumper=_Dumper, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(answer, indent=2, ensure_ascii=False))


def _print_table(sheet: PrintedSheet, is_wide: bool) -> None:
    """Without blanks at the ends of lines, which a terminal would wrap too."""
    is_wrapped = any(column.wraps for column in sheet.columns) and sys.stdout.isatty()
    width = os.get_terminal_size(sys.stdout.fileno()).columns if is_wrapped else _UNLIMITED_WIDTH
    made = console(width)
    with made:  # it writes all at once
        for line in made.render_lines(table(sheet, is_wide), pad=False):
            shown = Text.assemble(*((each.text, each.style or "") for each in line))
            shown.rstrip()
            made.print(shown)


def table(sheet: PrintedSheet, is_wide: bool = False) -> Table:
    """The sheet as kubectl prints tables: no lines, headings in capitals."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    columns = [column for column in sheet.columns if is_wide or not column.is_wide]
    for column in columns:
        made.add_column(
            column.title, justify="right" if column.is_number else "left", no_wrap=not column.wraps
        )
    for row in sheet.rows:
        found = ((column, row.get(column.key)) for column in columns)
        cells = (column.blank if cell is None else cell for column, cell in found)
        made.add_row(*(Text(only_printable(cell), style=_STYLES.get(cell, "")) for cell in cells))
    for row in sheet.totals:
        made.add_row(*(Text(row.get(column.key, ""), style="bold") for column in columns))
    return made


def _print_csv(sheet: PrintedSheet) -> None:
    written = csv.writer(sys.stdout, lineterminator="\n")
    columns = sheet.columns
    written.writerow(column.key for column in columns)
    for row in sheet.rows:
        written.writerow(_cell(row.get(column.key) or "", column.is_number) for column in columns)


def _cell(text: str, is_number: bool) -> str:
    return f"'{text}" if not is_number and text.startswith(_FORMULA) else text


class CommandError(click.ClickException):
    """The command cannot go on; the text says what is wrong and what to do. Exit code 1."""


class AwayError(CommandError):
    """The server gave no answer, or says that it has none now (5xx)."""


class UnprovedError(CommandError):
    """What was to be proved is neither so nor otherwise. Exit code 2."""

    exit_code = 2


class RefusedError(CommandError):
    """The server refused a request (4xx), so it has changed nothing."""


def unreadable(shown: str, error: OSError | UnicodeDecodeError) -> CommandError:
    """What is raised where a file cannot be read. ``shown``: what the sentence calls it."""
    return CommandError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}")


Say = Callable[[str], None]
_REFRESHES = 8  # a second


def silent(text: str) -> None:
    """Shows nothing."""


@contextmanager
def progress() -> Iterator[Say]:
    """A line that each text replaces and that is gone at the end; rich writes none where standard error is no
    terminal. What a command prints meanwhile goes where it goes without the line."""
    spinner = Spinner("dots")
    line = Live(
        spinner,
        console=Console(file=sys.stderr),
        refresh_per_second=_REFRESHES,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with line:
        yield lambda text: spinner.update(text=Text(text))
