"""The rules of alerts and the dashboards, and the metrics that they read."""

import json
import re
from pathlib import Path
from typing import Any

from tests.deploy.reading import loaded

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule
    for document in loaded((MONITORING / "alerts.yaml").read_text())
    for group in document["spec"]["groups"]
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
    **{f"{file.stem} {number}": expr for file in DASHBOARDS for number, expr in enumerate(targets(file))},
}


def metrics_in(text: str) -> set[str]:
    """The names of our metrics, without the suffixes of a histogram's series."""
    return {re.sub(f"({'|'.join(PARTS)})$", "", name) for name in re.findall(r"\bbursar_\w+(?![\w:])", text)}
