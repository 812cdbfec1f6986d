"""The one format of log lines."""

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.edge.log import configure, line, log
from timekeeper.runtime.http.server import LineFormatter

HEAD = re.compile(
    r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=(\w+) role=(\w+) event=(\S+)(.*)", re.DOTALL
)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Role, format and hooks are the process's."""
    hooks = sys.excepthook
    yield
    configure("bursar")
    sys.excepthook = hooks


def test_a_line_has_time_level_role_event_and_fields() -> None:
    configure("webhook")

    found = HEAD.fullmatch(line("warning", "not-ready", {"webhook": "mutate", "ms": 1.5, "why": None}))

    assert found is not None
    assert found.groups() == ("warning", "webhook", "not-ready", " webhook=mutate ms=1.5")


def test_a_value_is_quoted_with_the_escapes_of_json_and_cut() -> None:
    fields = {"a": "plain-1", "b": 'two words "quoted"\\\n', "c": "long" * 1000, "d": "", "e": "ü\u2028"}

    assert line("info", "x", fields).partition(" event=")[2] == (
        'x a=plain-1 b="two words \\"quoted\\"\\\\\\n" c=' + "long" * 75 + ' d="" e="\\u00fc\\u2028"'
    )


@given(st.text())
def test_no_value_breaks_its_line_and_each_can_be_read_back(value: str) -> None:
    text = line("info", "x", {"a": value})

    assert text.isascii()
    assert text.isprintable()
    shown = text.partition(" a=")[2]
    assert (json.loads(shown) if shown.startswith('"') else shown) == value[:300]


def test_the_same_fields_are_one_json_object_a_line() -> None:
    configure("extender", "json")

    found = json.loads(line("error", "x", {"pod": "team-a/p", "nodes": 3, "ms": 0.5, "gone": None}))

    assert re.fullmatch(r"\d{4}-.*Z", found.pop("time"))
    assert found == {
        "level": "error", "role": "extender", "event": "x", "pod": "team-a/p", "nodes": 3, "ms": 0.5,
    }  # fmt: skip


def test_what_a_library_logs_is_one_line_with_its_traceback() -> None:
    try:
        raise ValueError("first\nrole=webhook event=forged")
    except ValueError:
        record = logging.makeLogRecord(
            {"levelname": "CRITICAL", "msg": 'of "%s"\n', "args": ("x",), "exc_info": sys.exc_info()}
        )

    found = HEAD.fullmatch(LineFormatter().format(record))

    assert found is not None
    assert found[1] == "error"
    message, _, trace = found[4].partition(" trace=")
    assert message == ' message="of \\"x\\"\\n"'
    assert json.loads(trace).startswith("Traceback (most recent call last):\n")
    assert json.loads(trace).endswith("ValueError: first\nrole=webhook event=forged")


def test_a_stderr_that_is_gone_takes_nothing_else_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timekeeper.edge.log._STDERR", 1_000_000)

    log("x")


def test_a_stderr_that_was_closed_at_the_start_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its number may belong to another file."""
    monkeypatch.setattr("sys.stderr", None)

    log("x")

    assert capfd.readouterr().err == ""


def test_a_moment_has_three_digits_of_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_007_999_999)

    assert line("info", "x", {}).startswith("time=2023-11-14T22:13:20.007Z ")
