"""``kubectl bursar top``: the pods that hold cards now, and below those that await their settlement."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import click
from rich.console import Group
from rich.live import Live

from timekeeper.cli import output
from timekeeper.cli.client import Client
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.flags import EVERYWHERE, FORM, ClusterCommand
from timekeeper.cli.output import PrintedColumn, PrintedSheet
from timekeeper.core.budgets.sentences import account_name
from timekeeper.core.texts import moment
from timekeeper.edge.clock import now_ms

_HOUR_MS = 3_600_000  # measured use is kept by the hour
_EARLY_MS = 600_000  # so long an hour's use is shown with that of the hour before
_TABLES = ("table", "wide")
_BUSY = PrintedColumn("used", "BUSY", is_number=True)
_ENDED = "These hold no cards any more, and await their settlement: later proof may change their charge."


@click.command(cls=ClusterCommand, short_help="Pods that hold cards now")
@click.pass_obj
@EVERYWHERE
@click.option(
    "--every",
    default=2.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="the time between two looks, on a terminal",
)
@click.option(
    "--once",
    is_flag=True,
    help="print once; also where the output is no terminal, or one that cannot be written over",
)
@FORM
def top(options: Options, all_namespaces: bool, every: float, once: bool, form: str) -> None:
    """The pods that hold cards now, how busy the cards were in this hour, and what the pods have cost. A
    table is followed by the pods that hold none any more, and whose charge may still change."""
    namespace = options.scope(all_namespaces)
    if once or form not in _TABLES or not sys.stdout.isatty() or output.console().is_dumb_terminal:
        with connected(options, namespace or "") as client:
            sheet, *others = _sheets(client, form, namespace)
        output.show(sheet, form)
        for ended in others:
            if ended.rows:
                click.echo(f"\n{_ENDED}")
                output.show(ended, form)
        return
    with suppress(KeyboardInterrupt), connected(options, namespace or "", is_quiet=True) as client:
        _refresh(client, namespace, every, form == "wide")


def _refresh(client: Client, namespace: str | None, every_s: float, is_wide: bool) -> None:
    """Shows the pods on the whole terminal until Ctrl-C."""
    with Live(console=output.console(), screen=True, auto_refresh=False) as screen:
        while True:
            sheet, ended = _sheets(client, "table", namespace)
            where = account_name(namespace) if namespace else "all namespaces"
            title = f"{held(sheet)} in {where}; Ctrl-C ends"
            below = ("", _ENDED, output.table(ended, is_wide)) if ended.rows else ()
            screen.update(Group(title, "", output.table(sheet, is_wide), *sheet.notes, *below), refresh=True)
            time.sleep(every_s)


def held(sheet: PrintedSheet) -> str:
    """How many pods hold cards, and how many claims hold devices."""
    claims = sum(1 for row in sheet.rows if row.get("devices"))
    pods = len(sheet.rows) - claims
    said = "1 pod holds cards" if pods == 1 else f"{pods} pods hold cards"
    more = "1 claim holds devices" if claims == 1 else f"{claims} claims hold devices"
    return f"{said}, {more}" if claims else said


def _sheets(client: Client, form: str, namespace: str | None) -> Iterator[PrintedSheet]:
    """The sessions that hold cards; beside a table those that have ended too."""
    if form in output.OBJECTS:
        sheet = client.list(form, "/v1/sessions", "sessions", namespace=namespace, state="held")
        sheet.answer.sort(key=lambda each: (-each["rateMilli"], each["namespace"], each["pod"]))
        yield sheet
        return
    since_ms = (now_ms() - _EARLY_MS) // _HOUR_MS * _HOUR_MS
    since = str(since_ms)
    used = client.sheet(form, "/v1/usage", namespace=namespace, group="pod", use="true", from_=since)
    busy = {row.get("uid"): row.get("busy") for row in used.rows}
    for state in ("held", "ended") if form in _TABLES else ("held",):
        listed = client.list(form, "/v1/sessions", "sessions", namespace=namespace, state=state)
        shown = _with_busy(listed, busy)
        said = (f"BUSY is measured since {moment(since_ms)}.",) if shown.rows and state == "held" else ()
        yield replace(shown, notes=(*shown.notes, *said))


def _with_busy(sheet: PrintedSheet, busy: Mapping[str | None, str | None]) -> PrintedSheet:
    """The sessions, those with the highest rate first, and by UID how busy their cards were."""
    rows = [{**row, _BUSY.key: busy.get(row.get("uid")) or ""} for row in sheet.rows]
    rows.sort(key=lambda row: (-Decimal(row["gpus"] or 0), row["namespace"] or "", row["pod"] or ""))
    at = [each.key for each in sheet.columns].index("gpus") + 1
    return replace(sheet, columns=(*sheet.columns[:at], _BUSY, *sheet.columns[at:]), rows=tuple(rows))
