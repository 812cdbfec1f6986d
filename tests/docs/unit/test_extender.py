"""The pages on the extender have all routes, metrics, log events and words, and no others."""

import re
from pathlib import Path
from typing import get_args

import pytest

from scheduler_ext.assembly.extender import REPORTER
from scheduler_ext.fit.refusal import KINDS
from scheduler_ext.model.node import CLOSED
from scheduler_ext.settings import flags_of
from timekeeper.core.cluster_map import WAITING_STATES, MapCard, MapNode, MapPod, MapWaitingPod
from timekeeper.core.standings import WORDS
from timekeeper.runtime.event_recorder import (
    MAX_PER_OBJECT,
    MAX_QUEUED,
    RETRY_FOR_MS,
    SPAN_MS,
    EventType,
)

DOCS = Path(__file__).parents[3] / "docs"
ROOT = DOCS.parent
CODE = ROOT / "scheduler_ext"
PAGE = (DOCS / "extender.md").read_text()
METRICS = (DOCS / "metrics.md").read_text().partition("\n## Of the extender\n")[2].partition("\n## ")[0]


def test_the_dashboard_names_flags_that_the_extender_has() -> None:
    pages = (ROOT / "timekeeper" / "dashboard" / "templates").glob("*.html")
    named = {flag for page in pages for flag in re.findall(r"<code>(--[a-z-]+)</code>", page.read_text())}

    assert named == {"--timekeeper-url"}
    assert named <= {flag for each in flags_of({})._actions for flag in each.option_strings}


def firsts(table: str) -> set[str]:
    """The words in backticks of the first column of each row."""
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_the_alerts_name_metrics_and_labels_that_there_are() -> None:
    alerts = METRICS.partition("Worth an alert:")[2].partition("\n\n")[0]
    named = firsts(METRICS.partition("| event |")[0])

    used = {re.sub(r"_bucket$", "", name) for name in re.findall(r"bursar_extender_\w+", alerts)}

    assert used <= named
    assert set(re.findall(r'standing="(\w+)"', alerts)) <= set(WORDS)


def test_every_event_in_the_log_is_documented_and_no_other() -> None:
    code = "\n".join(file.read_text() for file in CODE.rglob("*.py"))
    written = set(re.findall(r'\b(?:_?log|_?say|log_exception)\(\s*"([a-z-]+)"', code)) - {"uncaught"}
    written |= set(re.findall(r'"((?:standings|usage|bindings?|ends?)-\w+)"', code)) | {
        "filter",
        "bind",
        "preempt",
    }

    assert firsts(METRICS.partition("| event | fields |")[2]) == written


@pytest.mark.parametrize(
    ("heading", "words"),
    [("| `kind` |", set(KINDS)), ("| `reason` |", set(CLOSED)), ("| `state` |", set(WAITING_STATES))],
)
def test_every_word_has_its_row(heading: str, words: set[str]) -> None:
    table = PAGE.partition(heading)[2].partition("\n\n")[0]

    assert firsts(table) == words


def test_every_event_on_pods_and_nodes_is_documented() -> None:
    code = "\n".join(file.read_text() for file in CODE.rglob("*.py"))
    table = PAGE.partition("## Events")[2].partition("\n## ")[0]

    on_page = set(re.findall(r"`([A-Z]\w+)`", table))

    assert {word for word in on_page if f'"{word}"' in code} == on_page
    posted = set(re.findall(r'\b(?:post_on_node|events\.post|tell)\([^"]*"([A-Z]\w+)"', code))
    assert {"BindTakenBack", "CardsClosed"} <= posted - {*get_args(EventType)} <= on_page
    assert REPORTER in table


def test_every_figure_of_the_map_is_documented() -> None:
    shown = {field for kind in (MapCard, MapPod, MapNode, MapWaitingPod) for field in kind.__annotations__}
    plain = {
        "uuid",
        "name",
        "namespace",
        "uid",
        "index",
        "model",
        "healthy",
        "pods",
        "standing",
        "priority",
        "age_ms",
    }

    assert [field for field in sorted(shown - plain) if f"`{field}`" not in PAGE] == []


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    for sentence in (
        f"At most {'ten' if MAX_PER_OBJECT == 10 else MAX_PER_OBJECT} are written",
        f"in {'five' if SPAN_MS == 300_000 else SPAN_MS} minutes",
        f"kept for {'five' if RETRY_FOR_MS == 300_000 else RETRY_FOR_MS} minutes, at most {MAX_QUEUED:,}",
    ):
        assert sentence in text, sentence
