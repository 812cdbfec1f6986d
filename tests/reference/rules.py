"""The rules of admission: the catalogue."""

from collections.abc import Sequence

from timekeeper.core.admission.rules.catalogue import BYPASS, FORGERY, PLACING, REQUEST, Rule

CHAPTERS = (
    ("What a request must be", REQUEST),
    ("What only Bursar and node plugins may write", FORGERY),
    ("Access to cards that were not requested", BYPASS),
    ("Where a pod goes, and how long it stays", PLACING),
)


def rules() -> str:
    """The catalogue in Markdown."""
    return "\n".join(_chapter(title, rules) for title, rules in CHAPTERS)


def _chapter(title: str, rules: Sequence[Rule]) -> str:
    return f"## {title}\n\n" + "\n".join(map(_entry, rules))


def _mode(rule: Rule) -> str:
    """The mode of a rule that can be set, and what becomes of a pod that it warns of, where that is more than
    its admission."""
    if rule.fixed:
        return ""
    warned = "" if rule.instead == "admitted" else f" Where it warns: {rule.instead}."
    return f"`{rule.default}`, settable.{warned} "


def _entry(rule: Rule) -> str:
    """What is allowed depends on the object, and stands in its message alone."""
    return f"### `{rule.id}`\n\n{_mode(rule)}Refuses {rule.refuses}. Why: {rule.why}.\n"
