"""The images of a commit from a lock's packages."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.images import bill, oci, tree
from deploy.images.compiled import Compiler, own_architecture
from deploy.images.debian import Say
from deploy.images.downloads import Downloads
from deploy.images.lock import Lock
from deploy.images.roles import ROLES
from deploy.release.archives import Commit


@dataclass(frozen=True, slots=True)
class Made:
    """An image: its archive, the digest of its index, and its sizes in bytes by architecture."""

    archive: Path
    digest: str
    packed: dict[str, int]
    plain: dict[str, int]


@dataclass(frozen=True, slots=True)
class Making:
    """What images are made of."""

    lock: Lock
    architectures: tuple[str, ...]
    downloads: Downloads
    commit: Commit
    wheel: Path
    say: Say

    def images(self, roles: Iterable[str], folder: Path) -> dict[str, Made]:
        """An archive for each role, and for each of its architectures a bill of materials beside it. Raises
        ImagesError."""
        self.downloads.fetch(self.lock, {*self.architectures, own_architecture()})
        with self._bases() as (compiler, bases):
            return {role: self._image(role, compiler, bases, folder) for role in roles}

    @contextmanager
    def _bases(self) -> Iterator[tuple[Compiler, dict[str, oci.Layer]]]:
        own = self._base(own_architecture())
        with Compiler(own, self.lock.python) as compiler:
            yield compiler, {each: self._base_layer(each, compiler, own) for each in self.architectures}

    def _base(self, architecture: str) -> tree.Tree:
        files = map(self.downloads.file, self.lock.of(architecture).debian.values())
        return tree.base(files, self.lock.python)

    def _base_layer(self, architecture: str, compiler: Compiler, own: tree.Tree) -> oci.Layer:
        self.say(f"{architecture}: packing Debian's packages")
        found = own if architecture == own_architecture() else self._base(architecture)
        return oci.layer(compiler.compiled(found))

    def _image(self, name: str, compiler: Compiler, bases: dict[str, oci.Layer], folder: Path) -> Made:
        self.say(f"{name}: packing Python's packages and the commit's")
        role, blobs, version = ROLES[name], oci.Blobs(), self.wheel.name.split("-")[1]
        labels = {
            oci.CREATED: oci.time_of(self.commit.epoch_s),
            "org.opencontainers.image.description": role.title,
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.revision": self.commit.name,
            "org.opencontainers.image.title": f"bursar-{name}",
            "org.opencontainers.image.version": version,
        }
        ours = oci.layer(compiler.compiled(tree.code(self.wheel, self.lock.python, role.code)))
        manifests, packed, plain = [], {}, {}
        for architecture in self.architectures:
            known = self.lock.of(architecture)
            theirs = [known.python[each] for each in known.roles[name]]
            files = [self.downloads.file(each) for each in theirs]
            wheels = oci.layer(compiler.compiled(tree.packages(files, self.lock.python)))
            layers = [bases[architecture], wheels, ours]
            packed[architecture] = sum(len(each.packed) for each in layers)
            plain[architecture] = sum(each.plain_size for each in layers)
            manifests.append(oci.manifest(blobs, role, architecture, layers, labels))
            contents = bill.Contents(name, version, architecture, known.debian.values(), theirs)
            text = bill.bill_of_materials(contents, str(manifests[-1]["digest"]), self.commit.epoch_s)
            (folder / f"{name}-{architecture}.cdx.json").write_text(text)
        described = oci.index(blobs, manifests, labels)
        oci.archive(folder / f"{name}.tar", blobs, described, version)
        return Made(folder / f"{name}.tar", str(described["digest"]), packed, plain)
