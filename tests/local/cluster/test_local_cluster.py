"""The control plane as a whole: how it comes up, what it serves, and that it leaves nothing behind."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import AdminApi, ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.errors import LocalError
from deploy.local.folder import sweep
from deploy.local.kwok_nodes import kwok_node
from deploy.local.tools import KUBERNETES
from tests.local.worlds import NODES, get
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]


def running_in(folder: Path) -> list[str]:
    """The processes whose working folder this is or was."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        # A process may end while we look, and another user's may not be looked at.
        with suppress(OSError):
            if str(link.readlink()).removesuffix(" (deleted)") == str(folder):
                found.append(link.parent.name)
    return found


def test_the_api_server_answers_admins_and_refuses_strangers(control_plane: ControlPlane) -> None:
    assert control_plane.api.call("GET", "/version")["gitVersion"] == f"v{KUBERNETES.version}"

    with pytest.raises(ApiError, match="401"):
        AdminApi(control_plane.url, control_plane.ca_file, "guessed").call("GET", "/api/v1/namespaces")


def test_kubectl_acts_for_the_tokens_user(control_plane: ControlPlane) -> None:
    token = control_plane.kubectl("create", "token", "default").stdout.strip()
    kubeconfig = control_plane.kubeconfig(token, "visitor")

    as_admin = control_plane.kubectl("auth", "whoami", "-o=jsonpath={.status.userInfo.username}")
    as_visitor = control_plane.kubectl(
        "auth", "whoami", "-o=jsonpath={.status.userInfo.username}", kubeconfig=kubeconfig
    )
    refused = control_plane.kubectl("get", "nodes", kubeconfig=kubeconfig)

    assert as_admin.stdout == "admin"
    assert as_visitor.stdout == "system:serviceaccount:default:default"
    assert (refused.returncode, "forbidden" in refused.stderr) == (1, True)
    assert kubeconfig.stat().st_mode & 0o077 == 0


def test_a_service_accounts_token_is_reviewed_for_its_audience_alone(control_plane: ControlPlane) -> None:
    token = control_plane.kubectl("create", "token", "default", "--audience=bursar").stdout.strip()

    def review(audience: str) -> Any:
        spec = {"token": token, "audiences": [audience]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        return control_plane.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)["status"]

    assert (review("bursar")["authenticated"], review("bursar")["audiences"]) == (True, ["bursar"])
    assert "authenticated" not in review("somebody-else")
    with pytest.raises(ApiError, match="401"):
        AdminApi(control_plane.url, control_plane.ca_file, token).call("GET", "/api")


def test_a_second_control_plane_runs_beside_the_first_as_its_options_say(control_plane: ControlPlane) -> None:
    impatient = ("--node-monitor-grace-period=4s", "--node-monitor-period=500ms")
    options = Options(
        listen="127.0.0.2",
        names=("api.example.com", "10.1.2.3"),
        api_flags=("--runtime-config=resource.k8s.io/v1beta2=true",),
        controller_flags=impatient,
        node_lifecycle=True,
        node_lease_s=4,
    )
    with ControlPlane(options) as second:
        assert second.url.startswith("https://127.0.0.2:")
        assert names_in_certificate(second) >= {"api.example.com", "10.1.2.3", "127.0.0.2", "localhost"}
        assert second.api.answers("/apis/resource.k8s.io/v1beta2")
        assert not control_plane.api.answers("/apis/resource.k8s.io/v1beta2")

        second.api.call("POST", NODES, kwok_node("silent"))
        eventually(lambda: taints(second, "silent") == set() and ready(second, "silent") == "True")
        second.stop_process("kwok")
        eventually(lambda: "node.kubernetes.io/unreachable" in taints(second, "silent"))
        second.restart_process("kwok")
        eventually(lambda: taints(second, "silent") == set() and ready(second, "silent") == "True")

        assert get(control_plane.api, f"{NODES}/silent") is None
        assert len(running_in(second.folder)) == 4
        second.processes["kwok"].kill()
        second.processes["kwok"].wait()
        with pytest.raises(LocalError, match="kwok ended with exit code -9"):
            second.check()

    assert running_in(second.folder) == []
    assert not second.folder.exists()
    assert control_plane.api.answers("/readyz")


def taints(control_plane: ControlPlane, node: str) -> set[str]:
    return {
        taint["key"] for taint in control_plane.api.call("GET", f"{NODES}/{node}")["spec"].get("taints", [])
    }


def ready(control_plane: ControlPlane, node: str) -> str:
    conditions = control_plane.api.call("GET", f"{NODES}/{node}")["status"].get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "unheard")


def names_in_certificate(control_plane: ControlPlane) -> set[str]:
    host, _, port = control_plane.url.removeprefix("https://").partition(":")
    context = ssl.create_default_context(cafile=str(control_plane.ca_file))
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate is not None
    names = certificate["subjectAltName"]
    assert isinstance(names, tuple)
    return {str(entry[1]) for entry in names}


def test_a_port_that_is_taken_is_reported_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(
            LocalError, match=rf"^cannot listen on 127\.0\.0\.1 port {port}: Address already in use$"
        ):
            ControlPlane(Options(port=port)).__enter__()


def test_two_control_planes_do_not_share_a_port_by_mistake(control_plane: ControlPlane) -> None:
    port = int(control_plane.url.rpartition(":")[2])

    with pytest.raises(LocalError, match="Address already in use"):
        ControlPlane(Options(port=port)).__enter__()


def test_a_flag_that_the_api_server_does_not_know_is_reported_with_its_log_and_leaves_nothing() -> None:
    plane = ControlPlane(Options(api_flags=("--no-such-flag",)))

    with pytest.raises(
        LocalError, match=r"(?s)^kube-apiserver ended with exit code 1:.*unknown flag: --no-such-flag"
    ):
        plane.__enter__()

    assert not plane.folder.exists()
    assert running_in(plane.folder) == []


# Starts a control plane in a process of its own, tells its parts, and stays.
STARTS_AND_STAYS = textwrap.dedent(
    """
    import time
    from deploy.local.cluster import ControlPlane
    with ControlPlane() as plane:
        print(plane.folder, flush=True)
        time.sleep(600)
    """
)


@contextmanager
def in_another_process(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A Python of ours that is killed at exit if it still runs."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_nothing_outlives_a_parent_that_was_killed_and_its_folder_is_swept() -> None:
    with in_another_process("-c", STARTS_AND_STAYS) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        assert len(running_in(folder)) == 4
        sweep()
        assert folder.exists(), "the folder of a living owner was swept"

        parent.send_signal(signal.SIGKILL)

        eventually(lambda: running_in(folder) == [])
    sweep()
    assert not folder.exists()


def test_serve_ends_cleanly_on_a_signal() -> None:
    with in_another_process("-m", "deploy.local", "serve") as serving:
        assert serving.stdout is not None
        kubeconfig = Path(serving.stdout.readline().strip().removeprefix("export KUBECONFIG="))
        assert len(running_in(kubeconfig.parent)) == 5
        path = serving.stdout.readline().strip().removeprefix("export PATH=").removesuffix(":$PATH")
        assert (Path(path) / "kubectl").exists()

        serving.send_signal(signal.SIGTERM)

        _, told = serving.communicate(timeout=20)
    assert serving.returncode == 143
    assert "Traceback" not in told
    assert running_in(kubeconfig.parent) == []
    assert not kubeconfig.parent.exists()
