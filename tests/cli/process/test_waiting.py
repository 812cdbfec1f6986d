"""`waiting` where Bursar places no pods: by an extender and a timekeeper over real HTTP."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from tests.cli.unit.test_connection import options
from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from timekeeper.cli.main import waiting
from timekeeper.cli.output import CommandError
from timekeeper.core.texts import NOT_PLACED

NOBODY = "http://127.0.0.1:1"


class Extender(JsonHandler):
    """It knows of no waiting pod."""

    def do_GET(self) -> None:
        self.answer(200, {"version": 1, "pods": [], "next": None})


class Timekeeper(JsonHandler):
    """Team-a and namespaces without an entry have no placement."""

    def do_GET(self) -> None:
        is_on = self.path == "/v1/budgets/team-b"
        self.answer(200, {"version": 1, "placement": "on" if is_on else "off"})


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where the two listen."""
    tls = Tls(tmp_path)
    (tmp_path / "token").write_text("token")
    with ExitStack() as stack:
        extender = stack.enter_context(Served(Extender))
        timekeeper = stack.enter_context(Served(Timekeeper, tls.server()))
        files = {"token_file": str(tmp_path / "token"), "ca_file": str(tmp_path / "ca.crt")}
        yield {"extender": extender.url, "server": timekeeper.url, **files}


def typed(urls: dict[str, str], namespace: str = "", everywhere: bool = False) -> None:
    """The command as its flags would make it."""
    given = options({}, namespace=namespace, **urls)
    assert waiting.callback is not None
    with click.Context(waiting, obj=given):
        waiting.callback(all_namespaces=everywhere, form="table", pod=None)


@pytest.mark.parametrize("namespace", ["team-a", ""])
def test_an_empty_list_of_a_namespace_without_placement_says_what_is_not_known(
    urls: dict[str, str], namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(urls, namespace, everywhere=not namespace)

    assert capsys.readouterr().err.splitlines()[-1] == f"{NOT_PLACED}."


def test_without_an_extender_that_is_the_answer(urls: dict[str, str]) -> None:
    with pytest.raises(CommandError) as refused:
        typed({**urls, "extender": NOBODY}, "team-a")

    assert refused.value.message == f"{NOT_PLACED}."


def test_of_a_namespace_that_is_placed_it_says_nothing_and_a_failure_is_the_extenders(
    urls: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed(urls, "team-b")
    with pytest.raises(CommandError) as refused:
        typed({**urls, "extender": NOBODY}, "team-b")

    assert NOT_PLACED not in capsys.readouterr().err
    assert NOBODY in refused.value.message
