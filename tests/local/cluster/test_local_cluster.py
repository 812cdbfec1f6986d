"""The control plane as a whole: what it says when it cannot start, and that it leaves nothing behind."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.errors import LocalError
from deploy.local.folder import sweep
from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]


def running_in(folder: Path) -> list[str]:
    """The processes whose working folder this is or was."""
    processes = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        # A process may end while we look, and another user's may not be looked at.
        with suppress(OSError):
            if str(link.readlink()).removesuffix(" (deleted)") == str(folder):
                processes.append(link.parent.name)
    return processes


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_port_that_is_taken_is_reported_in_a_sentence(is_shared: bool) -> None:
    """Also one that its owner would share, as another control plane does."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(
            LocalError, match=rf"^cannot listen on 127\.0\.0\.1 port {port}: Address already in use$"
        ):
            ControlPlane(Options(port=port)).__enter__()


def test_a_flag_that_the_api_server_does_not_know_is_reported_with_its_log_and_leaves_nothing() -> None:
    plane = ControlPlane(Options(api_flags=("--no-such-flag",)))

    with pytest.raises(
        LocalError, match=r"(?s)^kube-apiserver ended with exit code 1:.*unknown flag: --no-such-flag"
    ):
        plane.__enter__()

    assert not plane.folder.exists()
    assert running_in(plane.folder) == []


def test_a_scheduler_that_cannot_start_is_reported_by_name_and_log(control_plane: ControlPlane) -> None:
    with pytest.raises(LocalError, match=r"(?s)^broken-scheduler ended with exit code 1:.*invalid duration"):
        control_plane.start_scheduler(
            "broken-scheduler", extender_url="http://127.0.0.1:1", http_timeout="soon"
        )

    assert "broken-scheduler" not in control_plane.processes
    control_plane.check()


@contextmanager
def served(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", Path, Path]]:
    """`serve` in a process of its own, which is killed at exit if it still runs; the folder of its control
    plane, and that of kubectl."""
    with subprocess.Popen(
        [sys.executable, "-m", "deploy.local", "serve", *flags],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as process:
        assert process.stdout is not None
        try:
            kubeconfig = process.stdout.readline().strip().removeprefix("export KUBECONFIG=")
            path = process.stdout.readline().strip().removeprefix("export PATH=").removesuffix(":$PATH")
            yield process, Path(kubeconfig).parent, Path(path)
        finally:
            process.kill()


def test_nothing_outlives_a_parent_that_was_killed_and_its_folder_is_swept() -> None:
    with served() as (parent, folder, _):
        assert len(running_in(folder)) == 5
        sweep()
        assert folder.exists(), "the folder of a living owner was swept"

        parent.send_signal(signal.SIGKILL)

        eventually(lambda: running_in(folder) == [])
    sweep()
    assert not folder.exists()


@pytest.mark.soak
def test_serve_is_called_as_its_flags_say_and_ends_cleanly_on_a_signal() -> None:
    with served("--listen=127.0.0.2", "--name=api.example.com", "--name=10.1.2.3") as (serving, folder, path):
        assert (path / "kubectl").exists()
        assert names_in_certificate(folder) >= {"api.example.com", "10.1.2.3", "127.0.0.2", "localhost"}

        serving.send_signal(signal.SIGTERM)

        _, errors = serving.communicate(timeout=LONGEST_S)
    assert serving.returncode == 143
    assert "Traceback" not in errors
    assert running_in(folder) == []
    assert not folder.exists()


def names_in_certificate(folder: Path) -> set[str]:
    """Those that the API server's certificate is for."""
    (line,) = (line for line in (folder / "admin.kubeconfig").read_text().splitlines() if "server:" in line)
    host, _, port = line.partition("https://")[2].strip(' "').partition(":")
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate is not None
    names = certificate["subjectAltName"]
    assert isinstance(names, tuple)
    return {str(entry[1]) for entry in names}
