"""Reads, judges, and makes the sheet."""

from timekeeper.cli.connection import Options
from timekeeper.cli.doctor.checks import results
from timekeeper.cli.doctor.facts import read_facts
from timekeeper.cli.sheet import Column, Sheet

_COLUMNS = (
    Column("level", "RESULT"),
    Column("subject", "ABOUT"),
    Column("sentence", "FINDING"),
    Column("command", "WHAT TO DO"),
)
_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red", "unknown": "yellow"}


def examine(options: Options) -> tuple[Sheet, bool]:
    """The sheet of all results, and whether one is an error."""
    found = results(read_facts(options))
    rows = tuple(
        {"level": each.level, "subject": each.subject, "sentence": each.sentence, "command": each.command}
        for each in found
    )
    return Sheet(_COLUMNS, rows, styles=_STYLES), any(each.level == "error" for each in found)
