"""The rules of admission: the catalogue, with what each rule allows in its example."""

from collections.abc import Sequence

from tests.reference.blocks import marked
from tests.webhook.rule_examples import examples
from timekeeper.core.violation import Violation
from webhook.rules.catalogue import BYPASS, FORGERY, PLACING, REQUEST
from webhook.rules.rule import Rule

CHAPTERS = (
    ("What a request must be", REQUEST),
    ("What only Bursar and node plugins may write", FORGERY),
    ("Access to cards that were not requested", BYPASS),
    ("Where a pod goes, and how long it stays", PLACING),
)


def rules() -> str:
    """The catalogue in Markdown."""
    found = examples()
    return "\n".join(_chapter(title, rules, found) for title, rules in CHAPTERS)


def _chapter(title: str, rules: Sequence[Rule], found: dict[str, Violation]) -> str:
    fixed = all(rule.fixed for rule in rules)
    above = "These rules are always enforced.\n\n" if fixed else ""
    entries = (_entry(rule, "" if fixed else _mode(rule), found[rule.id]) for rule in rules)
    return f"## {title}\n\n{above}" + "\n".join(entries)


def _mode(rule: Rule) -> str:
    """The rule's mode, and what becomes of a pod that it warns of, where that is more than its admission."""
    if rule.fixed:
        return "Always `enforce`. "
    warned = "" if rule.instead == "admitted" else f" Where it warns: {rule.instead}."
    return f"`{rule.default}`, settable.{warned} "


def _entry(rule: Rule, mode: str, violation: Violation) -> str:
    """The message repeats what is refused, and why; what it allows stands there alone."""
    allowed = f" Allowed: {marked(violation.allowed)}." if violation.allowed else ""
    return f"### `{rule.id}`\n\n{mode}Refuses {rule.refuses}. Why: {rule.why}.{allowed}\n"
