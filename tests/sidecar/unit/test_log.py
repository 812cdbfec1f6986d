"""The log: one line a thing, whatever is in it."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sidecar import log
from timekeeper.runtime import log as runtime


def test_a_line_has_time_level_role_and_event_before_the_fields() -> None:
    line = log.line("timekeeper-away", reason='it said "no"', spooled=3, empty="", left_out=None)

    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=warning role=sidecar event=timekeeper-away"
        r' reason="it said \\"no\\"" spooled=3 empty=""',
        line,
    )


FIELDS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda name: name != "event"),
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=400),
    max_size=4,
)


@pytest.fixture(params=log.FORMATS)
def log_format(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both loggers write this format."""
    assert log.FORMATS == runtime.FORMATS
    before = {**runtime._process}
    log.configure("sidecar", request.param)
    runtime._process.update(role="sidecar", format=request.param)
    yield request.param
    log.configure("sidecar")
    runtime._process.update(before)


@given(FIELDS)
@example({"reason": "x" * 400})
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_is_what_the_runtime_of_the_other_processes_writes(
    log_format: str, fields: dict[str, object]
) -> None:
    def shown(line: str) -> str:
        return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "", line, count=1)

    written = log.line("started", **fields)

    assert shown(written) == shown(runtime.line("info", "started", fields))
    assert written.startswith("{") is (log_format == "json")


@given(st.text())
def test_a_line_is_one_line_of_ascii(text: str) -> None:
    line = log.line("e", reason=text)

    assert line.isascii()
    assert line.splitlines() == [line]
