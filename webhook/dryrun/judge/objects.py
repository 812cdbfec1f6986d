"""Judges one object of a manifest as admission would at its creation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from timekeeper.core import names
from timekeeper.core.admission.json_patch import patched
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.rules.bypass import bypass_violations, suspect_violations
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.rules.modes import split_by_mode
from timekeeper.core.admission.rules.pod_rules import pod_violations
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.violation import Violation, message, shown
from webhook.admission import budgets, pods, workloads
from webhook.dryrun.judge.assumed_cluster import AssumedCluster
from webhook.wire import defaulting, pod_review
from webhook.wire.pod_review import AdmissionAnswer, PodReview

_ALL_CHARACTERS = 1 << 40  # unlike a serving worker this process has time

Word = Literal["admitted", "refused", "not-reviewed", "unreadable"]


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """The result for one object. Where admission changes it, ``before`` is the object with the API server's
    defaults and ``after`` the object that would be stored."""

    kind: str
    name: str
    verdict: Word
    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()
    before: Json | None = None
    after: Json | None = None


def objects(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """The objects of a document with their paths: the items of a list, or the document itself."""
    items = mapping(value).get("items")
    if str(mapping(value).get("kind", "")).endswith("List") and isinstance(items, list):
        for index, each in enumerate(items):
            yield from objects(each, f"{at}items[{index}].")
    else:
        yield at, value


def name_of(value: Any) -> str:
    """The object's name; where it has none, its generateName and a star."""
    metadata = mapping(mapping(value).get("metadata"))
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return name
    return f"{prefix}*" if isinstance(prefix, str) and prefix else ""


def unread(value: Any, sentence: str) -> AdmissionOutcome:
    """The outcome for a value that is not an object."""
    kind = mapping(value).get("kind")
    return _unreadable(kind if isinstance(kind, str) else "", name_of(value), sentence)


def refused_too(outcome: AdmissionOutcome, more: Iterable[Violation]) -> AdmissionOutcome:
    """The outcome with these violations added; refused where there are any."""
    added = tuple(more)
    return replace(outcome, verdict="refused", violations=(*outcome.violations, *added)) if added else outcome


@dataclass(frozen=True, slots=True)
class _Subject:
    """An object under review; ``namespace``: where it would be created."""

    value: Json
    group: str
    kind: str
    namespace: str
    name: str

    def outcome(self, word: Word, *warnings: str) -> AdmissionOutcome:
        """An outcome without violations."""
        return AdmissionOutcome(self.kind, self.name, word, (), warnings)

    def refused(self, violations: Iterable[Violation], warnings: Iterable[str]) -> AdmissionOutcome:
        """An outcome that is refused where there is a violation, else admitted."""
        found = tuple(violations)
        return AdmissionOutcome(
            self.kind, self.name, "refused" if found else "admitted", found, tuple(warnings)
        )


def judged(value: Any, world: AssumedCluster) -> AdmissionOutcome:
    """The outcome for any JSON value. Never raises."""
    kind, version = mapping(value).get("kind"), mapping(value).get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or not kind or not version:
        return unread(value, "apiVersion or kind is missing, so this is not a Kubernetes object")
    if not isinstance(value.get("metadata"), dict | None):
        return unread(value, "metadata: must be an object")
    given = mapping(value.get("metadata")).get("namespace")
    namespace = given if isinstance(given, str) and given else world.namespace
    subject = _Subject(value, version.rpartition("/")[0], kind, namespace, name_of(value))
    try:
        return _of_kind(subject, world)
    except MalformedError as error:
        return unread(value, str(error).replace("request.object.", ""))


def _of_kind(subject: _Subject, world: AssumedCluster) -> AdmissionOutcome:
    group, kind = subject.group, subject.kind
    if (group, kind) == ("", "ConfigMap"):
        return _budgets(subject)
    paths = workloads.of_kind(group, kind, (*workloads.BUILT_IN, *world.template_paths))
    if not paths and (group, kind) != ("", "Pod"):
        return subject.outcome("not-reviewed")
    if subject.namespace in names.SYSTEM_NAMESPACES:
        return subject.outcome("not-reviewed", f"Admission excludes namespace {subject.namespace}.")
    return _workload(subject, paths, world) if paths else _pod(subject, world)


def _pod(subject: _Subject, world: AssumedCluster) -> AdmissionOutcome:
    namespace, policy = subject.namespace, world.policy_for(subject.namespace)
    raw, told = _resolved(defaulting.pod(subject.value), namespace, world)
    asked = _review(raw, namespace)
    answer = pods.mutate(asked, world.standing_of, policy)
    parsed = policy.parsed(asked.pod, asked.namespace)
    warnings = (*answer.warnings, *told, *_warned(suspect_violations(asked.pod, parsed)))
    past = bypass_violations(asked.pod, parsed)
    if answer.refusal:
        found = _violations(asked, answer, policy, world.standing_of(namespace))
        return subject.refused((*found, *past), warnings)
    if past or not answer.operations:
        return subject.refused(past, warnings)
    after = patched(raw, answer.operations)
    checked = pods.validate(_review(_resolved(after, namespace, world)[0], namespace), policy)
    if checked.refusal:
        return subject.refused((_of_text(checked),), warnings)
    before = _without_numbers(raw, subject.value)
    return replace(subject.outcome("admitted", *warnings), before=before, after=after)


def _workload(
    subject: _Subject, paths: tuple[workloads.TemplatePath, ...], world: AssumedCluster
) -> AdmissionOutcome:
    refusing: list[Violation] = []
    warnings: list[str] = []
    for at, template in workloads.found(subject.value, paths):
        try:
            found, told = _template(subject, at, template, world)
        except MalformedError as error:
            if paths[0] in workloads.BUILT_IN:
                raise
            found, told = (), (f"This pod template is not reviewed: {error}",)
        refusing += found
        warnings += told
    return subject.refused(refusing, dict.fromkeys(warnings))


def _template(
    subject: _Subject, at: str, template: Json, world: AssumedCluster
) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    """The violations of a workload because of one template, and the warnings about its pods."""
    namespace, policy = subject.namespace, world.policy_for(subject.namespace)
    if policy.mode == "meter":
        return (), ()
    exempt = workloads.makers_are_exempt(subject.group, subject.kind, policy)
    found, _ = split_by_mode(workloads.template_violations(template, at, policy), policy, exempt)
    raw, told = _resolved(workloads.as_pod(template), namespace, world)
    answer = pods.mutate(_review(raw, namespace), world.standing_of, policy)
    parsed = policy.parsed(raw, namespace)
    past = bypass_violations(raw, parsed)
    told = (*told, *_warned(suspect_violations(raw, parsed)))
    refusal = answer.refusal or (message(past) if past else "")
    if refusal and not found:
        told = (f"{at}: its pods would be refused: {refusal}", *told)
    return found, (*answer.warnings, *told)


def _warned(violations: Iterable[Violation]) -> Iterator[str]:
    for each in violations:
        yield f"{each.sentence()} ({each.rule})"


def _budgets(subject: _Subject) -> AdmissionOutcome:
    if not budgets.holds_budgets("", "ConfigMap", subject.value):
        return subject.outcome("not-reviewed")
    if mapping(subject.value.get("metadata")).get("namespace") not in (None, "", names.NAMESPACE):
        return subject.outcome("not-reviewed", f"Bursar reads budgets in namespace {names.NAMESPACE} only.")
    data = subject.value.get("data")
    if not isinstance(data, dict | None):
        raise MalformedError("data: must be an object")
    entries = budgets.entries(budgets.texts(subject.value), _ALL_CHARACTERS)
    violations = (
        *(_no_text(key) for key, text in (data or {}).items() if not isinstance(text, str)),
        *map(budgets.violation, entries.wrong.values()),
        *budgets.misplaced(subject.value),
    )
    return subject.refused(violations, budgets.warnings(entries))


def _no_text(key: str) -> Violation:
    return Violation(
        "budget-entry", f"data[{key}]", "", "not text", "the fields as text, after |", f"{key}: |"
    )


def _resolved(pod: Json, namespace: str, world: AssumedCluster) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The pod as a webhook would get it: with its namespace and the numbers of its priority class; and
    warnings about what is not known here."""
    raw = {**pod, "metadata": {"namespace": namespace, **mapping(pod.get("metadata"))}}
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return raw, ()
    name = spec.get("priorityClassName") or ""
    if not name:
        raw["spec"] = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **spec}
        return raw, ()
    value = world.class_value(name) if isinstance(name, str) else None
    if value is None:
        return raw, (f"The value of priority class {shown(name)} is not known here; admission will know it.",)
    raw["spec"] = {**spec, "priority": value}
    return raw, ()


def _without_numbers(raw: Json, written: Json) -> dict[str, Any]:
    """The pod without the numbers of its class where its user wrote none: the API server sets them again
    after admission has changed the class."""
    own = mapping(written.get("spec"))
    numbers = [name for name in ("priority", "preemptionPolicy") if name not in own]
    return {**raw, "spec": {name: each for name, each in raw["spec"].items() if name not in numbers}}


def _review(pod: Json, namespace: str) -> PodReview:
    """The pod, parsed as the webhook parses a review. Raises MalformedError."""
    request = {
        "uid": "review",
        "operation": "CREATE",
        "resource": {"resource": "pods"},
        "namespace": namespace,
        "dryRun": True,
        "object": pod,
    }
    whole = {"apiVersion": pod_review.API_VERSION, "kind": "AdmissionReview", "request": request}
    try:
        return pod_review.read(orjson.dumps(whole))
    except TypeError as error:
        raise MalformedError(f"not JSON that an API server accepts: {error}") from error


def _violations(
    asked: PodReview, answer: AdmissionAnswer, policy: AdmissionPolicy, standing: Standing
) -> tuple[Violation, ...]:
    """The violations for which an answer refuses."""
    parsed = policy.parsed(asked.pod, asked.namespace)
    refusing, _ = split_by_mode(pod_violations(asked.pod, parsed, policy), policy)
    return refusing or budget_violations(asked.namespace, standing, parsed.request) or (_of_text(answer),)


def _of_text(answer: AdmissionAnswer) -> Violation:
    """A refusal's text as a violation, where it is none of the others."""
    rule = answer.rules[0][0] if answer.rules else ""
    return Violation(rule, "", "", answer.refusal, "", "")


def _unreadable(kind: str, name: str, sentence: str) -> AdmissionOutcome:
    path, colon, problem = sentence.rpartition(": ")
    allowed = "what the Kubernetes API accepts"
    return AdmissionOutcome(
        kind,
        name,
        "unreadable",
        (Violation("unreadable", path if colon else "", "", problem, allowed, "apiVersion: v1, kind: Pod"),),
    )
