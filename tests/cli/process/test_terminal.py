"""The plugin on a terminal and in pipes: progress, Ctrl-C, exit codes."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from timekeeper.cli.main import main

COMMAND = (sys.executable, "-m", "timekeeper.cli.main")
BUDGETS: dict[str, object] = {"groups": [], "budgets": []}
NOTHING: dict[str, object] = {"sessions": [], "rows": [], "next": None}


class Api(JsonHandler):
    """The timekeeper of an empty cluster, which lists budgets once it may, and grants to team-a in vain."""

    may_answer = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/v1/budgets":
            self.may_answer.wait(30)
        known = self.path == "/v1/budgets", self.path.startswith(("/v1/sessions", "/v1/usage"))
        body = BUDGETS if known[0] else NOTHING if known[1] else {"detail": "it is not there"}
        self.answer(200 if any(known) else 404, body)

    def do_POST(self) -> None:
        is_known = self.body()["subject"] == "team-a"
        self.answer(503 if is_known else 409, {"detail": "busy" if is_known else "it has no budget"})


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """In which the plugin calls the stand-in, and no kubectl."""
    tls = Tls(tmp_path)
    (tmp_path / "token").write_text("secret")
    with Served(Api, tls.server()) as server:
        yield {
            "PATH": str(tmp_path),
            "TERM": "xterm",
            "BURSAR_SERVER": server.url,
            "BURSAR_TOKEN_FILE": tls.file("token"),
            "BURSAR_CA_FILE": tls.file("ca.crt"),
        }


def read_until(terminal: int, text: bytes) -> bytes:
    said = b""
    while text not in said:
        said += os.read(terminal, 4096)
    return said


def test_progress_is_on_the_terminal_while_it_lasts_and_never_in_the_output(
    environment: dict[str, str],
) -> None:
    terminal, theirs = pty.openpty()
    Api.may_answer.clear()
    command = [*COMMAND, "budget", "-A", "-o", "json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        read_until(terminal, b"the timekeeper answers")
        Api.may_answer.set()
        output, _ = process.communicate(timeout=60)
    os.close(theirs)
    os.close(terminal)

    assert (process.returncode, json.loads(output)) == (0, BUDGETS)

    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert (json.loads(done.stdout), done.stderr) == (BUDGETS, b"")


def test_control_c_ends_top_as_it_says(environment: dict[str, str]) -> None:
    terminal, theirs = pty.openpty()
    command = [*COMMAND, "top", "-n", "team-a"]
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.PIPE) as process:
        read_until(terminal, b"Ctrl-C ends")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    os.close(theirs)
    os.close(terminal)

    assert (process.returncode, errors) == (0, b"")


GRANT = ("1", "--reason", "x", "--key", "first")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--version",), 0, ""),
        (("top", "-n", "team-a"), 0, "No pod holds a card."),
        (("budget", "-n", "team-b"), 1, "answered 404: it is not there"),
        (("budget",), 1, "kubectl was not found on the PATH; install it, or use --server"),
        (("budget", "-n", "a", "--ca-file", "none"), 1, "none cannot be read: No such file or directory\n"),
        (("grant", "team-a", *GRANT), 1, "To try again without granting twice: --key first"),
        (("grant", "team-b", *GRANT), 1, "answered 409: it has no budget\n"),
        (("budget", "-n", "a", "--token-file", "none"), 1, "--token-file: none cannot be read"),
        (("budget", "-A", "team-a"), 2, "--all-namespaces and a name exclude each other"),
        (("budget", "-o", "xml"), 2, "'xml' is not one of 'table', 'json', 'yaml', 'csv'"),
        (("budgets",), 2, "No such command 'budgets'"),
        (("grant", "team-a", "1"), 2, "Missing option '--reason'"),
    ],
)
def test_exit_codes(
    environment: dict[str, str],
    arguments: tuple[str, ...],
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit) as ended:
        main(arguments)

    said = capsys.readouterr().err
    assert (ended.value.code, sentence in said) == (code, True), said
    assert ("--key" in said) == ("--key" in sentence)
