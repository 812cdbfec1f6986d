"""Pod templates inside workloads: a template whose pods would be refused is refused when the workload is
written, with the path of the field in the workload. Its user sees that, and not the refusal of a controller.

An unchanged template is never judged, so old workloads can be scaled, updated in other fields, and deleted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from timekeeper.core.admission.json_patch import add
from timekeeper.core.admission.pods import MalformedError, checked_pod
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules import without_effect
from timekeeper.core.admission.rules.modes import rule_modes, split_by_mode
from timekeeper.core.admission.rules.pod_rules import pod_violations, unrequested_devices
from timekeeper.core.admission.rules.size import TOO_MANY_PARTS, is_crowded
from timekeeper.core.gang_owners import waits_for_itself
from timekeeper.core.gangs import NAMELESS
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.request.request import ParsedRequest
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation
from webhook.admission import cel
from webhook.admission.answers import refusal
from webhook.admission.updates import stuck_update
from webhook.admission.warnings import violation_warnings, within_limits
from webhook.wire import defaulting
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

NOT_JUDGED = AdmissionAnswer("passed")

DURATION = "activeDeadlineSeconds"
_IN_TEMPLATE = f"/spec/template/spec/{DURATION}"
_HELD = "New GPU pods of namespace {} are held until its budget can pay them, unless protect selects them."
_COPIED = f"{DURATION} is copied to the pods, so they count in ResourceQuotas of the scope Terminating."

# the service accounts that create the pods of each kind, and the groups of all of them
_MAKERS: Mapping[tuple[str, str], str] = {
    ("apps", "Deployment"): "replicaset-controller",
    ("apps", "ReplicaSet"): "replicaset-controller",
    ("apps", "StatefulSet"): "statefulset-controller",
    ("apps", "DaemonSet"): "daemon-set-controller",
    ("", "ReplicationController"): "replication-controller",
    ("batch", "Job"): "job-controller",
    ("batch", "CronJob"): "job-controller",
}
_MAKERS_GROUPS = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")

_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}|\*", re.ASCII)
_GROUP = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
_MAX_STEPS = 16
MAX_TEMPLATES = 256  # in one object; wildcards could find very many
BEYOND = f"Only the first {MAX_TEMPLATES} pod templates of this object are reviewed."


class BadPathError(ValueError):
    """A `--template-path` that is not valid; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class TemplatePath:
    """The path of a kind's pod templates: its steps, ``*`` for every member of a map or list."""

    group: str
    kind: str
    steps: tuple[str, ...]


BUILT_IN: tuple[TemplatePath, ...] = (
    TemplatePath("apps", "Deployment", ("spec", "template")),
    TemplatePath("apps", "StatefulSet", ("spec", "template")),
    TemplatePath("apps", "DaemonSet", ("spec", "template")),
    TemplatePath("apps", "ReplicaSet", ("spec", "template")),
    TemplatePath("", "ReplicationController", ("spec", "template")),
    TemplatePath("batch", "Job", ("spec", "template")),
    TemplatePath("batch", "CronJob", ("spec", "jobTemplate", "spec", "template")),
)


def read_path(text: str) -> TemplatePath:
    """``GROUP/KIND=STEP.STEP...`` as in ``kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template``.
    Raises BadPathError."""
    kind, equals, path = text.partition("=")
    group, slash, name = kind.rpartition("/")
    steps = tuple(path.split("."))
    if not equals or not slash or not _GROUP.fullmatch(group) or not _KIND.fullmatch(name):
        raise BadPathError(f"{text!r} is not GROUP/KIND=PATH")
    if len(steps) > _MAX_STEPS or not all(map(_STEP.fullmatch, steps)):
        raise BadPathError(f"{path!r} is not a path of names separated by dots, with * for every member")
    if any((group, name) == (each.group, each.kind) for each in BUILT_IN):
        raise BadPathError(f"the path of {kind} is built in")
    return TemplatePath(group, name, steps)


def of_kind(group: str, kind: str, paths: Sequence[TemplatePath]) -> tuple[TemplatePath, ...]:
    """The paths of the kind's templates; empty for a kind without known paths."""
    return tuple(each for each in paths if (each.group, each.kind) == (group, kind))


def leads_nowhere(path: TemplatePath, objects: int) -> str:
    """What is wrong with a `--template-path` that finds no template. ``objects``: how many there are of its
    kind."""
    return (
        f"--template-path {path.group}/{path.kind}={'.'.join(path.steps)}: there is no pod template, a field"
        f" with spec.containers, in any of {objects} objects of this kind; write the path of one"
    )


def judge(
    review: ObjectReview, policy: AdmissionPolicy, more: Sequence[TemplatePath] = (), is_held: bool = False
) -> AdmissionAnswer:
    """Refuses a workload with a new or changed template whose pods would be refused; warns where a rule's
    mode says so, about a template that cannot be parsed, and of pods that will be held (``is_held``). Raises
    MalformedError for an object that is nested too deeply."""
    try:
        return _judged(review, policy, more, is_held)
    except RecursionError as error:
        raise MalformedError("request.object: nested too deeply") from error


def _judged(
    review: ObjectReview, policy: AdmissionPolicy, more: Sequence[TemplatePath], is_held: bool
) -> AdmissionAnswer:
    if review.operation not in ("CREATE", "UPDATE") or review.subresource or review.is_going:
        return NOT_JUDGED
    if policy.mode == "meter":
        return NOT_JUDGED
    paths = of_kind(review.group, review.kind, (*BUILT_IN, *more))
    old, new = found(review.old, paths), found(review.object, paths)
    before = [template for _, template in old]
    changed = [(at, template) for at, template in new if template not in before]
    unread = [BEYOND] if any(islice(_every(review.object, paths), MAX_TEMPLATES, None)) else []
    # what was written into the workload's own metadata and belongs into its templates'
    misplaced = without_effect.of_workload(review.object, review.kind, new)
    known = set(without_effect.of_workload(review.old, review.kind, old))
    violations, stuck = [violation for violation in misplaced if violation not in known], list[str]()
    if not (changed or unread or violations):
        return NOT_JUDGED

    requests: dict[int, GPURequest | None] = {}  # by the identity of the template

    def request_of(template: Json) -> GPURequest | None:
        if id(template) not in requests:
            return read_template(template, "spec.template", policy, review.namespace)[1].request
        return requests[id(template)]

    for at, template in changed:
        try:
            pod, parsed = read_template(template, at, policy, review.namespace)
            requests[id(template)] = parsed.request
            violations += template_violations(pod, parsed, at, policy)
            if parsed.request is not None and review.kind == "StatefulSet":
                violations += waits_for_itself(review.object)
        except MalformedError as error:
            unread.append(f"This pod template is not reviewed: {error}")
    spec = mapping(review.object.get("spec")) if changed and not unread else {}
    try:
        stuck += stuck_update(review.group, review.kind, spec, policy.caps, request_of)
    except MalformedError as error:  # of a template that no path leads to
        unread.append(f"This pod template is not reviewed: {error}")
    exempt = makers_are_exempt(review.group, review.kind, policy)
    refusing, warned = split_by_mode(violations, policy, exempt)
    if refusing:
        return refusal(refusing, warned, policy, exempt)
    held = [_HELD.format(review.namespace)] if is_held and any(requests.values()) else []
    warnings = within_limits((*violation_warnings(warned, policy, exempt), *held, *stuck, *unread))
    word = "observed" if warned and policy.mode == "observe" else "valid"
    return AdmissionAnswer(word, warnings=warnings, rules=rule_modes(warned, policy, exempt))


def makers_are_exempt(group: str, kind: str, policy: AdmissionPolicy) -> bool:
    """Whether the creator of the kind's pods is exempt, or might be. The writer of the workload does not
    count: a controller creates the pods."""
    maker = _MAKERS.get((group, kind))
    if maker is None:
        return bool(policy.exempt)
    return not policy.exempt.isdisjoint((f"system:serviceaccount:kube-system:{maker}", *_MAKERS_GROUPS))


def found(workload: Json, paths: Sequence[TemplatePath]) -> list[tuple[str, Json]]:
    """The workload's pod templates with their paths, in the order of its fields; at most MAX_TEMPLATES."""
    return list(islice(_every(workload, paths), MAX_TEMPLATES))


def _every(workload: Json, paths: Sequence[TemplatePath]) -> Iterator[tuple[str, Json]]:
    for path in paths:
        for at, value in _followed(workload, path.steps, ""):
            if isinstance(value, dict) and mapping(value.get("spec")):
                yield at, _with_duration(workload, path, value)


def _with_duration(workload: Json, path: TemplatePath, template: Json) -> Json:
    """The template of a Job or CronJob with the Job's own duration, if it has none: `with_jobs_duration`
    writes it when the Job is created."""
    if path.group != "batch" or path not in BUILT_IN:
        return template
    ((_, job),) = _followed(workload, path.steps[:-1], "")
    seconds = mapping(job).get(DURATION)
    if seconds is None or template["spec"].get(DURATION) is not None:
        return template
    return {**template, "spec": {**template["spec"], DURATION: seconds}}


def with_jobs_duration(review: ObjectReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Copies a new Job's ``activeDeadlineSeconds`` into its template, if that has none, in a namespace whose
    pods declare how long they mean to run; not in observe mode. A Job without it, or without a request for
    GPUs, passes. Raises MalformedError for a template that is not one, or is nested too deeply."""
    declares = policy.reserves_declared or policy.requires_duration
    is_new_job = (review.operation, review.group, review.kind) == ("CREATE", "batch", "Job")
    if not declares or not is_new_job or review.subresource or policy.mode != "enforce":
        return NOT_JUDGED
    (path,) = of_kind("batch", "Job", BUILT_IN)
    try:
        for at, template in found(review.object, (path,)):
            given = review.object["spec"]["template"]["spec"].get(DURATION)
            if given is None and template["spec"].get(DURATION) is not None:
                pod, parsed = read_template(template, at, policy, review.namespace)
                if parsed.request is not None:
                    copied = add(_IN_TEMPLATE, pod["spec"][DURATION])
                    return AdmissionAnswer("governed", operations=(copied,), warnings=(_COPIED,))
    except RecursionError as error:
        raise MalformedError("request.object: nested too deeply") from error
    return NOT_JUDGED


def read_template(
    template: Json, at: str, policy: AdmissionPolicy, namespace: str
) -> tuple[Json, ParsedRequest]:
    """The pods made from the template in ``namespace``, and what each asks for. Raises MalformedError where
    it is not a pod template."""
    if is_crowded(template):
        return {"metadata": {}, "spec": {"containers": []}}, ParsedRequest(None, (TOO_MANY_PARTS,))
    pod = checked_pod(as_pod(template), at)
    return pod, policy.parsed(pod, namespace)


def template_violations(
    pod: Json, parsed: ParsedRequest, at: str, policy: AdmissionPolicy
) -> tuple[Violation, ...]:
    """The violations of the pods made from a template, with paths from the workload's root."""
    if TOO_MANY_PARTS in parsed.violations:  # that alone
        return (replace(TOO_MANY_PARTS, problem=f"{at}.{TOO_MANY_PARTS.problem}"),)
    found = (*pod_violations(pod, parsed, policy), *unrequested_devices(pod, parsed))
    # a pod gets the label or the controller that names its gang when it is created
    return inside((violation for violation in found if violation.problem != NAMELESS), at)


def inside(violations: Iterable[Violation], at: str) -> tuple[Violation, ...]:
    """The violations of a template's pods with paths from the workload's root."""
    return tuple(replace(violation, path=f"{at}.{violation.path}") for violation in violations)


def as_pod(template: Json) -> dict[str, Any]:
    """The pod that a controller creates from the template, with the API server's defaults."""
    return defaulting.pod({"metadata": template.get("metadata") or {}, "spec": template["spec"]})


def gpu_templates() -> str:
    """CEL: true for the workloads of built-in kinds whose pods the webhooks review."""
    condition = re.sub(r"\bobject\b", "template", cel.gpu_pods()).rstrip("\n")
    return f"""\
(
  object == null || !has(object.spec) ? []
  : has(object.spec.jobTemplate) ? [object.spec.jobTemplate.spec.template]
  : has(object.spec.template) ? [object.spec.template]
  : []
).exists(template, {condition})
"""


def changed_templates() -> str:
    """CEL: false for an update that changes neither the template nor adds an annotation of ours, so that
    scaling an old workload does not wait for the webhook. If unsure it is true; `judge` compares again."""
    return """\
request.operation != 'UPDATE'
|| !has(object.spec) || !has(oldObject.spec)
|| object.metadata.?annotations.orValue({}).exists(k,
  k.startsWith('bursar.dev/') && !(k in oldObject.metadata.?annotations.orValue({})))
|| (
  has(object.spec.jobTemplate) && has(oldObject.spec.jobTemplate)
  ? object.spec.jobTemplate != oldObject.spec.jobTemplate
  : !has(object.spec.template) || !has(oldObject.spec.template)
    || object.spec.template != oldObject.spec.template
)
"""


def _followed(value: object, steps: tuple[str, ...], at: str) -> Iterator[tuple[str, object]]:
    if not steps:
        yield at, value
        return
    step, rest = steps[0], steps[1:]
    if step == "*":
        for place, each in _members(value, at):
            yield from _followed(each, rest, place)
    elif isinstance(value, Mapping) and step in value:
        yield from _followed(value[step], rest, f"{at}.{step}" if at else step)


def _members(value: object, at: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield f"{at}.{name}", each
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield f"{at}[{index}]", each
