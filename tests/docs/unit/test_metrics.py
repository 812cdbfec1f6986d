"""The page on metrics has every metric and log event of the webhook, and no others."""

import re
from pathlib import Path

from webhook.metrics import of_this_process

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text().partition("\n## Of the extender\n")[0]


def test_every_metric_of_the_webhook_is_explained_with_its_labels() -> None:
    kinds = {"counter": "_total", "gauge": "", "histogram": ""}
    metrics = [each for each in vars(of_this_process()).values() if getattr(each, "_type", None) in kinds]
    exist = {f"{each._name}{kinds[each._type]}": set(each._labelnames) for each in metrics}
    rows = re.findall(r"^\| `(bursar_\w+)` \| (\w+)(.*?) \|", PAGE, re.MULTILINE)

    on_page = {name: set(re.findall(r"(?:; |, )`(\w+)`", labels)) for name, _, labels in rows}

    assert on_page.keys() == exist.keys()
    assert {name: labels & exist[name] for name, labels in on_page.items()} == exist


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
