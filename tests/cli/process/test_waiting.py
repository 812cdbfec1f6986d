"""`waiting` and `map` ask the timekeeper over real HTTPS for what the extender posted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest

from tests.cli.unit.test_connection import options
from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from timekeeper.cli.main import waiting
from timekeeper.core.texts import NOT_PLACED
from timekeeper.runtime.clock import now_ms

POD = {
    "namespace": "team-b",
    "priority": 0,
    "standing": "",
    "state": "refused",
    "created": 0,
    "reason": "taint",
}


class Timekeeper(JsonHandler):
    """Namespaces but team-a and team-b have no placement; in team-b two pods of three are listed."""

    posted: ClassVar[int | None] = None

    def do_GET(self) -> None:
        if self.path.startswith("/v1/waiting"):
            pods = [POD | {"name": name} for name in ("p", "q")] if self.path.endswith("=team-b") else []
            total = None if self.posted is None else len(pods) + bool(pods)
            self.answer(200, {"version": 1, "posted": self.posted, "total": total, "pods": pods})
            return
        self.answer(
            200, {"version": 1, "placement": "on" if self.path.startswith("/v1/budgets/team-") else "off"}
        )


@pytest.fixture
def timekeeper(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The flags that lead to it."""
    tls = Tls(tmp_path)
    (tmp_path / "token").write_text("token")
    Timekeeper.posted = now_ms()
    with Served(Timekeeper, tls.server()) as server:
        files = {"token_file": str(tmp_path / "token"), "ca_file": str(tmp_path / "ca.crt")}
        yield {"server": server.url, **files}


def typed(flags: dict[str, Any], namespace: str, pod: str | None = None) -> None:
    """The command as its flags would make it; namespace "": all."""
    given = options({}, namespace=namespace, **flags)
    assert waiting.callback is not None
    with click.Context(waiting, obj=given):
        waiting.callback(all_namespaces=not namespace, form="table", pod=pod)


@pytest.mark.parametrize("namespace", ["elsewhere", ""])
def test_an_empty_list_of_a_namespace_without_placement_says_what_is_not_known(
    timekeeper: dict[str, Any], namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(timekeeper, namespace)

    assert capsys.readouterr().err.splitlines()[-1] == f"{NOT_PLACED}."


def test_of_a_namespace_that_is_placed_it_lists_the_pods_or_the_one_asked_for_and_counts_the_others(
    timekeeper: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    typed(timekeeper, "team-b")
    listed = capsys.readouterr()
    typed(timekeeper, "team-b", pod="q")

    assert [line.split()[1] for line in listed.out.splitlines()] == ["POD", "p", "q"]
    assert listed.err.splitlines()[-1].startswith("2 of 3 waiting pods are listed: ")
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["POD", "q"]


def test_before_the_extender_has_posted_nothing_is_known_and_an_old_post_is_called_old(
    timekeeper: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Timekeeper.posted = None
    typed(timekeeper, "team-a")
    assert "Nothing is known: no extender has posted" in capsys.readouterr().err

    Timekeeper.posted = now_ms() - 120_000
    typed(timekeeper, "team-a")
    assert "This is old: the extender posted last 2m0s ago." in capsys.readouterr().err
