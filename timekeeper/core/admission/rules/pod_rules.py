"""All rules for one pod.

Each violation is found whatever else is wrong with the pod, and whatever its rule's mode is.
"""

from collections.abc import Iterator
from dataclasses import replace

from timekeeper.core.admission.mutation.whole_cards import in_bursars_words
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.forged import forgery_violations, reserved_name_violations
from timekeeper.core.admission.rules.host_share import host_share_violations
from timekeeper.core.admission.rules.isolation import (
    device_annotations,
    isolation_violations,
    visible_without_request,
)
from timekeeper.core.admission.rules.placement import placement_violations
from timekeeper.core.admission.rules.without_effect import without_effect
from timekeeper.core.gangs import gang_violations
from timekeeper.core.json_values import Json
from timekeeper.core.rating.held import cards_text, least_milli
from timekeeper.core.request.request import ParsedRequest
from timekeeper.core.standings import Caps
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown


def cap_violations(request: GPURequest | None, caps: Caps) -> Iterator[Violation]:
    """One for each cap that the pod's least need exceeds while no other pod holds a card. A request for an
    amount of memory needs less of a larger card, so only the extender, which knows the cards, can refuse
    it."""
    if request is None or not caps.is_set:
        return
    least = least_milli(request)
    for whose, cap in (("the namespace", caps.own), (f"group {caps.group}", caps.of_group)):
        for field, milli in (("maxGPUsPerPod", cap.pod_milli), ("maxGPUs", cap.total_milli)):
            if milli == 0:
                sentence = (
                    f"The budget of {whose} takes no new GPU pods ({field}: 0): running ones go on. Ask your"
                    " budget administrator."
                )
                yield Violation("above-cap", "spec.containers", "", sentence, "", "", heals=True)
            elif milli is not None and least > milli:
                yield Violation(
                    "above-cap",
                    "spec.containers",
                    shown(f"{cards_text(least)} GPUs"),
                    f"the budget of {whose} allows no pod so much at one time ({field})",
                    f"at most {cards_text(milli)}",
                    "fewer cards, or smaller shares",
                )


def gang_cap_violations(path: str, least: int, caps: Caps) -> Iterator[Violation]:
    """One for each cap below what the pods of a gang, with the template at ``path``, need together at least,
    in milli-GPU. A cap of zero refuses each pod."""
    for whose, cap in (("the namespace", caps.own), (f"group {caps.group}", caps.of_group)):
        if cap.total_milli and least > cap.total_milli:
            yield Violation(
                "above-cap",
                path,
                shown(f"{cards_text(least)} GPUs"),
                f"its pods start together, and the budget of {whose} allows less at one time (maxGPUs)",
                f"at most {cards_text(cap.total_milli)}",
                "fewer pods, or smaller shares",
            )


def duration_violations(pod: Json, policy: AdmissionPolicy) -> Iterator[Violation]:
    """The violation of a pod without ``activeDeadlineSeconds``, with ``requireDuration`` in the budget."""
    if policy.requires_duration and pod["spec"].get("activeDeadlineSeconds") is None:
        yield Violation(
            "no-duration",
            "spec.activeDeadlineSeconds",
            "",
            "the budget of the namespace asks each GPU pod how long it means to run (requireDuration)",
            "a number of seconds; of controllers, only a Job and a CronJob can set it",
            "activeDeadlineSeconds: 7200",
        )


def pod_violations(pod: Json, parsed: ParsedRequest, policy: AdmissionPolicy) -> tuple[Violation, ...]:
    """Everything wrong with the pod, in the order of its fields. ``parsed`` is what the core parsed from this
    pod.

    A pod without a GPU request is checked only for what would give it a GPU or make it look governed.
    """
    found = (*parsed.violations, *forgery_violations(pod, parsed.request))
    if parsed.request is None and not parsed.violations:
        return (*found, *visible_without_request(pod), *without_effect(pod))
    return (
        *found,
        *placement_violations(pod, parsed.request, policy),
        *cap_violations(parsed.request, policy.caps),
        *duration_violations(pod, policy),
        *(gang_violations(pod) if policy.places else ()),  # else its annotations are refused
        *host_share_violations(pod, parsed.request, policy),
        *reserved_name_violations(pod, policy),
        *isolation_violations(pod, parsed.request, is_ours=_takes_cards(pod, parsed, policy)),
        *without_effect(pod),
    )


def _takes_cards(pod: Json, parsed: ParsedRequest, policy: AdmissionPolicy) -> bool:
    """Whether Bursar, while it enforces, gives the pod the cards that it requests of NVIDIA's plugin."""
    if not policy.takes_whole_cards:
        return False
    enforcing = policy if policy.mode == "enforce" else replace(policy, mode="enforce")
    return bool(in_bursars_words(pod, parsed.request, enforcing))


def unrequested_devices(pod: Json, parsed: ParsedRequest) -> tuple[Violation, ...]:
    """Of a pod without a GPU request, the annotations that would give it a GPU. They are not among
    `pod_violations`: /mutate leaves them to the policy `bursar-ways-around`, which reports all ways to a GPU
    at once, and which the API server asks before /validate."""
    if parsed.request is not None or parsed.violations:
        return ()
    return tuple(device_annotations(pod))
