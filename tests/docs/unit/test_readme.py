"""The README and what other pages show are code: examples are read, and the refusal is the real one."""

import json
import re

import pytest
import yaml

from tests.packaging.checkout import ROOT
from tests.worlds import pod
from timekeeper.core.budgets.policy import ineffective_fields
from timekeeper.core.budgets.reader import read
from timekeeper.core.kube.holders import decode_holders
from timekeeper.core.request.request import canonical, parse
from timekeeper.core.values import Ask
from timekeeper.core.violation import message

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
REQUESTS = (DOCS / "requests.md").read_text()


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


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


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("README.md", {"team-a", "_defaults"}),
        ("docs/budgets.md", {"team-a", "team-b", "_group.research", "_group.everyone-else", "_defaults"}),
        ("docs/rules.md", {"team-a"}),
    ],
)
def test_the_budgets_that_are_shown_are_read_and_acted_on(page: str, keys: set[str]) -> None:
    (block,) = (block for block in blocks("yaml", page) if "bursar-budgets" in block)

    reading = read({"bursar-budgets": yaml.safe_load(block)["data"]})

    assert (reading.errors, reading.missing_groups(reading.budgets), set(reading.budgets)) == ((), (), keys)
    assert {key: ineffective_fields(budget) for key, budget in reading.budgets.items()} == dict.fromkeys(
        keys, ()
    )


def test_the_rules_that_are_shown_have_the_modes_that_are_shown() -> None:
    (block,) = blocks("yaml", "docs/rules.md")

    settings = read({"bursar-budgets": yaml.safe_load(block)["data"]}).settings

    assert settings is not None
    assert settings.rules == (("host-path", "warn"), ("env-from", "off"))


def test_the_annotation_of_holders_that_is_shown_is_one_and_its_fields_are_explained() -> None:
    page = (DOCS / "node-agent.md").read_text()
    (example,) = re.findall(r'^\{"version".*$', page, re.MULTILINE)
    rows = page.partition("| field | meaning |")[2].partition("\n\n")[0]

    assert list(json.loads(example)) == ["version", *re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)]
    assert decode_holders(example).known


@pytest.mark.parametrize("row", re.findall(r"^\| (`[a-z.]+/[a-z-]+: .*?) \|", REQUESTS, re.MULTILINE))
def test_each_row_of_the_table_of_limits_is_a_good_request(row: str) -> None:
    for way in row.split(" or "):
        limits = dict(re.findall(r'`([a-z.]+/[a-z-]+): "(\d+)"`', way))

        assert parse(pod({"name": "c", "resources": {"limits": limits}})).request is not None, way
