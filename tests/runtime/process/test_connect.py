"""The way to the API server: a pod's service account, or a kubeconfig."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.identity import new_authority
from timekeeper.runtime.api_server import Unsent
from timekeeper.runtime.connect import connect, of_service_account
from timekeeper.runtime.flags import UnusableError

ROOT = Path(__file__).parents[3]
WHERE = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "1"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(new_authority("cluster").pem)
    return tmp_path


def test_the_token_of_a_service_account_is_read_at_each_call(account: Path) -> None:
    api = of_service_account(environment=WHERE, folder=account)

    assert api.token == "first"
    (account / "token").write_text("second")
    assert api.token == "second"


def test_a_token_that_cannot_be_read_sends_nothing(account: Path) -> None:
    api = of_service_account(environment=WHERE, folder=account)
    (account / "token").unlink()

    reply = api.call("GET", "/version", timeout_s=1)

    assert isinstance(reply, Unsent)
    assert "the credentials cannot be read: [Errno 2]" in reply.message


def test_an_ipv6_address_is_called_in_brackets(account: Path) -> None:
    reply = of_service_account(environment=WHERE, folder=account).call("GET", "/version", timeout_s=1)

    assert isinstance(reply, Unsent)
    assert "host='[::1]', port=1" in reply.message or "host='::1', port=1" in reply.message


@pytest.mark.parametrize(
    ("environment", "lost", "sentence"),
    [
        ({}, "", "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; it must be a YAML file"),
        (WHERE, "token", "No such file or directory"),
        (WHERE, "ca.crt", "No such file or directory"),
    ],
)
def test_without_a_service_account_there_is_a_sentence(
    account: Path, environment: dict[str, str], lost: str, sentence: str
) -> None:
    if lost:
        (account / lost).unlink()

    with pytest.raises(UnusableError, match="--kubeconfig: none is given, and the pod's own") as error:
        of_service_account(environment=environment, folder=account)

    assert sentence in str(error.value)


def test_a_service_account_needs_no_kubernetes_package_and_a_kubeconfig_does(tmp_path: Path) -> None:
    """The package takes 20 MiB in each process."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from timekeeper.runtime.connect import connect\n"
        "from timekeeper.runtime.flags import UnusableError\n"
        "for kubeconfig in None, Path('/no/such/file'):\n"
        "    try:\n"
        "        connect(kubeconfig, environment={})\n"
        "    except UnusableError:\n"
        "        print('kubernetes' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]


def test_a_kubeconfig_names_the_server(tmp_path: Path) -> None:
    path = tmp_path / "config"
    cluster = {"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    user = {"name": "x", "user": {"token": "mine"}}
    parts = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "x"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **parts}))

    assert connect(path).token == "mine"
