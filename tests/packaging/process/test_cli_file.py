"""``kubectl bursar`` as one file, by an interpreter that has no package."""

import hashlib
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.docs.shell import commands
from tests.packaging.checkout import ROOT
from tests.packaging.conftest import Release
from tests.packaging.environment import Environment
from tests.support.http_server import JsonHandler, Served
from timekeeper.core import __version__

_EACH_HELP = """
import sys
sys.path.insert(0, sys.argv[1])
from timekeeper.cli.main import cli

def tried(command, words):
    cli.main([*words, "--help"], prog_name="kubectl bursar", standalone_mode=False)
    for name, each in getattr(command, "commands", {}).items():
        if name not in ("check", "audit"):  # they become another process
            tried(each, [*words, name])

tried(cli, [])
"""


class Timekeeper(JsonHandler):
    """It knows no namespace with a budget."""

    def do_GET(self) -> None:
        self.answer(200, {"version": 1, "groups": [], "budgets": [], "from": None, "to": None})


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What an interpreter without any package makes of words."""
    bare = Environment(tmp_path_factory.mktemp("bare"))
    venv.create(bare.folder, with_pip=False)
    return lambda *words: bare.run([bare.python, *words], bare.folder)


@pytest.fixture(scope="session")
def cli(released: Release) -> Path:
    return released.file(".pyz")


@pytest.mark.soak
def test_each_command_of_the_file_prints_its_flags(cli: Path, run: Run) -> None:
    done = run("-c", _EACH_HELP, cli)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") > 20


def test_the_file_asks_a_timekeeper(cli: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token")
    with Served(Timekeeper) as timekeeper:
        flags = ("--server", timekeeper.url, "--token-file", str(tmp_path / "token"))
        done = run(cli, "budget", "--all-namespaces", "-o", "json", *flags)

    assert done.returncode == 0, done.stderr
    assert '"items": []' in done.stdout


@pytest.mark.soak
def test_the_file_checks_a_manifest_as_the_installed_command_does(cli: Path, run: Run) -> None:
    manifest = str(ROOT / "deploy" / "samples" / "half-a-card.yaml")
    installed = subprocess.run(
        [sys.executable, "-m", "webhook", "review", "-o", "json", manifest], capture_output=True, text=True
    )

    done = run(cli, "check", "-o", "json", manifest)

    assert done.returncode == 0, done.stderr
    assert (done.returncode, done.stdout) == (installed.returncode, installed.stdout)


@pytest.mark.soak
def test_what_the_file_cannot_do_is_a_sentence(cli: Path, run: Run) -> None:
    done = run(cli, "audit")

    assert done.returncode == 2
    assert done.stderr.startswith("kubectl bursar audit: the Python module ")
    assert "install gpu-bursar with its extra kubeconfig" in done.stderr


@pytest.mark.soak
def test_the_file_is_installed_by_the_commands_of_the_page_and_completes_words(
    cli: Path, run: Run, tmp_path: Path
) -> None:
    (block,) = (each for each in commands(ROOT / "docs" / "cli.md") if f"dist/{cli.name}" in each)
    (tmp_path / "dist").symlink_to(cli.parent)
    home = {"PATH": os.defpath, "HOME": str(tmp_path)}
    subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=home, check=True)

    done = run(tmp_path / ".local" / "bin" / "kubectl_complete-bursar", "bud")

    assert done.stdout.splitlines()[0].startswith("budget\t")
    assert os.access(tmp_path / ".local" / "bin" / "kubectl-bursar", os.X_OK)


@pytest.mark.soak
def test_krews_manifest_names_the_archive_by_its_digest_and_the_command_inside(
    released: Release, cli: Path
) -> None:
    packed = released.file(f"kubectl-bursar-{__version__}.tar.gz")
    plugin = yaml.safe_load(released.file("bursar.yaml").read_text())

    (platform,) = plugin["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert platform["uri"] == packed.name
    assert plugin["spec"]["version"] == f"v{__version__}"
    with tarfile.open(packed) as archive:
        assert {each["from"] for each in platform["files"]} == set(archive.getnames())
        inside = archive.extractfile(cli.name)
        assert inside is not None
        assert inside.read() == cli.read_bytes()
        assert archive.getmember(cli.name).mode == 0o755
    assert platform["files"][0] == {"from": cli.name, "to": platform["bin"]}
