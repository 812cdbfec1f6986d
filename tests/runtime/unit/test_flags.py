"""The readers of flags' values, and the parser."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.runtime.flags import (
    Parser,
    UnusableError,
    address,
    argument,
    choice,
    duration_ms,
    flag,
    group,
    https,
    namespaced,
    nonempty,
    one_of,
    optional,
    path_or_none,
    repeated,
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
        (address, ("8443", ":8443", "a:70000", "a:-1", "a:\u0661"), "HOST:PORT, such as [::]:8443"),
        (
            https,
            ("http://a", "https://", "https://:1", "https://u@a", "https://a/?q", "https://a\nb"),
            "an https:// URL",
        ),
        (https, ("https://a:99999", "https://a:0"), "an https:// URL: its port is not from 1 to 65535"),
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


@dataclass(frozen=True, slots=True)
class Files:
    """A group."""

    ca: Path | None = flag(path_or_none, "", "CA bundle, PEM", name="--server-ca")


@dataclass(frozen=True, slots=True)
class Settings:
    """Each kind of field."""

    command: str = argument("command", nargs="?", choices=("serve", "audit"), default="serve")
    workers: int = flag(whole_number(1, 9), "2", "number of processes", short="-w")
    wait_ms: int = flag(duration_ms("1s", "1m", "5s"), "5s", "time to wait")
    database: str = flag(str, "", "where rows are kept")
    mode: str = choice(("enforce", "observe"), "enforce", "what is done")
    names: tuple[str, ...] = repeated(lambda text: text.split(",") if text else [], "a name", name="--name")
    files: Files = group(Files)
    once: bool = argument("--once", action="store_true")

    def __post_init__(self) -> None:
        if self.once and self.command == "serve":
            raise UnusableError("--once is for the command audit")


def settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    return Parser(Settings, environment, prog="bursar-x").read(arguments)


def test_settings_without_arguments_are_those_of_the_class() -> None:
    assert settings_of([], {}) == Settings()
    assert (Settings().workers, Settings().wait_ms, Settings().mode) == (2, 5_000, "enforce")


def test_a_flag_goes_before_its_variable_and_that_before_the_default() -> None:
    environment = {
        **{"BURSAR_WORKERS": "3", "BURSAR_WAIT": "6s", "BURSAR_MODE": "observe", "BURSAR_NAME": "a,b"},
        **{"BURSAR_SERVER_CA": "/ca", "BURSAR_ONCE": "yes", "WORKERS": "9"},
    }

    assert settings_of([], environment) == Settings(
        workers=3, wait_ms=6_000, mode="observe", names=("a", "b"), files=Files(Path("/ca"))
    )
    given = settings_of(["audit", "-w4", "--wait=7s", "--name=c", "--name", "d,e", "--once"], environment)
    assert (given.command, given.workers, given.wait_ms, given.once) == ("audit", 4, 7_000, True)
    assert given.names == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--workers=x"], {}, 'argument -w/--workers: "x" is not a whole number from 1 to 9'),
        ([], {"BURSAR_WORKERS": "x"}, 'argument -w/--workers: "x" is not a whole number from 1 to 9'),
        ([], {"BURSAR_MODE": "x"}, "argument --mode: invalid choice: 'x' (choose from 'enforce', 'observe')"),
        (["--once"], {}, "--once is for the command audit"),
        (["--no-such-flag"], {}, "unrecognized arguments: --no-such-flag"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(
    arguments: list[str], environment: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(arguments, environment)

    assert (ended.value.code, capsys.readouterr().err) == (2, f"bursar-x: {sentence}\n")


def test_the_help_has_each_flags_own_default_and_variable_and_no_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(["--help"], {"BURSAR_DATABASE": "hunter2"})

    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "-w WORKERS, --workers WORKERS number of processes (default 2; BURSAR_WORKERS)" in text
    assert "--wait WAIT time to wait (default 5s; BURSAR_WAIT)" in text
    assert "--database DATABASE where rows are kept (empty by default; BURSAR_DATABASE)" in text
    assert "--mode {enforce,observe} what is done (default enforce; BURSAR_MODE)" in text
    assert "--server-ca SERVER_CA CA bundle, PEM (empty by default; BURSAR_SERVER_CA)" in text
    assert "hunter2" not in text
