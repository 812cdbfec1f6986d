"""The warnings that kubectl prints beside "pod created".

The API server drops a warning with a line break, and cuts all warnings once they exceed 4096 bytes together.
"""

from collections.abc import Iterable, Iterator, Sequence

from timekeeper.core import names
from timekeeper.core.admission.admission import Admission
from timekeeper.core.admission.mutation.sidecar import find_sidecar, requests_of
from timekeeper.core.admission.mutation.whole_cards import counted_by_kueue
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.catalogue import CATALOGUE
from timekeeper.core.admission.rules.host_share import NOT_JUDGED, is_unjudged
from timekeeper.core.admission.rules.modes import EffectiveMode, effective_mode
from timekeeper.core.budgets.policy import HOLDS
from timekeeper.core.dialects import native, nvidia, tencent
from timekeeper.core.dialects.others import claims
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.request.request import containers
from timekeeper.core.standings import payer
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, first_of, shown
from webhook.wire.pod_review import PodReview

LONGEST_BYTES = 256
ALL_BYTES = 4000

UNMETERED = "The GPU request of this pod cannot be read; the pod runs without being governed or metered."
CHARGED_AS_ASSUMED = (
    "The GPU request of this pod cannot be read; what it holds is charged as far as it is known."
)

STATIC_POD = (
    "This is the mirror of a static pod, which runs whether it is admitted or not: its cards are charged to"
    " this namespace, whose budget neither holds nor evicts it."
)

WHOLE_CARDS = (
    "wholeCards is bursar here: the pod's nvidia.com/gpu became bursar.dev/gpu-percent, 100 for each card."
)
KUEUES_CARDS = (
    "Kueue counts nvidia.com/gpu, so the pod keeps it although wholeCards is bursar here: it needs a node"
    " where NVIDIA's plugin advertises it."
)


def governing_warnings(review: PodReview, admission: Admission, is_refused: bool) -> tuple[str, ...]:
    """What the user of a pod that is being governed should know, most important first. ``is_refused``: with
    enforcement on it would be, so its standing is not spoken of."""
    of_standing = () if is_refused else _of_standing(review.namespace, admission)
    return within_limits((*of_standing, *_of_changes(review, admission)))


def marks_removed(paths: Sequence[str], is_observed: bool) -> str:
    """The warning of what a pod brought along. ``is_observed``: it stays in the pod."""
    is_gone = "Observe mode: with enforcement on, this would be removed" if is_observed else "This is removed"
    return f"{is_gone}, for only Bursar, schedulers and node plugins write it: {first_of(tuple(paths), 3)}."


def violation_warnings(
    violations: Iterable[Violation], policy: AdmissionPolicy, exempt: bool = False, governed: bool = True
) -> tuple[str, ...]:
    """A warning for each violation that refuses nothing: by the rule's mode, in observe mode, or because the
    user is exempt. ``governed``: whether Bursar repairs what it can."""
    return within_limits(
        _of_violation(each, effective_mode(each.rule, policy, exempt), governed and policy.mode == "enforce")
        for each in violations
    )


def within_limits(sentences: Iterable[str]) -> tuple[str, ...]:
    """The sentences that fit into the API server's limit, each on one line and cut to LONGEST_BYTES."""
    fit, left = [], ALL_BYTES
    for sentence in sentences:
        printable = sentence.isprintable()
        line = _cut(sentence if printable else "".join(c if c.isprintable() else "?" for c in sentence))
        left -= len(line.encode())
        if left < 0:
            break
        fit.append(line)
    return tuple(fit)


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
    whose, given = payer(namespace, standing.group), admission.class_given
    whose = whose[0].upper() + whose[1:]
    used = f"{whose} has used"
    gets = f" This pod gets priority class {given.name}." if given and policy.mode == "enforce" else ""
    effect = _HELD if is_held else gets
    if standing.status == "UNKNOWN":
        yield f"Budget service unreachable; budget status of namespace {namespace} unknown.{gets}"
    elif standing.status == "OVER_BUDGET" and policy.mode == "observe":
        held = standing.on_exhausted in HOLDS
        lower = "keep its class" if policy.keeps_classes else f"get priority class {policy.over_budget.name}"
        would = "be held" if held else lower
        yield f"{used} its GPU budget. Observe mode: with enforcement on, this pod would {would}."
    elif standing.status == "OVER_BUDGET" and standing.by_estimate:
        yield (f"{whose}: pods admitted in the last few seconds will use the remaining GPU budget.{effect}")
    elif standing.status == "OVER_BUDGET":
        yield f"{used} its GPU budget.{effect}"
    elif is_held and policy.reserves_declared:
        yield f"Namespace {namespace}: pods reserve the time that they declare.{_HELD}"
    elif is_held:
        yield f"Namespace {namespace}: pods wait for its GPU budget.{_HELD}"
    ratio, warn_at = standing.ratio_milli, standing.warn_at_milli
    if standing.status == "IN_BUDGET" and ratio is not None and warn_at is not None and ratio >= warn_at:
        whole, tenth = divmod(ratio, 10)
        yield f"{used} {whole}.{tenth} % of its GPU budget."


_PROTECTED = "it is in budget, because protect selects it and its floor is not used up."
_HELD = " This pod is held until the budget can pay it."


def _of_changes(review: PodReview, admission: Admission) -> Iterator[str]:
    pod, ours = review.pod, admission.standing_class
    request, policy = admission.request, admission.policy
    if ours.absent and policy.mode == "enforce" and not policy.keeps_classes:
        yield f"Priority class {shown(ours.name)} does not exist in the cluster; it is not set."
    if request.topology and all(each.ask.devices == 1 for each in request.asks):
        yield f"{names.TOPOLOGY}: {request.topology} has no effect: no container requests several GPUs."
    if is_unjudged(policy):
        yield NOT_JUDGED
    if policy.mode == "observe" and request.dialect == native.DIALECT.name:  # no variable shows them
        yield "Observe mode: the pod is not changed, so its containers see no cards of bursar.dev/ resources."
    if policy.mode != "enforce":
        return
    if policy.takes_whole_cards and request.dialect == nvidia.DIALECT.name and counted_by_kueue(pod):
        yield KUEUES_CARDS
    yield from _of_claims(review, admission)
    yield from _without_effect(pod, request)
    yield from _without_sidecar(pod, admission)
    if admission.class_replaced:
        most = f"{ours.name}, the highest that the namespace's budget allows"
        yield f"Priority class {shown(admission.class_replaced)} is replaced by {most}."


def _without_sidecar(pod: Json, admission: Admission) -> Iterator[str]:
    ours, why, remedy = admission.policy.sidecar, admission.without_sidecar, ""
    if ours and pod["spec"].get("resources") and not find_sidecar(pod) and requests_of(ours, pod) is None:
        why = "spec.resources is used up by the containers"
        remedy = f"; add {ours.cpu} cpu and {ours.memory} memory there"
    if why:
        yield f"{why}, so the pod gets no sidecar, and the kubelet's timestamps charge it{remedy}."
    wanted = annotations_of(pod).get(names.WANTS_SIDECAR, "on")
    if ours and wanted != "on":
        only = "only off has one, where the namespace's budget entry does not say sidecar: on"
        yield f"{names.WANTS_SIDECAR}: {shown(wanted)} has no effect: {only}."


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
