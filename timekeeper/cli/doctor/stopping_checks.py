"""What keeps GPU pods from starting though every role runs, and what webhook and agents say of what they
follow."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from timekeeper.cli.doctor.facts import (
    MAX_NODES,
    CheckResult,
    Facts,
    NotReadable,
    items,
    named,
    read_entries,
    unknown,
)
from timekeeper.cli.doctor.refusal_checks import left_out
from timekeeper.core.accelerators import accelerator_of, is_extended
from timekeeper.core.budgets.policy import DEFAULTS, UNLIMITED, BudgetSettings, group_key
from timekeeper.core.dialects import GPU_RESOURCE_PATTERN
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.names import AGENTS_NAMESPACE
from timekeeper.core.quantity import integral

_NEW, _FOLLOWED = "new pods", "watches"
_QUOTAS, _LACKING = "docs/governed-pods.md#resourcequotas", "insufficient quota to match these scopes"


def limits(facts: Facts) -> Iterator[CheckResult]:
    """No LimitRange gives devices to containers that name none, or demands some of the sidecar."""
    if isinstance(facts.limit_ranges, NotReadable):
        yield unknown(_NEW, facts.limit_ranges)
        return
    for limit_range in items(facts.limit_ranges):
        namespace, name = (str(limit_range["metadata"].get(key, "")) for key in ("namespace", "name"))
        command = f"kubectl edit limitrange {name} -n {namespace} (docs/governed-pods.md)"
        for limit in map(mapping, sequence(mapping(limit_range.get("spec")).get("limits"))):
            if limit.get("type") != "Container":
                continue
            where = f"a LimitRange of {namespace}"
            if least := _devices(limit, "min"):
                sentence = f"{where} demands {least} of every container: GPU pods with a sidecar are refused"
                yield CheckResult("warning", _NEW, sentence, command)
            elif given := _devices(limit, "default"):
                sentence = f"{where} gives {given} to each container that names none, also of CPU pods"
                yield CheckResult("warning", _NEW, sentence, command)


def _devices(limit: Json, field: str) -> str:
    amounts = mapping(limit.get(field)).items()
    return some_of(f"{amount} {name}" for name, amount in amounts if is_extended(name) and integral(amount))


def quotas(facts: Facts) -> Iterator[CheckResult]:
    """No ResourceQuota leaves out the classes that Bursar gives GPU pods, and none of a class is lacking."""
    for listed in (facts.quotas, facts.failed_creates):
        if isinstance(listed, NotReadable):
            yield unknown(_NEW, listed)
    if isinstance(facts.budgets, NotReadable) or isinstance(facts.quotas, NotReadable):
        return
    excluded = {*left_out(facts)}
    read, by_namespace = read_entries(facts.budgets), defaultdict[str, dict[str, list[Json]]](dict)
    for quota in items(facts.quotas):
        spec, terms = mapping(quota.get("spec")), _by_class(mapping(quota.get("spec")))
        namespace, name = (str(quota["metadata"][key]) for key in ("namespace", "name"))
        limits = [str(limit).removeprefix("requests.") for limit in mapping(spec.get("hard"))]
        has_gpus = any(GPU_RESOURCE_PATTERN.match(limit) or accelerator_of(limit) for limit in limits)
        if terms and has_gpus and namespace not in excluded:
            by_namespace[namespace][name] = terms
    for namespace, scoped in by_namespace.items():
        budget = read.budgets.get(namespace) or read.budgets.get(DEFAULTS, UNLIMITED)
        group = read.budgets.get(group_key(budget.group))
        *classes, keeps = (read.settings or BudgetSettings()).classes_of(budget, group)
        passing = [name for name in classes if not any(_counts(terms, name) for terms in scoped.values())]
        if passing and not keeps:
            sentence = (
                f"GPU pods of {namespace} get the class {' or '.join(passing)} in mode enforce, and pass the"
                f" ResourceQuota {some_of(scoped)}, for its scopeSelector leaves the class out"
            )
            cure = "name the class there, or priorityClasses: keep in the budget's entry"
            yield CheckResult("warning", _NEW, sentence, f"{cure} ({_QUOTAS})")
    refused = [] if isinstance(facts.failed_creates, NotReadable) else items(facts.failed_creates)
    said = ((str(event["metadata"]["namespace"]), str(event.get("message"))) for event in refused)
    for namespace, message in {where: text for where, text in said if _LACKING in text}.items():
        sentence, cure = f"refused in {namespace}: {message}", f"a quota of the class ({_QUOTAS})"
        yield CheckResult("warning", _NEW, sentence, cure)


def _by_class(spec: Json) -> list[Json]:
    """The terms of a ResourceQuota on PriorityClass."""
    terms = [{"scopeName": scope, "operator": "Exists"} for scope in sequence(spec.get("scopes"))]
    terms += [
        dict(mapping(term)) for term in sequence(mapping(spec.get("scopeSelector")).get("matchExpressions"))
    ]
    return [term for term in terms if term["scopeName"] == "PriorityClass"]


def _counts(terms: Iterable[Json], name: str) -> bool:
    """Whether all terms match pods of this class."""
    words = {"In": True, "NotIn": False}
    return all(
        (name in sequence(term.get("values"))) is words[term["operator"]]
        if term["operator"] in words
        else term["operator"] == "Exists"
        for term in terms
    )


def families(facts: Facts) -> Iterator[CheckResult]:
    """Where nodes have IPv6 alone, no role listens on IPv4."""
    if isinstance(facts.nodes, NotReadable):
        return
    addresses = [
        str(mapping(address).get("address", ""))
        for node in items(facts.nodes)
        for address in sequence(mapping(node.get("status")).get("addresses"))
        if mapping(address).get("type") == "InternalIP"
    ]
    if not addresses or not all(":" in address for address in addresses):
        return
    for listed in facts.workloads:
        for workload in () if isinstance(listed, NotReadable) else items(listed):
            if any("listen=0.0.0.0:" in argument for argument in _arguments(workload)):
                name = workload["metadata"]["name"]
                sentence = "it listens on 0.0.0.0, and the nodes have IPv6 alone: nobody reaches it"
                yield CheckResult("error", name, sentence, "[::] in place of 0.0.0.0 in its arguments")


def callers(facts: Facts) -> Iterator[CheckResult]:
    """Whether the webhook tells API servers from others, which not every cluster allows."""
    for webhook in filter(None, (named(each, "bursar-webhook") for each in facts.workloads)):
        is_set = any(argument.startswith("--client-ca=") for argument in _arguments(webhook))
        others = "whoever reaches its port: without --client-ca (docs/certificates.md) forged reviews count"
        said = "only clients with a certificate of --client-ca" if is_set else others
        yield CheckResult("ok", "webhook answers", said)


def _arguments(workload: Json) -> list[str]:
    """Those of all containers, and their variables as arguments."""
    template = mapping(mapping(workload.get("spec")).get("template"))
    found: list[str] = []
    for container in map(mapping, sequence(mapping(template.get("spec")).get("containers"))):
        found += map(str, sequence(container.get("args")))
        for variable in map(mapping, sequence(container.get("env"))):
            flag = str(variable.get("name")).removeprefix("BURSAR_").lower().replace("_", "-")
            found.append(f"--{flag}={variable.get('value')}")
    return found


def followers(facts: Facts) -> Iterator[CheckResult]:
    """What webhook and agents follow gets on, and they skip no object, by their own word."""
    silent: dict[str, NotReadable] = {}
    for role in () if isinstance(facts.followers, NotReadable) else facts.followers:
        home = AGENTS_NAMESPACE if role.component == "node" else facts.system_namespace
        for pod, said in role.said.items():
            if isinstance(said, NotReadable):
                silent.setdefault(role.component, said)
                continue
            for line in said.splitlines():
                if line.startswith("watch of "):
                    command = f"kubectl logs -n {home} {pod} --tail=50"
                    yield CheckResult("error", _FOLLOWED, f"{pod}: {line}", command)
        if role.others:
            sentence = f"{role.others} more agents were not asked, after {MAX_NODES}"
            yield CheckResult("unknown", _FOLLOWED, sentence, "the alert BursarWatchStuck (docs/alerts.md)")
    if isinstance(facts.followers, NotReadable):
        yield unknown(_FOLLOWED, facts.followers)
    for why in silent.values():
        yield unknown(_FOLLOWED, why)
