"""The images as `make images` makes them in a clone, of packages that are downloaded for it."""

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.images import lock
from deploy.images.roles import ARCHITECTURES, USER
from tests.deploy.reading import ROOT

pytestmark = pytest.mark.soak
_DYNAMIC, _LOAD, _NEEDED, _STRINGS = 2, 1, 1, 5


class Clone:
    """A clone of this repository's last commit."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `make images` there."""
        command = [sys.executable, "-m", "deploy.images", *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone, with a cache of its own."""
    folder = tmp_path_factory.mktemp("first")
    return Clone(folder / "clone", folder / "cache")


@pytest.fixture(scope="module")
def made(clone: Clone) -> str:
    """What the first clone printed of two images."""
    done = clone.make("--role=sidecar", "--role=extender")
    assert done.returncode == 0, done.stderr
    return done.stdout


def layers(archive: Path, architecture: str) -> tuple[dict[str, Any], list[bytes]]:
    """The configuration and the layers of an image."""
    with tarfile.open(archive) as tar:

        def blob(described: dict[str, Any]) -> bytes:
            file = tar.extractfile("blobs/" + described["digest"].replace(":", "/"))
            assert file
            return file.read()

        top = tar.extractfile("index.json")
        assert top
        index = json.loads(blob(json.load(top)["manifests"][0]))
        found = {each["platform"]["architecture"]: each for each in index["manifests"]}
        manifest = json.loads(blob(found[architecture]))
        return json.loads(blob(manifest["config"])), [blob(each) for each in manifest["layers"]]


def files(archive: Path, architecture: str) -> dict[str, bytes]:
    """An image's files by their paths."""
    found: dict[str, bytes] = {}
    for each in layers(archive, architecture)[1]:
        with tarfile.open(fileobj=io.BytesIO(each), mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                found[member.name] = content.read() if content else b""
    return found


def needed(program: bytes) -> Iterator[str]:
    """The libraries that a program of 64 bits is linked with."""
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", program, start + size * number) for number in range(count)]
    loaded = [(each[3], each[2], each[5]) for each in headers if each[0] == _LOAD]
    for header in headers:
        if header[0] == _DYNAMIC:
            entries = [
                struct.unpack_from("<qQ", program, at) for at in range(header[2], header[2] + header[5], 16)
            ]
            (table,) = (value for tag, value in entries if tag == _STRINGS)
            base = next(table - at + offset for at, offset, length in loaded if at <= table < at + length)
            for tag, value in entries:
                if tag == _NEEDED:
                    yield program[base + value : program.index(b"\0", base + value)].decode()


def test_another_clone_makes_the_same_digests_of_the_same_downloads(
    clone: Clone, made: str, tmp_path: Path
) -> None:
    other = Clone(tmp_path / "clone", clone.cache)

    done = other.make("--role=extender", "--role=sidecar")

    assert sorted(done.stdout.splitlines()) == sorted(made.splitlines()), done.stderr
    assert "downloading" not in done.stderr


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("role", ["sidecar", "extender"])
def test_each_library_that_a_program_of_an_image_is_linked_with_is_there(
    clone: Clone, made: str, role: str, architecture: str
) -> None:
    found = files(clone.folder / "dist" / "images" / f"{role}.tar", architecture)
    names = {Path(name).name for name in found}
    machine = {"amd64": 62, "arm64": 183}[architecture]
    programs = {name: content for name, content in found.items() if content.startswith(b"\x7fELF")}

    assert {struct.unpack_from("<H", each, 18)[0] for each in programs.values()} == {machine}
    assert {
        name: set(needed(each)) - names for name, each in programs.items() if set(needed(each)) - names
    } == {}


def test_an_image_says_what_it_is_and_whose_it_runs_as(clone: Clone, made: str) -> None:
    folder = clone.folder / "dist" / "images"
    configuration, _ = layers(folder / "sidecar.tar", "arm64")
    named = json.loads((folder / "sidecar-arm64.cdx.json").read_text())["components"]
    packages = lock.read().of("arm64")

    assert configuration["config"]["User"] == USER
    assert configuration["config"]["Labels"]["org.opencontainers.image.title"] == "bursar-sidecar"
    assert {each["name"] for each in named} == {*packages.debian, *packages.roles["sidecar"], "gpu-bursar"}


def changed(clone: Clone, before: str, after: str) -> str:
    """What is said where the lock has another text."""
    file = clone.folder / "deploy" / "images" / "lock.json"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    done = clone.make("--role=sidecar")
    file.write_text(text)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_packages_that_are_gone_and_other_files_are_named(clone: Clone, made: str) -> None:
    packages = lock.read().of("amd64")
    libffi, yaml = packages.debian["libffi8"], packages.python["pyyaml"]
    nobody = "0" * 64

    assert changed(clone, f"{libffi.version} {libffi.sha256}", f"0.1-1 {nobody}") == (
        "error: apt's sources have no libffi8 in the version of deploy/images/lock.json for amd64 any more:"
        " make images-lock takes the one that they have"
    )
    assert changed(clone, libffi.sha256, nobody) == (
        f"error: the file of libffi8 {libffi.version} that came is not the one of deploy/images/lock.json:"
        " find out why; make images-lock accepts it"
    )
    assert changed(clone, f"{yaml.version} {yaml.sha256}", f"0.0.1 {nobody}") == (
        "error: the package index has no wheel of pyyaml==0.0.1 for amd64: choose another version in"
        " constraints.txt, then make images-lock"
    )
    other = f"error: the package index gives another file for pyyaml=={yaml.version} than"
    assert changed(clone, yaml.sha256, nobody).startswith(other)


def test_an_architecture_that_is_not_there_is_named(clone: Clone, made: str) -> None:
    assert clone.make("--architecture=s390x").stderr.splitlines()[-1] == (
        "error: deploy/images/lock.json has no architecture s390x, only amd64, arm64: name one of these"
    )
