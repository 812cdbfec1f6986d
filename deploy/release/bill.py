"""The software bill of materials of a wheel, as CycloneDX 1.6 in JSON."""

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from deploy.release.dependencies import DISTRIBUTION, Dependency, dependencies, direct

_LICENCES = LicenseFactory()


def bill_of_materials(wheel: Path, epoch_s: int) -> str:
    """The wheel with its hash, and everything that it needs, as it is tested. The same wheel, dependencies
    and time, in seconds since 1970, give the same text. Raises ReleaseError as `dependencies` does.
    """
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    version = wheel.name.split("-")[1]
    root = Component(
        name=DISTRIBUTION,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"{DISTRIBUTION}=={version}",
        purl=PackageURL("pypi", name=DISTRIBUTION, version=version),
        licenses=[_LICENCES.make_with_expression("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )
    needed = dependencies()
    parts = {key: _component(each) for key, each in needed.items()}
    needs = {parts[key]: [parts[name] for name in each.needs] for key, each in needed.items()}
    needs[root] = [parts[canonicalize_name(each.name)] for each in direct()]
    return written(root, parts.values(), needs, digest, epoch_s)


def written(
    root: Component,
    parts: Iterable[Component],
    needs: Mapping[Component, Iterable[Component]],
    digest: str,
    epoch_s: int,
) -> str:
    """The bill of what ``root`` consists of, and who needs what. The same ``digest`` of it gives the same
    serial number."""
    bom = Bom(components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch_s, UTC)
    bom.metadata.component = root
    for each, its in needs.items():
        bom.register_dependency(each, its)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(dependency: Dependency) -> Component:
    return Component(
        name=dependency.name,
        version=dependency.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{dependency.key}=={dependency.version}",
        purl=PackageURL("pypi", name=dependency.key, version=dependency.version),
        licenses=[_LICENCES.make_from_string(dependency.licence)],
    )
