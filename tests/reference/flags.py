"""The flags of each role: what ``--help`` prints, and links."""

import argparse
import re
from collections.abc import Mapping

from scheduler_ext import settings as extender
from sidecar.node import settings as agent
from tests.reference.blocks import marked, table, with_note
from tests.reference.flag_notes import (
    AGENT,
    CERTIFICATES,
    EXTENDER,
    SEVERAL,
    TIMEKEEPER,
    WEBHOOK,
)
from timekeeper import settings as timekeeper
from webhook.settings import certificates, serve

_LAST = re.compile(r"^(.*) \(((?:empty by )?default\b[^()]*?|BURSAR_[^()]*)\)(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"(; |^)BURSAR_.*$")


Row = tuple[str, str, str]  # a flag, its default, and its meaning


def several() -> str:
    """Those that two or more of the processes have alike, and of which."""
    notes = {f"`{flag}`": note for flag, note in SEVERAL.items()}
    rows = (
        (flag, default, with_note(meaning, notes.pop(flag, "")), ", ".join(roles))
        for (flag, default, meaning), roles in _shared().items()
    )
    page = table(("flag", "default", "meaning", "of"), rows)
    if notes:
        raise ValueError(f"notes on flags that several processes do not have: {sorted(notes)}")
    return page


def _shared() -> dict[Row, list[str]]:
    parsers: Mapping[str, argparse.ArgumentParser] = {
        "webhook": serve.flags_of({}),
        "certificates": certificates.flags_of({}),
        "timekeeper": timekeeper.flags_of({}),
        "extender": extender.flags_of({}),
    }
    takers: dict[Row, list[str]] = {}
    for role, parser in parsers.items():
        for action in _own(parser):
            takers.setdefault(_row(action), []).append(role)
    return {row: roles for row, roles in takers.items() if len(roles) > 1}


def webhook() -> str:
    """Those of the server."""
    return of(serve.flags_of({}), WEBHOOK)


def certificate_process() -> str:
    """Those of ``bursar-webhook certificates``."""
    return of(certificates.flags_of({}), CERTIFICATES)


def ledger() -> str:
    """Those of the timekeeper."""
    return of(timekeeper.flags_of({}), TIMEKEEPER)


def scheduler() -> str:
    """Those of the extender."""
    return of(extender.flags_of({}), EXTENDER)


def node() -> str:
    """Those of the node agent."""
    rows = [
        (f"`--{flag}`", f"`{default}`" if default else "", with_note(marked(about), AGENT.get(flag, "")))
        for flag, default, about in agent.FLAGS
    ]
    _check(AGENT, {flag for flag, _, _ in agent.FLAGS})
    return table(("flag", "default", "meaning"), rows)


def of(parser: argparse.ArgumentParser, notes: Mapping[str, str]) -> str:
    """The table of a parser's flags, but for those of several processes. ``notes``: flag -> a link, or
    sentences with links."""
    own = _own(parser)
    shared = _shared()
    _check(notes, {action.option_strings[-1] for action in own})
    rows = ((*_row(action), notes.get(action.option_strings[-1], "")) for action in own)
    return table(
        ("flag", "default", "meaning"),
        (
            (flag, default, with_note(meaning, note))
            for flag, default, meaning, note in rows
            if (flag, default, meaning) not in shared
        ),
    )


def _own(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The flags that ``--help`` prints, but for ``--help`` itself and ``--version``."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [action for action in shown if action.dest not in ("help", "version") and action.option_strings]


def _row(action: argparse.Action) -> Row:
    text, default = _parts(action.help or "")
    words = [str(each) for each in action.choices or ()]
    listed = all(re.search(rf"\b{word}\b", text) for word in words)
    choices = "" if listed else f": {', '.join(f'`{word}`' for word in words)}"
    flags = ", ".join(f"`{each}`" for each in reversed(action.option_strings))
    return flags, default, marked(text).replace("*", r"\*") + choices


def _parts(text: str) -> tuple[str, str]:
    """A flag's help without its default, and the default."""
    found = _LAST.match(text)
    if found is None:
        return text, ""
    default = _VARIABLE.sub("", found[2])
    if default in ("", "empty by default"):
        return found[1] + found[3], ""
    words = default.removeprefix("default")
    return found[1] + found[3], words[1:].strip() if words.startswith(":") else f"`{words.strip()}`"


def _check(notes: Mapping[str, str], flags: set[str]) -> None:
    if unknown := notes.keys() - flags:
        raise ValueError(f"notes on flags that do not exist: {sorted(unknown)}")
