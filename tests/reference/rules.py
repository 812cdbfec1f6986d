"""The rules of admission: the catalogue, with an example of each rule's message."""

from collections.abc import Iterable

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


def _chapter(title: str, rules: Iterable[Rule], found: dict[str, Violation]) -> str:
    return f"## {title}\n\n" + "\n".join(_entry(rule, found[rule.id]) for rule in rules)


def _entry(rule: Rule, violation: Violation) -> str:
    mode = "always `enforce`" if rule.fixed else f"`{rule.default}`, settable"
    warned = "" if rule.fixed else f" Where it warns: {rule.instead}."
    return f"""\
### `{rule.id}`

Mode: {mode}.{warned} Refuses {rule.refuses}. Why: {rule.why}.

```text
{violation.sentence()}
```
"""
