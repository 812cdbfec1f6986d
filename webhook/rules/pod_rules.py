"""All rules for one pod.

Each violation is found whatever else is wrong with the pod, and whatever its rule's mode is.
"""

from timekeeper.core.json_values import Json
from timekeeper.core.request.request import ParsedRequest
from timekeeper.core.violation import Violation
from webhook.policy import AdmissionPolicy
from webhook.rules.caps import cap_violations
from webhook.rules.duration import duration_violations
from webhook.rules.forged import forgery_violations, reserved_name_violations
from webhook.rules.host_share import host_share_violations
from webhook.rules.isolation import device_annotations, isolation_violations, visible_without_request
from webhook.rules.placement import placement_violations


def pod_violations(pod: Json, parsed: ParsedRequest, policy: AdmissionPolicy) -> tuple[Violation, ...]:
    """Everything wrong with the pod, in the order of its fields. ``parsed`` is what the core parsed from this
    pod.

    A pod without a GPU request is checked only for what would give it a GPU or make it look governed.
    """
    found = (*parsed.violations, *forgery_violations(pod, parsed.request))
    if parsed.request is None and not parsed.violations:
        return (*found, *visible_without_request(pod))
    return (
        *found,
        *placement_violations(pod, parsed.request, policy),
        *cap_violations(parsed.request, policy.caps),
        *duration_violations(pod, policy),
        *host_share_violations(pod, parsed.request, policy),
        *reserved_name_violations(pod, policy),
        *isolation_violations(pod, parsed.request),
    )


def unrequested_devices(pod: Json, parsed: ParsedRequest) -> tuple[Violation, ...]:
    """Of a pod without a GPU request, the annotations that would give it a GPU. They are not among
    `pod_violations`: /mutate leaves them to the policy `bursar-ways-around`, which reports all ways to a GPU
    at once, and which the API server asks before /validate."""
    if parsed.request is not None or parsed.violations:
        return ()
    return tuple(device_annotations(pod))
