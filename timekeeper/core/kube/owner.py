"""The controller of a pod."""

from collections.abc import Mapping

from timekeeper.core.json_values import Json, mapping, sequence

_LONGEST_KIND, _LONGEST_NAME = 63, 253  # of any object in Kubernetes


def owner_of(metadata: Json) -> str:
    """The controller as ``Kind/name``; "" if there is none. A Deployment names its ReplicaSets after itself
    plus the hash in the pods' label: then the Deployment is the owner.

    The API server accepts any text in a reference, of any length, also a NUL, which PostgreSQL does not
    store. A reference that no object can have counts as none.
    """
    for reference in sequence(metadata.get("ownerReferences")):
        if isinstance(reference, Mapping) and reference.get("controller") is True:
            kind, name = str(reference.get("kind", "")), str(reference.get("name", ""))
            if len(kind) > _LONGEST_KIND or len(name) > _LONGEST_NAME or not (kind + name).isprintable():
                return ""
            deployment = name.removesuffix(f"-{mapping(metadata.get('labels')).get('pod-template-hash')}")
            is_deployments = kind == "ReplicaSet" and deployment != name
            return f"Deployment/{deployment}" if is_deployments else f"{kind}/{name}"
    return ""
