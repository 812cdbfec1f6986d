"""Image archives: what is in them, and that every name of a content is its digest."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from deploy.local.images import Image, archive, layer
from tests.worlds import Json


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A layer of one program, a link to it, and a folder to write in."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    text = tmp_path / "text"
    text.write_text("words")
    text.chmod(0o600)
    layer(
        tmp_path / "layer.tar",
        {"/opt/app/run": program, "/opt/app/text": text},
        {"/bin/run": "/opt/app/run"},
        ["/tmp"],
    )
    return tmp_path / "layer.tar"


def blobs(file: Path) -> dict[str, bytes]:
    """Every file of an archive by its name."""
    with tarfile.open(file) as tar:
        found = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        return {name: content.read() for name, content in found.items() if content}


def test_a_layer_holds_files_that_all_may_read_and_the_folders_above_them(root: Path) -> None:
    with tarfile.open(root) as tar:
        members = {each.name: each for each in tar.getmembers()}

    assert {name: (each.isdir(), each.mode) for name, each in members.items() if not each.issym()} == {
        "tmp": (True, 0o1777),
        "opt": (True, 0o755),
        "opt/app": (True, 0o755),
        "opt/app/run": (False, 0o755),
        "opt/app/text": (False, 0o644),
        "bin": (True, 0o755),
    }
    assert members["bin/run"].linkname == "/opt/app/run"
    assert {each.uid for each in members.values()} == {0}
    assert list(members).index("opt") < list(members).index("opt/app/run")


def test_every_content_of_an_archive_is_named_by_its_digest_and_size(root: Path, tmp_path: Path) -> None:
    images = [
        Image("docker.io/a/a:1", ("run", "it"), {"A": "1"}, "65532:65532"),
        Image("docker.io/b/b:1", ("pause",)),
    ]
    archive(tmp_path / "images.tar", root, images)

    files = blobs(tmp_path / "images.tar")
    index = json.loads(files["index.json"])
    read: dict[str, Json] = {}
    for manifest in index["manifests"]:
        told = json.loads(content(files, manifest))
        config = json.loads(content(files, told["config"]))
        (below,) = told["layers"]
        assert content(files, below) == root.read_bytes()
        assert config["rootfs"]["diff_ids"] == [below["digest"]]
        read[manifest["annotations"]["io.containerd.image.name"]] = config["config"]
    assert read == {
        "docker.io/a/a:1": {
            "Entrypoint": ["run", "it"],
            "Env": ["A=1"],
            "User": "65532:65532",
            "WorkingDir": "/",
        },
        "docker.io/b/b:1": {"Entrypoint": ["pause"], "Env": [], "User": "", "WorkingDir": "/"},
    }


def content(files: dict[str, bytes], described: Json) -> bytes:
    """What a descriptor describes, which must be just that."""
    found = files["blobs/" + described["digest"].replace(":", "/")]
    assert f"sha256:{hashlib.sha256(found).hexdigest()}" == described["digest"]
    assert len(found) == described["size"]
    return found
