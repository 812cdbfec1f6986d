"""Pods that start together: they are created with the gate of held pods, and their owner's templates get the
number of pods that its own fields say."""

from collections.abc import Iterator, Sequence

from timekeeper.core import names
from timekeeper.core.admission.json_patch import Operation, add, escaped, merged
from timekeeper.core.admission.mutation.govern import placed_by
from timekeeper.core.admission.mutation.whole_cards import in_bursars_words
from timekeeper.core.admission.pods import MalformedError, checked_pod
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.dialects.others.claims import NAME as CLAIMS
from timekeeper.core.gang_owners import GangOfOwner, PodSet, contradictions, gang_of_owner, pod_sets
from timekeeper.core.gangs import gang_of, size_said
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.wire import HeldFor
from webhook.admission.answers import refusal
from webhook.admission.late_members import late_text
from webhook.admission.workloads import NOT_JUDGED, as_pod
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

DISRUPTIONS = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
MAX_RULES = 20  # of a podFailurePolicy


def hold_of_gang(pod: Json, policy: AdmissionPolicy, by_other: bool) -> HeldFor:
    """How a pod is held that waits for no budget and no turn of its own: as a member of a gang until all of
    it fits, whatever the standing is; else not. ``by_other``: another scheduler than Bursar's places it,
    and starts its gang."""
    is_ours = policy.mode == "enforce" and not by_other
    return "turn" if is_ours and gang_of(pod) is not None else ""


def of_owner(review: ObjectReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Refuses a new owner whose templates' annotations contradict its own fields. In a namespace with
    ``gangs: auto`` writes the number of its pods into the templates of those that start together, and which
    pods follow. A gang's Job does not count the pods that are evicted. Raises MalformedError for a template
    that is not one, or is nested too deeply."""
    if review.operation != "CREATE" or review.subresource or policy.mode != "enforce":
        return NOT_JUDGED
    try:
        found = pod_sets(review.group, review.kind, review.object)
        sets = [each for each in found if _is_placed_here(each, policy, review.namespace)]
    except RecursionError as error:
        raise MalformedError("request.object: nested too deeply") from error
    violations = list(contradictions(review.kind, sets, review.object))
    if violations:
        return refusal(violations, policy)
    gang = gang_of_owner(sets, review.object) if policy.finds_gangs else None
    without_cards = [
        each for each in found if each not in sets and _requests_nothing(each, policy, review.namespace)
    ]
    late = "" if gang is None else _late(gang, without_cards, policy, review.namespace)
    if gang is not None and gang.size == 1 and not late:
        gang = None  # the text is too long; without it the others might have this size too
    operations = [] if gang is None else list(_operations(gang, late))
    if review.kind == "Job" and (gang is not None or any(size_said(each.template) for each in sets)):
        operations += _without_disruptions(review.object["spec"])
    return AdmissionAnswer("governed", operations=tuple(operations)) if operations else NOT_JUDGED


def _is_placed_here(pods: PodSet, policy: AdmissionPolicy, namespace: str) -> bool:
    """Whether Bursar places the pods on cards; others of the owner start by themselves."""
    pod = checked_pod(as_pod(pods.template), pods.at)
    request = policy.parsed(pod, namespace).request
    if request is None or request.dialect == CLAIMS:
        return False
    if in_bursars_words(pod, request, policy):
        return True
    return placed_by(pod["spec"], request.dialect, policy) == policy.scheduler_name


def _without_disruptions(job: Json) -> Iterator[Operation]:
    """A pod of a gang that is not whole in time is evicted through no fault of its own: its Job's
    ``backoffLimit`` does not count it. Kubernetes has such a rule for pods that are never restarted, and
    takes it only where another pod follows once the first has ended."""
    rules = sequence(mapping(job.get("podFailurePolicy")).get("rules"))
    if mapping(job["template"]["spec"]).get("restartPolicy") != "Never" or any(
        map(_is_of_disruptions, rules)
    ):
        return
    if len(rules) >= MAX_RULES:
        return
    if rules:
        yield add("/spec/podFailurePolicy/rules/0", DISRUPTIONS)
    else:
        yield add("/spec/podFailurePolicy", {"rules": [DISRUPTIONS]})
        yield add("/spec/podReplacementPolicy", "Failed")


def _is_of_disruptions(rule: object) -> bool:
    conditions = sequence(mapping(rule).get("onPodConditions"))
    return any(mapping(each).get("type") == "DisruptionTarget" for each in conditions)


def _requests_nothing(pods: PodSet, policy: AdmissionPolicy, namespace: str) -> bool:
    parsed = policy.parsed(checked_pod(as_pod(pods.template), pods.at), namespace)
    return parsed.request is None and not parsed.violations


def _late(gang: GangOfOwner, without_cards: Sequence[PodSet], policy: AdmissionPolicy, namespace: str) -> str:
    """The annotation about the pods that follow while the gang runs; "" without any."""
    beside = (each for each in without_cards if each.follows)
    return late_text((*gang.late, *beside), policy, namespace)


def _operations(gang: GangOfOwner, late: str) -> Iterator[Operation]:
    values = {names.GANG_SIZE: str(gang.size)} | ({names.GANG_LATE: late} if late else {})
    if gang.minimum < gang.size:
        values[names.GANG_MINIMUM] = str(gang.minimum)
    for each in gang.sets:
        at = "".join(f"/{escaped(str(step))}" for step in each.path)
        if isinstance(each.template.get("metadata"), dict):
            yield from merged(mapping(each.template["metadata"]), f"{at}/metadata", "annotations", values)
        else:
            yield add(f"{at}/metadata", {"annotations": values})
