"""The readers of flags' values, and the parser."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.runtime.flags import (
    Parser,
    address,
    duration_ms,
    https,
    namespaced,
    nonempty,
    one_of,
    optional,
    path_or_none,
    whole_number,
)

DURATION = duration_ms("2s", "1d", "15s")
SECONDS = duration_ms("2s", "1d", "15s", unit="1s")
READERS: tuple[Callable[[str], Any], ...] = (
    *(address, https, namespaced, nonempty, DURATION, SECONDS, whole_number(1, 64), one_of(("a", "b"))),
    *(path_or_none, optional(https, "")),
)


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (address, "0.0.0.0:8443", ("0.0.0.0", 8443)),
        (address, "[::1]:1", ("::1", 1)),
        (https, "https://a.b_c:8443/d", "https://a.b_c:8443/d"),
        (https, "https://[::1]:8443", "https://[::1]:8443"),
        (namespaced, "bursar-system/a.b", ("bursar-system", "a.b")),
        (optional(namespaced, None), "", None),
        (path_or_none, "", None),
        (path_or_none, "/a", Path("/a")),
        (DURATION, "2500ms", 2_500),
        (DURATION, "24h", 86_400_000),
        (SECONDS, "2000ms", 2_000),
        (whole_number(0, 64), "0", 0),
        (whole_number(0, 64), "64", 64),
    ],
)
def test_a_good_value_is_read(reader: Callable[[str], Any], text: str, value: object) -> None:
    assert reader(text) == value


@pytest.mark.parametrize(
    ("reader", "texts", "allowed"),
    [
        (address, ("8443", ":8443", "a:70000", "a:-1", "a:\u0661"), "HOST:PORT, such as 0.0.0.0:8443"),
        (
            https,
            ("http://a", "https://", "https://:1", "https://u@a", "https://a/?q", "https://a\nb"),
            "an https:// URL",
        ),
        (namespaced, ("a", "a/", "/b", "a/b/c", "A/b"), "NAMESPACE/NAME"),
        (
            DURATION,
            ("", "15", "1s", "1999ms", "25h", "1.5s", "-3s", "1e3s", "\u0663s"),
            "a duration from 2s to 1d, such as 15s",
        ),
        (SECONDS, ("2500ms",), "a duration from 2s to 1d in multiples of 1s, such as 15s"),
        (
            whole_number(1, 64),
            ("", "0", "65", "1_0", " 5", "+1", "nan", "\u0663"),
            "a whole number from 1 to 64",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(
    reader: Callable[[str], Any], texts: tuple[str, ...], allowed: str
) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError) as error:
            reader(text)
        assert str(error.value).endswith(f'" is not {allowed}'), text


@given(st.text())
def test_no_text_leads_to_another_error_and_each_error_is_one_line(text: str) -> None:
    for reader in READERS:
        sentence = ""
        try:
            reader(text)
        except argparse.ArgumentTypeError as error:
            sentence = str(error)
        assert "\n" not in sentence


def test_a_variable_is_the_default_of_its_flag_and_is_checked_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def parser(environment: dict[str, str]) -> Parser:
        made = Parser(environment, prog="bursar-x")
        made.add("--foo-bar", whole_number(1, 9), "2", "a number")
        made.add_log_format()
        return made

    assert vars(parser({}).parse_args([])) == {"foo_bar": 2, "log_format": "logfmt"}
    of_variables = parser({"BURSAR_FOO_BAR": "3", "BURSAR_LOG_FORMAT": "json"})
    assert vars(of_variables.parse_args([])) == {"foo_bar": 3, "log_format": "json"}
    assert of_variables.parse_args(["--foo-bar=4"]).foo_bar == 4
    for variable, sentence in (
        ("BURSAR_FOO_BAR", 'argument --foo-bar: "x" is not a whole number from 1 to 9'),
        ("BURSAR_LOG_FORMAT", "argument --log-format: invalid choice: 'x' (choose from 'logfmt', 'json')"),
    ):
        with pytest.raises(SystemExit) as ended:
            parser({variable: "x"}).parse_args([])
        assert (ended.value.code, capsys.readouterr().err) == (2, f"bursar-x: {sentence}\n")
