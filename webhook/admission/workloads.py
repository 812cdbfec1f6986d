"""Pod templates inside workloads: one that can never start is refused when it is written, with the path
inside it, instead of by a controller that nobody watches.

What is refused is what the pods made from the template would be refused for. A template that is as it was
before is never judged, so old workloads can be scaled, updated in other fields, and deleted. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from timekeeper.core.request.request import Json, mapping, parse
from timekeeper.core.violation import Violation
from webhook import rules
from webhook.admission import cel as match
from webhook.admission import pods as verdict
from webhook.admission import warnings as notices
from webhook.policy import Terms
from webhook.wire import defaulting as as_stored
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import Answer, MalformedError, checked_pod

NOT_JUDGED = Answer("passed")

# the service accounts that make the pods of each kind, and the groups of all of them
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
_MOST_STEPS = 16
MOST_TEMPLATES = 256  # in one object; wildcards must not multiply
BEYOND = f"only the first {MOST_TEMPLATES} pod templates of this object are reviewed"


class BadPathError(ValueError):
    """A `--template-path` that cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class TemplatePath:
    """Where a kind keeps its pod templates: the steps to them, ``*`` for every member of a map or list."""

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
        raise BadPathError(f"{text!r} is no GROUP/KIND=PATH")
    if len(steps) > _MOST_STEPS or not all(map(_STEP.fullmatch, steps)):
        raise BadPathError(f"{path!r} is no path of names divided by dots, with * for every member")
    if any((group, name) == (each.group, each.kind) for each in BUILT_IN):
        raise BadPathError(f"{kind} is known already")
    return TemplatePath(group, name, steps)


def of_kind(group: str, kind: str, paths: Sequence[TemplatePath]) -> tuple[TemplatePath, ...]:
    """The paths at which a kind keeps templates; empty for a kind that has none we know."""
    return tuple(each for each in paths if (each.group, each.kind) == (group, kind))


def judge(review: ObjectReview, terms: Terms, more: Sequence[TemplatePath] = ()) -> Answer:
    """Refuses a workload whose new or changed template no pod can be made from; warns where a rule's mode
    says so, and of a template that is none. Raises MalformedError for an object that is nested too deeply to
    be looked at."""
    try:
        return _judged(review, terms, more)
    except RecursionError as error:
        raise MalformedError("request.object: nested too deeply") from error


def _judged(review: ObjectReview, terms: Terms, more: Sequence[TemplatePath]) -> Answer:
    if review.operation not in ("CREATE", "UPDATE") or review.subresource or review.is_going:
        return NOT_JUDGED
    paths = of_kind(review.group, review.kind, (*BUILT_IN, *more))
    before = [template for _, template in found(review.old, paths)]
    changed = [(at, template) for at, template in found(review.object, paths) if template not in before]
    unread = [BEYOND] if any(islice(_every(review.object, paths), MOST_TEMPLATES, None)) else []
    if not changed and not unread:
        return NOT_JUDGED
    violations: list[Violation] = []
    for at, template in changed:
        try:
            violations += violations_of(template, at, terms)
        except MalformedError as error:
            unread.append(f"this pod template is not reviewed: {error}")
    exempt = makers_are_exempt(review.group, review.kind, terms)
    refusing, warned = verdict.sorted_by_mode(violations, terms, exempt)
    if refusing:
        return verdict.refused(violations, terms, exempt)
    told = (*notices.of_violations(warned, terms, exempt), *unread)
    word = "observed" if warned and terms.mode == "observe" else "valid"
    return Answer(word, warnings=notices.fitting(told), rules=verdict.by_mode(warned, terms, exempt))


def makers_are_exempt(group: str, kind: str, terms: Terms) -> bool:
    """True where whoever makes the kind's pods is exempt, or might be: who writes the workload is not asked,
    for it is a controller that will be refused."""
    maker = _MAKERS.get((group, kind))
    if maker is None:
        return bool(terms.exempt)
    return not terms.exempt.isdisjoint((f"system:serviceaccount:kube-system:{maker}", *_MAKERS_GROUPS))


def found(workload: Json, paths: Sequence[TemplatePath]) -> list[tuple[str, Json]]:
    """Every pod template of the workload with its path, as its fields are ordered; at most MOST_TEMPLATES."""
    return list(islice(_every(workload, paths), MOST_TEMPLATES))


def _every(workload: Json, paths: Sequence[TemplatePath]) -> Iterator[tuple[str, Json]]:
    for path in paths:
        for at, value in _followed(workload, path.steps, ""):
            if isinstance(value, dict) and mapping(value.get("spec")):
                yield at, value


def violations_of(template: Json, at: str, terms: Terms) -> tuple[Violation, ...]:
    """What the pods made from the template would be refused for, with paths from the workload's root.
    Raises MalformedError where the template is no pod template."""
    pod = checked_pod(as_pod(template), at)
    return tuple(replace(each, path=f"{at}.{each.path}") for each in rules.judged(pod, parse(pod), terms))


def as_pod(template: Json) -> dict[str, Any]:
    """The pod that a controller makes from the template, as the API server would hand it on."""
    return as_stored.pod({"metadata": template.get("metadata") or {}, "spec": template["spec"]})


def gpu_templates() -> str:
    """CEL: true for the workloads of built-in kinds whose pods the webhooks would see."""
    pods = re.sub(r"\bobject\b", "template", match.gpu_pods()).rstrip("\n")
    return f"""\
(
  object == null || !has(object.spec) ? []
  : has(object.spec.jobTemplate) ? [object.spec.jobTemplate.spec.template]
  : has(object.spec.template) ? [object.spec.template]
  : []
).exists(template, {pods})
"""


def changed_templates() -> str:
    """CEL: false where an update leaves the template as it was, so that scaling an old workload waits for
    nobody. What is in doubt comes, and `judge` looks again."""
    return """\
request.operation != 'UPDATE'
|| !has(object.spec) || !has(oldObject.spec)
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
