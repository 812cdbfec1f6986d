"""Images as the Open Container Initiative has them: layers, configurations, and an index of architectures."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from deploy.images.roles import USER, Role
from deploy.images.tree import Entry, Tree

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CREATED = "org.opencontainers.image.created"

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as it is kept."""

    packed: bytes
    plain_digest: str  # before it was compressed
    plain_size: int


@dataclass(slots=True)
class Blobs:
    """Contents by their digests."""

    held: dict[str, bytes] = field(default_factory=dict)

    def add(self, kind: str, content: bytes) -> dict[str, object]:
        """Its descriptor."""
        digest = digest_of(content)
        self.held[digest] = content
        return {"mediaType": kind, "digest": digest, "size": len(content)}


def layer(tree: Tree) -> Layer:
    """A tree as a layer: sorted, each file of root, none with a time, so that the same packages of another
    release are the same layer."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, each in sorted(_with_folders(tree).items()):
            _add(tar, name, each)
    data = plain.getvalue()
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, packed, mtime=0) as file:
        file.write(data)
    return Layer(packed.getvalue(), digest_of(data), len(data))


def manifest(
    blobs: Blobs,
    role: Role,
    architecture: str,
    layers: Sequence[Layer],
    labels: Mapping[str, str],
) -> dict[str, object]:
    """The descriptor of an image of one architecture, whose contents are added to ``blobs``."""
    config = {
        "created": labels[CREATED],
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": USER,
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "Entrypoint": list(role.entrypoint),
            "ExposedPorts": {f"{port}/tcp": {} for port in role.ports},
            "WorkingDir": "/",
            "Labels": dict(labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [each.plain_digest for each in layers]},
        "history": [{"created_by": "make images"} for _ in layers],
    }
    written = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blobs.add(CONFIG, as_json(config)),
        "layers": [blobs.add(LAYER, each.packed) for each in layers],
        "annotations": dict(labels),
    }
    platform = {"os": "linux", "architecture": architecture}
    platform |= {"variant": "v8"} if architecture == "arm64" else {}
    return {**blobs.add(MANIFEST, as_json(written)), "platform": platform}


def index(
    blobs: Blobs, manifests: Sequence[Mapping[str, object]], labels: Mapping[str, str]
) -> dict[str, object]:
    """The descriptor of the index of an image's architectures, which is added to ``blobs``."""
    written = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": dict(labels)}
    return blobs.add(INDEX, as_json(written))


def archive(file: Path, blobs: Blobs, described: Mapping[str, object], tag: str) -> None:
    """Write an OCI archive of one image."""
    named = {**described, "annotations": {"org.opencontainers.image.ref.name": tag}}
    top = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]}
    files = {f"blobs/{digest.replace(':', '/')}": content for digest, content in blobs.held.items()}
    files["index.json"] = as_json(top)
    files["oci-layout"] = as_json({"imageLayoutVersion": "1.0.0"})
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            _add(tar, name, Entry(content))


def digest_of(content: bytes) -> str:
    """Its digest, with the algorithm."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def time_of(epoch_s: int) -> str:
    """A time as images have it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json(content: object) -> bytes:
    """JSON that is the same for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _with_folders(tree: Tree) -> Tree:
    folders = {
        name[:end]: Entry(mode=0o755) for name in tree for end, letter in enumerate(name) if letter == "/"
    }
    return folders | tree


def _add(tar: tarfile.TarFile, name: str, each: Entry) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = each.mode
    if each.data is not None:
        entry.size = len(each.data)
    elif each.target is not None:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, each.target, 0o777
    else:
        entry.type = tarfile.DIRTYPE
    tar.addfile(entry, io.BytesIO(each.data or b""))
