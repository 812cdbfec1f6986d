"""The plugin on a terminal and in pipes: progress, Ctrl-C, exit codes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from deploy.local.limits import LONGEST_S
from tests.deploy.reading import ROOT
from tests.support.http_server import JsonHandler, Served
from tests.support.tls import Tls
from timekeeper.api.sheets.budgets import BUDGET as BUDGET_SHEET
from timekeeper.api.sheets.sessions import SESSIONS
from timekeeper.cli.main import main

COMMAND = (sys.executable, "-m", "timekeeper.cli.main")
BUDGETS: dict[str, object] = {"version": 1, "groups": [], "budgets": []}
LISTED: dict[str, object] = {"version": 1, "items": []}
BUDGET: dict[str, object] = {
    **{"version": 1, "namespace": "team-c", "standing": "OVER_BUDGET", "onExhausted": "deny", "group": None},
    **{"granted": 1, "posted": 2, "pending": 0, "reserved": 0, "remaining": -1},
    **{"period": {"to": None}, "exhaustedAt": None, "mode": "enforce", "modeFrom": "cluster", "entry": None},
    **{"placement": "on", "protect": None, "received": None, "request": None},
    **{"maxGPUsMilli": None, "maxGPUsPerPodMilli": None},
    "deciding": {"subject": "team-c", "remaining": -1, "to": None},
}
NOTHING: dict[str, object] = {"version": 1, "sessions": [], "rows": [], "next": None}
PORTAL = b"<html>Log in to the network</html>"
ANSWERS: dict[str, dict[str, object]] = {
    "/v1/budgets": BUDGETS,
    "/v1/budgets/team-c": BUDGET,
    "/v1/budgets/tema-c": BUDGET | {"namespace": "tema-c", "granted": None, "posted": 0},
    "/v1/budgets/spender": BUDGET
    | {
        "namespace": "spender",
        "granted": None,
        "deciding": {"subject": "spender", "remaining": None, "to": None},
    },
    "/v1/budgets/others": {"items": []},
    "/v1/budgets/..%2Fgrants%3Fx": BUDGET,
    "/v1/budgets/versioned": {"version": "1.30"},
    "/v1/budgets/bare": {"kind": "Table"},
}
OTHERS: dict[str, object] = {"/v1/budgets/portal": PORTAL, "/v1/budgets/list": ["version"]}


class Api(JsonHandler):
    """The timekeeper of a cluster with one budget, which lists none once it may, and grants to team-a in
    vain."""

    may_answer = threading.Event()
    looks = threading.Semaphore(0)  # at what runs

    def do_GET(self) -> None:
        if self.path == "/v1/budgets":
            self.may_answer.wait(LONGEST_S)
        if self.path.startswith("/v1/sessions"):
            self.looks.release()
        if "namespace=foreign" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "text/csv")
            self.send_header("Content-Length", "14")
            self.end_headers()
            self.wfile.write(b"name,size\na,1\n")
        elif "format=csv" in self.path:
            self.answer(200, PORTAL)
        elif self.path.startswith("/v1/grants"):
            self.answer(200, {"version": 1, "grants": {"total": 1}})
        elif self.path.startswith(("/v1/sessions", "/v1/usage")):
            self.answer(200, SESSIONS.table(NOTHING, 0))
        elif self.path in OTHERS:
            self.answer(200, OTHERS[self.path])
        elif ANSWERS.get(self.path, {}).get("namespace") and "as=Table" in self.headers.get("Accept", ""):
            self.answer(200, BUDGET_SHEET.table(ANSWERS[self.path], 0))
        elif self.path in ANSWERS:
            self.answer(200, ANSWERS[self.path])
        else:
            self.answer(404, {"detail": "it is not there"})

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
        output, _ = process.communicate(timeout=LONGEST_S)
    os.close(theirs)
    os.close(terminal)

    assert (process.returncode, json.loads(output)) == (0, LISTED)

    done = subprocess.run(command, env=environment, capture_output=True, timeout=LONGEST_S)
    assert (json.loads(done.stdout), done.stderr) == (LISTED, b"")


def test_a_small_terminal_shows_all_that_a_pipe_gets_and_colours(environment: dict[str, str]) -> None:
    command = [*COMMAND, "budget", "-n", "team-c"]
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 40))
    shown = b""
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.DEVNULL):
        os.close(theirs)
        with suppress(OSError):  # the process has ended
            while True:
                shown += os.read(terminal, 4096)
    os.close(terminal)

    piped = subprocess.run(command, env=environment, capture_output=True, timeout=LONGEST_S).stdout

    assert re.sub(rb"\x1b\[[0-9;]*m|\r", b"", shown) == piped
    assert b"\x1b[1;31mOVER_BUDGET" in shown
    assert (b"OVER_BUDGET" in piped, b"\x1b" in piped) == (True, False)
    assert [line for line in piped.splitlines() if line.endswith(b" ")] == []


def test_top_looks_again_until_control_c_ends_it_as_it_says(environment: dict[str, str]) -> None:
    terminal, theirs = pty.openpty()
    Api.looks = threading.Semaphore(0)
    command = [*COMMAND, "top", "-n", "team-a", "--every", "1"]
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.PIPE) as process:
        read_until(terminal, b"Ctrl-C ends")
        looks = [Api.looks.acquire(timeout=LONGEST_S) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LONGEST_S)
    os.close(theirs)
    os.close(terminal)

    assert looks == [True, True]
    assert (process.returncode, errors) == (0, b"")


def test_top_prints_once_on_a_terminal_that_cannot_be_written_over(environment: dict[str, str]) -> None:
    terminal, theirs = pty.openpty()

    done = subprocess.run(
        [*COMMAND, "top", "-n", "team-a"],
        env=environment | {"TERM": "dumb"},
        stdout=theirs,
        stderr=subprocess.PIPE,
        timeout=LONGEST_S,
    )

    os.close(theirs)
    os.close(terminal)
    assert (done.returncode, done.stderr) == (0, b"No pod holds a card.\n")


GRANT = ("1", "--reason", "x", "--key", "first")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--version",), 0, ""),
        (("top", "-n", "team-a"), 0, "No pod holds a card."),
        (("budget", "../grants?x"), 0, ""),
        (("budget", "-n", "team-b"), 1, "answered 404: it is not there"),
        (
            ("budget", "-n", "portal"),
            1,
            "did not answer with Bursar's JSON: it is another server, or a login",
        ),
        (("budget", "-n", "others"), 1, "did not answer with Bursar's JSON"),
        (("budget", "-n", "list"), 1, "did not answer with Bursar's JSON"),
        (
            ("budget", "-n", "versioned"),
            1,
            "answered without a table: it is a timekeeper older than this command",
        ),
        (("budget", "-n", "versioned", "-o", "json"), 1, "JSON, which has a field granted: it is another"),
        (("budget", "-n", "bare"), 1, "JSON, which has a field rows: it is another server"),
        (("grants", "-n", "a", "-o", "json"), 1, "did not answer with Bursar's JSON"),
        (("report", "-n", "foreign"), 1, "did not answer with Bursar's CSV"),
        (("report", "-n", "a"), 1, "did not answer with Bursar's CSV: it is another server, or a login"),
        (("report", "-n", "a", "-o", "csv"), 1, "did not answer with Bursar's CSV"),
        (("budget",), 1, "kubectl was not found on the PATH; install it, or use --server"),
        (("budget", "-n", "a", "--ca-file", "none"), 1, "none cannot be read: No such file or directory\n"),
        (("grant", "team-a", *GRANT), 1, "To try again without granting twice: --key first"),
        (("grant", "team-b", *GRANT), 1, "answered 409: it has no budget\n"),
        (("budget", "-n", "a", "--token-file", "none"), 1, "--token-file: none cannot be read"),
        (("budget", "-n", "a", "--server", "bursar:8444"), 1, "bursar:8444 is no address of a server"),
        (("budget", "-A", "team-a"), 2, "--all-namespaces and a name exclude each other"),
        (("budget", "-o", "xml"), 2, "'xml' is not one of 'table', 'wide', 'json', 'yaml', 'csv'"),
        (("budgets",), 2, "No such command 'budgets'"),
        (("map", "-n", "team-a"), 2, "No such option '-n'"),
        (("doctor", "--namespace", "team-a"), 2, "No such option '--namespace'"),
        (("grant", "team-a", *GRANT, "-n", "team-b"), 2, "No such option '-n'"),
        (("grants", "--group", "g", "-n", "team-a"), 2, "--namespace and --group exclude each other"),
        (("grants", "team-a", "-n", "team-b"), 2, "--namespace and a name exclude each other"),
        (("budget", "team-a", "-n", "team-b"), 2, "--namespace and a name exclude each other"),
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


def test_a_namespace_that_may_be_misspelled_is_an_error_beside_the_table(environment: dict[str, str]) -> None:
    command = [*COMMAND, "budget", "tema-c", "spender", "team-c"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S)

    assert (done.returncode, len(done.stdout.splitlines())) == (1, 3)
    assert done.stderr == "Error: tema-c has no budget and uses nothing. -A lists the names with one.\n"


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv"])
def test_output_that_cannot_be_written_is_a_failure_and_a_closed_pipe_a_silent_one(
    environment: dict[str, str], form: str
) -> None:
    command = [*COMMAND, "budget", "-n", "team-c", "-o", form]
    ours, closed = os.pipe()
    os.close(ours)

    ended = []
    for target in (closed, os.open("/dev/full", os.O_WRONLY)):
        done = subprocess.run(
            command, env=environment, stdout=target, stderr=subprocess.PIPE, timeout=LONGEST_S
        )
        os.close(target)
        ended.append((done.returncode, done.stderr))

    assert ended == [(1, b""), (1, b"Error: [Errno 28] No space left on device\n")]


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_closed_output_is_no_traceback(environment: dict[str, str], form: str) -> None:
    shell = ("/bin/sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "budget", "-n", "team-c", "-o", form)

    done = subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=LONGEST_S)

    assert "Traceback" not in done.stderr, done.stderr


def test_json_and_yaml_have_the_answer_as_it_is(environment: dict[str, str]) -> None:
    command = [*COMMAND, "budget", "-n", "team-c", "-o"]
    said = {
        form: subprocess.run([*command, form], env=environment, capture_output=True, timeout=LONGEST_S).stdout
        for form in ("json", "yaml")
    }

    assert (json.loads(said["json"]), yaml.safe_load(said["yaml"])) == (BUDGET, BUDGET)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("check", f"{ROOT}/deploy/samples/half-a-card.yaml"), 0, "1 object: 1 admitted"),
        (("check", "-o", "json", "--help"), 0, "Usage: kubectl bursar check [OPTIONS] [FILE]..."),
        (("check", "--mode", "none"), 2, "kubectl bursar check: argument --mode: invalid choice"),
        (("check", "none.yaml"), 2, "kubectl bursar check: none.yaml: "),
        (("audit", "--help"), 0, "--month YYYY-MM"),
        (("audit", "--month", "2026-10", "--help"), 0, "nothing is proved: it is not"),
        (("audit", "-n"), 2, "kubectl bursar audit: argument -n/--namespace: expected one argument"),
        (
            ("audit", "--context", "far", "-A"),
            2,
            "kubectl bursar audit: kubectl's own kubeconfig, --context far: ",
        ),
    ],
)
def test_check_and_audit_are_the_commands_of_the_webhook_in_any_folder(
    environment: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "webhook").mkdir()
    (tmp_path / "webhook" / "__main__.py").write_text("raise SystemExit('a module of the user')")

    done = subprocess.run(
        [*COMMAND, *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )

    assert (done.returncode, sentence in done.stdout + done.stderr) == (code, True), done


PLAYED_KUBECTL = """#!/bin/sh
echo '{"items": [{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "other"}, "data": {"x": "y"}},
 {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "bursar-budgets"},
  "data": {"_defaults": "gpuHours: 10\\nmaxGPUsPerPod: 0.2"}}]}'
"""


def test_check_judges_by_the_clusters_budgets_and_says_where_it_knows_none(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "kubectl").write_text(PLAYED_KUBECTL.replace("\\n", "\\\\n"))
    (tmp_path / "kubectl").chmod(0o755)
    command = [*COMMAND, "check", f"{ROOT}/deploy/samples/half-a-card.yaml"]

    def typed(**more: str) -> subprocess.CompletedProcess[str]:
        known = {**environment, **more}
        return subprocess.run(command, env=known, capture_output=True, text=True, timeout=LONGEST_S)

    judged, unjudged = typed(PATH=f"{tmp_path}:/usr/bin:/bin"), typed(PATH="/usr/bin:/bin")

    assert (judged.returncode, "(maxGPUsPerPod)" in judged.stdout) == (1, True), judged
    assert (unjudged.returncode, "The budgets are not known here" in unjudged.stderr) == (0, True), unjudged
    assert "IN_BUDGET assumed: what is used is not known here" in unjudged.stdout
