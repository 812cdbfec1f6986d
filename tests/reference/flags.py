"""The flags of each role: what ``--help`` prints, and links."""

import argparse
import re
from collections.abc import Mapping

from scheduler_ext import settings as extender
from sidecar import settings as sidecar
from sidecar.node import settings as agent
from tests.reference.blocks import marked, table, with_note
from tests.reference.flag_notes import AGENT, AUDIT, CERTIFICATES, EXTENDER, REVIEW, TIMEKEEPER, WEBHOOK
from timekeeper import settings as timekeeper
from webhook.dryrun import flags as dryrun
from webhook.settings import certificates, serve

_LAST = re.compile(r"^(.*) \(((?:empty by )?default\b[^()]*?|BURSAR_[^()]*)\)(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"(; |^)BURSAR_.*$")


def webhook() -> str:
    """Those of the server."""
    return of(serve.flags_of({}), WEBHOOK)


def review() -> str:
    """Those of ``bursar-webhook review``."""
    return of(dryrun.review_flags(), REVIEW)


def audit() -> str:
    """Those of ``bursar-webhook audit``, but for those that ``review`` has alike."""
    alike = set(review().splitlines()[2:])
    rows = of(dryrun.audit_flags(), AUDIT).splitlines()
    return "\n".join(row for row in rows if row not in alike)


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


def pod_reporter() -> str:
    """Those of the sidecar, which the webhook gives as variables."""
    rows = (
        (f"`--{name.removeprefix('BURSAR_').lower().replace('_', '-')}`", f"`{name}`", marked(about))
        for name, about in sidecar.VARIABLES
    )
    return table(("flag", "variable", "meaning"), rows)


def of(parser: argparse.ArgumentParser, notes: Mapping[str, str]) -> str:
    """The table of a parser's flags. ``notes``: flag -> a link, or sentences with links."""
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
    own = [each for each in shown if each.dest not in ("help", "version") and each.option_strings]
    _check(notes, {each.option_strings[-1] for each in own})
    return table(
        ("flag", "default", "meaning"),
        (_row(each, notes.get(each.option_strings[-1], "")) for each in own),
    )


def _row(action: argparse.Action, note: str) -> tuple[str, str, str]:
    text, default = _parts(action.help or "")
    words = [str(each) for each in action.choices or ()]
    listed = all(re.search(rf"\b{word}\b", text) for word in words)
    choices = "" if listed else f": {', '.join(f'`{word}`' for word in words)}"
    flags = ", ".join(f"`{each}`" for each in reversed(action.option_strings))
    return flags, default, with_note(marked(text).replace("*", r"\*") + choices, note)


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
