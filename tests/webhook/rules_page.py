"""The second half of docs/rules.md: the catalogue, with an example of each rule's message.

``python -m tests.webhook.rules_page`` writes it anew.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.webhook.rule_examples import examples
from timekeeper.core.violation import Violation
from webhook.rules.catalogue import BYPASS, FORGERY, PLACING, REQUEST
from webhook.rules.rule import Rule

PAGE = Path(__file__).parent.parent.parent / "docs" / "rules.md"
MARK = "<!-- From here on written by `python -m tests.webhook.rules_page`. -->\n"

CHAPTERS = (
    ("What a request must be", REQUEST),
    ("What only Bursar and node plugins may write", FORGERY),
    ("Access to cards that were not requested", BYPASS),
    ("Where a pod goes, and how long it stays", PLACING),
)


def generated() -> str:
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


if __name__ == "__main__":
    by_hand, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(by_hand + MARK + "\n" + generated())
