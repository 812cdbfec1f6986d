"""Every role started from an installed wheel, from an empty folder and from inside the checkout."""

import re
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.identity import new_authority, write_kubeconfig
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.packaging.checkout import ROOT
from tests.packaging.environment import Environment
from tests.support.waiting import eventually

ROLES = {
    "webhook": "bursar-webhook",
    "timekeeper": "bursar-timekeeper",
    "scheduler_ext": "bursar-extender",
    "sidecar": "bursar-sidecar",
}


@dataclass(frozen=True, slots=True)
class Ground:
    """What the servers stand on: certificates for loopback, a token, and a kubeconfig of an API server that
    is away."""

    folder: Path
    port: int

    @property
    def tls(self) -> list[str]:
        """Flags for a server's certificate."""
        return [
            f"--tls-cert={self.folder}/tls.crt",
            f"--tls-key={self.folder}/tls.key",
            f"--ca={self.folder}/ca.crt",
        ]

    @property
    def listen(self) -> str:
        """The flag for the address."""
        return f"--listen=127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> str:
        """The flag for the API server."""
        return f"--kubeconfig={self.folder}/kubeconfig"

    def get(self, path: str, scheme: str = "https") -> tuple[int, str] | None:
        """Status and text of a GET; None where nobody answers."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        try:
            url = f"{scheme}://127.0.0.1:{self.port}{path}"
            trusted = context if scheme == "https" else None
            with urllib.request.urlopen(url, timeout=LONGEST_S, context=trusted) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return None


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    authority = new_authority("test")
    certificate, key = authority.leaf(["127.0.0.1"])
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    (tmp_path / "token").write_text("no-token-that-anybody-knows")
    (tmp_path / "spool").mkdir()
    write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", tmp_path / "ca.crt", "token")
    return Ground(tmp_path, free_port())


@contextmanager
def started(environment: Environment, ground: Ground, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the environment, from an empty folder; its output in `log` there. Nothing outlives the
    block."""
    empty = ground.folder / "empty"
    empty.mkdir()
    with (ground.folder / "log").open("wb") as log, Launcher() as launcher:
        words = [str(environment.python), *command]
        yield launcher.start(words, log, env=environment.variables(), folder=empty)
    assert not list(empty.iterdir())


def until(process: subprocess.Popen[bytes], ground: Ground, holds: Callable[[], bool]) -> None:
    """Waits for a condition, as long as the process lives."""

    def holds_or_has_ended() -> bool:
        assert process.poll() is None, log_of(ground)
        return holds()

    eventually(holds_or_has_ended, lambda: log_of(ground))


def log_of(ground: Ground) -> str:
    return (ground.folder / "log").read_text(errors="replace")


def ends_in_order(process: subprocess.Popen[bytes], ground: Ground) -> None:
    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=LONGEST_S) == 0, log_of(ground)


@pytest.mark.parametrize(
    ("as_module", "inside"),
    [
        pytest.param(False, False, id="script"),
        pytest.param(True, True, id="module inside the checkout", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_prints_its_flags(
    installed: Environment, tmp_path: Path, role: str, as_module: bool, inside: bool
) -> None:
    command = [installed.python, "-m", role] if as_module else [installed.script(ROLES[role])]
    done = installed.run([*command, "--help"], ROOT if inside else tmp_path)

    assert done.returncode == 0, done.stderr
    assert re.match(rf"usage: ({ROLES[role]}|python -m {role})\b", done.stdout), done.stdout


@pytest.mark.soak
def test_the_webhook_lives_without_a_timekeeper(installed: Environment, ground: Ground) -> None:
    flags = [ground.listen, *ground.tls, f"--token-file={ground.folder}/token"]
    away = "--timekeeper-url=https://127.0.0.1:1"

    with started(installed, ground, "-m", "webhook", *flags, away) as process:
        until(process, ground, lambda: (ground.get("/livez") or (0, ""))[0] == 200)
        ends_in_order(process, ground)


def test_the_timekeeper_migrates_a_fresh_database_and_lives_without_an_api_server(
    installed: Environment, ground: Ground
) -> None:
    flags = [ground.listen, *ground.tls, ground.kubeconfig, f"--database=sqlite:///{ground.folder}/new.db"]

    with started(installed, ground, "-m", "timekeeper", *flags) as process:
        until(process, ground, lambda: (ground.get("/livez") or (0, ""))[0] == 200)
        ends_in_order(process, ground)

    assert tables(ground.folder / "new.db") >= {"alembic_version"}


@pytest.mark.soak
def test_the_extender_answers_nothing_before_it_has_seen_the_cluster(
    installed: Environment, ground: Ground
) -> None:
    with started(installed, ground, "-m", "scheduler_ext", ground.listen, ground.kubeconfig) as process:
        until(process, ground, lambda: (ground.get("/livez", "http") or (0, ""))[0] == 200)

        assert (ground.get("/readyz", "http") or (0, ""))[0] == 503
        ends_in_order(process, ground)


@pytest.mark.soak
def test_the_sidecar_runs_without_a_timekeeper_and_ends_within_seconds(
    installed: Environment, ground: Ground
) -> None:
    flags = [
        "--timekeeper-url=https://127.0.0.1:1",
        f"--token-file={ground.folder}/token",
        f"--ca={ground.folder}/ca.crt",
        f"--spool={ground.folder}/spool",
    ]

    with started(installed, ground, "-m", "sidecar", *flags) as process:
        until(process, ground, lambda: bool(log_of(ground)))
        ends_in_order(process, ground)


def tables(database: Path) -> set[str]:
    """The tables of an SQLite file."""
    import sqlite3

    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    connection.close()
    return {name for (name,) in rows}
