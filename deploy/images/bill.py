"""The software bill of materials of an image of one architecture, as CycloneDX 1.6 in JSON."""

from collections.abc import Iterable
from dataclasses import dataclass

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.component import Component, ComponentType
from packageurl import PackageURL

from deploy.images.lock import Package
from deploy.release.bill import written
from deploy.release.dependencies import DISTRIBUTION


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in an image beside our own wheel."""

    role: str
    version: str
    architecture: str
    debian: Iterable[Package]
    python: Iterable[Package]


def bill_of_materials(contents: Contents, digest: str, epoch_s: int) -> str:
    """The packages with the digests of their files. The same image gives the same text."""
    root = Component(
        name=f"bursar-{contents.role}",
        version=contents.version,
        type=ComponentType.CONTAINER,
        bom_ref=digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
    )
    ours = PackageURL("pypi", None, DISTRIBUTION, contents.version)
    arch = {"arch": contents.architecture}
    parts = [
        Component(name=DISTRIBUTION, version=contents.version, purl=ours, bom_ref=str(ours)),
        *(
            _part(each, PackageURL("deb", "debian", each.name, each.version, arch))
            for each in contents.debian
        ),
        *(_part(each, PackageURL("pypi", None, each.name, each.version)) for each in contents.python),
    ]
    return written(root, parts, {root: parts}, digest, epoch_s)


def _part(package: Package, purl: PackageURL) -> Component:
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
    )
