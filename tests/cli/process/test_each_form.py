"""The example of each command's help, typed in its default and in every form of ``-o``, against the
timekeeper's real API over a ledger with rows; the webhook's and the extender's own code answers
simulations."""

import csv
import io
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from werkzeug.serving import WSGIRequestHandler, make_server

from deploy.local.limits import LONGEST_S
from tests.deploy.reading import ROOT
from tests.reference.commands import NAME, leaves
from tests.support.http_server import JsonHandler, Served
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.dashboards import ADMIN, filled
from tests.timekeeper.ledger.test_simulate_api import begun
from tests.timekeeper.worlds import T0, Town, node, user_status
from timekeeper.cli.examples import EXAMPLES
from timekeeper.cli.flags import ClusterCommand
from timekeeper.cli.loopback import Loopback
from timekeeper.cli.main import cli

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

KUBECTL = f"""#!/bin/sh
case "$*" in
    *"get node n1"*) cat "$(dirname "$0")/node.json" ;;
    config*) echo team-a ;;
    exec*) exec {sys.executable} -P -m timekeeper export - --database=sqlite:///$(dirname "$0")/ledger.db ;;
    *) echo '{{"items": [], "gitVersion": "v1.36.0"}}' ;;
esac
"""
CASES = [
    (path.removeprefix(NAME).strip(), form)
    for path, command in leaves(cli)
    for form in (
        "",
        *(
            choice
            for param in command.params
            if "--output" in param.opts and isinstance(param.type, click.Choice)
            for choice in param.type.choices
        ),
    )
]


class ApiServer(JsonHandler):
    """Of a cluster without objects."""

    def do_GET(self) -> None:
        self.answer(200, {"metadata": {}, "items": []})


class _Quiet(WSGIRequestHandler):
    def log(self, *_: object) -> None: ...


@contextmanager
def served(app: "WSGIApplication") -> Iterator[str]:
    """The application on loopback while the context lasts; gives its address."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """In which every command finds the timekeeper, and a kubectl that knows one node. PLANNER: the address of
    a timekeeper whose webhook and extender answer."""
    folder = tmp_path_factory.mktemp("cli")
    ledger, town = filled(folder), Town(tmp_path_factory.mktemp("town"))
    town.reviews.tokens[ADMIN] = user_status("admin")
    (folder / "token").write_text(ADMIN)
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    (folder / "node.json").write_text(json.dumps(node("n1")))
    with ExitStack() as stack:
        stack.callback(ledger.close)
        stack.callback(town.close)
        planner = stack.enter_context(served(begun(town).client.application))
        yield {
            **{"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
            **{"BURSAR_SERVER": stack.enter_context(served(ledger.app)), "PLANNER": planner},
            "BURSAR_TOKEN_FILE": str(folder / "token"),
            "KUBECONFIG": str(kubeconfig(folder, stack.enter_context(Served(ApiServer)).url)),
        }


def typed(
    environment: dict[str, str], folder: Path, words: list[str]
) -> Result | subprocess.CompletedProcess[str]:
    """Types a command. Those that become another process get one."""
    if words[0] in ("check", "audit"):
        command = [sys.executable, "-m", "timekeeper.cli.main", *words]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_S
        )
    with chdir(folder):
        return CliRunner().invoke(cli, words, env=environment)


def test_every_command_is_typed() -> None:
    assert {name for name, _ in CASES} == set(EXAMPLES)


@pytest.mark.parametrize(("name", "form"), CASES)
def test_each_command_answers_in_each_form(
    name: str, form: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_ctrl_c(_self: Loopback) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loopback, "serve_forever", until_ctrl_c)
    monkeypatch.setattr("timekeeper.cli.flags.now_ms", lambda: T0)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    monkeypatch.setattr("timekeeper.cli.top.now_ms", lambda: T0, raising=False)
    if name == "simulate":
        environment = {**environment, "BURSAR_SERVER": environment["PLANNER"]}

    done = typed(environment, tmp_path, [*shlex.split(EXAMPLES[name]), *(("-o", form) if form else ())])

    code = done.exit_code if isinstance(done, Result) else done.returncode
    said = f"{done.stdout}\n{done.stderr}"
    assert code == (1 if name == "doctor" else 0), said
    assert ("Error" in done.stderr, "Traceback" in said) == (False, False), said
    match form:
        case "json":
            assert isinstance(json.loads(done.stdout), dict)
        case "yaml":
            assert list(yaml.safe_load_all(done.stdout))
        case "csv" | "focus":
            head, *rows = csv.reader(io.StringIO(done.stdout))
            assert {len(row) for row in rows} <= {len(head)}
        case _:
            assert said.strip()


@pytest.mark.parametrize(("path", "command"), [*leaves(cli)])
def test_each_help_ends_with_its_example_and_has_no_flag_of_the_connection(
    path: str, command: click.Command
) -> None:
    said = CliRunner().invoke(cli, [*path.removeprefix(NAME).split(), "--help"]).stdout

    assert said.rstrip().endswith(f"Example:\n    {NAME} {EXAMPLES[path.removeprefix(NAME).strip()]}")
    assert ("--token-file" in said, "kubectl bursar --help" in said) == (
        False,
        isinstance(command, ClusterCommand),
    )


def test_the_flags_of_the_connection_are_in_the_help_of_all_commands() -> None:
    said = CliRunner().invoke(cli, ["--help"]).stdout

    flags = ("--account", "--server", "--token-file", "--ca-file", "--system-namespace", "--aggregated")
    assert [flag for flag in flags if flag not in said] == []
