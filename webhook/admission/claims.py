"""The toleration of its own that a claim on whole devices gets at its creation, so that devices can be kept
for it later: a claim's spec is immutable. Its user's manifest does not have it, and may be applied again."""

from timekeeper.core.admission.json_patch import add
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.claims.heirs import MOST_TOLERATIONS, toleration, whole_requests
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.names import HEIR_KEYS
from timekeeper.core.request.device_classes import kind_of
from webhook.admission.workloads import NOT_JUDGED
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

_AT = "/spec/devices/requests/{}/exactly/tolerations"


def with_toleration(review: ObjectReview, policy: AdmissionPolicy, token: str) -> AdmissionAnswer:
    """Gives each request of a new claim on whole devices the claim's own toleration, with this value, in
    place of one that a template or a user has written. Claims on other devices than GPUs stay as they are,
    and claims that have as many tolerations as Kubernetes takes. An update gets back, in every mode, what the
    claim was created with."""
    if review.subresource:
        return NOT_JUDGED
    if review.operation == "UPDATE":
        return _as_created(review)
    if review.operation != "CREATE" or policy.mode != "enforce":
        return NOT_JUDGED
    requests = whole_requests(_devices(review.object))
    others = [_others(request) for request in requests]
    is_full = any(len(tolerations) >= MOST_TOLERATIONS for tolerations in others)
    if not requests or is_full or any(_is_other(request, policy) for request in requests):
        return NOT_JUDGED
    own = toleration(review.namespace, token)
    operations = (add(_AT.format(place), [*tolerations, own]) for place, tolerations in enumerate(others))
    return AdmissionAnswer("governed", operations=tuple(operations))


def _as_created(review: ObjectReview) -> AdmissionAnswer:
    """Puts the tolerations of the former requests back where those of kept devices alone differ. Another
    change is its user's, and the API server refuses it."""
    former, requests = (_terms(_devices(version)) for version in (review.old, review.object))
    operations = [
        add(_AT.format(place), sequence(before.get("tolerations")))
        for place, (before, request) in enumerate(zip(former, requests, strict=False))
        if request and before.get("tolerations") != request.get("tolerations")
        if _others(before) == _others(request)
    ]
    return AdmissionAnswer("governed", operations=tuple(operations)) if operations else NOT_JUDGED


def _devices(claim: Json) -> Json:
    return mapping(mapping(claim.get("spec")).get("devices"))


def _terms(devices: Json) -> list[Json]:
    """Of each request; of alternatives none, which no claim on whole devices has."""
    return [mapping(mapping(request).get("exactly")) for request in sequence(devices.get("requests"))]


def _others(request: Json) -> list[object]:
    """Its tolerations but those of kept devices."""
    present = sequence(request.get("tolerations"))
    return [each for each in present if not str(mapping(each).get("key", "")).startswith(HEIR_KEYS)]


def _is_other(request: Json, policy: AdmissionPolicy) -> bool:
    """Whether its class is known to allocate no GPUs."""
    known = policy.claims
    found = known.classes.get(str(request.get("deviceClassName")))
    return found is not None and kind_of(found, known.settings, known.drivers()) == "other"
