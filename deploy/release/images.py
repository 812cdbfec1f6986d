"""The images that `make images` has written beside the files of a release."""

import json
import tarfile
from pathlib import Path
from typing import Any

from deploy.release.archives import Commit, ReleaseError

_REVISION = "org.opencontainers.image.revision"


def images(folder: Path, commit: Commit) -> dict[str, Path]:
    """The files of the folder by their names in the release. Raises ReleaseError where an archive there is of
    another commit."""
    files = sorted(file for file in folder.glob("*") if file.is_file())
    for file in files:
        if file.suffix == ".tar" and (found := _revision(file)) != commit.name:
            raise ReleaseError(
                f"{file} is an image of the commit {found} and the release is of {commit.name}:"
                f" make images again, or remove {folder}"
            )
    return {f"images/{file.name}": file for file in files}


def _revision(archive: Path) -> str:
    """The commit that an OCI archive says it is made of. Raises ReleaseError."""
    try:
        with tarfile.open(archive) as tar:
            (described,) = _json(tar, "index.json")["manifests"]
            index = _json(tar, f"blobs/{described['digest'].replace(':', '/')}")
        return str(index["annotations"][_REVISION])
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(
            f"{archive} is no image of make images: make images again, or remove it"
        ) from error


def _json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    return json.loads(file.read() if file else b"")
