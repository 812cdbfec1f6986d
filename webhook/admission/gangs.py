"""Pods that start together: they are created with the gate of held pods, and their owner's templates get the
number of pods that its own fields say, when it is created and at each update."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from timekeeper.core import names
from timekeeper.core.admission.admission import placed_by
from timekeeper.core.admission.json_patch import add, escaped, merged
from timekeeper.core.admission.mutation.whole_cards import in_bursars_words
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.pod_rules import gang_cap_violations
from timekeeper.core.dialects.others.claims import NAME as CLAIMS
from timekeeper.core.gang_owners import (
    GangOfOwner,
    Path,
    PodSet,
    contradictions,
    gang_of_owner,
    pod_sets,
    those_beside,
)
from timekeeper.core.gangs import foreign_mark, least_said, size_said, size_violations
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.rating.held import least_milli
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown
from webhook.admission.answers import answer
from webhook.admission.warnings import within_limits
from webhook.admission.workloads import NOT_JUDGED, inside, read_template
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

IGNORES_DISRUPTIONS = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
_WRITTEN = (names.GANG_SIZE, names.GANG_MINIMUM, names.GANG_LATE)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

Texts = Mapping[Path, Mapping[str, str]]  # the annotations of each template


@dataclass(frozen=True, slots=True)
class _Count:
    """Of an owner, without what the webhook wrote into it: all sets of its pods, those that Bursar places,
    those of pods without GPUs that could wait for these, what a pod of each needs at least, in milli-GPU,
    their gang, and what its templates are to say. ``gang``: None, and no ``values``, where it has none."""

    found: Sequence[PodSet]
    sets: Sequence[PodSet]
    others: Sequence[PodSet]
    least: Mapping[Path, int]
    gang: GangOfOwner | None
    values: Json


def of_owner(review: ObjectReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """Refuses a new owner whose templates' annotations contradict its own fields, or whose gang is above a
    cap. In a namespace with ``gangs: auto`` writes the number of its pods into the templates of those that
    start together, and a mark into those of pods without GPUs that wait for these; and again at each update
    of such an owner. A gang's Job does not count the pods that are evicted. Raises MalformedError for a
    template that is not one, or is nested too deeply."""
    is_new = review.operation == "CREATE"
    is_counted = names.COUNTED in annotations_of(review.old)
    if not (is_new or is_counted) or review.subresource or review.is_going or policy.mode != "enforce":
        return NOT_JUDGED
    try:
        return _new(review, policy) if is_new else _counted(review, policy)
    except RecursionError as error:
        raise MalformedError("request.object: nested too deeply") from error


def _new(review: ObjectReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    count = _count(review, review.object, {}, policy)
    gang = count.gang if policy.finds_gangs else None
    texts = _texts(count, gang, count.values, {pods.path for pods in gang.beside} if gang else ())
    starting = [pods for pods in count.sets if names.GANG_SIZE in texts[pods.path] and not pods.is_late]
    is_jobs = review.kind == "Job" and bool(starting) and _may_ignore_disruptions(review.object)
    violations = _violations(review, count, texts) or _above_caps(starting, count.least, texts, policy)
    good = _written(review, texts, gang is not None, is_jobs)
    warnings = within_limits(_that_start_at_once(review, count, texts)) if policy.places else ()
    return answer(replace(good, warnings=warnings), violations, policy, exempt=False)


def _that_start_at_once(review: ObjectReview, count: _Count, texts: Texts) -> Iterator[str]:
    """A warning for each template of pods without GPUs that do not wait for those with GPUs, as these may for
    their budget or for cards."""
    together = [pods for pods in count.sets if not pods.is_late]
    if foreign_mark(review.object) or any(foreign_mark(pods.template) for pods in count.found):
        return
    said = next((texts[pods.path].get(names.GANG_SIZE) for pods in together), None)
    for pods in those_beside(together, count.others):
        if names.GANG_LATE in texts[pods.path]:
            continue
        if review.kind == "JobSet":
            other = review.object["spec"]["replicatedJobs"][together[0].path[2]]
            name = shown(str(other.get("name")))
            instead = f"dependsOn: [{{name: {name}, status: Ready}}], listed after it,"
        elif review.object.get("apiVersion") == "kubeflow.org/v2beta1":
            instead = "spec.launcherCreationPolicy: WaitForWorkersReady"
        else:
            instead = f'annotation {names.GANG_LATE}: "true"'
            if said is None:
                size = sum(of_gpus.count for of_gpus in together)
                instead += f', and {names.GANG_SIZE}: "{size}" in templates with GPUs,'
        yield (
            f"{pods.at}: its pods start at once, and do not wait for those with GPUs; with {instead} they do."
        )


def _counted(review: ObjectReview, policy: AdmissionPolicy) -> AdmissionAnswer:
    """What the templates said stays while the owner's fields give the same numbers, so that its user's
    manifest may be applied again; and where other numbers would be refused, or would restart pods."""
    sets = pod_sets(review.group, review.kind, review.old)
    former = {pods.path: annotations_of(pods.template) for pods in sets}
    said = next((text for text in former.values() if names.GANG_SIZE in text), {})
    before = _count(review, review.old, {name: said[name] for name in _WRITTEN if name in said}, policy)
    ours = {name: said[name] for name in before.values if name in said}  # the rest is its user's
    after = _count(review, review.object, ours, policy)
    gang, values = after.gang, ours if after.values == before.values else after.values
    if _is_fixed(review, before, after):
        gang, values = before.gang, ours
    texts = _texts(after, gang, values, {path for path, text in former.items() if names.GANG_LATE in text})
    is_jobs = mapping(review.old.get("spec")).get("podFailurePolicy") == IGNORES_DISRUPTIONS
    good = _written(review, texts, True, is_jobs)
    return answer(good, _violations(review, after, texts), policy, exempt=False)


def _count(review: ObjectReview, owner: Json, ours: Json, policy: AdmissionPolicy) -> _Count:
    """``owner``: the object of the review, or the former one. ``ours``: what the webhook wrote into it."""
    raw = pod_sets(review.group, review.kind, owner)
    found = [replace(pods, template=_without(pods.template, ours)) for pods in raw]
    least, others = {}, []
    for pods in found:
        pod, parsed = read_template(pods.template, pods.at, policy, review.namespace)
        if parsed.request is not None and _is_placed_here(pod, parsed.request, policy):
            least[pods.path] = least_milli(parsed.request)
        elif parsed.request is None and not parsed.violations and review.group != "ray.io":
            others.append(pods)  # workers of Ray wait for their head, and with it they would keep idle cards
    sets = [pods for pods in found if pods.path in least]
    gang = gang_of_owner(sets, owner, others)
    if gang is None:
        return _Count(found, sets, others, least, None, {})
    values = {names.GANG_SIZE: str(gang.size)}
    if gang.minimum < gang.size:
        values[names.GANG_MINIMUM] = str(gang.minimum)
    return _Count(found, sets, others, least, gang, values)


def _without(template: Json, ours: Json) -> Json:
    if not ours:
        return template
    left = {name: text for name, text in annotations_of(template).items() if ours.get(name) != text}
    return {**template, "metadata": {**mapping(template.get("metadata")), "annotations": left}}


def _texts(count: _Count, gang: GangOfOwner | None, values: Json, waiting: Container[Path]) -> Texts:
    """The annotations of all templates, with these values in the gang's, also in those of the pods that
    follow: they are members of the gang that runs; and the mark in those of pods without GPUs that wait for
    it, at a path of ``waiting``. What its user wrote stays."""
    ours: dict[Path, Json] = {}
    if gang is not None:
        ours = {pods.path: {names.GANG_LATE: "true"} for pods in gang.beside if pods.path in waiting}
        ours |= dict.fromkeys((pods.path for pods in (*gang.sets, *gang.late)), values)
    texts = ((pods.path, annotations_of(pods.template)) for pods in count.found)
    return {path: {**ours.get(path, {}), **text} for path, text in texts}


def _is_fixed(review: ObjectReview, before: _Count, after: _Count) -> bool:
    """Whether a changed number must not change the templates: they are fixed in a Job that is not suspended,
    and in a JobSet that neither is nor becomes so; KubeRay restarts a cluster of the strategy Recreate."""
    old, new = (mapping(version.get("spec")) for version in (review.old, review.object))
    if review.kind == "Job":
        return old.get("suspend") is not True or "startTime" in mapping(review.old.get("status"))
    if review.kind == "JobSet":
        return not (old.get("suspend") or new.get("suspend"))
    recreates = mapping(new.get("upgradeStrategy")).get("type") == "Recreate"
    return recreates and [p.template for p in before.found] == [p.template for p in after.found]


def _violations(review: ObjectReview, count: _Count, texts: Texts) -> list[Violation]:
    violations = list(contradictions(review.kind, count.sets, review.object))
    for path, at in {pods.path: pods.at for pods in count.found if count.sets}.items():
        violations += inside(size_violations(texts[path]), at)
    return violations


def _above_caps(
    starting: Sequence[PodSet], least: Mapping[Path, int], texts: Texts, policy: AdmissionPolicy
) -> list[Violation]:
    """Of a gang that these pods are whole: pods of other owners may have a name that is written on it."""
    if not starting or not policy.caps.is_set:
        return []
    costs = sorted(least[pods.path] for pods in starting for _ in range(pods.count))
    said = {"metadata": {"annotations": texts[starting[0].path]}}
    if any(names.GANG in texts[pods.path] for pods in starting) and len(costs) < (size_said(said) or 0):
        return []
    needed = least_said(said)
    return list(gang_cap_violations(starting[0].at, sum(costs[:needed]), policy.caps))


def _is_placed_here(pod: Json, request: GPURequest, policy: AdmissionPolicy) -> bool:
    """Whether Bursar places the pods on cards; others of the owner start by themselves."""
    if request.dialect == CLAIMS:
        return False
    if in_bursars_words(pod, request, policy):
        return True
    return placed_by(pod["spec"], request.dialect, policy) == policy.scheduler_name


def _may_ignore_disruptions(job: Json) -> bool:
    """Whether a pod's eviction, which is no fault of its own, need not count toward ``backoffLimit``.
    Kubernetes has such a rule for pods that are never restarted, and takes it only where another pod follows
    once the first has ended. What its user applied stays; else it is not distinguished from the default."""
    spec = job["spec"]
    managed = map(mapping, sequence(mapping(job.get("metadata")).get("managedFields")))
    applied = [entry for entry in managed if entry.get("operation") == "Apply"]
    says = "podReplacementPolicy" in f"{annotations_of(job).get(_LAST_APPLIED)}{applied}"
    if says and spec.get("podReplacementPolicy") == "TerminatingOrFailed":
        return False
    is_never_restarted = mapping(spec["template"]["spec"]).get("restartPolicy") == "Never"
    return is_never_restarted and spec.get("podFailurePolicy") is None


def _written(review: ObjectReview, texts: Texts, is_ours: bool, ignores: bool) -> AdmissionAnswer:
    """``is_ours``: the webhook has counted the pods; ``ignores``: the Job's failure policy is ours."""
    owner, operations = review.object, []
    for path, template in {s.path: s.template for s in pod_sets(review.group, review.kind, owner)}.items():
        at = "".join(f"/{escaped(str(step))}" for step in path)
        if annotations_of(template) == texts[path]:
            continue
        if isinstance(template.get("metadata"), dict):
            operations.append(add(f"{at}/metadata/annotations", texts[path]))
        else:
            operations.append(add(f"{at}/metadata", {"annotations": texts[path]}))
    spec = mapping(owner.get("spec"))
    if ignores and spec.get("podFailurePolicy") is None:
        operations.append(add("/spec/podFailurePolicy", IGNORES_DISRUPTIONS))
    if ignores and spec.get("podReplacementPolicy") != "Failed":
        operations.append(add("/spec/podReplacementPolicy", "Failed"))
    if is_ours:
        operations += merged(
            mapping(owner.get("metadata")), "/metadata", "annotations", {names.COUNTED: "true"}
        )
    return AdmissionAnswer("governed", operations=tuple(operations)) if operations else NOT_JUDGED
