"""``kubectl bursar`` as one file, by an interpreter that has no package."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.docs.shell import commands
from tests.packaging.checkout import ROOT
from tests.packaging.conftest import Release
from tests.packaging.environment import Environment
from tests.reference.commands import NAME, leaves
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.books import Run as Session
from tests.timekeeper.books import write
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import prepared
from tests.timekeeper.worlds import ADMIN, DAY, HOUR, budgets, node, user_status
from timekeeper.cli.main import cli as commands_of
from timekeeper.core import __version__
from timekeeper.edge.clock import now_ms
from timekeeper.store.engine.engine import open_store

pytestmark = pytest.mark.make_all("it packs a release")

# runs each command in a process of its own; `dashboard` ends by Ctrl-C
_EACH_COMMAND = """
import json, os, runpy, signal, sys, time
from pathlib import Path

source = sys.argv[1]
sys.path.insert(0, source)
from timekeeper.cli.main import main

ended = {}
for name, words in json.loads(Path("words").read_text()).items():
    said = Path("said")
    with said.open("w") as out:
        if not (pid := os.fork()):
            os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
            sys.argv = ["kubectl-bursar", *words]
            runpy.run_path(source, run_name="__main__") if source.endswith(".pyz") else main()
            sys.exit()
    if name == "dashboard":
        while "Ctrl-C" not in said.read_text() and not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(0.05)
        os.kill(pid, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended[name] = code, said.read_text()
print(json.dumps(ended))
"""


RIGHTS = ("balances", "budgets", "decisions", "grants", "sessions", "simulations", "standings", "usage")
BEGAN = now_ms() // DAY * DAY - 40 * DAY  # a charge of an hour
MONTH = ("--month", f"{datetime.fromtimestamp(BEGAN // 1000, UTC):%Y-%m}")
POD = str(ROOT / "deploy" / "samples" / "half-a-card.yaml")
# every command with words for it; those that change the ledger first, by keys that let them change it once
COMMANDS = {
    "grant": ("team-a", "2", "--reason", "x", "--key", "k"),
    "correct": ("team-a", "-0.5", "--reason", "x", "--key", "k", *MONTH),
    **dict.fromkeys(("budget", "decisions", "estimate", "grants", "held", "waiting", "would"), ("-A",)),
    **{"audit": MONTH, "check": (POD,), "dashboard": ("-A", "--no-browser"), "doctor": ()},
    **{"explain": ("u", "-n", "team-a"), "map": (), "node charges": ("n1",), "report": ("-A", *MONTH)},
    **{f"node {goal}": ("n1", "--dry-run") for goal in ("fractions", "whole")},
    **{"save": ("saved",), "simulate": ("-f", POD), "top": ("-A", "--once")},
    "usage": ("-A", "--group", "pod", *MONTH),
    "scheduler patch": ("manifest.yaml", "--folder=bursar", "--extender-url=http://127.0.0.1:8445"),
    "scheduler undo": ("manifest.yaml", "--folder=bursar"),
}
KUBECTL = f"""#!/bin/sh
case "$*" in
    *"get node n1"*) cat "$(dirname "$0")/node.json" ;;
    config*) echo team-a ;;
    exec*)
        export PYTHONPATH={ROOT}
        exec {sys.executable} -P -m timekeeper export - --database=sqlite:///$(dirname "$0")/bursar.db ;;
    *) echo '{{"items": []}}' ;;
esac
"""
# what is not the same twice: a dashboard's address, and when a folder was saved
_OWN = re.compile(r"http://127\.0\.0\.1:\d+/\S*|at \S+T\S+Z")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An interpreter without any package."""
    made = Environment(tmp_path_factory.mktemp("bare"))
    venv.create(made.folder, with_pip=False)
    return made


@pytest.fixture(scope="session")
def run(bare: Environment) -> Run:
    """What that makes of words."""
    return lambda *words: bare.run([bare.python, *words], bare.folder)


@pytest.fixture(scope="session")
def cli(released: Release) -> Path:
    return released.file(".pyz")


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Under which the commands find a timekeeper that charged a pod, and a kubectl with a node."""
    api = FakeApiServer()
    api.tokens[ADMIN] = user_status("admin")
    for there in ("", "team-a"):
        api.allowed |= {("admin", verb, right, there) for verb in ("get", "create") for right in RIGHTS}
    api.put("nodes", node("n1"))
    api.put(
        "configmaps", budgets(team_a="gpuHours: 100\nperiod: year\nonExhausted: deprioritize\nprice: 2.5")
    )
    (tmp_path / "token").write_text(ADMIN)
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "node.json").write_text(json.dumps(node("n1")))
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url)) as timekeeper:
        timekeeper.start_ready()
        with closing(open_store(f"sqlite:///{timekeeper.database}")) as store, store.writing() as ledger:
            write(ledger, [Session("u", owner="Job/x", started_ms=BEGAN, posted=((BEGAN, BEGAN + HOUR, 1),))])
        timekeeper.wait(
            "the budget", lambda: "team-a" in str(timekeeper.call("GET", "/v1/standings", ADMIN)[1])
        )
        yield {
            "PATH": f"{tmp_path}:{os.defpath}",
            "BURSAR_SERVER": f"https://127.0.0.1:{timekeeper.port}",
            "BURSAR_TOKEN_FILE": f"{tmp_path}/token",
            "BURSAR_CA_FILE": f"{tmp_path}/ca.crt",
        }
        timekeeper.end()


def test_each_command_of_the_file_does_what_the_checkout_does(
    cli: Path, bare: Environment, variables: dict[str, str], tmp_path: Path
) -> None:
    assert {f"{NAME} {name}" for name in COMMANDS} == {path for path, _ in leaves(commands_of)}

    def ended(python: Path | str, source: Path, **more: str) -> dict[str, tuple[int, str]]:
        """Exit code and output of each command, and the files that all of them left."""
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        shutil.copy(ROOT / "tests" / "cli" / "kubeadm-kube-scheduler.yaml", folder / "manifest.yaml")
        words = {name: [*name.split(), *more] for name, more in COMMANDS.items()}
        (folder / "words").write_text(json.dumps(words))
        environment = variables | {"HOME": str(folder), **more}
        done = subprocess.run(
            [python, "-c", _EACH_COMMAND, source], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        left = {
            str(file.relative_to(folder)): (0, _OWN.sub("", file.read_text()))
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.name != "ledger.jsonl"  # with the settler's pulse
        }
        return {**left, **json.loads(_OWN.sub("", done.stdout.replace(str(folder), "")))}

    by_file, by_checkout = ended(bare.python, cli), ended(sys.executable, ROOT, PYTHONPATH=str(ROOT))

    assert by_file == by_checkout
    assert {name for name, (code, _) in by_file.items() if code} == {"audit", "doctor", "simulate"}


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
