"""The controller of a pod."""

import re
from collections.abc import Mapping

from timekeeper.core.json_values import Json, mapping, sequence

# the forms of every kind in Kubernetes, and of every name of a controller
KIND = "[A-Za-z][A-Za-z0-9]{0,62}"
NAME = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"
OWNER = rf"{KIND}/{NAME}"

_OWNER = re.compile(OWNER, re.ASCII)


def owner_of(metadata: Json) -> str:
    """The controller as ``Kind/name``; "" if there is none. A Deployment names its ReplicaSets after itself
    plus the hash in the pods' label: then the Deployment is the owner.

    The API server accepts any text in a reference, of any length, also a formula, a path, or a NUL, which
    PostgreSQL does not store. A reference that no object can have counts as none.
    """
    for reference in sequence(metadata.get("ownerReferences")):
        if isinstance(reference, Mapping) and reference.get("controller") is True:
            kind, name = str(reference.get("kind", "")), str(reference.get("name", ""))
            deployment = name.removesuffix(f"-{mapping(metadata.get('labels')).get('pod-template-hash')}")
            is_deployments = kind == "ReplicaSet" and deployment != name
            owner = f"Deployment/{deployment}" if is_deployments else f"{kind}/{name}"
            return owner if _OWNER.fullmatch(owner) else ""
    return ""
