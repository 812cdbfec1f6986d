"""A timekeeper that cannot follow its settings: what the process that prepares it says, and of some a real
``python -m timekeeper``: one sentence on standard error, exit code 2, and nothing left behind."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from deploy.local.identity import new_authority
from deploy.local.limits import LONGEST_S
from tests.timekeeper.processes import Process
from timekeeper.process.supervisor import prepare
from timekeeper.settings import UnusableError, read

NO_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
A_LEDGER = "it must be a ledger's file or a new one, in an existing folder"
A_URL = "it must be a file, such as sqlite:////var/lib/bursar/bursar.db, or PostgreSQL"
A_KUBECONFIG = "it must be a YAML file with clusters, users, contexts and current-context"


def refusal(process: Process, *more: str) -> str:
    """What preparing it with these flags is refused with: one line."""
    process.more = more
    with pytest.raises(UnusableError) as caught:
        prepare(read(process.command()[3:], {}))
    said = str(caught.value)
    assert said.startswith("--")
    assert "\n" not in said
    return f"{said}\n"


def refusal_of_a_process(process: Process, *more: str) -> str:
    """What it says when it is started with these flags: one line, with exit code 2."""
    process.more = more
    process.start()
    assert process.running is not None
    assert process.running.wait(LONGEST_S) == 2, process.log()
    said = process.log()
    assert said.startswith("bursar-timekeeper: --"), said
    assert said.count("\n") == 1, said
    return said.removeprefix("bursar-timekeeper: ")


def another_programs(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE entries (what)")


def of_another_alembic(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('5ca1ab1e')")
        connection.commit()


def of_the_former_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('0027')")
        connection.commit()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda path: path.write_bytes(os.urandom(5000)),
            "it is damaged: file is not a database; stop the timekeeper and restore a backup",
        ),
        (
            lambda path: path.write_text("hello"),
            "it is damaged: file is not a database; stop the timekeeper and restore a backup",
        ),
        (
            lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(5000)),
            "it is damaged: file is not a database; stop the timekeeper and restore a backup",
        ),
        (another_programs, f"table entries already exists; {A_LEDGER}"),
        (of_another_alembic, f"it belongs to another program: it lacks the table accounts; {A_LEDGER}"),
        (of_the_former_schema, "it has the schema 0027, which this release does not read: `export` it with"),
        (lambda path: path.mkdir(), f"unable to open database file; {A_LEDGER}"),
    ],
    ids=["noise", "text", "header", "tables", "alembic", "former", "folder"],
)
def test_a_file_that_is_no_ledger(process: Process, make: Callable[[Path], None], sentence: str) -> None:
    make(process.database)

    said = refusal(process)

    assert said.startswith(f"--database: sqlite:///{process.database}: {sentence}")


@pytest.mark.parametrize("folder", ["/no/such/folder", "/proc"])
def test_a_folder_in_which_nothing_can_be_made(process: Process, folder: str) -> None:
    said = refusal(process, f"--database=sqlite:///{folder}/bursar.db")

    assert said.startswith(
        f"--database: sqlite:///{folder}/bursar.db: unable to open database file; {A_LEDGER}"
    )
    assert f"that this user (id {os.getuid()}) may write" in said


def test_a_ledger_that_may_not_be_written(process: Process) -> None:
    """Opened to be read only, for a file's mode keeps nothing from root."""
    process.database.touch()

    said = refusal(process, f"--database=sqlite:///file:{process.database}?mode=ro&uri=true")

    assert "attempt to write a readonly database" in said


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("nonsense", "not a database URL; "),
        ("postgresql://host:port/bursar", "not a database URL; "),
        ("mysql://host/bursar", "not a supported database URL: mysql is not supported; "),
        (
            "postgresql+nodriver://me:hunter2@host/bursar",
            "not a supported database URL: the driver of postgresql+nodriver is not psycopg; ",
        ),
        ("sqlite://", "sqlite:// names no file, and each process would have its own; "),
    ],
)
def test_a_url_that_names_no_database_we_can_use(process: Process, url: str, what: str) -> None:
    said = refusal(process, f"--database={url}")

    assert said.startswith(f"--database: {what}")
    assert A_URL in said
    assert "hunter2" not in said


def test_postgresql_whose_package_is_not_installed(process: Process, tmp_path: Path) -> None:
    """Stands before whatever is installed, as a Python does that was never given the package."""
    (tmp_path / "psycopg").mkdir()
    (tmp_path / "psycopg" / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named psycopg')\n"
    )
    process.path = f"{tmp_path}:{process.path}"

    said = refusal_of_a_process(process, "--database=postgresql+psycopg://me:hunter2@host/bursar")

    assert "the driver of postgresql+psycopg cannot be loaded (No module named psycopg); " in said
    assert "PostgreSQL with its package psycopg installed" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("text", ["garbage", NO_CERTIFICATE, ""])
def test_a_certificate_that_is_none(process: Process, text: str) -> None:
    path = process.folder / "tls.crt"
    path.write_text(text)

    said = refusal(process)

    assert said == (
        f"--tls-cert: {path} contains no readable certificate; it must be a certificate chain in PEM,"
        " the leaf first, beginning with -----BEGIN CERTIFICATE-----\n"
    )


def a_key_with_a_passphrase(process: Process) -> bytes:
    key = serialization.load_pem_private_key((process.folder / "tls.key").read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, secret)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda _: b"\x00garbage\xff", "contains no readable key"),
        (lambda each: (each.folder / "tls.crt").read_bytes(), "contains no readable key"),
        (a_key_with_a_passphrase, "contains no readable key"),
        (lambda _: new_authority("other").leaf(["127.0.0.1"])[1], "is not the key of the certificate in "),
    ],
    ids=["garbage", "certificate", "passphrase", "another's"],
)
def test_a_key_that_does_not_fit(process: Process, make: Callable[[Process], bytes], what: str) -> None:
    path = process.folder / "tls.key"
    path.write_bytes(make(process))

    said = refusal(process)

    assert said.startswith(f"--tls-key: {path} {what}")
    assert "it must be the certificate's private key in PEM, without a passphrase" in said


@pytest.mark.parametrize("flag", ["tls-cert", "tls-key"])
def test_a_file_that_is_missing(process: Process, flag: str) -> None:
    assert refusal_of_a_process(process, f"--{flag}=/no/such/file") == (
        f"--{flag}: there is no file /no/such/file; it must be a file in PEM\n"
    )


def test_a_bundle_that_sidecars_could_not_trust(process: Process) -> None:
    path = process.folder / "ca.crt"
    path.write_text("garbage")

    assert refusal(process).startswith(f"--ca: {path} contains no readable certificate; it must be CA")
    assert refused_folder(process).startswith(f"--ca: {process.folder} cannot be read (Is a directory); ")


def refused_folder(process: Process) -> str:
    return refusal(process, f"--ca={process.folder}")


def test_a_kubeconfig_that_is_none(process: Process) -> None:
    process.kubeconfig.write_bytes(b"{[")

    said = refusal(process)

    assert said.startswith(f"--kubeconfig {process.kubeconfig}: it is not a kubeconfig")
    assert A_KUBECONFIG in said


def test_a_kubeconfig_that_is_missing(process: Process) -> None:
    said = refusal(process, "--kubeconfig=/no/such/file")

    assert said.startswith(f"--kubeconfig /no/such/file: there is no such file; {A_KUBECONFIG}")


def test_no_kubeconfig_and_no_cluster(process: Process) -> None:
    said = refusal(process, "--kubeconfig=")

    assert said.startswith(
        "--kubeconfig: none is given, and the pod's own service account cannot be used:"
        " KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; "
    )


def test_nothing_is_left_behind_and_the_port_is_free_again(process: Process) -> None:
    process.database.mkdir()
    refusal_of_a_process(process)
    process.database.rmdir()

    process.more = ()
    process.start()
    process.wait("/livez", lambda: process.call("GET", "/livez")[0] == 200)

    assert process.end() == 0
    assert [path.name for path in process.folder.glob("bursar-timekeeper-*")] == []


@pytest.mark.parametrize("flag", ["--oidc-client-secret-file", "--oidc-ca-file"])
def test_a_file_of_the_login_that_cannot_be_read_is_named(process: Process, flag: str) -> None:
    login = ("--oidc-issuer=https://login.test", "--oidc-client-id=b", "--dashboard-url=https://b.test")

    said = refusal(process, *login, f"{flag}=/nowhere")

    assert said.startswith(f"{flag}: /nowhere cannot be read (No such file or directory); it must be ")
