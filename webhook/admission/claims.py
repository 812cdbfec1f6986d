"""The toleration of its own that a claim on one device gets at its creation, so that a device can be kept for
it later: a claim's spec is immutable."""

from timekeeper.core.admission.json_patch import add, replace
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.claims.heirs import MOST_TOLERATIONS, single_request, toleration
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.names import HEIR_KEYS
from timekeeper.core.request.device_classes import kind_of
from webhook.admission.workloads import NOT_JUDGED
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

_AT = "/spec/devices/requests/0/exactly/tolerations"


def with_toleration(review: ObjectReview, policy: AdmissionPolicy, token: str) -> AdmissionAnswer:
    """Gives a new claim on one device its own toleration, with this value, in place of one that a template or
    a user has written. Claims on other devices than GPUs stay as they are, and claims that have as many
    tolerations as Kubernetes takes."""
    if review.operation != "CREATE" or review.subresource or policy.mode != "enforce":
        return NOT_JUDGED
    request = single_request(mapping(mapping(review.object.get("spec")).get("devices")))
    if request is None or _is_other(request, policy):
        return NOT_JUDGED
    present = sequence(request.get("tolerations"))
    others = [each for each in present if not str(mapping(each).get("key", "")).startswith(HEIR_KEYS)]
    if len(others) >= MOST_TOLERATIONS:
        return NOT_JUDGED
    whole = [*others, toleration(review.namespace, token)]
    return AdmissionAnswer("governed", operations=((replace if present else add)(_AT, whole),))


def _is_other(request: Json, policy: AdmissionPolicy) -> bool:
    """Whether its class is known to allocate no GPUs."""
    known = policy.claims
    found = known.classes.get(str(request.get("deviceClassName")))
    return found is not None and kind_of(found, known.settings, known.drivers()) == "other"
