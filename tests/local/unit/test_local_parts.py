"""The smaller parts of the local control plane: folders, processes, certificates, nodes, the command line."""

import runpy
import ssl
import sys
from pathlib import Path

import pytest

from deploy.local.cli import main
from deploy.local.cluster import check_space
from deploy.local.errors import LocalError
from deploy.local.folder import OwnedFolder, sweep
from deploy.local.identity import new_authority
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity, our_capacity, tencent_capacity
from deploy.local.kwok_stages import stages


def test_a_folder_goes_with_its_context_and_is_its_users_alone() -> None:
    with OwnedFolder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        sweep()
        assert folder.exists()

    assert not folder.exists()


def test_folders_of_the_dead_are_swept_and_those_of_strangers_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = tmp_path / "bursar-local-dead"
    (dead / "logs").mkdir(parents=True)
    (dead / "owner").touch()
    no_folder_of_ours = tmp_path / "bursar-local-notes"
    no_folder_of_ours.mkdir()
    link = tmp_path / "bursar-local-link"
    link.symlink_to(tmp_path / "nowhere")

    with OwnedFolder() as folder:
        assert sorted(tmp_path.iterdir()) == sorted([folder, no_folder_of_ours, link])


def test_a_full_or_missing_temporary_folder_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))

    with pytest.raises(
        LocalError, match=r"^cannot make a temporary folder in .*missing: No such file or directory$"
    ):
        OwnedFolder().__enter__()


def test_certificates_of_ours_satisfy_pythons_strict_verification(tmp_path: Path) -> None:
    authority = new_authority("test")
    certificate, key = authority.leaf(("server.example.com", "127.0.0.1"))
    (tmp_path / "tls.pem").write_bytes(certificate + key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.pem")
    client = ssl.create_default_context(cadata=authority.pem.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    for name in ("server.example.com", "127.0.0.1"):
        assert handshake(client, server, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server, "other.example.com")


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """Shake hands in memory; True when both sides are through."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    through = set()
    for _ in range(10):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                through.add(side)
            except ssl.SSLWantReadError:
                continue
    return len(through) == 2


def test_a_node_advertises_one_familys_resources_or_those_it_is_given() -> None:
    def advertised(capacity: dict[str, str] | None) -> dict[str, str]:
        status = kwok_node("n", cards=2, memory_mib=8_192, capacity=capacity)["status"]
        assert status["capacity"] == status["allocatable"]
        return {name: amount for name, amount in status["capacity"].items() if "/" in name}

    ours = {
        "bursar.dev/gpu-percent": "200",
        "bursar.dev/gpu-memory": "16384",
        "bursar.dev/gpu-count": "2000",
        "cards.bursar.dev/millionths": "2000000",
    }
    tencent = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"}
    assert advertised(None) == ours
    assert advertised(tencent_capacity(2, 8_192)) == tencent
    assert advertised(our_capacity(2, 8_192) | nvidia_capacity(2)) == ours | {"nvidia.com/gpu": "2"}
    assert "bursar.dev/inventory" not in kwok_node("plain")["metadata"]["annotations"]


def test_an_old_python_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))

    with pytest.raises(SystemExit, match=r"^error: Python 3\.11 or newer is needed, and this is"):
        runpy.run_module("deploy.local.__main__")


def test_the_command_line_prints_a_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "")
    monkeypatch.setenv("PATH", "/nowhere")

    code = main(["build"])

    assert code == 1
    assert (
        capsys.readouterr().err
        == "error: cannot write the cache folder /proc/nowhere/bursar: No such file or directory\n"
    )


def test_a_full_temporary_disk_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"^the disk is too full: .* control plane needs \d+; "):
        check_space(tmp_path, 2**60)

    check_space(tmp_path, 1)


def test_every_status_that_kwok_writes_names_the_object_that_it_saw() -> None:
    """By name alone, the end of a removed pod would become that of a new pod with its name."""
    patches = [patch for each in stages() for patch in each["spec"]["next"].get("patches", [])]

    assert len(patches) == 7
    assert all(patch["template"].startswith("metadata: {uid: {{ .metadata.uid }}}\n") for patch in patches)
