"""Exit codes of what proves something, and of names that nothing knows, against the timekeeper's real API."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import insert

from tests.cli.process.test_each_form import served
from tests.timekeeper.books import Books, posting_row
from tests.timekeeper.dashboards import ADMIN, READER, filled
from tests.timekeeper.ledger.test_months import ENDED, ENTRY, LONG, NOVEMBER
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.worlds import HOUR, T0, user_status
from timekeeper.cli.main import cli
from timekeeper.cli.months import month
from timekeeper.core.decisions import HELD, RELEASED, Decision, DecisionRun
from timekeeper.store import decisions
from timekeeper.store.engine.schema import POSTINGS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

KUBECTL = """#!/bin/sh
case "$*" in
    *hidden*) echo "Error from server (Forbidden): pods is forbidden" >&2; exit 1 ;;
    "get jbo "*) echo "error: the server doesn't have a resource type \\"jbo\\"" >&2; exit 1 ;;
    "get pods fresh "*schedulingGates*) echo "kueue.x-k8s.io/admission bursar.dev/gang|held" ;;
    "get Job queued "*jsonpath*) echo "true|held" ;;
    "get Job free "*jsonpath*) echo "true|free" ;;
    "get workload job-queued "*jsonpath*) echo "|held" ;;
    "get workload admitted "*jsonpath*) echo "True|held" ;;
    "get Job "[qf]*" -o name") echo job/known ;;
    "get workload "*" -o name") echo workload/known ;;
    "get pods fresh "*) echo pod/fresh ;;
    "get JobSet rests "*jsonpath*) echo true ;;
    "get JobSet "[rl]*" -o name") echo jobset/known ;;
    "get nodes cpu-1 "*) echo node/cpu-1 ;;
    "get pods -n "*) echo pod/fresh ;;
esac
"""


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    """A ledger in which the month of a charge has ended."""
    made = Books(f"sqlite:///{tmp_path}/months.db")
    made.reviews.tokens |= {ADMIN: user_status("admin"), READER: user_status("reader")}
    made.reviews.denied.add(("reader", "get", "usage", ""))
    made.entries(ENTRY)
    made.write(ENDED)
    yield made
    made.close()


def proved(books: Books, tmp_path: Path, name: str, bearer: str = ADMIN) -> tuple[int, str]:
    """The exit code of ``audit --month``, in each of two forms, and standard error."""
    (tmp_path / "token").write_text(bearer)
    with served(books.app) as url:
        flags = ["--month", name, "--server", url, "--token-file", str(tmp_path / "token")]
        done, as_json = (CliRunner().invoke(month, [*flags, "-o", form]) for form in ("table", "json"))
    assert (as_json.exit_code, as_json.stderr) == (done.exit_code, done.stderr)
    return done.exit_code, done.stderr


@pytest.mark.parametrize("form", ["table", "wide", "csv", "json", "yaml"])
def test_what_ends_by_its_answer_asks_once_in_every_form(books: Books, tmp_path: Path, form: str) -> None:
    asked: list[str] = []

    def counting(environ: dict[str, Any], start: "StartResponse") -> Iterable[bytes]:
        asked.append(environ["PATH_INFO"])
        return books.app(environ, start)

    (tmp_path / "token").write_text(ADMIN)
    books.close_months()
    write_accounts(books.store, books.clock())
    with served(counting) as url:
        flags = ["--server", url, "--token-file", str(tmp_path / "token"), "-o", form]
        proof = CliRunner().invoke(cli, ["audit", "--month", "2026-10", *flags])
        life = CliRunner().invoke(cli, ["explain", "claim/none", "-n", "team-a", *flags], env={"PATH": ""})

    assert (proof.exit_code, life.exit_code) == (0, 0)
    assert asked == ["/v1/months/2026-10", "/v1/explain/team-a/claim/none"]


def test_a_closed_month_is_proved_until_something_in_it_changes(books: Books, tmp_path: Path) -> None:
    books.close_months()
    unchanged = proved(books, tmp_path, "2026-10")
    with books.store.writing() as connection:
        start = NOVEMBER - 9 * HOUR
        late = posting_row(ENDED, 9, start, start + HOUR // 2, -1) | {"created_ms": books.clock() + 1}
        connection.execute(insert(POSTINGS), [late])

    assert (unchanged, proved(books, tmp_path, "2026-10")) == ((0, ""), (1, ""))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("2026-09", "2026-09 is not closed, for the ledger began after it;"),
        ("2026-10", "the settler closes it an hour after its end at the earliest;"),
        ("2026-11", "it has not ended;"),
        ("2027-01", "it has not begun;"),
        ("2026-13", "month: it must be a month such as 2026-10"),
        ("October", "month: it must be a month such as 2026-10"),
    ],
)
def test_of_a_month_that_is_not_closed_nothing_is_proved(
    name: str, why: str, books: Books, tmp_path: Path
) -> None:
    code, said = proved(books, tmp_path, name)

    assert (code, why in said) == (2, True)


def test_of_a_month_that_waits_nothing_is_proved(books: Books, tmp_path: Path) -> None:
    books.write(replace(LONG, heard_ms=NOVEMBER - 1))

    code, said = proved(books, tmp_path, "2026-10")

    assert (code, "sessions of it are not settled" in said) == (2, True)


def test_without_an_answer_or_a_right_nothing_is_proved(books: Books, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(ADMIN)
    words = ["--month", "2026-10", "--server", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token")]

    assert CliRunner().invoke(month, words).exit_code == 2
    assert CliRunner().invoke(month, []).exit_code == 2
    assert proved(books, tmp_path, "2026-10", READER)[0] == 2
    assert proved(books, tmp_path, "2026-10", "x.y.z")[0] == 2


SAID = "Kueue's queue held is held by the budget of team-a: 0 of 10 GPU-hours left until 1 December"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A ledger with pods and a map, and a kubectl that knows one pod and one node."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "token").write_text(ADMIN)
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    with ExitStack() as stack:
        ledger = filled(folder)
        stack.callback(ledger.close)
        decided = (("held", HELD, SAID), ("free", HELD, "it was held"), ("free", RELEASED, "it is let go"))
        runs = [
            DecisionRun(
                Decision(
                    at_ms=T0,
                    kind=kind,
                    reason="Queue",
                    namespace="team-a",
                    owner=f"LocalQueue/{name}",
                    figures={"message": f"{said}."},
                ),
                1,
                T0,
            )
            for name, kind, said in decided
        ]
        with ledger.books.store.writing() as connection:
            decisions.record(connection, "timekeeper", runs)
        url = stack.enter_context(served(ledger.app))
        token = {"BURSAR_TOKEN_FILE": str(folder / "token")}
        yield {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "BURSAR_SERVER": url, **token}


def typed(environment: dict[str, str], *words: str) -> Result:
    return CliRunner().invoke(cli, words, env=environment)


@pytest.mark.parametrize("form", ["table", "json", "csv"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", "trian-7"), "knows Pod/trian-7 in namespace team-a; near: train-7, train-9."),
        (("explain", "frehs"), "knows Pod/frehs in namespace team-a; near: fresh."),
        (
            ("why", "jbo/train"),
            "knows jbo/train in namespace team-a; near: Job/train, Pod/train-9, Pod/train-7.",
        ),
        (("explain", "claim/none"), "knows ResourceClaim/none in namespace team-a."),
        (("map", "--node", "gpu-99"), "there is no node gpu-99 on the map; near: gpu-9, "),
        (
            ("map", "--node", "cpu-1"),
            "the map has no card of node cpu-1: no inventory describes one, or none was",
        ),
    ],
)
def test_a_name_that_nothing_knows_is_an_error_with_those_that_are_near(
    words: tuple[str, ...], said: str, form: str, environment: dict[str, str]
) -> None:
    own = ("-n", "team-a") if words[0] != "map" else ()

    done = typed(environment, *words, *own, "-o", form)

    assert (done.exit_code, done.stdout) == (1, "")
    assert said in f"{done.stderr.strip()}."


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "train-7", "-n", "team-a"),
        ("explain", "fresh", "-n", "team-a"),
        ("explain", "hidden", "-n", "team-a"),
        ("map", "--node", "gpu-1"),
    ],
)
def test_a_name_that_the_ledger_or_the_api_server_knows_is_answered(
    words: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert typed(environment, *words).exit_code == 0


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_jobset_that_is_suspended_is_explained_though_nothing_is_recorded(
    form: str, environment: dict[str, str]
) -> None:
    suspended, lives = (
        typed(environment, "explain", f"jobset/{name}", "-n", "team-a", "-o", form).stdout
        for name in ("rests", "lives")
    )

    said = "JobSet/rests is suspended: until it is resumed it has no pods, and needs no cards or budget"
    assert said in suspended
    assert suspended.index(said) < suspended.index("team-a ")
    assert ("suspended" in lives, "Nothing is recorded" in suspended) == (False, False)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_pod_behind_another_systems_gate_is_told_whose_it_is(
    form: str, environment: dict[str, str]
) -> None:
    said = typed(environment, "explain", "fresh", "-n", "team-a", "-o", form).stdout

    gate = (
        "its scheduling gate kueue.x-k8s.io/admission keeps it from every scheduler: it is Kueue's, until its"
    )
    assert gate in said
    assert "Nothing is recorded" not in said


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(
    ("subject", "is_named"),
    [
        ("job/queued", True),
        ("fresh", True),
        ("workload/job-queued", True),
        ("job/free", False),
        ("workload/admitted", False),
    ],
)
def test_what_waits_in_kueue_is_told_which_budget_holds_its_queue(
    form: str, environment: dict[str, str], subject: str, is_named: bool
) -> None:
    done = typed(environment, "explain", subject, "-n", "team-a", "-o", form)

    assert done.exit_code == 0, done.output
    assert (SAID in done.stdout) == is_named
    assert ("is suspended" in done.stdout) == subject.startswith("job/")
