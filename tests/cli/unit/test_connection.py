"""Which pod and which account a command uses."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.deploy.reading import ROOT
from timekeeper.cli import connection
from timekeeper.cli.connection import Options
from timekeeper.cli.dashboard import first_page as dashboard_page
from timekeeper.cli.flags import ClusterCommand
from timekeeper.cli.output import AwayError, CommandError
from timekeeper.core.texts import WITHOUT_TIMEKEEPER, WORK_WITHOUT_TIMEKEEPER

TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()


@dataclass
class PlayedKubectl:
    """Answers by the first two arguments after the verb; what it does not know, it refuses."""

    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    refuses: str = ""
    pods: tuple[Any, ...] = ()

    def run(self, verb: str, *arguments: str) -> str:
        known = self.answers.get((verb, arguments[0])) or self.answers.get((verb, " ".join(arguments[:2])))
        if known is None:
            raise CommandError(f"kubectl {verb}: Error from server (NotFound): {arguments[0]} not found")
        return known

    def get(self, *arguments: str) -> Any:
        if not self.pods:
            raise CommandError("kubectl get: forbidden")
        return {"items": list(self.pods)}

    def namespace(self) -> str:
        return "team-a"

    def forwarded(self, namespace: str, target: str, port: int) -> AbstractContextManager[int]:
        raise CommandError(self.refuses or f'kubectl port-forward: {target} "{namespace}" not found')


def options(answers: Any, **flags: str) -> Options:
    return Options(PlayedKubectl(answers), **flags)  # type: ignore[arg-type]


def test_the_pod_of_a_statefulset_is_preferred_and_a_deployment_is_reached_by_its_service() -> None:
    pod = {("get", "pod/bursar-timekeeper-0"): "pod/bursar-timekeeper-0"}

    assert connection._target(options(pod)) == ("pod/bursar-timekeeper-0", 8444)
    assert connection._target(options({})) == ("service/bursar-timekeeper", 443)


ADMINISTRATOR = ("bursar-system", "bursar-admin")


@pytest.mark.parametrize(
    ("account", "subject", "used"),
    [
        ("", "team-a", (("team-a", "bursar-reader"), ADMINISTRATOR)),
        ("", "_group.lab", (("bursar-leads", "lab"), ADMINISTRATOR)),
        ("", "", (("bursar-system", "bursar-finance"), ADMINISTRATOR)),
        ("me", "team-a", (("team-a", "me"),)),
        ("ops/me", "team-a", (("ops", "me"),)),
        ("me", "", (("bursar-system", "me"),)),
    ],
)
def test_the_accounts_follow_from_what_is_read_the_least_right_first(
    account: str, subject: str, used: tuple[tuple[str, str], ...]
) -> None:
    assert options({}, account=account).accounts_for(subject) == used


@pytest.mark.parametrize("account", ["", "ops/me"])
def test_what_writes_takes_one_account(account: str) -> None:
    used = options({}, account=account).accounts_for("", writes=True)

    assert used == ((ADMINISTRATOR,) if not account else (("ops", "me"),))


@pytest.mark.parametrize(
    ("known", "created", "said"),
    [
        (
            ("bursar-finance", "bursar-admin"),
            ["bursar-finance", "bursar-admin"],
            "bursar-system/bursar-admin:",
        ),
        (("bursar-admin",), ["bursar-admin"], "With the account bursar-system/bursar-admin:"),
        (("bursar-finance",), ["bursar-finance"], ""),
    ],
)
def test_the_next_account_is_tried_where_there_is_no_token_and_is_named(
    known: tuple[str, ...], created: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_tokens = options({("create", f"token {name}"): name for name in known})

    assert [*connection._tokens(with_tokens, with_tokens.accounts_for(""), "")] == created
    assert capsys.readouterr().err.strip().endswith(said)


@pytest.mark.parametrize("known", ["bursar-admin", "bursar-finance"])
def test_the_pages_of_all_are_for_an_administrator_else_for_finance(known: str) -> None:
    with_token = options({("create", f"token {known}"): known})

    pages = connection._of_pages(with_token, "")

    assert next(connection._tokens(with_token, pages, "")) == known


@pytest.mark.parametrize(
    ("subject", "sample"), [("", "finance"), ("a", "reader"), ("_group.b", "group-lead")]
)
def test_without_any_token_the_file_that_makes_the_first_account_is_named(subject: str, sample: str) -> None:
    none = options({})

    with pytest.raises(CommandError, match=rf"deploy/samples/{sample}\.yaml"):
        next(connection._tokens(none, none.accounts_for(subject), subject))


@pytest.mark.parametrize(
    ("flags", "named", "page"),
    [
        ({}, "team-a", "/namespaces/team-a"),
        ({"account": "me"}, "team-a", "/namespaces/team-a"),
        ({"account": "leads/lab"}, "team-a", "/"),
        ({"account": "leads/lab", "namespace": "team-a"}, "team-a", "/namespaces/team-a"),
        ({"namespace": "_group.lab"}, "_group.lab", "/groups/lab"),
    ],
)
def test_the_account_of_another_namespace_begins_at_the_first_page(
    flags: dict[str, str], named: str, page: str
) -> None:
    assert dashboard_page(options({}, **flags), named) == page


def test_without_a_token_for_a_namespace_its_leads_are_named() -> None:
    used = options({})

    with pytest.raises(CommandError) as refused:
        next(connection._tokens(used, used.accounts_for("team-a"), "team-a"))

    assert refused.value.message.endswith(
        "--account names another one, for leads of its group bursar-leads/NAME. The namespace is that of your"
        " context: -n names yours."
    )


def test_a_ledger_on_this_machine_needs_neither_a_token_of_the_cluster_nor_a_ca(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.b.c\n")
    there = options({}, server="http://127.0.0.1:8444", token_file=str(tmp_path / "token"))

    with connection.connected(there, "team-a", is_quiet=True) as client:
        assert client.url == "http://127.0.0.1:8444"
    with pytest.raises(CommandError) as refused, connection.connected(replace(there, token_file=""), ""):
        pass
    assert refused.value.message.startswith(
        "http://127.0.0.1:8444 takes no token of the cluster: --token-file"
    )
    with pytest.raises(CommandError), connection.connected(replace(there, server="https://127.0.0.1"), ""):
        pass


@pytest.mark.parametrize(
    ("flags", "wanted", "is_of_context"),
    [
        ({}, "team-a", True),
        ({"namespace": "team-a"}, "team-a", False),
        ({"account": "leads/lab"}, "team-a", False),
        ({}, "", False),
        ({"system_namespace": "team-a"}, "", False),
    ],
)
def test_a_token_that_is_refused_says_where_the_namespace_is_from(
    flags: dict[str, str], wanted: str, is_of_context: bool
) -> None:
    used = options({}, **flags)
    with pytest.raises(CommandError) as refused:
        next(connection._tokens(used, used.accounts_for(wanted), wanted))

    assert ("that of your context: -n names yours" in refused.value.message) is is_of_context
    assert ("leads of a group bursar-leads/NAME" in refused.value.message) is (not wanted)


UNREADY = {
    "metadata": {"name": "bursar-timekeeper-0"},
    "status": {
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "lastTransitionTime": "2026-11-26T01:40:00Z",
                "message": "unready",
            }
        ]
    },
}
READY = {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
UNBORN = {"metadata": {"name": "a"}, "status": {"phase": "Pending"}}
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims"
UNPLACED = {
    "metadata": {"name": "a"},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": f"{UNBOUND}."}],
    },
}


@pytest.mark.parametrize(
    ("pods", "since"),
    [
        ((UNREADY,), "Pod bursar-timekeeper-0 is not ready since 2026-11-26 01:40Z, for "),
        ((READY,), "Pod a is ready, so the way to it is cut"),
        ((UNBORN,), "Pod a is Pending."),
        ((UNPLACED,), f"Pod a is Pending: {UNBOUND}; see kubectl get storageclass: without a default one "),
        ((), "Kubernetes does not say since when."),
    ],
    ids=["unready", "ready", "pending", "without a volume", "not known"],
)
def test_a_timekeeper_that_is_away_is_said_to_be_since_when_and_what_goes_on_without_it(
    pods: tuple[Any, ...], since: str
) -> None:
    known = {("create", "token"): "t", ("get", "configmap"): "ca", ("get", "pod/bursar-timekeeper-0"): "pod"}
    there = Options(PlayedKubectl(known, refuses="pod is not running", pods=pods))  # type: ignore[arg-type]

    with pytest.raises(AwayError) as refused, connection.connected(there, "team-a", is_quiet=True):
        pass

    first, second, *rest = refused.value.message.splitlines()
    assert first == "the timekeeper does not answer: pod is not running."
    assert second.startswith(since)
    assert rest[0] == WITHOUT_TIMEKEEPER
    assert rest[1].endswith("kubectl bursar check and kubectl bursar audit need no timekeeper.")
    assert [f"`{command}`" in TROUBLESHOOTING for command in WORK_WITHOUT_TIMEKEEPER] == [True] * 3
    assert rest[-1].startswith(
        "Do: kubectl describe pods -n bursar-system -l app.kubernetes.io/component=timekeeper"
    )


def test_a_timekeeper_that_never_started_is_away_and_no_right_is_missing() -> None:
    """Without a volume it has published no CA."""
    known = {("create", "token"): "t"}
    there = Options(PlayedKubectl(known, pods=(UNPLACED,)))  # type: ignore[arg-type]

    with pytest.raises(AwayError) as refused, connection.connected(there, "team-a", is_quiet=True):
        pass

    first, second, *_ = refused.value.message.splitlines()
    assert first == (
        "the timekeeper does not answer: it has published no CA yet (ConfigMap bursar-ca in bursar-node or"
        " bursar-system), as after its start."
    )
    assert UNBOUND in second


FLAGS_BESIDE_VARIABLES = [
    (["--account", "a/lead"], {"BURSAR_TOKEN_FILE": "t"}, {"account": "a/lead", "token_file": ""}),
    (["--token-file", "t"], {"BURSAR_ACCOUNT": "a/lead"}, {"account": "", "token_file": "t"}),
    (["--aggregated"], {"BURSAR_SERVER": "s", "BURSAR_TOKEN_FILE": "t"}, {"server": "", "token_file": ""}),
    (["--server", "s"], {"BURSAR_AGGREGATED": "1"}, {"server": "s", "aggregated": False}),
    (["--context", "c"], {"BURSAR_SERVER": "s", "BURSAR_TOKEN_FILE": "t"}, {"server": "", "token_file": ""}),
    (["--context", "c", "--server", "s"], {"BURSAR_TOKEN_FILE": "t"}, {"server": "s", "token_file": ""}),
    (["--server", "s"], {"BURSAR_TOKEN_FILE": "t"}, {"server": "s", "token_file": "t"}),
]


@pytest.mark.parametrize(("flags", "variables", "expected"), FLAGS_BESIDE_VARIABLES)
def test_a_flag_wins_over_a_variable_that_says_another_way(
    flags: list[str], variables: dict[str, str], expected: dict[str, object]
) -> None:
    found: list[Options] = []

    @click.command(cls=ClusterCommand)
    @click.pass_obj
    def command(options: Options) -> None:
        found.append(options)

    result = CliRunner().invoke(command, flags, env=variables, catch_exceptions=False)

    assert result.exit_code == 0, result.output
    assert {name: getattr(found[0], name) for name in expected} == expected


def test_an_account_and_a_token_exclude_each_other() -> None:
    both = ["--account", "a/lead", "--token-file", "t"]

    result = CliRunner().invoke(ClusterCommand("x"), both)

    assert (result.exit_code, "--account and --token-file exclude each other" in result.output) == (2, True)
