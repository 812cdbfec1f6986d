"""Pods that use claims: their holds, and which of their extended resources a claim serves."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from timekeeper.accounts.pods import ClaimWait, LedgerPod, read_pod, read_user
from timekeeper.core.claims.heirs import MOST_DEVICES
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.ledger import hold
from timekeeper.core.quantity import integral
from timekeeper.core.request.claims import MAX_CLAIMS, namespaced
from timekeeper.core.request.request import containers

UNMADE = "; the pod's Events say why (FailedResourceClaimCreation)"  # where nothing else is known of it


def with_use(raw: Json, read: LedgerPod | None) -> LedgerPod | None:
    """The pod with how it uses claims; None if it uses none, waits for none, and is not ``read``. Never
    raises on JSON from an API server."""
    spec, status = mapping(raw.get("spec")), mapping(raw.get("status"))
    waits, has_claims = _wait(spec, status), of_claims.has_claims(spec)
    if waits is None and not has_claims and not status.get("extendedResourceClaimStatus"):
        return read
    pod, serving = read or read_user(raw), served_by(raw)[1]
    uses = replace(pod.uses, hold=pod.hold, waits=waits)
    if has_claims or status.get("extendedResourceClaimStatus"):
        is_placed = spec.get("nodeName") or waits is not None
        uses = replace(
            uses,
            served_by=serving,
            rest=read_pod(without_served(raw)) if serving else None,
            judged=of_claims.recorded_devices(annotations_of(raw)),
            claims=tuple(dict.fromkeys(filter(None, (*_names(spec, status)[:MAX_CLAIMS], serving)))),
            is_holding=has_claims and pod.node != "" and not pod.hold.over,
            obstacle="" if is_placed else _obstacle(spec, status),
        )
    return replace(pod, uses=uses)


def served_by(raw: Json) -> tuple[str, str]:
    """Namespace and name of the claim that serves the pod's extended resources, by the pod's status; the name
    is "" if none does."""
    served = mapping(mapping(raw.get("status")).get("extendedResourceClaimStatus"))
    return namespaced(raw)[0], str(served.get("resourceClaimName") or "")


def _wait(spec: Json, status: Json) -> ClaimWait | None:
    if spec.get("nodeName") or status.get("nominatedNodeName") or spec.get("preemptionPolicy") == "Never":
        return None
    tried = _tried(status)
    if tried.get("reason") != "Unschedulable" or of_claims.SHORT_OF_DEVICES not in str(tried.get("message")):
        return None
    claims, since_ms = _claims(spec, status), hold.millis(tried.get("lastTransitionTime"))
    limits = () if sequence(spec.get("resourceClaims")) else _limits(spec)
    return ClaimWait(claims, since_ms, limits) if (claims or limits) and since_ms is not None else None


def _limits(spec: Json) -> tuple[tuple[str, int], ...]:
    """Of its containers; none if an init container has some: later ones may get its devices, or not."""
    limits = [
        (container.path.startswith("spec.initContainers"), name, integral(amount) or 0)
        for container in containers({"spec": spec})
        for name, amount in container.limits.items()
        if "/" in name
    ]
    found = tuple((name, amount) for _, name, amount in limits if amount > 0)
    return () if any(is_init and amount > 0 for is_init, _, amount in limits) else found


def _tried(status: Json) -> Json:
    """What kube-scheduler says of the pod; empty: nothing yet."""
    conditions = map(mapping, sequence(status.get("conditions")))
    return next((each for each in conditions if each.get("type") == "PodScheduled"), {})


def _obstacle(spec: Json, status: Json) -> str:
    """Why a pod with claims has no node, as far as its object says it."""
    every = zip(sequence(spec.get("resourceClaims")), _names(spec, status), strict=True)
    unmade = [str(mapping(raw).get("resourceClaimTemplateName")) for raw, name in every if not name]
    if unmade:
        return f"none is made from ResourceClaimTemplate {unmade[0]}{UNMADE}"
    said = str(_tried(status).get("message") or "").rstrip(".")
    return f"kube-scheduler says: {said}" if said else "kube-scheduler has not tried it yet"


def _names(spec: Json, status: Json) -> list[str]:
    """Of each claim that the pod's spec names: the claim's name; "": it is not made yet."""
    made = map(mapping, sequence(status.get("resourceClaimStatuses")))
    names = {str(each.get("name")): str(each.get("resourceClaimName") or "") for each in made}
    every = [mapping(each) for each in sequence(spec.get("resourceClaims"))]
    return [str(each.get("resourceClaimName") or names.get(str(each.get("name")), "")) for each in every]


def _claims(spec: Json, status: Json) -> tuple[str, ...]:
    """The names of the pod's claims; none if one is not there yet, or there are many."""
    found = _names(spec, status)
    is_odd = len(found) > MOST_DEVICES or "" in found or status.get("extendedResourceClaimStatus")
    return () if is_odd else tuple(dict.fromkeys(found))


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
