"""Reviews of pods at /validate, which checks a pod again after all other webhooks.

It compares the pod with the standing and the hold that /mutate recorded in it, never with a table of
standings: these may change between the two calls.
"""

from collections.abc import Iterator
from dataclasses import replace

from timekeeper.core import names
from timekeeper.core.admission.admission import Admission, admission_of
from timekeeper.core.admission.json_patch import escaped
from timekeeper.core.admission.marks import recorded_hold
from timekeeper.core.admission.mutation import mps, sidecar
from timekeeper.core.admission.mutation.govern import govern
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, labels_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Standing
from timekeeper.core.admission.rules.forged import (
    forgery_violations,
    without_marks,
    without_sidecar_if_name_taken,
)
from timekeeper.core.admission.rules.isolation import ephemeral_violations
from timekeeper.core.admission.rules.pod_rules import pod_violations, unrequested_devices
from timekeeper.core.json_values import Json
from timekeeper.core.kube.static_pods import is_own_mirror
from timekeeper.core.request.request import ParsedRequest, parse, parse_new
from timekeeper.core.standings import WORDS
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation
from timekeeper.core.wire import StandingWord
from webhook.admission.answers import answer, crowded, is_exempt, with_causes
from webhook.wire.pod_review import AdmissionAnswer, PodReview

NOT_CHECKED = AdmissionAnswer("passed")
VALID = AdmissionAnswer("valid")

_WRITTEN = {names.GOVERNED, names.STANDING, names.REQUEST}  # into each governed pod
_NOTHING_WRITTEN = (
    "Bursar wrote nothing here: the mode or a setting of the namespace changes at this moment, or another"
    " webhook changed the pod"
)


def validate(review: PodReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Refuses a pod that breaks a rule, or that is not governed by the standing recorded in it; in observe
    mode nothing is refused, and no pod is governed."""
    if review.is_crowded:
        return crowded(review, policy)
    is_changed = review.operation == "UPDATE" and review.subresource == "ephemeralcontainers"
    is_new = review.operation == "CREATE" and not review.subresource
    if policy.mode == "meter" or not (is_changed or is_new):
        return NOT_CHECKED
    admission, violations = None, tuple[Violation, ...]()
    if is_changed:
        violations = tuple(ephemeral_violations(review.pod, review.old))
    elif is_own_mirror(review.pod, review.user, review.groups):
        violations = tuple(forgery_violations(review.pod, None))
    else:
        admission, violations = _checked(review, policy)
    good = NOT_CHECKED if is_changed else VALID
    answered = answer(good, violations, policy, is_exempt(review, policy))
    return with_causes(answered, review) if answered.refusal else replace(answered, admission=admission)


def _checked(review: PodReview, policy: AdmissionPolicy) -> tuple[Admission | None, tuple[Violation, ...]]:
    """What /mutate decided of a new pod, None where it is not governed; and all that is wrong with it."""
    if policy.mode == "observe":  # nothing is removed there, and with enforcement on it would be
        review = replace(review, pod=without_marks(review.pod, policy))
    policy = _policy_of_mutate(review.pod, policy)
    parsed = _parsed_by_mutate(review, policy)
    broken = pod_violations(review.pod, parsed, policy)
    violations = (*broken, *unrequested_devices(review.pod, parsed))
    if parsed.request is None or policy.mode != "enforce":
        return None, violations
    governing = without_sidecar_if_name_taken(broken, policy)
    admission = recorded_admission(review.pod, parsed.request, governing)
    return admission, (*violations, *not_governed(review.pod, admission))


def _policy_of_mutate(pod: Json, policy: AdmissionPolicy) -> AdmissionPolicy:
    """The policy to compare a governed pod with. Replicas of the webhook differ in flags, CA and table for
    moments, so what only such a difference explains is taken from the pod itself."""
    ours = policy.sidecar if sidecar.was_injected(pod) else None
    if ours is not None and ours.pull_secret:
        ours = replace(ours, pull_secret="")  # without it a pod only waits, and a finding says so
    if policy.runtime_class or policy.gpu_node_taint or ours is not policy.sidecar:
        # without its toleration a pod only stays off nodes, so a replica without the flag does no harm
        policy = replace(policy, runtime_class="", gpu_node_taint="", sidecar=ours)
    if policy.cluster_default:  # a replica that did not know of it yet kept the pod's class
        policy = replace(policy, cluster_default="")
    pipes = _mps_pipes(pod, policy.mps_pipes)
    if pipes != policy.mps_pipes:
        policy = replace(policy, mps_pipes=pipes)
    if policy.known:
        return policy
    spec = pod["spec"]
    own = PriorityClass(spec.get("priorityClassName") or "", spec.get("priority"))
    return replace(policy, in_budget=own, over_budget=own, scheduler_name=spec.get("schedulerName") or "")


def _parsed_by_mutate(review: PodReview, policy: AdmissionPolicy) -> ParsedRequest:
    """The pod's request as /mutate read it. What `_settings` say of accelerators that no dialect reads, and
    what is known of claims, may change between the two calls; a governed pod is read as its label and the
    record of its claims say."""
    pod = review.pod
    if labels_of(pod).get(names.GOVERNED) != "true":
        return policy.parsed(pod, review.namespace)
    return parse(pod) if names.CLAIMS in annotations_of(pod) else parse_new(pod, "pass")


def recorded_admission(pod: Json, request: GPURequest, policy: AdmissionPolicy) -> Admission:
    """What /mutate decided of the pod, by the standing and the hold that it recorded in it."""
    recorded = annotations_of(pod).get(names.STANDING)
    word: StandingWord = next((word for word in WORDS if word == recorded), "UNKNOWN")
    return admission_of(pod, request, Standing(word), policy, recorded_hold(pod))


def not_governed(pod: Json, recorded: Admission) -> Iterator[Violation]:
    """A violation for each operation that governing as it is recorded would still need, or one where Bursar
    wrote nothing at all. Whether such a pod met a worker that still meters, or another webhook added its
    request after us, cannot be told: it is refused."""
    if not _WRITTEN & {*labels_of(pod), *annotations_of(pod)}:
        yield _not_governed("/metadata/labels", _NOTHING_WRITTEN)
        return
    present = sidecar.find_sidecar(pod)  # in which another replica may have another CA or address
    for operation in govern(pod, recorded):
        if operation["path"].endswith(escaped(names.CARD_MILLIONTHS)):
            continue  # of another table: it knows other nodes
        if present is None or operation["path"] != f"{present[0]}/env":
            problem = "another webhook or a race changed what Bursar wrote here"
            yield _not_governed(str(operation["path"]), problem)


def _not_governed(path: str, problem: str) -> Violation:
    remedy = "creating the pod again; if the error stays, ask the administrator of the cluster's webhooks"
    return Violation("not-governed", path, "", problem, "what Bursar writes", remedy)


def _mps_pipes(pod: Json, pipes: str) -> str:
    """The folder of MPS pipes to compare with: empty where the pod has no variable of MPS, the pod's own
    where this replica's flag is empty."""
    own = [
        each
        for field in CONTAINER_LISTS
        for container in sequence_of(pod["spec"].get(field))
        for each in sequence_of(container.get("env"))
        if each["name"] in mps.NAMES
    ]
    if not own or pipes:
        return pipes if own else ""
    return next((str(each.get("value") or "") for each in own if each["name"] == mps.PIPES), "")
