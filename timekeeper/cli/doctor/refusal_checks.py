"""Which workloads would get no new pods: software of the nodes would not come back after a restart."""

from collections.abc import Iterator, Mapping

from timekeeper.cli.doctor.facts import CheckResult, Facts, Level, NotReadable, items, named, unknown
from timekeeper.cli.doctor.taint_checks import gives_whole_cards
from timekeeper.core import names
from timekeeper.core.admission.mutation.whole_cards import counted_by_kueue
from timekeeper.core.admission.pods import MalformedError, checked_pod
from timekeeper.core.admission.rules.bypass import bypass_violations
from timekeeper.core.admission.rules.catalogue import CATALOGUE
from timekeeper.core.admission.rules.isolation import isolation_violations
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.request.request import parse_new

_SUBJECT = "new pods"
_MOST = 5  # namespaces, each with a result


def refusals(facts: Facts) -> Iterator[CheckResult]:
    """By namespace the workloads, also without a pod now, whose next pods are refused, or would be in mode
    `enforce`: by the policies, and by the rules on requests and isolation in their default modes."""
    if isinstance(facts.makers, NotReadable):
        yield unknown(_SUBJECT, facts.makers)
        return
    excluded = set(left_out(facts))
    broken: dict[str, dict[str, set[str]]] = {}
    gives = gives_whole_cards(facts)
    for workload in items(facts.makers):
        namespace = str(workload["metadata"].get("namespace", ""))
        rules = set(_rules(workload, namespace, gives(namespace)))
        if rules and namespace not in excluded:
            name = f"{workload['kind']} {workload['metadata']['name']}"
            broken.setdefault(namespace, {})[name] = rules
    modes: Mapping[str, str] = {} if isinstance(facts.modes, NotReadable) else mapping(facts.modes)
    usual = modes.get("", "meter" if facts.governs_nothing else "")
    found = [_result(name, broken[name], modes.get(name, usual)) for name in sorted(broken)]
    yield from found[:_MOST]
    if left := found[_MOST:]:
        sentence = f"the same holds in {len(left)} more namespaces"
        level = max((result.level for result in left), key=["ok", "warning"].index)
        yield CheckResult(level, _SUBJECT, sentence, "bursar-webhook audit (docs/review.md)")


def left_out(facts: Facts) -> Iterator[str]:
    """The namespaces that admission excludes: by their name, the installation's values, or a label."""
    yield from names.SYSTEM_NAMESPACES
    if not isinstance(facts.exempt, NotReadable):
        yield from (namespace["metadata"]["name"] for namespace in items(facts.exempt))
    policy = None if isinstance(facts.policies, NotReadable) else named(facts.policies, "bursar-ways-around")
    constraints = mapping(mapping(mapping(policy).get("spec")).get("matchConstraints"))
    for term in sequence(mapping(constraints.get("namespaceSelector")).get("matchExpressions")):
        if (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", "NotIn"):
            yield from term["values"]


def _rules(workload: Json, namespace: str, gives_cards: bool) -> Iterator[str]:
    """What the pods of its template break, of what refuses. ``gives_cards``: Bursar gives whole cards."""
    spec = mapping(workload.get("spec"))
    template = mapping(mapping(mapping(spec.get("jobTemplate")).get("spec") or spec).get("template"))
    metadata = {**mapping(template.get("metadata")), "namespace": namespace}
    try:
        pod = checked_pod({"metadata": metadata, "spec": template.get("spec")}, "")
    except MalformedError:
        return  # the API server takes no such template
    parsed = parse_new(pod, "pass")
    is_ours = gives_cards and not (counted_by_kueue(workload) or counted_by_kueue(pod))
    of_request = (
        isolation_violations(pod, parsed.request, is_ours=is_ours) if parsed.request is not None else ()
    )
    for violation in (*bypass_violations(pod, parsed), *parsed.violations, *of_request):
        known = CATALOGUE.get(violation.rule)
        if known is None or known.default == "enforce":
            yield violation.rule


def _result(namespace: str, broken: Mapping[str, set[str]], mode: str) -> CheckResult:
    rules = ", ".join(sorted(set().union(*broken.values())))
    under = "are refused" if mode == "enforce" else "would be refused in mode enforce"
    sentence = f"those of {some_of(list(broken))} in {namespace} {under}, also after a restart ({rules})"
    command = (
        f"kubectl label namespace {namespace} bursar.dev/exempt=true, if they run the nodes"
        " (docs/bypass.md#excluded-namespaces)"
    )
    level: Level = "ok" if mode == "meter" else "warning"
    return CheckResult(level, _SUBJECT, sentence, command)
