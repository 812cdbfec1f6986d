"""The stage as `play.py` serves it: what people type has the answers of `tasks.md`, and no account does more
than it may."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.deploy.reading import ROOT
from tests.docs.shell import console
from tests.timekeeper.play import played

LONG = "research-of-the-team-for-large-language-models-in-europe-west1"
GROUP = "-n _group.research"
PASSED = "grant ads 400 --group research --reason sprint --account bursar-leads/research"
BY_DAY = "usage --by day --from 2026-11-09 --to 2026-11-11"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("play")
    with played(made):
        yield made


@pytest.mark.parametrize(
    ("person", "typed", "code", "answers"),
    [
        ("lead", "budget -n speech --account bursar-leads/research", 0,
         ["357.67", "group research", "2026-12-01 00:00+01:00", "1537.67 of its own"]),
        ("lead", "budget _group.research", 0, ["2026-11-27 21:50+01:00"]),
        ("lead", f"usage {GROUP} --use -o json", 0, [f"{130 * 3_600_000_000}", f"{105 * 3_600_000_000}"]),
        ("lead", PASSED, 0, ["ads now has 440.00 GPU-hours left of its own", "has 357.67"]),
        ("lead", "budget _group.lab", 1, ["needed"]),
        ("lead", f"budget {GROUP}", 0, ["_group.research", "ads", "speech", "IN_BUDGET"]),
        ("lead", f"top {GROUP} --once", 0, ["notebook-1", "BUSY is measured since 2026-11-20"]),
        ("lead", f"waiting {GROUP}", 0, ["rank-4", "2h0m"]),
        ("lead", f"held {GROUP}", 0, ["speech", "big-1", "budget"]),
        ("lead", "top -n ads --once", 1, ["leads of its group bursar-leads/NAME"]),
        ("lead", "top -n ads --once --account bursar-leads/research", 0, ["No pod holds a card."]),
        ("lead", "top -A --once --account bursar-leads/research", 1, ["of leads bursar-leads/NAME with -n"]),
        ("lead", f"explain rank-4 {GROUP}", 1, ["of a group, one of its namespaces"]),
        ("member", f"top {GROUP} --once", 1, ["account bursar-leads/research or"]),
        ("lead", f"check evening.yaml {GROUP}", 2, ['"_group.research" is not']),
        ("member", "explain big-1", 0,
         ["For more, send this to Ada Lovelace, grace@example.com (leads of group research)",
          "_group.research has 357.7 GPU-hours of its budget left until 2026-12-01",
          'at least 42.34 GPU-hours, for pod big-1. An administrator grants them: kubectl bursar grant'
          ' _group.research 42.34 --reason "big-1"']),
        ("member", "budget", 0, ["357.67"]),
        ("administrator", "budget team-b", 0,
         [f"send this to {'p' * 100} (lead of group lab)", "team-b is 32 GPU-hours over budget",
          "kubectl bursar grant team-b HOURS --group lab"]),
        ("member", f"waiting {GROUP} --account speech/bursar-reader", 1,
         ["sessions.bursar.dev of _group.research in speech alone: it needs",
          "of leads bursar-leads/NAME with -n _group.NAME"]),
        ("accountant", "report -A --month 2026-10", 0, [LONG, "10000.00", "10516.00"]),
        ("accountant", "audit --month 2026-10", 0, ["unchanged since it was closed"]),
        ("accountant", "audit --month 2026-09", 1, ["not as they were: charges", "-8.00 GPU-hours"]),
        ("accountant", "audit --month 2026-08", 2, ["the ledger began after it"]),
        ("accountant", "audit --month 2026-11", 2, ["it has not ended"]),
        ("accountant", "top -A --once", 1, ["may not get sessions"]),
        ("member", "report", 0, ["-12.00", "a card was faulty", "1624.00"]),
        ("member", "simulate -f evening.yaml", 0,
         ["fits", "Needs 12.01 GPU-hours; 357.67 are left of group research until 2026-12-01 00:00+01:00."]),
        ("member", "top --once", 0, ["notebook-1", "10%", "BUSY is measured since 2026-11-20"]),
        ("member", "explain nigth-1", 1, ["near: night-1"]),
        ("member", "explain night-1", 0, ["Charged 32 GPU-hours"]),
        ("member", "usage --from 7d", 0, ["250.00"]),
        ("member", BY_DAY, 0, ["128.00", "64.00"]),
        ("member", "grant speech 5 --reason evicted", 1, ["bursar-admin"]),
        ("administrator", "map", 0, ["gpu-11", "closed: draining"]),
        ("administrator", "waiting -A", 0,
         ["train-9", "2h0m", "not enough free GPUs (2 needed) (12 of 12 nodes)"]),
        ("member", "free", 0, ["20     3.5   1: 7, 2: 7, 4: 0, 8: 0   8 excluded",
                               "1: 0, 2: 0, 4: 0, 8: 0   all held, 10 cordoned, 5 unhealthy"]),
        ("administrator", "waiting train-9 -n team-a", 0,
         ["not before 2026-11-20", "unless pods end early"]),
        ("administrator", "would -A", 0, ["refused    host-pid   1 of 2"]),
        ("administrator", "check evening.yaml --budgets capped.yaml -n speech", 1, ["(maxGPUsPerPod)"]),
        ("administrator", "check evening.yaml -n speech", 0,
         ["1 admitted", "The budgets are not known here"]),
        ("administrator", "budget -A", 0, ["sandbox", "UNLIMITED", "75.00"]),
    ],
)  # fmt: skip
def test_what_is_typed_has_the_answer(
    person: str, typed: str, code: int, answers: list[str], folder: Path
) -> None:
    kubectl = shutil.which("kubectl", path=str(folder / person))
    assert kubectl is not None

    done = subprocess.run(
        [kubectl, "bursar", *typed.split()],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / person}:/usr/bin:/bin", "COLUMNS": "250"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )

    said = done.stdout + done.stderr
    assert (done.returncode, [answer for answer in answers if answer not in said]) == (code, []), said


def test_the_commands_for_accountants_have_the_month_that_is_in_the_ledger(folder: Path) -> None:
    """docs/accountants.md, typed by the accountant of the stage."""
    (month,) = console((ROOT / "docs" / "accountants.md").read_text())

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", month],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'accountant'}:/usr/bin:/bin", "COLUMNS": "250"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "10516.00" in done.stdout
    assert "unchanged since it was closed" in done.stdout
    assert (folder / "2026-10.csv").read_text().startswith("from,to,namespace,owner,")
    assert (folder / "focus.csv").read_text().startswith("BilledCost,BillingAccountId,")


def test_there_are_tasks_for_each_of_four_people_and_for_who_is_new() -> None:
    text = (ROOT / "tests" / "timekeeper" / "tasks.md").read_text()

    rows = [part.count("\n| ") - 1 for part in text.split("\n## ")[1:]]
    assert rows == [7, 5, 7, 7, 4]
