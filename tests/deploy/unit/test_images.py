"""The images against the repository: what they start exists, and what they are made of is what is tested."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deploy.images import lock, oci
from deploy.images.debian import Apt
from deploy.images.lock import ImagesError, Lock, Package, Packages
from deploy.images.roles import ARCHITECTURES, ROLES, USER
from deploy.images.tree import Entry
from tests.deploy.reading import ROOT, console_scripts, containers

FOLDERS = {
    "webhook": "webhook",
    "timekeeper": "timekeeper",
    "extender": "scheduler_ext",
    "sidecar": "sidecar",
}
each_role = pytest.mark.parametrize("role", ROLES)


def test_an_image_runs_as_a_number_that_is_not_root() -> None:
    assert USER == "65532:65532"


@each_role
def test_an_image_starts_its_own_role(role: str) -> None:
    words = ROLES[role].entrypoint

    if words[:2] == ("python", "-m"):
        assert words[2:] == (FOLDERS[role],)
    else:
        (script,) = words
        assert console_scripts()[script] == f"{FOLDERS[role]}.__main__:main"
    assert (ROOT / FOLDERS[role] / "__main__.py").is_file()


def test_every_image_that_the_manifests_name_is_made() -> None:
    upstream = {"registry.k8s.io/kube-scheduler"}
    named = {one["image"].partition(":")[0] for _, one in containers()} - upstream

    assert named <= {f"bursar/{role}" for role in ROLES}


def test_the_port_that_an_image_exposes_is_the_one_its_container_has() -> None:
    for _, one in containers():
        role = one["image"].removeprefix("bursar/").partition(":")[0]
        listen = [
            arg.rpartition(":")[2]
            for arg in one.get("args", [])
            if arg.startswith(("--listen=", "--read-listen="))
        ]
        if listen:
            assert listen == [str(port) for port in ROLES[role].ports]
            assert {port["containerPort"] for port in one.get("ports", [])} <= set(ROLES[role].ports)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_lock_has_the_versions_that_are_tested_and_all_that_the_roles_declare(architecture: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    tested = {canonicalize_name(name): version for name, version in pairs}
    locked = lock.read().of(architecture)

    assert {name: each.version for name, each in locked.python.items()}.items() <= tested.items()
    for role, each in ROLES.items():
        assert {canonicalize_name(one.name) for one in each.requirements()} <= set(locked.roles[role])


LIBC = Package("libc6", "2.36-9", "0" * 64)
NUMPY = Package("numpy", "2.4.6", "1" * 64)
LOCK = Lock("3.11", {"amd64": Packages({"libc6": LIBC}, {"numpy": NUMPY}, {"extender": ("numpy",)})})


def test_a_lock_is_read_as_it_was_written() -> None:
    assert lock.text(lock.read()) == lock.PATH.read_text()


def test_an_architecture_that_the_lock_lacks_is_named_with_those_that_it_has() -> None:
    with pytest.raises(ImagesError, match="no architecture s390x, only amd64: name one of these"):
        LOCK.of("s390x")


def test_the_order_of_files_and_the_time_leave_no_trace_in_a_layer() -> None:
    one = Entry(b"1", mode=0o755)
    two = Entry(target="one")

    made = oci.layer({"a/one": one, "a/two": two})

    assert made == oci.layer({"a/two": two, "a/one": one})
    assert made.packed[4:8] == bytes(4)  # gzip's time
    with tarfile.open(fileobj=io.BytesIO(made.packed)) as tar:
        entries = [(each.name, each.mode, each.mtime, each.uid, each.uname) for each in tar]
    assert entries == [("a", 0o755, 0, 0, ""), ("a/one", 0o755, 0, 0, ""), ("a/two", 0o777, 0, 0, "")]


def test_an_index_names_both_architectures_and_each_digest_is_its_contents() -> None:
    blobs, labels = oci.Blobs(), {oci.CREATED: oci.time_of(0)}
    layers = [oci.layer({"file": Entry(b"1")})]
    manifests = [oci.manifest(blobs, ROLES["webhook"], each, layers, labels) for each in ARCHITECTURES]

    index = json.loads(blobs.held[str(oci.index(blobs, manifests, labels)["digest"])])

    assert [each["platform"]["architecture"] for each in index["manifests"]] == list(ARCHITECTURES)
    for described in index["manifests"]:
        manifest = json.loads(blobs.held[described["digest"]])
        config = json.loads(blobs.held[manifest["config"]["digest"]])
        assert config["rootfs"]["diff_ids"] == [oci.digest_of(gzip.decompress(layers[0].packed))]
        assert config["config"]["User"] == USER
        assert config["config"]["ExposedPorts"] == {"8443/tcp": {}}
    assert all(oci.digest_of(content) == digest for digest, content in blobs.held.items())


def test_a_machine_without_apt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ImagesError, match="this machine has no apt: use Debian"):
        Apt(tmp_path, "amd64", print).update()


@pytest.mark.parametrize("content", ["{", "{}", '{"python": "3.11", "architectures": {"amd64": 1}}'])
def test_a_file_that_is_no_lock_is_named_with_what_writes_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock.json").write_text(content)

    with pytest.raises(
        ImagesError, match=r"lock\.json is no lock of images \(.*\): make images-lock writes it anew"
    ):
        lock.read(tmp_path / "lock.json")
    with pytest.raises(ImagesError, match=r"none cannot be read \(No such .*\): make images-lock writes it"):
        lock.read(tmp_path / "none")
