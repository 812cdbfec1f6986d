"""Pods that use claims: their holds, and which of their extended resources a claim serves."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from timekeeper.core import names
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.hold import PodHold
from timekeeper.core.object_names import own_labels, owner_of


@dataclass(frozen=True, slots=True)
class ClaimPod:
    """A pod that uses claims. ``served_by``: the name of the claim that kube-scheduler made for its extended
    resources, "": none. ``gone_ms``: when its object was seen to be removed; None: it exists. ``standing``:
    with which admission governed it, IN_BUDGET for one that waited for its budget; "": it did not."""

    uid: str
    namespace: str
    name: str
    owner: str
    labels: str
    node: str
    hold: PodHold
    served_by: str = ""
    gone_ms: int | None = None
    standing: str = ""

    def end_ms(self, most_grace_ms: int) -> int | None:
        """When it ceased to use its claims, or will, if its object is gone; None: it uses them. A pod without
        a node never did."""
        if not self.node:
            return 0
        if self.hold.over:
            return hold.ends_ms(self.hold, 0)
        if self.gone_ms is None:
            return None
        return hold.vanished(self.hold, self.gone_ms, self.gone_ms, most_grace_ms).until_ms


def read_claim_pod(raw: Json) -> ClaimPod | None:
    """The pod; None if it uses no claim. Never raises on JSON from an API server."""
    metadata, spec, status = (mapping(raw.get(part)) for part in ("metadata", "spec", "status"))
    served = mapping(status.get("extendedResourceClaimStatus"))
    if not served and not sequence(spec.get("resourceClaims")):
        return None
    return ClaimPod(
        uid=str(metadata.get("uid", "")),
        namespace=intern(str(metadata.get("namespace", ""))),
        name=str(metadata.get("name", "")),
        owner=intern(owner_of(metadata)),
        labels=intern(json.dumps(own_labels(metadata), separators=(",", ":"))),
        node=intern(str(spec.get("nodeName") or "")),
        hold=hold.pod_hold(raw),
        served_by=str(served.get("resourceClaimName") or ""),
        standing=_standing(metadata),
    )


def _standing(metadata: Json) -> str:
    """Only admission's word counts, which a governed pod has."""
    if mapping(metadata.get("labels")).get(names.GOVERNED) != "true":
        return ""
    annotations = mapping(metadata.get("annotations"))
    waited = annotations.get(names.HELD) == "budget"
    return intern("IN_BUDGET" if waited else str(annotations.get(names.STANDING, "")))


def without_served(raw: Json) -> Json:
    """The pod without the extended resources that a claim serves: what its node's plugins count of it."""
    spec = mapping(raw.get("spec"))
    served = mapping(mapping(raw.get("status")).get("extendedResourceClaimStatus"))
    pairs = [mapping(each) for each in sequence(served.get("requestMappings"))]
    gone = {(str(each.get("containerName")), str(each.get("resourceName"))) for each in pairs}
    names = (each for each in ("containers", "initContainers") if each in spec)
    parts = {name: list(_containers(spec, name, gone)) for name in names}
    return {**raw, "spec": {**spec, **parts}}


def _containers(spec: Json, part: str, gone: set[tuple[str, str]]) -> Iterator[Json]:
    for each in map(mapping, sequence(spec.get(part))):
        names = {resource for container, resource in gone if container == each.get("name")}
        yield {**each, "resources": _rest(mapping(each.get("resources")), names)} if names else each


def _rest(resources: Json, gone: set[str]) -> Mapping[str, Any]:
    amounts = ("limits", "requests")
    return {
        **resources,
        **{
            kind: {name: amount for name, amount in mapping(resources.get(kind)).items() if name not in gone}
            for kind in amounts
            if kind in resources
        },
    }
