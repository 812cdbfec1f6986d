"""The README is code: examples parse, its refusal is the real one; pages list every route and field."""

import re
from pathlib import Path

import pytest
import yaml

from tests.worlds import pod
from timekeeper.core.budgets.reader import read
from timekeeper.core.request.request import canonical, parse
from timekeeper.core.values import Ask
from timekeeper.core.violation import message

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
REQUESTS = (DOCS / "requests.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_pod_before_is_a_good_request_and_the_pod_after_carries_its_canonical_form() -> None:
    before, after = (yaml.safe_load(block) for block in blocks("yaml")[:2])

    request = parse(before).request

    assert request is not None
    assert request.asks[0].ask == Ask(1, 500, 0)
    assert after["metadata"]["annotations"]["bursar.dev/request"] == canonical(request)


def test_the_refusal_that_is_shown_is_the_one_that_is_given() -> None:
    violations = parse(
        pod({"name": "train", "resources": {"limits": {"bursar.dev/gpu-percent": "150"}}})
    ).violations

    assert " ".join(message(violations).split()) in " ".join(README.split())


def test_the_budgets_that_are_shown_are_read_without_an_error() -> None:
    (shown,) = (yaml.safe_load(block) for block in blocks("yaml") if "bursar-budgets" in block)

    reading = read({"bursar-budgets": shown["data"]})

    assert reading.errors == ()
    assert set(reading.budgets) == {"team-a", "_defaults"}


@pytest.mark.parametrize("row", re.findall(r"^\| (`[a-z.]+/[a-z-]+: .*?) \|", REQUESTS, re.MULTILINE))
def test_each_row_of_the_table_of_limits_is_a_good_request(row: str) -> None:
    for way in row.split(" or "):
        limits = dict(re.findall(r'`([a-z.]+/[a-z-]+): "(\d+)"`', way))

        assert parse(pod({"name": "c", "resources": {"limits": limits}})).request is not None, way


def routes(role: str) -> set[str]:
    """The routes that a role's code registers, as its decorators name them."""
    code = "\n".join(file.read_text() for file in sorted((ROOT / role).rglob("*.py")))
    return {
        f"{verb.upper()} {path}"
        for verb, path in re.findall(r"@app\.(get|post|put|delete)\(\s*\"([^\"]+)\"", code)
    }


@pytest.mark.parametrize("role", ["webhook", "scheduler_ext"])
def test_every_route_is_documented(role: str) -> None:
    documented = (ROOT / "docs" / "api.md").read_text()
    known = routes(role)

    assert known, "no route was found in the code"
    assert [route for route in sorted(known) if f"`{route}" not in documented] == []


def test_every_setting_of_the_config_map_is_documented() -> None:
    documented = (ROOT / "docs" / "budget-settings.md").read_text()
    source = (ROOT / "timekeeper" / "core" / "budgets" / "reader.py").read_text()
    fields = set(re.findall(r'^    "([a-zA-Z]+)": \(', source, re.MULTILINE)) | {
        "rules",
        "exempt",
        "weights",
        "priorityClasses",
    }

    assert len(fields) > 20
    assert [field for field in sorted(fields) if f"`{field}`" not in documented] == []


def test_every_metric_that_is_named_exists() -> None:
    code = "\n".join(
        file.read_text()
        for role in ("webhook", "timekeeper", "scheduler_ext")
        for file in (ROOT / role).rglob("*.py")
    )
    named = set(re.findall(r"`(bursar_[a-z_]+)", (ROOT / "docs" / "api.md").read_text()))

    assert named
    assert [name for name in sorted(named) if f'"{name.removesuffix("_total")}"' not in code] == []
    labels = re.findall(r'`bursar_[a-z_]+\{[a-z]+="([^"]+)"', (ROOT / "docs" / "api.md").read_text())
    assert [label for label in labels if f'"{label}"' not in code] == []
