"""Second calls for one pod. The API server calls /mutate again when another webhook or one of its own plugins
has changed the pod after us (`reinvocationPolicy: IfNeeded`), and it calls /validate after all webhooks.

Three things hold over all calls for one pod:

1. Governing is a fixed point (`mutation.govern`): a second /mutate repairs what others changed, and
   changes nothing else.
2. A pod's cost counts once: `first_governed_request` is None on a second call, and the standing of a second
   call leaves out what the first one cost (`earlier_standing`, `as_before`).
3. /validate compares the pod with the standing that /mutate recorded in it, never with a table of standings:
   the standing may change between the two calls (`policy_of_first_call`, `not_governed`).
"""

from collections.abc import Iterator
from dataclasses import replace

from timekeeper.core import names
from timekeeper.core.admission.admission import Admission, admission_of
from timekeeper.core.admission.json_patch import Operation
from timekeeper.core.admission.marks import recorded_hold
from timekeeper.core.admission.mutation import mps, sidecar
from timekeeper.core.admission.mutation.govern import govern
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, labels_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Standing
from timekeeper.core.admission.rules.export import is_export
from timekeeper.core.admission.rules.forged import reserved_name_violations, without_sidecar_if_name_taken
from timekeeper.core.dialects.others.claims import is_known
from timekeeper.core.json_values import Json
from timekeeper.core.request.request import ParsedRequest, parse, parse_new
from timekeeper.core.standings import WORDS
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation
from timekeeper.core.wire import StandingWord
from webhook.wire.pod_review import AdmissionAnswer, PodReview

# Only the first call writes these. A second call after other webhooks changes variables of containers at
# most.
_FIRST_CALL_WRITES = (
    "/metadata/",
    "/spec/priorityClassName",
    "/spec/schedulerName",
    "/spec/schedulingGates",
    "/spec/volumes",
)
_WRITTEN = {names.GOVERNED, names.STANDING, names.REQUEST}  # into each governed pod
_NOTHING_WRITTEN = (
    "Bursar wrote nothing here: the mode or a setting of the namespace changes at this moment, or another"
    " webhook changed the pod"
)


def earlier_standing(review: PodReview, policy: AdmissionPolicy) -> StandingWord | None:
    """The standing with which an earlier call governed this pod; None where it is not governed yet. A label
    or annotation that a user forged does not count while anything else is missing."""
    if review.operation != "CREATE" or review.subresource or not _is_labelled(review.pod):
        return None
    if is_export(review.pod):
        return None
    request = parse(review.pod).request
    governing = without_sidecar_if_name_taken(reserved_name_violations(review.pod, policy), policy)
    if request is None:
        return None
    recorded = recorded_admission(review.pod, request, governing)
    if any(map(_is_of_first_call, govern(review.pod, recorded))):
        return None
    return recorded.standing.status


def parsed_again(review: PodReview, policy: AdmissionPolicy) -> ParsedRequest:
    """The pod's request as /mutate reads it. Where an earlier call, to another worker, did not know what the
    pod's claims ask for, that stays so: the pod is held, and the timekeeper judges it."""
    if names.CLAIMS in annotations_of(review.pod) and earlier_standing(review, policy) is not None:
        recorded = parse(review.pod)
        if recorded.request is not None and not is_known(recorded.request):
            return recorded
    return policy.parsed(review.pod, review.namespace)


def as_before(now: Standing) -> Standing:
    """The standing of a pod that an earlier call found over budget. Where the table says in budget, the
    earlier call's estimate was the reason, and this call leaves it out."""
    return replace(now, status="OVER_BUDGET", by_estimate=True) if now.status == "IN_BUDGET" else now


def first_governed_request(review: PodReview, answer: AdmissionAnswer) -> GPURequest | None:
    """The pod's request where this call is the first to govern the pod, and it is no dry run; else None. A
    held pod uses nothing before it is released."""
    is_first = any(map(_is_of_first_call, answer.operations))
    return answer.request if is_first and not review.dry_run and "held" not in answer.audit else None


def policy_of_first_call(pod: Json, policy: AdmissionPolicy) -> AdmissionPolicy:
    """The policy to compare a governed pod with. Replicas of the webhook differ in flags, CA and table for
    moments, so what only such a difference explains is taken from the pod itself."""
    ours = policy.sidecar if sidecar.was_injected(pod) else None
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


def parsed_by_first_call(review: PodReview, policy: AdmissionPolicy) -> ParsedRequest:
    """The pod's request as /mutate read it. What `_settings` say of accelerators that no dialect reads, and
    what is known of claims, may change between the two calls; a pod that is governed already is read as its
    label and the record of its claims say."""
    pod = review.pod
    if not _is_labelled(pod):
        return policy.parsed(pod, review.namespace)
    return parse(pod) if names.CLAIMS in annotations_of(pod) else parse_new(pod, "pass")


def recorded_admission(pod: Json, request: GPURequest, policy: AdmissionPolicy) -> Admission:
    """What /mutate decided of the pod, by the standing and the hold that it recorded in it."""
    return admission_of(pod, request, Standing(_recorded_word(pod)), policy, recorded_hold(pod))


def not_governed(pod: Json, recorded: Admission) -> Iterator[Violation]:
    """A violation for each operation that governing as it is recorded would still need, or one where Bursar
    wrote nothing at all. Whether such a pod met a worker that still meters, or another webhook added its
    request after us, cannot be told: it is refused."""
    if not _WRITTEN & {*labels_of(pod), *annotations_of(pod)}:
        yield _not_governed("/metadata/labels", _NOTHING_WRITTEN)
        return
    for operation in govern(pod, recorded):
        if not _refreshes_sidecar(pod, operation):
            problem = "another webhook or a race changed what Bursar wrote here"
            yield _not_governed(str(operation["path"]), problem)


def _not_governed(path: str, problem: str) -> Violation:
    remedy = "creating the pod again; if the error stays, ask the administrator of the cluster's webhooks"
    return Violation("not-governed", path, "", problem, "what Bursar writes", remedy)


def _is_labelled(pod: Json) -> bool:
    return labels_of(pod).get(names.GOVERNED) == "true"


def _is_of_first_call(operation: Operation) -> bool:
    return str(operation["path"]).startswith(_FIRST_CALL_WRITES)


def _recorded_word(pod: Json) -> StandingWord:
    recorded = annotations_of(pod).get(names.STANDING)
    return next((word for word in WORDS if word == recorded), "UNKNOWN")


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


def _refreshes_sidecar(pod: Json, operation: Operation) -> bool:
    """Whether the operation only writes a newer CA or address into the sidecar than the governing replica
    had."""
    present = sidecar.find_sidecar(pod)
    return present is not None and operation["path"] == f"{present[0]}/env"
