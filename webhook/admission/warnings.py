"""The warnings that kubectl prints beside "pod created".

The API server drops a warning with a line break, and cuts all warnings once they exceed 4096 bytes together.
"""

from collections.abc import Iterable, Iterator

from timekeeper.core import names
from timekeeper.core.admission.admission import Admission
from timekeeper.core.admission.mutation.sidecar import find_sidecar, requests_of
from timekeeper.core.admission.policy import AdmissionPolicy, Standing, is_above_budget_class
from timekeeper.core.admission.rules.catalogue import CATALOGUE
from timekeeper.core.admission.rules.host_share import NOT_JUDGED, is_unjudged
from timekeeper.core.admission.rules.modes import EffectiveMode, effective_mode
from timekeeper.core.budgets.policy import HOLDS
from timekeeper.core.dialects import native, tencent
from timekeeper.core.dialects.others import claims
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.request.request import containers
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, first_of, shown
from webhook.wire.pod_review import PodReview

LONGEST_BYTES = 256
ALL_BYTES = 4000

UNMETERED = "The GPU request of this pod cannot be read; the pod runs without being governed or metered."
CHARGED_AS_ASSUMED = (
    "The GPU request of this pod cannot be read; what it holds is charged as far as it is known."
)

EXPORT = (
    "This is the export of a bound pod: what Bursar, its node and its scheduler had written is removed, and"
    " written anew."
)

STATIC_POD = (
    "This is the mirror of a static pod, which runs whether it is admitted or not: its cards are charged to"
    " this namespace, whose budget neither holds nor evicts it."
)

WHOLE_CARDS = (
    "wholeCards is bursar here: the pod's nvidia.com/gpu became bursar.dev/gpu-percent, 100 for each card."
)


def governing_warnings(review: PodReview, admission: Admission, is_refused: bool) -> tuple[str, ...]:
    """What the user of a pod that is being governed should know, most important first. ``is_refused``: with
    enforcement on it would be, so its standing is not spoken of."""
    of_standing = () if is_refused else _of_standing(review.namespace, admission)
    return within_limits((*of_standing, *_of_changes(review, admission)))


def violation_warnings(
    violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool = False, governed: bool = True
) -> tuple[str, ...]:
    """A warning for each violation that refuses nothing: by the rule's mode, in observe mode, or because the
    user is exempt. ``governed``: whether Bursar repairs what it can."""
    return within_limits(
        _of_violation(each, effective_mode(each.rule, policy, exempt), governed and _repairs(policy))
        for each in violations
    )


def within_limits(sentences: Iterable[str]) -> tuple[str, ...]:
    """The sentences that fit into the API server's limit, each on one line and cut to LONGEST_BYTES."""
    fit, left = [], ALL_BYTES
    for sentence in sentences:
        line = _cut(sentence if sentence.isprintable() else _printable(sentence))
        left -= len(line.encode())
        if left < 0:
            break
        fit.append(line)
    return tuple(fit)


def _repairs(policy: AdmissionPolicy) -> bool:
    return policy.mode == "enforce"


def _of_violation(violation: Violation, mode: EffectiveMode, repairs: bool) -> str:
    if mode == "observe":
        return observed(violation)
    got = f", got {violation.got}" if violation.got else ""
    instead = CATALOGUE[violation.rule].instead
    if not repairs and instead.startswith("replaced"):
        instead = f"would be {instead}"
    exempt = " (you are exempt from this rule)" if mode == "exempt" else ""
    return f"{violation.path}: {violation.problem}{got}; {instead}{exempt}"


def observed(violation: Violation) -> str:
    """The warning about what `mode: observe` does not refuse."""
    return f"Observe mode: this would be refused: {violation.sentence()}"


def _printable(sentence: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in sentence)


def _cut(line: str) -> str:
    raw = line.encode()
    if len(raw) <= LONGEST_BYTES:
        return line
    return raw[: LONGEST_BYTES - 3].decode(errors="ignore") + "..."


def _of_standing(namespace: str, admission: Admission) -> Iterator[str]:
    standing, policy, is_held = admission.standing, admission.policy, admission.hold == "budget"
    if standing.is_protected:
        yield f"Namespace {namespace} has no GPU budget left for others. This pod is protected: {_PROTECTED}"
        return
    used, ours = f"Namespace {namespace} has used", admission.standing_class
    gets = (
        f" This pod gets priority class {ours.name}." if not ours.absent and policy.mode == "enforce" else ""
    )
    effect = _HELD if is_held else gets
    if standing.status == "UNKNOWN":
        yield f"Budget service unreachable; budget status of namespace {namespace} unknown.{gets}"
    elif standing.status == "OVER_BUDGET" and policy.mode == "observe":
        held = standing.on_exhausted in HOLDS
        would = "be held" if held else f"get priority class {policy.over_budget.name}"
        yield f"{used} its GPU budget. Observe mode: with enforcement on, this pod would {would}."
    elif standing.status == "OVER_BUDGET" and standing.by_estimate:
        yield (
            f"Namespace {namespace}: pods admitted in the last few seconds will use the remaining GPU "
            f"budget.{effect}"
        )
    elif standing.status == "OVER_BUDGET":
        yield f"{used} its GPU budget.{effect}"
    elif is_held and policy.reserves_declared:
        yield f"Namespace {namespace}: pods reserve the time that they declare.{_HELD}"
    elif is_held:
        yield f"Namespace {namespace}: pods wait for its GPU budget.{_HELD}"
    if standing.status == "IN_BUDGET" and _is_nearly_used(standing):
        whole, tenth = divmod(standing.ratio_milli or 0, 10)
        yield f"{used} {whole}.{tenth} % of its GPU budget."


_PROTECTED = "it is in budget, because protect selects it and its floor is not used up."
_HELD = " This pod is held until the budget can pay it."


def _is_nearly_used(standing: Standing) -> bool:
    used, warn_at = standing.ratio_milli, standing.warn_at_milli
    return used is not None and warn_at is not None and used >= warn_at


def _of_changes(review: PodReview, admission: Admission) -> Iterator[str]:
    pod, spec, ours = review.pod, review.pod["spec"], admission.standing_class
    request, policy = admission.request, admission.policy
    if ours.absent and policy.mode == "enforce":
        yield f"Priority class {shown(ours.name)} does not exist in the cluster; it is not set."
    if request.topology and all(each.ask.devices == 1 for each in request.asks):
        yield f"{names.TOPOLOGY}: {request.topology} has no effect: no container requests several GPUs."
    if is_unjudged(policy):
        yield NOT_JUDGED
    yield from _without_cards(spec, request, policy)
    if policy.mode != "enforce":
        return
    yield from _of_claims(review, admission)
    yield from _without_effect(pod, request)
    if spec.get("resources"):
        yield from _without_sidecar(pod, policy)
    own, given = spec.get("priorityClassName"), admission.class_given
    if (
        spec.get("priority") is not None  # else a manifest's, whose class is not known
        and given is not None
        and own not in (None, given.name, policy.cluster_default)
        and not is_above_budget_class(spec, policy)  # then the rule priority-class warns
    ):
        most = f"{ours.name}, the highest that the namespace's budget allows"
        yield f"Priority class {shown(own)} is replaced by {most}."


def _without_sidecar(pod: Json, policy: AdmissionPolicy) -> Iterator[str]:
    ours = policy.sidecar
    if ours and not find_sidecar(pod) and requests_of(ours, pod) is None:
        yield (
            "spec.resources is used up by the containers, so the pod gets no sidecar, and the kubelet's"
            f" timestamps charge it; add {ours.cpu} cpu and {ours.memory} memory there."
        )


def _without_cards(spec: Json, request: GPURequest, policy: AdmissionPolicy) -> Iterator[str]:
    """In observe mode a pod is not changed, and without Bursar's variables a container sees none of the cards
    that it requests by Bursar's own resources."""
    if policy.mode == "observe" and request.dialect == native.DIALECT.name:
        yield "Observe mode: the pod is not changed, so its containers see no cards of bursar.dev/ resources."


def _of_claims(review: PodReview, admission: Admission) -> Iterator[str]:
    request = admission.request
    if not claims.is_known(request):
        asked = admission.policy.claims.asked_by(review.pod, review.namespace, containers(review.pod))
        missing = first_of(asked.missing, 3) if asked else ""
        missing = missing or "a claim, template or device class"  # known by now, and not at the first call
        yield f"This pod is held until it is known what it asks for: {missing}."
    given, wanted = review.pod["spec"].get("schedulerName") or "", admission.scheduler
    if request.dialect != claims.NAME:
        return
    if given not in ("", wanted):
        yield f"schedulerName {shown(given)} is replaced: {wanted} alone allocates devices to claims."


def _without_effect(pod: Json, request: GPURequest) -> Iterator[str]:
    """What the tencent dialect accepts of a user and does not keep: another cap than the request, and memory
    beside whole cards, for gpu-manager gives such a container all memory of the card."""
    if request.dialect != tencent.DIALECT.name:
        return
    cap, written = annotations_of(pod).get(tencent.CORE_LIMIT), tencent.DIALECT.at_admission(request)
    if cap not in (None, written[tencent.CORE_LIMIT]):
        most = f"{written[tencent.CORE_LIMIT]}, the largest {tencent.CORE} of a container"
        yield f"metadata.annotations[{tencent.CORE_LIMIT}] is replaced by {most}."
    whole = {each.container for each in request.asks if each.ask.whole}
    for each in containers(pod):
        limits = mapping(mapping(each.raw.get("resources")).get("limits"))
        if each.name in whole and tencent.MEMORY in limits:
            path = f"{each.path}.resources.limits[{tencent.MEMORY}]"
            yield f"{path} has no effect: a whole card includes all of its memory."
