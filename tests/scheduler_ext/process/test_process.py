"""The role as a process: its settings, its port, its end, and mutual TLS."""

import http.client
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.identity import new_authority
from deploy.local.limits import LONGEST_S
from tests.scheduler_ext.apiserver import ApiServer
from tests.scheduler_ext.processes import ROOT, Process
from tests.scheduler_ext.worlds import node, percent
from tests.support.kubeconfig import kubeconfig
from tests.support.waiting import eventually


@pytest.fixture
def process(api: ApiServer, tmp_path: Path) -> Iterator[Process]:
    """An extender process in front of one node."""
    api.put("nodes", node("a"))
    process = Process(tmp_path, f"--kubeconfig={kubeconfig(tmp_path, api.url)}", traced=True)
    process.start_ready()
    yield process
    process.kill()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One run that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler_ext", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )


def test_it_answers_over_http_and_ends_in_order(process: Process) -> None:
    status, text = process.call("POST", "/filter", {"Pod": percent(50), "NodeNames": ["a"]})

    assert status == 200
    assert '"NodeNames":["a"]' in text
    eventually(lambda: "event=complete nodes=1 pods=0 waiting=0" in process.said())
    assert process.end() == 0
    assert "Traceback" not in process.said()


def test_silent_callers_delay_no_other(process: Process) -> None:
    silent = []
    for _ in range(24):
        connection = socket.create_connection(("127.0.0.1", process.port))
        connection.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        silent.append(connection)

    eventually(lambda: process.answers("/livez"))
    for connection in silent:
        connection.close()


def test_a_port_that_is_taken_is_one_sentence(process: Process, api: ApiServer, tmp_path: Path) -> None:
    done = run(f"--kubeconfig={kubeconfig(tmp_path, api.url)}", f"--listen=127.0.0.1:{process.port}")

    assert done.returncode == 2
    assert (
        done.stderr == f"bursar-extender: cannot listen on 127.0.0.1:{process.port}: Address already in use\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "nowhere"], '"nowhere" is not HOST:PORT, such as [::]:8443'),
        (["--listen", "0.0.0.0:8445"], "any client of this address could bind pods"),
        (["--listen", "192.0.2.1:8445"], "any client of this address could bind pods"),
        (["--tls-cert", "x"], "--tls-cert, --tls-key and --client-ca go together"),
        (["--max-grace-period", "10"], '"10" is not a duration from 0ms to 47m, such as 90s'),
        (["--policy", "best"], "invalid choice: 'best'"),
        (["--threads", "0"], '"0" is not a whole number from 1 to 1000'),
        (["--most-preemptions", "-1"], '"-1" is not a whole number from 0 to 1000'),
        (["--most-offered", "1001"], '"1001" is not a whole number from 0 to 1000'),
        (["--hold-cards=45m", "--lease=a/b"], "unrecognized arguments: --hold-cards=45m --lease=a/b"),
        (["--kubeconfig", "/nonexistent"], "--kubeconfig /nonexistent: there is no such file"),
        ([], "none is given, and the pod's own service account cannot be used"),
    ],
)
def test_a_bad_setting_is_one_sentence_and_exit_code_two(arguments: list[str], sentence: str) -> None:
    done = run("--listen=127.0.0.1:0", *arguments)

    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_kubeconfig_that_says_nothing_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"{[")

    done = run("--listen=127.0.0.1:0", f"--kubeconfig={path}")

    assert done.returncode == 2
    assert done.stderr.startswith(f"bursar-extender: --kubeconfig {path}: it is not a kubeconfig; it must be")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def tls(tmp_path: Path, api: ApiServer) -> Iterator[tuple[Process, ssl.SSLContext, ssl.SSLContext]]:
    """An extender with mutual TLS; a caller with a certificate of its CA, and one without."""
    authority, stranger = new_authority("callers"), new_authority("strangers")
    files = {
        "tls.crt": authority.leaf(["127.0.0.1"]),
        "client.crt": authority.leaf(["system:kube-scheduler"], client=True),
        "stranger.crt": stranger.leaf(["system:kube-scheduler"], client=True),
    }
    for name, (certificate, key) in files.items():
        (tmp_path / name).write_bytes(certificate)
        (tmp_path / name.replace(".crt", ".key")).write_bytes(key)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    process = Process(
        tmp_path,
        f"--kubeconfig={kubeconfig(tmp_path, api.url)}",
        f"--tls-cert={tmp_path / 'tls.crt'}",
        f"--tls-key={tmp_path / 'tls.key'}",
        f"--client-ca={tmp_path / 'ca.crt'}",
    )

    def context(name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        return context

    process.start()
    eventually(lambda: "event=complete" in process.said())
    yield process, context("client"), context("stranger")
    process.kill()


def call(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=LONGEST_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_with_mutual_tls_only_callers_of_the_ca_are_served(
    tls: tuple[Process, ssl.SSLContext, ssl.SSLContext],
) -> None:
    process, known, stranger = tls
    unknown_orphan = ssl.create_default_context(cafile=str(process.log.parent / "ca.crt"))

    assert call(process.port, known) == 200
    for context in (stranger, unknown_orphan):
        with pytest.raises((ssl.SSLError, OSError)):
            call(process.port, context)
    assert not process.answers("/readyz")


def test_callers_that_stop_in_the_handshake_delay_no_other(
    tls: tuple[Process, ssl.SSLContext, ssl.SSLContext],
) -> None:
    process, known, _ = tls
    silent = []
    for _ in range(24):
        connection = socket.create_connection(("127.0.0.1", process.port))
        connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        silent.append(connection)

    assert call(process.port, known) == 200
    for connection in silent:
        connection.close()
