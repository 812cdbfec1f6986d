"""A PostgreSQL whose certificate is verified, by the CAs of the system or by a file."""

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.postgresql import trust_system

REFUSED, TRUSTED = "certificate verify failed", "unexpected eof"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that speaks PostgreSQL up to the end of the TLS handshake, and then hangs up."""

    url: str
    ca_file: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tls")
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3"
    leaf = "-subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE"
    for command in (
        f"{new} -subj /CN=ca -keyout ca.key -out ca.crt",
        f"{new} -CA ca.crt -CAkey ca.key {leaf} -keyout tls.key -out tls.crt",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["postgresql"])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening, context))
        thread.start()
        url = f"postgresql://u:p@localhost:{listening.getsockname()[1]}/x?sslmode=verify-full"
        yield Server(url, folder / "ca.crt")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def serve(listening: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        with client:
            client.recv(8)  # SSLRequest
            client.sendall(b"S")
            try:
                with context.wrap_socket(client, server_side=True) as secured:
                    secured.recv(1024)
            except OSError:
                continue


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapping[str, str]:
    """OpenSSL's variables as the code leaves them; none is set before. The home has no CA for libpq."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return os.environ


def said(url: str) -> str:
    with pytest.raises(psycopg.OperationalError) as failed:
        psycopg.connect(url)
    return str(failed.value)


def of_system(ca_file: Path) -> ssl.DefaultVerifyPaths:
    """As of a system with one CA."""
    found = ssl.get_default_verify_paths()
    return found._replace(openssl_cafile=str(ca_file), openssl_capath=str(ca_file.parent))


def test_the_cas_of_the_system_are_trusted_as_the_url_of_the_documents_asks(
    server: Server, environment: Mapping[str, str]
) -> None:
    url = f"{server.url}&sslrootcert=system"
    assert REFUSED in said(url)

    trust_system({"sslrootcert": "system"}, of_system(server.ca_file))

    assert TRUSTED in said(url)


def test_a_file_of_its_own_is_trusted_alone(server: Server, environment: Mapping[str, str]) -> None:
    assert TRUSTED in said(f"{server.url}&sslrootcert={server.ca_file}")
    assert "does not exist" in said(server.url)


def test_a_store_whose_url_trusts_the_system_knows_its_cas_and_any_other_changes_nothing(
    server: Server, environment: Mapping[str, str]
) -> None:
    open_store(server.url).close()
    assert "SSL_CERT_DIR" not in environment

    open_store(f"{server.url}&sslrootcert=system").close()

    system = ssl.get_default_verify_paths()
    assert environment["SSL_CERT_FILE"] == system.openssl_cafile
    assert environment["SSL_CERT_DIR"] == system.openssl_capath


def test_what_the_operator_has_set_stays(
    server: Server, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))

    open_store(f"{server.url}&sslrootcert=system").close()

    assert environment["SSL_CERT_FILE"] == str(server.ca_file)
    assert "SSL_CERT_DIR" not in environment
