"""Judges one object of a manifest as admission would at its creation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from timekeeper.core import names
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.admission.json_patch import patched
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.rules import without_effect
from timekeeper.core.admission.rules.bypass import bypass_violations, suspect_violations
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.rules.forged import without_marks
from timekeeper.core.admission.rules.modes import split_by_mode
from timekeeper.core.admission.rules.pod_rules import pod_violations
from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.dialects.others.claims import NAME as CLAIMS
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.names import Mode
from timekeeper.core.request.devices import unclassified
from timekeeper.core.request.metered import metered_request, of_devices
from timekeeper.core.request.request import ParsedRequest, canonical, containers, parse_stored
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.violation import Violation, first_of, message, shown
from webhook.admission import budgets, pods, workloads
from webhook.admission.validation import validate
from webhook.admission.warnings import observed, violation_warnings
from webhook.dryrun.judge.assumed_cluster import AssumedCluster
from webhook.wire import defaulting, pod_review
from webhook.wire.pod_review import AdmissionAnswer, PodReview

_ALL_CHARACTERS = 1 << 40  # unlike a serving worker this process has time

Word = Literal["admitted", "refused", "not-reviewed", "unreadable"]
Effect = Literal["governed", "observed", "metered", "not-governed"]
_EFFECTS: dict[Mode, Effect] = {"enforce": "governed", "observe": "observed", "meter": "metered"}


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What becomes of an admitted pod, or of the pods of a template at ``path``. ``request``: as the
    annotation has it, or as the ledger charges it; "": none. ``reason``: why that is assumed, or what of it
    cannot be read."""

    path: str
    effect: Effect
    request: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    pods: tuple[PodOutcome, ...] = ()


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


def kind_of(value: Any) -> tuple[str, str]:
    """The object's API group and kind; "" where it has none."""
    version, kind = mapping(value).get("apiVersion"), mapping(value).get("kind")
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    return group, kind if isinstance(kind, str) else ""


def unread(value: Any, sentence: str) -> AdmissionOutcome:
    """The outcome for a value that is not an object."""
    return _unreadable(kind_of(value)[1], name_of(value), sentence)


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
        return AdmissionOutcome(kind=self.kind, name=self.name, verdict=word, warnings=warnings)

    def refused(self, violations: Iterable[Violation], warnings: Iterable[str]) -> AdmissionOutcome:
        """An outcome that is refused where there is a violation, else admitted."""
        found = tuple(violations)
        return replace(self.outcome("refused" if found else "admitted", *warnings), violations=found)


def judged(value: Any, world: AssumedCluster) -> AdmissionOutcome:
    """The outcome for any JSON value. Never raises."""
    group, kind = kind_of(value)
    if not kind or not isinstance(value.get("apiVersion"), str) or not value["apiVersion"]:
        return unread(value, "apiVersion or kind is missing, so this is not a Kubernetes object")
    if not isinstance(value.get("metadata"), dict | None):
        return unread(value, "metadata: must be an object")
    given = mapping(value.get("metadata")).get("namespace")
    namespace = given if isinstance(given, str) and given else world.namespace
    subject = _Subject(value, group, kind, namespace, name_of(value))
    try:
        return _of_kind(subject, world)
    except MalformedError as error:
        return unread(value, str(error).replace("request.object.", ""))


def _of_kind(subject: _Subject, world: AssumedCluster) -> AdmissionOutcome:
    group, kind = subject.group, subject.kind
    if (group, kind) == ("", "ConfigMap"):
        return _budgets(subject)
    if right := _own_version(group, kind):
        raise MalformedError(f"apiVersion: {subject.value['apiVersion']} has no {kind}; write {right}")
    paths = workloads.of_kind(group, kind, (*workloads.BUILT_IN, *world.template_paths))
    if not paths and (group, kind) != ("", "Pod"):
        return subject.outcome("not-reviewed", *dict.fromkeys(_unread_templates(subject, world)))
    if subject.namespace in names.SYSTEM_NAMESPACES or subject.namespace in world.exempt:
        return subject.outcome("not-reviewed", f"Admission excludes namespace {subject.namespace}.")
    return _workload(subject, paths, world) if paths else _pod(subject, world)


def _own_version(group: str, kind: str) -> str:
    """The apiVersion of a kind of Kubernetes' own where another of its groups is written; "": it is right, or
    another system's."""
    groups = {"Pod": "", **{path.kind: path.group for path in workloads.BUILT_IN}}
    if group not in ("", "apps", "batch", "extensions") or groups.get(kind, group) == group:
        return ""
    return f"{groups[kind]}/v1" if groups[kind] else "v1"


def _unread_templates(subject: _Subject, world: AssumedCluster) -> Iterator[str]:
    """For an object of another kind, the flag that has its templates of pods with GPUs reviewed; where no
    flag can, that they are not."""
    found = tuple(_flags_for(subject, world))
    yield from found
    if not found and (at := next(_amounts_of_gpus(subject.value, ()), ())):
        yield f"It requests GPUs in {'.'.join(at)}; its pods are reviewed when they are created, not here."


def _amounts_of_gpus(value: Any, steps: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of limits and requests that name GPUs or other accelerators, wherever they stand."""
    members = enumerate(value) if isinstance(value, list) else mapping(value).items()
    for step, member in members:
        path = (*steps, str(step))
        if step in ("limits", "requests") and any(map(_is_of_gpus, mapping(member))):
            yield path
        elif isinstance(member, dict | list):
            yield from _amounts_of_gpus(member, path)


def _is_of_gpus(resource: object) -> bool:
    name = str(resource)
    return bool(GPU_RESOURCE_PATTERN.match(name)) or accelerator_of(name) is not None


def _flags_for(subject: _Subject, world: AssumedCluster) -> Iterator[str]:
    policy = world.policy_for(subject.namespace)
    for steps, template in _templates(subject.value, ()):
        text = f"{subject.group}/{subject.kind}={'.'.join(steps)}"
        try:
            workloads.read_path(text)
            _, parsed = workloads.read_template(template, ".".join(steps), policy, subject.namespace)
        except (workloads.BadPathError, MalformedError):
            continue
        if parsed.request is not None or parsed.violations:
            yield f"Its pods request GPUs; --template-path '{text}' reviews this template."


def _templates(value: Any, steps: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The pod templates in an object, each by the steps of a path to it."""
    if isinstance(value, list):
        for member in value:
            yield from _templates(member, (*steps, "*"))
    elif isinstance(value, dict):
        if steps and mapping(value.get("spec")).get("containers"):
            yield steps, value
            return
        for name, member in value.items():
            yield from _templates(member, (*steps, "*" if "." in name else name))


def _pod(subject: _Subject, world: AssumedCluster) -> AdmissionOutcome:
    namespace, policy = subject.namespace, world.policy_for(subject.namespace)
    raw, told = _resolved(defaulting.pod(subject.value), namespace, world)
    asked = _review(raw, namespace)
    answer = pods.mutate(asked, lambda _: world.standing_of(namespace), policy)
    parsed = policy.parsed(asked.pod, asked.namespace)
    past, suspected = _by_policies(asked.pod, parsed, policy, world)
    warnings = () if policy.mode == "meter" else (*answer.warnings, *told, *suspected)
    if answer.refusal:
        found = _violations(asked, answer, policy, world.standing_of(namespace))
        return subject.refused((*found, *past), warnings)
    if past:
        return subject.refused(past, warnings)
    outcome = replace(
        subject.outcome("admitted", *warnings), pods=(_pod_outcome("", asked.pod, parsed, policy),)
    )
    if not answer.operations:
        return outcome
    after = patched(raw, answer.operations)
    checked = validate(_review(_resolved(after, namespace, world)[0], namespace), policy)
    if checked.refusal:
        return subject.refused((_of_text(checked),), warnings)
    return replace(outcome, before=_without_numbers(raw, subject.value), after=after)


def _pod_outcome(path: str, pod: Json, parsed: ParsedRequest, policy: AdmissionPolicy) -> PodOutcome:
    """Where pods are not governed, as the ledger reads them: it charges what admission would refuse, too."""
    request, reason = parsed.request, ""
    if policy.mode != "enforce" and (request is None or request.dialect != CLAIMS):
        stored = parse_stored(pod)
        reason = stored.violations[0].sentence() if stored.violations else ""
        metered = metered_request(pod, stored)
        models = {name: name for name in policy.accelerators}
        request = of_devices(metered.request, models) if metered else None
        reason = metered.doubt if metered else reason
    if request is None:
        return PodOutcome(path, "not-governed", reason=reason or _not_classified(pod, policy))
    return PodOutcome(path, _EFFECTS[policy.mode], canonical(request), reason)


def _not_classified(pod: Json, policy: AdmissionPolicy) -> str:
    amounts = (asked_limits(container.raw) for container in containers(pod))
    names = dict.fromkeys(name for limits in amounts for name in unclassified(limits, policy.devices))
    if not names:
        return ""
    return f"nothing says whether {first_of(tuple(names), 3)} is an accelerator; devices in _settings can"


def _by_policies(
    pod: Json, parsed: ParsedRequest, policy: AdmissionPolicy, world: AssumedCluster
) -> tuple[tuple[Violation, ...], tuple[str, ...]]:
    """What the policies inside the API server refuse, and what they warn of: in observe mode they refuse
    nothing, and in meter they say nothing."""
    if policy.mode == "meter":
        return (), ()
    by_rules = set(pod_violations(pod, parsed, policy))
    past = tuple(
        violation
        for violation in bypass_violations(pod, parsed, world.device_classes)
        if violation not in by_rules
    )
    suspected = tuple(_warned(suspect_violations(pod, parsed)))
    if policy.mode == "observe":
        return (), (*(f"{observed(violation)} ({violation.rule})" for violation in past), *suspected)
    return past, suspected


def _workload(
    subject: _Subject, paths: tuple[workloads.TemplatePath, ...], world: AssumedCluster
) -> AdmissionOutcome:
    refusing: list[Violation] = []
    warnings: list[str] = []
    outcomes: list[PodOutcome] = []
    templates = workloads.found(subject.value, paths)
    if not templates:
        places = " or ".join(".".join(path.steps) for path in paths)
        return subject.outcome("not-reviewed", f"There is no pod template at {places}.")
    for at, template in templates:
        try:
            found, told, outcome = _template(subject, at, template, world)
        except MalformedError as broken:
            error = str(broken).replace("request.object.", f"{at}.")
            if paths[0] in workloads.BUILT_IN:
                raise MalformedError(error) from broken
            found, told, outcome = (), (f"This pod template is not reviewed: {error}",), ()
        refusing += found
        warnings += told
        outcomes += outcome
    policy = world.policy_for(subject.namespace)
    exempt = workloads.makers_are_exempt(subject.group, subject.kind, policy)
    if policy.mode != "meter":
        misplaced = without_effect.of_workload(subject.value, subject.kind, templates)
        found, warned = split_by_mode(misplaced, policy, exempt)
        refusing += found
        warnings += violation_warnings(warned, policy, exempt)
    judged = subject.refused(refusing, dict.fromkeys(warnings))
    return judged if refusing else replace(judged, pods=tuple(outcomes))


def _template(
    subject: _Subject, at: str, template: Json, world: AssumedCluster
) -> tuple[tuple[Violation, ...], tuple[str, ...], tuple[PodOutcome, ...]]:
    """The violations of a workload because of one template, the warnings about its pods, and, unless they
    would be refused, what becomes of them."""
    namespace, policy = subject.namespace, world.policy_for(subject.namespace)
    exempt = workloads.makers_are_exempt(subject.group, subject.kind, policy)
    raw, told = _resolved(workloads.as_pod(template), namespace, world)
    asked = _review(raw, namespace)
    parsed = policy.parsed(asked.pod, namespace)
    outcome = (_pod_outcome(at, asked.pod, parsed, policy),)
    if policy.mode == "meter":
        return (), (), outcome
    pod, _ = workloads.read_template(template, at, policy, namespace)
    broken = workloads.template_violations(pod, parsed, at, policy)
    found, _ = split_by_mode(broken, policy, exempt)
    answer = pods.mutate(asked, lambda _: world.standing_of(namespace), policy)
    past, suspected = _by_policies(asked.pod, parsed, policy, world)
    suspected = tuple(f"{at}: {sentence}" for sentence in suspected)
    refusal = answer.refusal or (message(past) if past else "")
    if refusal and not found:
        told = (f"{at}: its pods would be refused: {refusal}", *told)
    return found, (*answer.warnings, *told, *suspected), () if refusal else outcome


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
    entries = budgets.entries(budgets.entries_of(subject.value), _ALL_CHARACTERS)
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
    pod = without_marks(asked.pod, policy)
    parsed = policy.parsed(pod, asked.namespace)
    refusing, _ = split_by_mode(pod_violations(pod, parsed, policy), policy)
    return refusing or budget_violations(asked.namespace, standing, parsed.request) or (_of_text(answer),)


def _of_text(answer: AdmissionAnswer) -> Violation:
    """A refusal's text as a violation, where it is none of the others."""
    rule = answer.rules[0][0] if answer.rules else ""
    return Violation(rule, "", "", answer.refusal, "", "")


def _unreadable(kind: str, name: str, sentence: str) -> AdmissionOutcome:
    path, colon, problem = sentence.rpartition(": ")
    allowed = "what the Kubernetes API accepts"
    unreadable = Violation(
        "unreadable", path if colon else "", "", problem, allowed, "apiVersion: v1, kind: Pod"
    )
    return AdmissionOutcome(kind=kind, name=name, verdict="unreadable", violations=(unreadable,))
