"""The toleration of its own that a claim on whole devices gets at its creation, so that devices can be kept
for it later: a claim's spec is immutable."""

from timekeeper.core.admission.json_patch import add, replace
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
    and claims that have as many tolerations as Kubernetes takes."""
    if review.operation != "CREATE" or review.subresource or policy.mode != "enforce":
        return NOT_JUDGED
    requests = whole_requests(mapping(mapping(review.object.get("spec")).get("devices")))
    others = [_others(each) for each in requests]
    is_full = any(len(each) >= MOST_TOLERATIONS for each in others)
    if not requests or is_full or any(_is_other(each, policy) for each in requests):
        return NOT_JUDGED
    own = toleration(review.namespace, token)
    operations = (
        (replace if sequence(each.get("tolerations")) else add)(_AT.format(place), [*others[place], own])
        for place, each in enumerate(requests)
    )
    return AdmissionAnswer("governed", operations=tuple(operations))


def _others(request: Json) -> list[object]:
    """Its tolerations but those of kept devices."""
    present = sequence(request.get("tolerations"))
    return [each for each in present if not str(mapping(each).get("key", "")).startswith(HEIR_KEYS)]


def _is_other(request: Json, policy: AdmissionPolicy) -> bool:
    """Whether its class is known to allocate no GPUs."""
    known = policy.claims
    found = known.classes.get(str(request.get("deviceClassName")))
    return found is not None and kind_of(found, known.settings, known.drivers()) == "other"
