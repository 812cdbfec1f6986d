"""The roles with the arguments of their containers, and with what a kubelet puts into a pod: the service
account's token and CA, and the API server's address in the environment. No kubeconfig."""

import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.launcher import Launcher
from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.deploy.containerfile import images
from tests.deploy.installed import as_in_pod
from tests.deploy.reading import MANIFESTS, ROOT, console_scripts, container, template, workloads
from tests.support.control_plane import kubectl
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    kubectl(control_plane, "apply", "--server-side", "-f", str(MANIFESTS))
    return control_plane


@pytest.fixture(scope="module")
def certificates(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the servers' files, made by the certificates' container."""
    folder = tmp_path_factory.mktemp("certificates")
    command, variables = in_pod(cluster, "bursar-certificates/certificates", folder)
    more = ["--once", f"--write={folder}/tls", "--extra-name=127.0.0.1"]
    done = subprocess.run([*command, *more], env=variables, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    return folder / "tls"


def in_pod(cluster: ControlPlane, name: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a container of ours, with files below `folder`."""
    workload, one = name.split("/")[0], container(name)
    (account,) = [
        template(each)["spec"]["serviceAccountName"]
        for each in workloads()
        if each["metadata"]["name"] == workload
    ]
    variables = as_in_pod(cluster, account, one, folder)
    target = one["image"].removeprefix("bursar/").partition(":")[0]
    (script,) = images()[target].entrypoint
    role = console_scripts()[script].partition(".")[0]
    return [sys.executable, "-m", role, *one.get("args", [])], variables


@contextmanager
def started(command: list[str], variables: dict[str, str], folder: Path) -> Iterator[Path]:
    """The process, ended in order afterwards; yields its log."""
    log = folder / "log"
    with Launcher() as launcher, log.open("wb") as output:
        process = launcher.start(command, output, env=variables, folder=folder)
        yield log
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LONGEST_S) == 0, log.read_text()


def moved(command: list[str], *places: tuple[str, str]) -> list[str]:
    """The arguments with other places for what a pod would have; each must be there."""
    for pattern, place in places:
        found = [word for word in command if re.search(pattern, word)]
        assert found, pattern
        command = [re.sub(pattern, place, word) for word in command]
    return command


def is_ready(url: str, ca: Path | None = None) -> bool:
    context = ssl.create_default_context(cafile=str(ca)) if ca else None
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=LONGEST_S, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_certificates_are_made(certificates: Path) -> None:
    made = sorted(str(file.relative_to(certificates)) for file in certificates.glob("*/*"))

    assert made == [
        f"{role}/{file}"
        for role in ("scheduler", "timekeeper", "webhook")
        for file in ("ca.crt", "tls.crt", "tls.key")
    ]


def test_the_extender_becomes_ready(cluster: ControlPlane, tmp_path: Path) -> None:
    command, variables = in_pod(cluster, "bursar-scheduler/extender", tmp_path)
    port = free_port()

    with started(moved(command, (r"127\.0\.0\.1:8445", f"127.0.0.1:{port}")), variables, tmp_path):
        assert eventually(lambda: is_ready(f"http://127.0.0.1:{port}"))


def test_the_timekeeper_becomes_ready(cluster: ControlPlane, certificates: Path, tmp_path: Path) -> None:
    command, variables = in_pod(cluster, "bursar-timekeeper/timekeeper", tmp_path)
    port, files = free_port(), certificates / "timekeeper"
    places = (
        (r"\[::\]:8444", f"127.0.0.1:{port}"),
        ("/etc/bursar/tls", str(files)),
        ("/var/lib/bursar", str(tmp_path)),
    )

    with started(moved(command, *places), variables, tmp_path):
        assert eventually(lambda: is_ready(f"https://127.0.0.1:{port}", files / "ca.crt"))
    assert (tmp_path / "bursar.db").is_file()


def test_the_webhook_becomes_ready(cluster: ControlPlane, certificates: Path, tmp_path: Path) -> None:
    command, variables = in_pod(cluster, "bursar-webhook/webhook", tmp_path)
    port, files = free_port(), certificates / "webhook"
    places = ((r"\[::\]:8443", f"127.0.0.1:{port}"), ("/etc/bursar/tls", str(files)))

    with started(moved(command, *places), variables, tmp_path):
        assert eventually(lambda: is_ready(f"https://127.0.0.1:{port}", files / "ca.crt"))
