"""Images beside the files of a release."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from deploy.release.archives import Commit, ReleaseError, add
from deploy.release.images import images

COMMIT = Commit(Path("checkout"), "c0ffee", 0)


def image(revision: str) -> bytes:
    """An OCI archive of this commit, without layers."""
    files = {
        "index.json": {"manifests": [{"digest": "sha256:1f"}]},
        "blobs/sha256/1f": {"annotations": {"org.opencontainers.image.revision": revision}},
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, value in files.items():
            add(tar, name, json.dumps(value).encode(), 0)
    return packed.getvalue()


def test_all_files_beside_images_of_the_commit_belong_to_the_release(tmp_path: Path) -> None:
    (tmp_path / "webhook.tar").write_bytes(image("c0ffee"))
    (tmp_path / "webhook-amd64.cdx.json").write_text("{}")

    assert images(tmp_path, COMMIT) == {
        "images/webhook-amd64.cdx.json": tmp_path / "webhook-amd64.cdx.json",
        "images/webhook.tar": tmp_path / "webhook.tar",
    }


def test_where_no_images_were_made_there_are_none(tmp_path: Path) -> None:
    assert images(tmp_path / "images", COMMIT) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (image("d00d"), "is an image of the commit d00d and the release is of c0ffee: make images again"),
        (b"half", "is no image of make images: make images again, or remove it"),
    ],
    ids=["another commit", "no archive"],
)
def test_another_image_is_a_sentence(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "webhook.tar").write_bytes(content)

    with pytest.raises(ReleaseError, match=said):
        images(tmp_path, COMMIT)
