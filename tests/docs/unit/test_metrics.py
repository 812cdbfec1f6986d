"""The page on metrics has every log event of the webhook, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text().partition("\n## Of the extender\n")[0]


def test_every_event_in_the_webhooks_log_is_explained() -> None:
    """Those of the servers; the certificate process's are in certificates.md."""
    files = [file for file in (ROOT / "webhook").rglob("*.py") if file.parent.name != "controller"]
    code = "\n".join(file.read_text() for file in files)
    written = re.findall(r'\b(?:self\._)?log\(\s*"([a-z-]+)"', code)
    written += re.findall(r'"(standings-\w+)"', code)
    table = PAGE.partition("\n### Of the webhook\n")[2]

    on_page = [
        event
        for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for event in re.findall(r"[a-z-]+", row)
    ]

    assert sorted(set(on_page)) == sorted(set(written))
