"""The page on alerts has the alerts of the rules file, and rules and dashboards name metrics that are
documented."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parents[3] / "docs"
MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
PAGE = (DOCS / "alerts.md").read_text()
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
PARTS = ("_bucket", "_sum", "_count")  # series of a histogram


def targets(dashboard: Path) -> list[str]:
    """The expressions of its panels."""
    panels = json.loads(dashboard.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{each.stem} {number}": expr for each in DASHBOARDS for number, expr in enumerate(targets(each))},
}


def metrics_in(expression: str) -> set[str]:
    """The names of our metrics, without the suffixes of a histogram's series."""
    return {re.sub(f"({'|'.join(PARTS)})$", "", name) for name in re.findall(r"\bbursar_\w+", expression)}


def documented() -> set[str]:
    """Every metric of the pages on metrics. Those of the extender stand there without their prefix."""
    pages = ("metrics", "node-agent")
    text = "\n".join((DOCS / f"{page}.md").read_text() for page in pages)
    of_extender = text.partition("\n## Of the extender\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (?:counter|gauge|histogram)", of_extender, re.MULTILINE)
    short = {f"bursar_extender_{name}" for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    return set(re.findall(r"\bbursar_\w+", text)) | short


def test_every_alert_is_explained_with_its_severity_and_its_time_and_no_other() -> None:
    rows = re.findall(r"^\| `(Bursar\w+)` \| (\w+) \| (.*?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)

    told = [(rule["alert"], rule["labels"]["severity"], rule.get("for", "at once")) for rule in RULES]
    assert [(name, severity, after) for name, severity, after, *_ in rows] == told
    assert all(rule["annotations"]["summary"] for rule in RULES)
    assert {rule["labels"]["severity"] for rule in RULES} == {"info", "warning", "critical"}


def test_every_dashboard_is_on_the_page() -> None:
    assert re.findall(r"^\| `(\w+\.json)` \|", PAGE, re.MULTILINE) == [each.name for each in DASHBOARDS]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_rules_and_dashboards_name_documented_metrics_alone(name: str) -> None:
    named = metrics_in(EXPRESSIONS[name])

    assert named
    assert sorted(named - documented()) == []
