"""Two clusters with one ledger, as after a clone: it is the first one's, and the other adopts it or ends."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from deploy.local.limits import LONGEST_S
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, prepared
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.schema import TERMS

A, B = "11111111-aaaa", "22222222-bbbb"


@dataclass
class Clusters:
    """Each has its API server and its timekeeper; the database is the same."""

    one: Process
    other: Process

    def begun(self) -> tuple[int, str]:
        """How many settlers have begun, and whose ledger it is."""
        store = open_store(self.one.url)
        with store.reading() as connection:
            row = connection.execute(select(TERMS.c.term, TERMS.c.cluster)).one()
        store.close()
        return row.term, row.cluster


@pytest.fixture
def clusters(database_url: str, tmp_path: Path) -> Iterator[Clusters]:
    made = []
    with ExitStack() as stack:
        for uid in (A, B):
            api, folder = FakeApiServer(), tmp_path / uid
            api.named["kube-system"]["metadata"]["uid"] = uid
            folder.mkdir()
            server = kubeconfig(folder, stack.enter_context(serving(api)))
            process = stack.enter_context(prepared(folder, server))
            process.url = database_url
            made.append(process)
        yield Clusters(*made)


def ended(process: Process) -> str:
    """What a process said that ends with 2."""
    assert process.running is not None
    assert process.running.wait(LONGEST_S) == 2, process.log()
    return process.log()


def test_a_clone_on_the_same_database_ends_and_the_first_one_settles_on(clusters: Clusters) -> None:
    clusters.one.start_ready()
    before = clusters.begun()

    clusters.other.start()
    said = ended(clusters.other)

    assert (
        "it is the ledger of another cluster, whose namespace kube-system has the UID 11111111-aaaa" in said
    )
    assert "`bursar-timekeeper serve --adopt=11111111-aaaa`" in said
    assert clusters.begun() == before == (before[0], A)
    assert "settler-ends" not in clusters.one.log()


def test_one_that_adopts_it_takes_the_place_of_the_other_which_ends(clusters: Clusters) -> None:
    clusters.one.start_ready()

    clusters.other.more += (f"--adopt={A}",)
    clusters.other.start_ready()

    assert clusters.begun()[1] == B
    assert f"--adopt={B}" in ended(clusters.one)
    assert clusters.other.end() == 0
    clusters.other.start_ready()  # the flag may stay
    assert clusters.other.end() == 0


def test_a_ledger_of_the_release_before_is_that_of_the_first_that_begins(clusters: Clusters) -> None:
    clusters.one.start_ready()
    assert clusters.one.end() == 0
    store = open_store(clusters.one.url)
    with store.writing() as connection:
        connection.execute(TERMS.update().values(cluster=None))
    store.close()

    clusters.other.start_ready()

    assert clusters.begun()[1] == B
    clusters.one.start()
    ended(clusters.one)


def test_an_imported_ledger_stays_that_of_the_cluster_that_exported_it(clusters: Clusters) -> None:
    def run(process: Process, *words: str) -> None:
        command = [sys.executable, "-m", "timekeeper", *words, f"--database={process.url}"]
        subprocess.run(command, check=True, capture_output=True)

    clusters.one.start_ready()
    assert clusters.one.end() == 0
    file, brought = clusters.one.folder / "ledger.jsonl", clusters.other.folder / "brought.db"
    run(clusters.one, "export", str(file))
    clusters.other.url = f"sqlite:///{brought}"
    clusters.other.start_ready()  # it has begun one of its own, without a charge
    assert clusters.other.end() == 0

    run(clusters.other, "import", str(file))

    clusters.other.start()
    assert f"--adopt={A}" in ended(clusters.other)


def test_meter_from_a_laptop_keeps_a_ledger_for_each_cluster(clusters: Clusters, tmp_path: Path) -> None:
    def meter(process: Process) -> None:
        process.url = f"sqlite:///{tmp_path}/meter.db"
        plain = [word for word in process.command() if not word.startswith(("--tls", "--ca", "--metrics"))]
        with (process.folder / "log").open("ab") as log:
            process.running = process.launcher.start([*plain, "meter"], log)

    meter(clusters.one)
    clusters.one.wait("its greeting", lambda: "Open http" in clusters.one.log())
    meter(clusters.other)

    assert f"`bursar-timekeeper meter --adopt={A}`" in ended(clusters.other)
