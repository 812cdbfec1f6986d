"""``-o json`` as kubectl's: every command prints one object, and one that lists puts its members into
``items``."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import click
import pytest
import yaml
from click.testing import CliRunner

from deploy.local.limits import LONGEST_S
from tests.deploy.reading import ROOT
from tests.reference.commands import NAME, leaves
from tests.support.http_server import JsonHandler, Served
from tests.support.kubeconfig import kubeconfig
from timekeeper.api.sheets.decisions import DECISIONS
from timekeeper.api.sheets.sessions import SESSIONS
from timekeeper.api.sheets.simulation import SIMULATED
from timekeeper.api.sheets.usage import USAGE
from timekeeper.cli.main import cli

POD = str(ROOT / "deploy" / "samples" / "half-a-card.yaml")
LISTS: dict[str, tuple[str, ...]] = {
    **{"audit": (), "audit --use": (), "check": (POD,), "budget": ("-A",), "budget team-a team-b": ()},
    **{"correct": ("team-a", "-1", "--reason", "x"), "decisions": ("-A",), "doctor": ()},
    **{"grant": ("team-a", "1", "--reason", "x"), "grants": ("-A",)},
    **{"free": ("-A",), "held": ("-A",), "map": (), "report": ("-A",), "save": ("DIR",), "top": ("-A",)},
    **{"usage": ("-A",), "waiting": ("-A",), "would": ("-A",)},
}
OBJECTS: dict[str, tuple[str, ...]] = {
    **{
        "audit --month 2026-10": (),
        "budget team-a": (),
        "explain": ("p", "-n", "team-a"),
        "grants --group lab": (),
        "node charges": ("n",),
    },
    **{"simulate": ("-f", POD), "why": ("p", "-n", "team-a")},
}

AMOUNTS = {"posted": 1, "pending": 0, "amount": 1, "gpuHours": "0"}
BUDGET = {
    **{"version": 1, "namespace": "team-a", "standing": "IN_BUDGET", "onExhausted": "deny", "group": None},
    **{"granted": 9, "posted": 2, "pending": 0, "reserved": 0, "remaining": 7, "exhaustedAt": None},
    **{"period": {"to": None}, "deciding": {"subject": "team-a", "remaining": 7, "to": None}},
}
GRANT = {"subject": "team-a", "gpuHours": "1", "kind": "manual", "actor": "x", "reason": "y", "created": 0}
HASHES = {"charges": "a", "grantsMade": "b", "prices": "c", "sha256": "d"}
SESSION = {
    **{
        "uid": "u",
        "namespace": "team-a",
        "pod": "p",
        "node": "n",
        "models": "T4",
        "state": "open",
        "cards": [{}],
    },
    **{"rateMilli": 500, "ended": None, "vanished": None, "bound": 0, "amount": 1, "owner": ""},
    **{"kind": "pod", "devices": [], "admittedInBudget": True},
}
WAITING = {
    **{"namespace": "team-a", "name": "p", "priority": 0, "standing": "", "state": "refused"},
    **{"created": 0, "reason": "taint"},
}
HELD = {
    **{"namespace": "team-a", "pod": "p", "waitsFor": "budget", "ahead": 0, "priority": 0, "rateMilli": 500},
    **{"created": 0, "earliest": None, "gang": "", "pods": 1},
}
DECISION = {
    **{"last": 0, "namespace": "team-a", "pod": "p", "generateName": "", "owner": "", "kind": "placed"},
    **{"id": 1, "count": 1, "sentence": "Placed."},
}
WOULD = {
    **{"week": "2026-W47", "namespace": "team-a", "rule": "", "pod": "p", "sentence": "", "pods": 1, "of": 2},
    "verdict": "held",
}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/grants": {"grants": [GRANT]},
    "/v1/sessions": {"sessions": [SESSION]},
    "/v1/held": {"held": [HELD]},
    "/v1/decisions": {"decisions": [DECISION], "next": "x"},
    "/v1/waiting": {"pods": [WAITING], "posted": 0, "total": 1},
    "/v1/budgets": {"budgets": [BUDGET], "groups": [BUDGET | {"namespace": "_group.lab"}], "broken": []},
    "/v1/budgets/team-a": BUDGET,
    "/v1/budgets/team-b": BUDGET,
    "/v1/cluster": {
        "nodes": [{"name": "n", "closed": "", "cards": [], "undescribed": ""}],
        "posted": 0,
    },
    "/v1/corrections": {
        "corrections": [{**GRANT, "namespace": "team-a", "pod": "", "at": 0, "amount": -1, "id": 1}]
    },
    "/v1/explain/team-a/p": {
        **{"subject": "Pod/p", "namespace": "team-a", "steps": [], "charges": [], "waitsFor": []},
        "budget": "Spent.",
    },
    "/v1/free": {"asOf": 0, "models": [{"model": "T4", "whole": 1}], "vague": 0},
    "/v1/groups/lab/grants": {
        **{"group": "lab", "to": None, "granted": 1, "passedOn": 1, "left": 0},
        "namespaces": [{"namespace": "team-a", "amount": 1, "to": None}],
    },
    "/v1/months/2026-10": {
        **{"month": "2026-10", "closed": None, "state": "ended", "differs": [], "to": 1},
        "now": HASHES | {"amount": 1, "sessions": 1, "grants": 1},
    },
    "/v1/nodes/n": {
        **{"node": "n", "state": "left", "heard": "2026-11-21T00:00:00Z", "left": "2026-11-21T00:01:00Z"},
        "charges": [],
    },
    "/v1/simulate": {"pods": [], "cost": None, "after": None, "note": ""},
    "/v1/usage": {"from": 0, "to": 1, "rows": [{"namespace": "team-a", "uid": "u", **AMOUNTS}], "total": {}},
    "/v1/would": {"rows": [WOULD], "enforced": [], "notes": []},
}
TABLES = {"/v1/decisions": DECISIONS, "/v1/sessions": SESSIONS, "/v1/usage": USAGE}
BILL = (
    "from,to,namespace,owner,price,currency,posted,pending,amount,gpuHours,cost,requested,measured,unused\n"
    "2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,team-a,Job/x,2,EUR,0,0,3600000000,1,2,3600000000,0,0\n"
)
FOCUS = "BilledCost,BillingCurrency,ChargePeriodStart,ResourceId,x_Amount\n2,EUR,2026-11-01T00:00:00Z,u,1\n"
KUBECTL = """#!/bin/sh
echo '{"items": [], "gitVersion": "v1.36.0"}'
"""


class Servers(JsonHandler):
    """The timekeeper and an API server without objects. The timekeeper of namespace foreign
    does not know FOCUS."""

    asked: ClassVar[list[str]] = []
    sent: ClassVar[list[object]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        path, query = urlsplit(self.path).path, urlsplit(self.path).query
        for form, text in (("focus-csv", BILL if "foreign" in query else FOCUS), ("csv", BILL)):
            if f"format={form}" in query:
                self.send_response(200)
                self.send_header("Content-Type", "text/csv; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())
                return
        if path in TABLES and "as=Table" in self.headers.get("Accept", ""):
            last = {"next": None} if "after=" in query else {}
            self.answer(200, TABLES[path].table(ANSWERS[path] | last, 60_000))
        elif path in ANSWERS:
            self.answer(200, {"version": 1, "next": None, **ANSWERS[path]})
        else:
            self.answer(200, {"metadata": {}, "items": []})

    def do_POST(self) -> None:
        self.sent.append(self.body())
        self.answer(200, {"version": 1, **ANSWERS[self.path]})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """In which every command finds its servers, and a kubectl that knows no objects."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "token").write_text("secret")
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    with Served(Servers) as server:
        named = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
        named["BURSAR_SERVER"] = server.url
        yield named | {
            "BURSAR_TOKEN_FILE": str(folder / "token"),
            "KUBECONFIG": str(kubeconfig(folder, server.url)),
        }


def typed(environment: dict[str, str], folder: Path, *words: str) -> str:
    """What a command prints, which may find an error in the cluster. Those that become another process get
    one."""
    if words[0] in ("check", "audit"):
        command = [sys.executable, "-m", "timekeeper.cli.main", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout
    with chdir(folder):
        result = CliRunner().invoke(cli, words, env=environment)
    assert result.exit_code in (0, 1), result.output
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.stdout


def test_a_correction_is_sent_with_its_exact_figure_and_uid(
    environment: dict[str, str], tmp_path: Path
) -> None:
    words = ("correct", "team-a", "-0.741666666667", "--pod", "train-0", "--uid", "u", "--reason", "x")

    typed(environment, tmp_path, *words)

    given = {"namespace": "team-a", "gpuHours": "-0.741666666667", "reason": "x"}
    assert Servers.sent[-1] == given | {"pod": "train-0", "uid": "u"}


def with_json() -> set[str]:
    """Every command of the parser that takes ``-o json``."""
    return {
        path.removeprefix(NAME).strip()
        for path, command in leaves(cli)
        for each in command.params
        if "--output" in each.opts and isinstance(each.type, click.Choice) and "json" in each.type.choices
    }


def test_every_command_with_json_is_tried() -> None:
    tried = {name for each in (*LISTS, *OBJECTS) for name in with_json() if f"{each} ".startswith(f"{name} ")}

    assert with_json() == tried


@pytest.mark.parametrize("command", [*LISTS, *OBJECTS])
def test_json_is_one_object_and_of_a_list_one_with_items(
    command: str, environment: dict[str, str], tmp_path: Path
) -> None:
    words = [*command.split(), *(LISTS | OBJECTS)[command], "-o", "json"]

    found = json.loads(typed(environment, tmp_path, *words))  # which refuses a second document

    assert isinstance(found, dict)
    assert isinstance(found.get("items"), list) is (command in LISTS), found


def test_yaml_is_the_same_object(environment: dict[str, str], tmp_path: Path) -> None:
    as_json, as_yaml = (typed(environment, tmp_path, "grants", "-A", "-o", form) for form in ("json", "yaml"))

    assert json.loads(as_json) == yaml.safe_load(as_yaml) == {"items": [GRANT]}


def test_a_list_keeps_the_other_fields_of_the_answer(environment: dict[str, str], tmp_path: Path) -> None:
    found = json.loads(typed(environment, tmp_path, "budget", "-A", "-o", "json"))

    assert [each["namespace"] for each in found.pop("items")] == ["_group.lab", "team-a"]
    assert found == {"version": 1, "next": None, "broken": []}


@pytest.mark.parametrize("form", ["csv", "json"])
def test_no_more_decisions_are_read_than_asked_for(
    environment: dict[str, str], tmp_path: Path, form: str
) -> None:
    Servers.asked.clear()

    shown = typed(environment, tmp_path, "decisions", "-A", "--most", "1", "-o", form)

    assert shown.count("Placed.") == 1
    assert Servers.asked == ["/v1/decisions?limit=1"]


def test_the_bill_in_focus_is_the_api_s(environment: dict[str, str], tmp_path: Path) -> None:
    Servers.asked.clear()

    shown = typed(environment, tmp_path, "report", "-n", "team-a", "--month", "2026-10", "-o", "focus")

    assert shown == FOCUS
    assert Servers.asked == ["/v1/usage?namespace=team-a&month=2026-10&format=focus-csv"]


def test_focus_has_its_own_columns(environment: dict[str, str]) -> None:
    words = ["report", "-A", "-o", "focus", "--group", "namespace"]

    done = CliRunner().invoke(cli, words, env=environment)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "--group and -o focus exclude each other: FOCUS has columns of its own" in done.stderr


def test_a_bill_that_is_not_in_focus_is_another_server_s(environment: dict[str, str]) -> None:
    done = CliRunner().invoke(cli, ["report", "-n", "foreign", "-o", "focus"], env=environment)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "did not answer with Bursar's CSV" in done.stderr


@pytest.mark.parametrize(
    ("form", "columns"),
    [
        ("table", ["namespace", "pod", "node", "models"]),
        ("wide", ["namespace", "pod", "uid", "owner", "node", "models"]),
        ("csv", ["namespace", "pod", "uid", "owner", "node", "models"]),
    ],
)
def test_a_wide_table_has_more_columns_of_the_server(
    form: str, columns: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    head = typed(environment, tmp_path, "top", "-A", "--once", "-o", form).split("\n")[0]

    found = head.split(",") if form == "csv" else head.lower().replace("model", "models").split()
    assert found[: len(columns)] == columns


@pytest.mark.parametrize("words", [["held", "-A"], ["grant", "team-a", "1", "--reason", "x", "--key", "k"]])
def test_a_server_that_knows_no_tables_is_named_as_an_older_one(
    words: list[str], environment: dict[str, str]
) -> None:
    done = CliRunner().invoke(cli, words, env=environment)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "answered without a table: it is a timekeeper older than this command" in done.stderr
    assert ("--key k" in done.stderr) == (words[0] == "grant")


def test_top_lists_what_awaits_its_settlement_below_what_holds_cards(
    environment: dict[str, str], tmp_path: Path
) -> None:
    shown = typed(environment, tmp_path, "top", "-A", "--once").split("\n")

    assert [line.split()[:2] for line in shown if line.startswith(("NAMESPACE", "team-a", "These"))] == [
        ["NAMESPACE", "POD"],
        ["team-a", "p"],
        ["These", "hold"],
        ["NAMESPACE", "POD"],
        ["team-a", "p"],
    ]


class Simulating(JsonHandler):
    """A timekeeper whose simulations have one outcome."""

    outcome: ClassVar[str] = ""
    asked: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        self.answer(200, {"version": 1})

    def do_POST(self) -> None:
        self.asked.append(self.body()["manifest"]["metadata"]["name"])
        pod = {
            "name": "p",
            "outcome": self.outcome,
            "node": "",
            "held": "",
            "refusal": "",
            "protected": False,
        }
        pod |= {"nodesThatFit": 1, "reasons": [], "hasUnreadConstraints": False}
        answer = {"version": 1, "pods": [pod], "cost": {"rateMilli": 0}, "note": ""}
        is_table = "as=Table" in self.headers.get("Accept", "")
        self.answer(200, SIMULATED.table(answer, 0) if is_table else answer)


@pytest.mark.parametrize(("outcome", "code"), [("fits", 0), ("waits", 1), ("refused", 1), ("unknown", 0)])
@pytest.mark.parametrize("form", [(), ("-o", "json")])
def test_simulate_ends_with_one_where_a_pod_of_a_manifest_is_refused_or_would_wait(
    environment: dict[str, str], tmp_path: Path, outcome: str, code: int, form: tuple[str, ...]
) -> None:
    pods = [{"kind": "Pod", "metadata": {"name": name, "namespace": "team-a"}} for name in ("a", "b")]
    (tmp_path / "pods.yaml").write_text("\n---\n".join(map(json.dumps, pods)))
    Simulating.outcome = outcome
    Simulating.asked.clear()

    with Served(Simulating) as server:
        words = ["simulate", "-f", str(tmp_path / "pods.yaml"), *form]
        result = CliRunner().invoke(cli, words, env={**environment, "BURSAR_SERVER": server.url})

    assert (result.exit_code, Simulating.asked) == (code, ["a", "b"]), result.output
    assert "as if it came alone" in result.stderr
