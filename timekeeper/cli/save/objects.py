"""What is saved of objects: manifests that ``kubectl apply -f`` takes, and commands for marks (pure)."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from timekeeper.core import names
from timekeeper.core.json_values import mapping

_KEPT = ("apiVersion", "kind", "data", "binaryData", "immutable", "type")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_PREFIXES = (f"{names.DOMAIN}/", "bursar.node-restriction.kubernetes.io/")
# the certificates' process and the API server's controllers write these, and clusters' own software
_WRITTEN = ("bursar-device-classes", "kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert")
_PART_OF = ("app.kubernetes.io/part-of", "bursar")
_TOKENS = ("kubernetes.io/service-account-token", "helm.sh/release.v1")


def manifest(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A ConfigMap or Secret without what its API server alone gives, so that another one creates it."""
    read = mapping(raw.get("metadata"))
    annotations = {
        key: text for key, text in mapping(read.get("annotations")).items() if key != _LAST_APPLIED
    }
    metadata = {
        "name": read["name"],
        "namespace": read["namespace"],
        "labels": mapping(read.get("labels")),
        "annotations": annotations,
    }
    kept = {key: raw[key] for key in _KEPT if raw.get(key) is not None}
    return {**kept, "metadata": {key: value for key, value in metadata.items() if value}}


def has_budgets(config_map: Mapping[str, Any]) -> bool:
    """Whether Bursar reads it: by its name, or by its label."""
    metadata = mapping(config_map.get("metadata"))
    labelled = mapping(metadata.get("labels")).get(names.BUDGETS_LABEL) == "true"
    return labelled or metadata.get("name") in names.BUDGET_CONFIG_MAPS


def is_operators(config_map: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap without budgets is neither of the manifests nor written by a process."""
    metadata = mapping(config_map.get("metadata"))
    key, value = _PART_OF
    return metadata.get("name") not in _WRITTEN and mapping(metadata.get("labels")).get(key) != value


def is_token(secret: Mapping[str, Any]) -> bool:
    """Whether a Secret is of one installation: a token of an account, or a release of Helm."""
    return secret.get("type") in _TOKENS


def marks(kind: str, listed: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The shell commands that write Bursar's labels and annotations on these nodes or namespaces again.
    ``kind``: as kubectl names it. What the node agent reports at each start is none of them."""
    for raw in listed:
        metadata = mapping(raw.get("metadata"))
        for verb, field in (("label", "labels"), ("annotate", "annotations")):
            for key, text in sorted(mapping(metadata.get(field)).items()):
                if key.startswith(_PREFIXES) and key != names.HOLDERS:
                    words = ("kubectl", verb, kind, metadata["name"], "--overwrite", f"{key}={text}")
                    yield shlex.join(words)
