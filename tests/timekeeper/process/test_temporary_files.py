"""What SQLite sorts lies beside the ledger: as installed, `/tmp` is small memory on a read-only root."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from tests.packaging.checkout import ROOT
from tests.support.clock import Clock
from tests.support.shape import installed, shape_of
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.rows import POSTING, SESSION
from tests.timekeeper.worlds import DAY, T0, Town
from timekeeper.store.engine import sqlite
from timekeeper.store.engine.schema import POSTINGS, SESSIONS

pytestmark = pytest.mark.make_all("it mounts, as root")

PODS = 20_000
MIDNIGHT = T0 - T0 % DAY
MONTH = f"/v1/usage?from={MIDNIGHT}&to={MIDNIGHT + DAY}&sort=-gpuHours"
REPORTS = (f"{MONTH}&group=pod&limit=10", f"{MONTH}&group=owner&format=csv")
SMALL = 64 * 1024  # of /tmp, for so few pods
ASK = "import sys; from tests.timekeeper.process.test_temporary_files import ask; ask(sys.argv[1])"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of 20,000 pods."""
    folder = tmp_path_factory.mktemp("sorted")
    town = Town(folder)
    pods = [f"pod-{number:05}-{number:064x}" for number in range(PODS)]
    times = {
        "bound_ms": MIDNIGHT,
        "ended_ms": MIDNIGHT + 10,
        "opened_ms": MIDNIGHT,
        "settled_ms": MIDNIGHT + 20,
    }
    times |= {"settled_ms": MIDNIGHT + 20}
    span = {"from_ms": MIDNIGHT, "to_ms": MIDNIGHT + 10, "rate_milli": 1, "amount": 10}
    with town.store.writing() as connection:
        rows = [{**SESSION, **times, "uid": pod, "name": pod, "owner": f"Job/{pod}"} for pod in pods]
        connection.execute(SESSIONS.insert(), rows)
        connection.execute(POSTINGS.insert(), [{**POSTING, **span, "session_uid": pod} for pod in pods])
    town.close()
    return folder


def ask(folder: str) -> None:
    """Print the statuses of the reports, and how many rows the last one has; of a copy on the volume."""
    volume = Path(folder) / "ledger"
    shutil.copy(f"{folder}/ledger.db", volume)
    town = Town(volume, Clock(T0))
    answers = [town.get(path) for path in REPORTS]
    size = len(answers[1].text.splitlines())
    print(json.dumps({"statuses": [answer.status_code for answer in answers], "lines": size}))
    town.close()


def asked(ledger: Path) -> Any:
    shape = shape_of("timekeeper")
    volumes = {**shape.volumes, "tmp": replace(shape.volumes["tmp"], size=SMALL)}
    with installed(replace(shape, volumes=volumes), ledger) as here:
        command = [*here.prefix, sys.executable, "-c", ASK, str(ledger)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_large_report_needs_no_place_in_tmp(ledger: Path) -> None:
    assert asked(ledger) == {"statuses": [200, 200], "lines": PODS + 1}


def test_a_report_that_would_fill_the_volume_ends_with_a_sentence(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones go on, and nobody is told that the database is away."""
    town = Town(str(f"sqlite:///{ledger}/ledger.db"), Clock(T0))
    write_accounts(town.store, T0)
    monkeypatch.setattr(sqlite, "_SPARE", shutil.disk_usage(ledger).total)
    monkeypatch.setattr(sqlite, "_STEPS", 1_000)
    town.store.engine.dispose()

    refused = town.get(REPORTS[0])
    small = town.get("/v1/budgets/a")

    assert (refused.status_code, small.status_code) == (503, 200)
    assert "leave less than 1 GiB of the ledger's volume free" in refused.get_json()["detail"]
    town.close()
