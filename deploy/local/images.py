"""Container images without a registry: OCI archives of one uncompressed layer, for ``ctr images import``."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image's configuration."""

    name: str  # in full, such as docker.io/bursar/sidecar:0.2.0
    entrypoint: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


def layer(
    archive: Path, files: Mapping[str, Path], links: Mapping[str, str], folders: Iterable[str] = ()
) -> None:
    """Write a root file system: files by their absolute paths, readable by all and owned by root; symbolic
    ``links`` (path to target); their parent folders; and ``folders`` that all may write to.

    Modification times are kept, for Python's compiled files name their source's.
    """
    with tarfile.open(archive, "w") as tar:
        made: set[PurePosixPath] = set()
        for path in folders:
            _add_folder(tar, PurePosixPath(path.strip("/")), made, 0o1777)
        for path, source in files.items():
            inside = PurePosixPath(path.strip("/"))
            _add_folder(tar, inside.parent, made, 0o755)
            _add_file(tar, inside, source)
        for path, target in links.items():
            entry = tarfile.TarInfo(path.strip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            _add_folder(tar, PurePosixPath(entry.name).parent, made, 0o755)
            tar.addfile(entry)


def _add_folder(tar: tarfile.TarFile, path: PurePosixPath, made: set[PurePosixPath], mode: int) -> None:
    for each in [*reversed(path.parents), path]:
        if each.name and each not in made:
            made.add(each)
            entry = tarfile.TarInfo(str(each))
            entry.type, entry.mode = tarfile.DIRTYPE, mode if each == path else 0o755
            tar.addfile(entry)


def _add_file(tar: tarfile.TarFile, inside: PurePosixPath, source: Path) -> None:
    status = source.stat()
    entry = tarfile.TarInfo(str(inside))
    entry.size, entry.mtime = status.st_size, int(status.st_mtime)
    entry.mode = 0o755 if status.st_mode & 0o111 else 0o644
    with source.open("rb") as content:
        tar.addfile(entry, content)


def archive(target: Path, root: Path, images: Iterable[Image]) -> None:
    """Write an OCI archive of images that share the layer ``root``."""
    with tarfile.open(target, "w") as tar:
        digest, size = _digest_of(root)
        tar.add(root, f"blobs/sha256/{digest}")
        described = [_describe(tar, image, digest, size) for image in images]
        _add_bytes(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": described}
        _add_bytes(tar, "index.json", _json(index))


def _describe(tar: tarfile.TarFile, image: Image, layer_digest: str, layer_size: int) -> dict[str, object]:
    machine = os.uname().machine
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "config": {
            "Entrypoint": list(image.entrypoint),
            "Env": [f"{name}={value}" for name, value in image.env.items()],
            "User": image.user,
            "WorkingDir": "/",
        },
    }
    below = {"mediaType": _LAYER, "digest": f"sha256:{layer_digest}", "size": layer_size}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _add_blob(tar, _CONFIG, config),
        "layers": [below],
    }
    return {**_add_blob(tar, _MANIFEST, manifest), "annotations": {"io.containerd.image.name": image.name}}


def _add_blob(tar: tarfile.TarFile, kind: str, content: object) -> dict[str, object]:
    """Add JSON under its digest; return its descriptor."""
    raw = _json(content)
    digest = hashlib.sha256(raw).hexdigest()
    _add_bytes(tar, f"blobs/sha256/{digest}", raw)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(raw)}


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _digest_of(file: Path) -> tuple[str, int]:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest(), file.stat().st_size


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
