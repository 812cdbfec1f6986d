"""The way to the API server: a pod's service account, or a kubeconfig."""

import base64
import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kubernetes import client

from deploy.local.identity import new_authority
from deploy.local.limits import LONGEST_S
from tests.packaging.checkout import ROOT
from tests.support.kubeconfig import kubeconfig
from tests.support.tls import Tls
from timekeeper.edge import http_client
from timekeeper.edge.http_client import HttpClient, NotConnected, server_of, tcp
from timekeeper.runtime.api_server import Answered, Api, Unsent
from timekeeper.runtime.connect import connect, of_service_account
from timekeeper.runtime.flags import UnusableError
from timekeeper.runtime.kubeconfig import IDENTITY_S, of_configuration

WHERE = {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "1"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(new_authority("cluster").pem)
    return tmp_path


def sent_by(api: Api) -> object:
    return api._identity()["authorization"]


def test_the_token_of_a_service_account_is_read_at_each_call(account: Path) -> None:
    api = of_service_account(environment=WHERE, folder=account)

    assert sent_by(api) == "Bearer first"
    (account / "token").write_text("second")
    assert sent_by(api) == "Bearer second"


def test_a_token_that_cannot_be_read_sends_nothing(account: Path) -> None:
    api = of_service_account(environment=WHERE, folder=account)
    (account / "token").unlink()

    reply = api.call("GET", "/version", timeout_s=LONGEST_S)

    assert isinstance(reply, Unsent)
    assert "the credentials cannot be read: [Errno 2]" in reply.message


def test_an_ipv6_address_is_called_in_brackets(account: Path) -> None:
    reply = of_service_account(environment=WHERE, folder=account).call("GET", "/version", timeout_s=LONGEST_S)

    assert isinstance(reply, Unsent)
    assert "the API server cannot be reached: [::1]:1: " in reply.message


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
    assert sent_by(connect(kubeconfig(tmp_path, "http://127.0.0.1:1"))) == "Bearer own"


def test_the_package_is_asked_for_a_token_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    asked: list[client.Configuration] = []
    monkeypatch.setattr("timekeeper.runtime.kubeconfig.time.monotonic", lambda: seconds[0])
    configuration = client.Configuration()
    configuration.host, configuration.api_key = "http://127.0.0.1:1", {"BearerToken": "Bearer own"}
    configuration.refresh_api_key_hook = asked.append
    api = of_configuration(configuration)

    assert (sent_by(api), sent_by(api), len(asked)) == ("Bearer own", "Bearer own", 1)
    seconds[0] += IDENTITY_S
    assert (sent_by(api), len(asked)) == ("Bearer own", 2)


def test_a_proxy_is_asked_for_a_way_to_the_server(tmp_path: Path, tls: Tls) -> None:
    """A proxy that answers as the server itself, once it was asked for the way."""
    asked: list[bytes] = []
    said = [b"HTTP/1.1 407 Who are you\r\n\r\n", b"HTTP/1.1 200 Go on\r\n\r\n"]

    def serve() -> None:
        while said:
            raw, _ = listener.accept()
            raw.settimeout(LONGEST_S)
            asked.append(raw.recv(4096))
            answer = said.pop(0)
            raw.sendall(answer)
            if b"200" in answer:
                with tls.server().wrap_socket(raw, server_side=True) as through:
                    through.recv(4096)
                    through.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}')
            raw.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LONGEST_S)
        thread = threading.Thread(target=serve)
        thread.start()
        ca = base64.b64encode(tls.ca.bundle).decode()
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        fields = {"certificate-authority-data": ca, "tls-server-name": "localhost", "proxy-url": proxy}
        (tmp_path / "config").write_bytes(with_cluster(server="https://api.invalid:6443", **fields))
        api = connect(tmp_path / "config")
        refused = api.call("GET", "/version", timeout_s=LONGEST_S)
        answered = api.call("GET", "/version", timeout_s=LONGEST_S)
        thread.join(LONGEST_S)
        api.close()

    assert isinstance(refused, Unsent)
    assert "the proxy answers 407" in refused.message
    assert answered == Answered(200, {"a": 1})
    assert asked == [b"CONNECT api.invalid:6443 HTTP/1.1\r\nHost: api.invalid:6443\r\n\r\n"] * 2


def with_cluster(**fields: str) -> bytes:
    """A kubeconfig with these fields of its cluster."""
    return json.dumps(
        {
            "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1", **fields}}],
            "users": [{"name": "x", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
    ).encode()


JUNK = base64.b64encode(b"junk").decode()
OF_A_CLIENT = {"client-certificate-data": JUNK, "client-key-data": JUNK}
NONE = "it is not a kubeconfig"
INVALID = "Invalid kube-config"
NO_URL = "is no URL such as https://"
NO_AUTHORITY = "its certificate authority contains no readable certificate"
NO_PAIR = "its client certificate and key cannot be read, or do not belong together"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", INVALID),
        (b"{[", NONE),
        (b"[]", NONE),
        (b"text", NONE),
        (b"{}", "Invalid kube-config file. Expected key"),
        (b"\x00", NONE),
        (b"\x00garbage\xff", NONE),
        (b"\xff", NONE),
        (b'{"clusters": 1}', NONE),
        (with_cluster(server="nonsense"), f'the server "nonsense" {NO_URL}'),
        (with_cluster(server="https://h:99999"), f'the server "https://h:99999" {NO_URL}'),
        (with_cluster(**{"certificate-authority-data": JUNK}), NO_AUTHORITY),
        (with_cluster().replace(b'"user": {}', f'"user": {json.dumps(OF_A_CLIENT)}'.encode()), NO_PAIR),
    ],
)
def test_a_kubeconfig_that_says_nothing_is_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)

    with pytest.raises(UnusableError) as error:
        connect(path)

    assert re.fullmatch(
        f"--kubeconfig {path}: {sentence}[^;]*; it must be a YAML file with clusters, users, contexts and "
        "current-context, as kubectl reads it, such as /etc/kubernetes/admin.conf; "
        "or nothing, in a pod that has a service account",
        str(error.value),
    ), error.value


def test_what_no_head_may_hold_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = HttpClient(server_of(f"http://127.0.0.1:{server.getsockname()[1]}"), tcp)

        with pytest.raises(NotConnected, match=r"^a path or a header holds a letter that it may not$"):
            client.call("GET", "/", {"Authorization": "Bearer a\nb"}, within_s=LONGEST_S, repeat=True)


def test_a_connection_that_cannot_be_set_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_KEEP_ALIVE", ((1 << 20, 1),))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient(server_of(f"http://127.0.0.1:{listener.getsockname()[1]}"), tcp)

        with pytest.raises(NotConnected) as caught:  # its traceback still holds the connection
            client.call("GET", "/", {}, within_s=LONGEST_S, repeat=True)

        connection, _ = listener.accept()
        connection.settimeout(LONGEST_S)
        assert (connection.recv(1), caught.type) == (b"", NotConnected)
        connection.close()
