"""The checks, in the order in which their results are mended: each needs what stands before it."""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from timekeeper.cli.connection import Options
from timekeeper.cli.doctor.accelerator_checks import accelerators, editing_settings
from timekeeper.cli.doctor.claim_checks import reclaimed_devices, served_claims
from timekeeper.cli.doctor.cluster_checks import (
    ALONE,
    DEPLOYMENT,
    api_services,
    policies,
    schedulers,
    version,
)
from timekeeper.cli.doctor.doubt_checks import findings
from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    Readiness,
    applying,
    items,
    logs_of,
    named,
    read_entries,
    read_facts,
    unknown,
)
from timekeeper.cli.doctor.mode_checks import left_behind, modes, parameters
from timekeeper.cli.doctor.node_checks import (
    AGENT,
    runtimes,
)
from timekeeper.cli.doctor.refusal_checks import refusals
from timekeeper.cli.doctor.stopping_checks import callers, families, followers, limits, quotas
from timekeeper.cli.doctor.taint_checks import needs_scheduler, placement, queued_cards, taints
from timekeeper.cli.output import PrintedColumn, PrintedSheet
from timekeeper.core.budgets import config_maps
from timekeeper.core.certificate_end import ends
from timekeeper.core.findings import some_of
from timekeeper.core.json_values import Json, mapping, sequence
from timekeeper.core.names import AGENTS_NAMESPACE, BUDGETS_LABEL

TIMEKEEPER = "bursar-timekeeper"
WORKLOADS = ("bursar-certificates", TIMEKEEPER, "bursar-webhook", DEPLOYMENT, AGENT)
CONFIGURATION = "zz-bursar"
_ZONE = re.compile(r"""^timeZone:[ \t]*["']?([^\s"'#]+)""", re.MULTILINE)
_SOON_S = 7 * 86_400
_CLOCK_S = 5
_NO_ADMINISTRATOR = '"bursar-admin" not found'
_ADMINISTRATOR = "kubectl apply --server-side -f deploy/samples/administrator.yaml (docs/cli.md)"

Check = Callable[[Facts], Iterator[CheckResult]]


def results(facts: Facts) -> list[CheckResult]:
    """Of all checks, in order."""
    return [result for check in _checks_of(facts) for result in check(facts)]


def _checks_of(facts: Facts) -> tuple[Check, ...]:
    if is_outside(facts):
        return CHECKS_OUTSIDE
    if runs_alone(facts):
        return CHECKS_ALONE
    return CHECKS_BESIDE if _urls(facts) else CHECKS


def runs_alone(facts: Facts) -> bool:
    """Whether the timekeeper is a ledger alone: then nothing else has to be there. Where it does not answer,
    its workload's arguments tell."""
    if facts.governs_nothing is not None:
        return facts.governs_nothing
    template = mapping(mapping(mapping(_installed(facts)).get("spec")).get("template"))
    containers = sequence(mapping(template.get("spec")).get("containers"))
    return any("meter" in sequence(mapping(each).get("args")) for each in containers)


def is_outside(facts: Facts) -> bool:
    """Whether the ledger is on somebody's machine: it has an address, the cluster has no timekeeper, and it
    governs nothing, or does not answer and nothing of Bursar is installed."""
    if not facts.is_by_address or _installed(facts) is not None:
        return False
    if facts.governs_nothing is None:
        return not any(map(items, _readable(facts)))
    return facts.governs_nothing


def _urls(facts: Facts) -> set[str]:
    """Where the API server calls the webhook if all of Bursar runs beside the cluster, as in `make up`."""
    if (
        not facts.is_by_address
        or any(map(items, _readable(facts)))
        or isinstance(facts.mutating, NotReadable)
    ):
        return set()
    called = sequence(mapping(named(facts.mutating, CONFIGURATION)).get("webhooks"))
    urls = {str(mapping(each.get("clientConfig")).get("url", "")) for each in called}
    return set() if "" in urls else {str(urlsplit(each).netloc) for each in urls}


def _installed(facts: Facts) -> Any:
    """The timekeeper's workload in the cluster, or None."""
    return next((found for each in _readable(facts) if (found := named(each, TIMEKEEPER))), None)


def _readable(facts: Facts) -> list[Any]:
    return [each for each in facts.workloads if not isinstance(each, NotReadable)]


def namespace(facts: Facts) -> Iterator[CheckResult]:
    """Bursar is installed at all."""
    if isinstance(facts.namespace, NotReadable):
        yield unknown("namespace", facts.namespace)
    elif facts.namespace is None:
        yield CheckResult(
            "error",
            "namespace",
            "Bursar's namespace does not exist",
            "helm install bursar deploy/chart -n kube-system --set images.prefix=REGISTRY (docs/install.md)",
        )


def workloads(facts: Facts) -> Iterator[CheckResult]:
    """Each role runs, with all replicas ready."""
    found: dict[str, Any] = {}
    for listed in facts.workloads:
        if isinstance(listed, NotReadable):
            yield unknown("roles", listed)
            return
        found |= {each["metadata"]["name"]: each for each in items(listed)}
    wanted_here = (TIMEKEEPER,) if runs_alone(facts) else WORKLOADS
    for name in (ALONE if each == DEPLOYMENT and ALONE in found else each for each in wanted_here):
        home = AGENTS_NAMESPACE if name == AGENT else facts.system_namespace
        if name not in found:
            if name not in (DEPLOYMENT, AGENT) or needs_scheduler(facts):
                yield _missing(name, facts)
            continue
        wanted, ready = _replicas(found[name])
        if ready < wanted:
            sentence = f"{ready} of {wanted} pods are ready"
            yield CheckResult(
                "error", name, sentence, f"kubectl get pods -n {home}; kubectl describe pods -n {home}"
            )
        else:
            yield CheckResult("ok", name, f"{ready} pods are ready")


def roles_beside(facts: Facts) -> Iterator[CheckResult]:
    """No role runs in the cluster."""
    at = ", ".join(sorted(_urls(facts)))
    sentence = f"none runs in this cluster: the API server calls the webhook at {at}"
    yield CheckResult("ok", "roles", sentence)


def _missing(name: str, facts: Facts) -> CheckResult:
    """Only the agent can be left out: a node's inventory may be written by hand."""
    if name == AGENT:
        sentence = "no agent runs, so every inventory must be written by hand"
        return CheckResult(
            "warning", name, sentence, f"{applying(facts, 'node-agent.yaml')} (docs/node-agent.md)"
        )
    return CheckResult("error", name, "it is not installed", f"{applying(facts)} (docs/install.md)")


def webhooks(facts: Facts) -> Iterator[CheckResult]:
    """The API server asks the webhook, and trusts a CA that is valid."""
    if isinstance(facts.mutating, NotReadable) or isinstance(facts.validating, NotReadable):
        yield unknown(
            "webhooks", next(x for x in (facts.mutating, facts.validating) if isinstance(x, NotReadable))
        )
        return
    ours = {"mutating": named(facts.mutating, CONFIGURATION), "validating": facts.validating}
    for kind, configuration in ours.items():
        if configuration is None:
            sentence = "it does not exist, so GPU pods are not governed"
            command = applying(facts, "webhook-configurations.yaml")
            yield CheckResult("error", f"{kind} webhooks", sentence, command)
            continue
        yield from _trusted(f"{kind} webhooks", configuration, facts)
    yield from _later_webhooks(facts.mutating)


def _trusted(subject: str, configuration: Any, facts: Facts) -> Iterator[CheckResult]:
    bundles = {
        str(mapping(each.get("clientConfig")).get("caBundle", ""))
        for each in sequence(configuration.get("webhooks"))
    }
    command = logs_of(facts, "certificates")
    if "" in bundles:
        sentence = "the caBundle is empty, so the API server cannot call the webhook and refuses GPU pods"
        yield CheckResult("error", subject, sentence, command)
        return
    try:
        ends_s = min(_end_s(each) for each in bundles)
    except ValueError:
        yield CheckResult("error", subject, "the caBundle contains no readable certificate", command)
        return
    if ends_s < facts.now_s + _SOON_S:
        end = datetime.fromtimestamp(ends_s, UTC)
        level, verb = ("error", "ended") if ends_s < facts.now_s else ("warning", "ends")
        sentence = f"the newest CA of the caBundle {verb} at {end:%Y-%m-%d %H:%M}Z"
        yield CheckResult(level, subject, sentence, command)  # type: ignore[arg-type]
    else:
        yield CheckResult("ok", subject, "the caBundle is valid")


def _end_s(bundle: str) -> float:
    """When the last CA of a bundle ends. Raises ValueError."""
    return max(each.timestamp() for each in ends(base64.b64decode(bundle, validate=True).decode("ascii")))


def _later_webhooks(listed: Any) -> Iterator[CheckResult]:
    """Webhooks that the API server calls after ours may change what ours wrote; ours is called again then."""
    for each in items(listed):
        name = str(each["metadata"]["name"])
        for webhook in sequence(each.get("webhooks")):
            if name > CONFIGURATION and _is_about_pods(webhook):
                sentence = f"{name} is called after {CONFIGURATION} and may change governed pods"
                yield CheckResult(
                    "warning",
                    "other webhooks",
                    sentence,
                    f"kubectl get mutatingwebhookconfiguration {name} -o yaml",
                )
                break


def timekeeper(facts: Facts) -> Iterator[CheckResult]:
    """It answers, is ready, and its clock is ours."""
    if isinstance(facts.readiness, NotReadable) and facts.readiness.is_away:
        *said, _ = facts.readiness.reason.splitlines()  # the last line is what to do
        command = f"kubectl describe pods -n {facts.system_namespace}; {logs_of(facts, 'timekeeper')}"
        yield CheckResult("error", "timekeeper", " ".join(said), command)
        return
    if isinstance(facts.readiness, NotReadable):
        found = unknown("timekeeper", facts.readiness)
        yield replace(found, command=_ADMINISTRATOR) if _NO_ADMINISTRATOR in found.sentence else found
        return
    ready: Readiness = facts.readiness
    if ready.status != 200:
        command = logs_of(facts, "timekeeper")
        yield CheckResult("error", "timekeeper", f"it is not ready: {ready.text}", command)
    else:
        yield CheckResult("ok", "timekeeper", "database and settler are ready")
    if ready.ahead_s is not None and abs(ready.ahead_s) > _CLOCK_S:
        sentence = f"the timekeeper's clock differs from this machine's by {ready.ahead_s:.0f} s"
        yield CheckResult("warning", "clocks", sentence, "timedatectl set-ntp true, on the nodes and here")


def broken_entries(facts: Facts) -> Iterator[CheckResult]:
    """No budget entry has a mistake."""
    for sentence in () if isinstance(facts.broken, NotReadable) else facts.broken:
        named = re.search(r"\bConfigMap ([a-z0-9.-]+): ", sentence)
        edit = f"kubectl edit configmap {named[1]}" if named else "kubectl get configmaps"
        command = f"{edit} -n {facts.system_namespace} (docs/budget-settings.md)"
        yield CheckResult("error", "budget entries", sentence, command)


def budgets(facts: Facts) -> Iterator[CheckResult]:
    """There is a budget, and a namespace for each."""
    if isinstance(facts.budgets, NotReadable):
        yield unknown("budgets", facts.budgets)
        return
    entries = config_maps.counting_entries(items(facts.budgets))
    yield from _not_counting(items(facts.budgets), entries, facts.system_namespace)
    for sentence in read_entries(facts.budgets).in_force.ended:
        yield CheckResult("warning", "budgets", f"_settings: {sentence}", editing_settings(facts))
    keys = [
        key for texts in entries.values() for key in texts if key == "_defaults" or not key.startswith("_")
    ]
    missing = _without_namespace(keys, facts.namespaces) if isinstance(facts.namespaces, str) else []
    if missing:
        have = "an entry, and there is no such namespace: is the name right?"
        sentence = f"{some_of(missing)} {'has' if len(missing) == 1 else 'have'} {have}"
        yield CheckResult("warning", "budgets", sentence, "kubectl get namespaces")
    elif keys:
        yield CheckResult("ok", "budgets", f"{len(keys)} namespaces or defaults have an entry")
    else:
        sentence = "no ConfigMap has a budget, so every namespace is unlimited"
        command = "kubectl apply --server-side -f deploy/samples/budgets.yaml, with your namespaces"
        yield CheckResult("warning", "budgets", sentence, command)


def _not_counting(
    listed: Iterable[Json], entries: Mapping[str, object], namespace: str
) -> Iterator[CheckResult]:
    """ConfigMaps that look like budgets, and of which nothing counts."""
    for name, sentence in config_maps.unread_sentences(listed).items():
        label = f"kubectl label configmap {name} -n {namespace} {BUDGETS_LABEL}=true"
        yield CheckResult("warning", "budgets", sentence, f"{label} (docs/budget-settings.md)")
    for name in {raw["metadata"]["name"] for raw in listed if config_maps.is_read(raw)} - entries.keys():
        sentence = f"ConfigMap {name} does not count: one with another ending of this name is newer"
        yield CheckResult("warning", "budgets", sentence, f"kubectl delete configmap {name} -n {namespace}")


def _without_namespace(keys: Iterable[str], namespaces: str) -> list[str]:
    """The namespaces of these entries that do not exist. ``namespaces``: as ``kubectl get -o name`` has
    them."""
    there = {line.removeprefix("namespace/") for line in namespaces.split()}
    return [key for key in keys if not key.startswith("_") and key not in there]


def time_zone(facts: Facts) -> Iterator[CheckResult]:
    """The timekeeper counts by the time zone of `_settings`: an older image may not know it."""
    if isinstance(facts.time_zone, NotReadable) or isinstance(facts.budgets, NotReadable):
        return  # said by the checks of the timekeeper and of the budgets
    if facts.time_zone is None:
        return
    texts = [str(mapping(each.get("data")).get("_settings", "")) for each in items(facts.budgets)]
    wanted = [found[1] for text in texts if (found := _ZONE.search(text))] or ["UTC"]
    if facts.time_zone in wanted:
        yield CheckResult("ok", "time zone", f"periods follow {facts.time_zone}")
    else:
        sentence = (
            f"_settings has timeZone {', '.join(wanted)}, and the present period follows {facts.time_zone}:"
            " a change waits for the next period, and for an image that knows the zone"
        )
        command = f"{logs_of(facts, 'timekeeper', -1)} | grep -i zone"
        yield CheckResult("warning", "time zone", sentence, command)


CHECKS: tuple[Check, ...] = (
    version,
    namespace,
    workloads,
    families,
    api_services,
    webhooks,
    callers,
    policies,
    parameters,
    timekeeper,
    time_zone,
    schedulers,
    budgets,
    broken_entries,
    modes,
    refusals,
    limits,
    quotas,
    placement,
    queued_cards,
    taints,
    runtimes,
    accelerators,
    served_claims,
    findings,
    followers,
    reclaimed_devices,
)


# of a ledger alone
CHECKS_ALONE: tuple[Check, ...] = (
    version,
    namespace,
    workloads,
    families,
    timekeeper,
    time_zone,
    budgets,
    broken_entries,
    modes,
    left_behind,
    refusals,
    findings,
)


# where all of Bursar runs beside the cluster
CHECKS_BESIDE: tuple[Check, ...] = tuple(
    roles_beside if each is workloads else each for each in CHECKS if each is not schedulers
)

# of a ledger on somebody's machine
CHECKS_OUTSIDE = tuple(
    each for each in CHECKS_ALONE if each not in (namespace, workloads, time_zone, budgets)
)


def _replicas(workload: Mapping[str, Any]) -> tuple[int, int]:
    """How many pods are wanted, and how many are ready."""
    status = mapping(workload.get("status"))
    if workload.get("kind") == "DaemonSet":
        return int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
    return int(mapping(workload.get("spec")).get("replicas", 1)), int(status.get("readyReplicas", 0))


def _is_about_pods(webhook: Mapping[str, Any]) -> bool:
    return any(
        {"pods", "*", "*/*"} & set(map(str, sequence(rule.get("resources"))))
        for rule in sequence(webhook.get("rules"))
    )


_COLUMNS = (
    PrintedColumn("level", "RESULT"),
    PrintedColumn("subject", "ABOUT"),
    PrintedColumn("sentence", "FINDING", wraps=True),
    PrintedColumn("command", "WHAT TO DO", wraps=True),
)


def examine(options: Options) -> tuple[PrintedSheet, bool]:
    """The sheet of all results, and whether one is an error."""
    found = results(read_facts(options))
    rows = tuple(
        {"level": each.level, "subject": each.subject, "sentence": each.sentence, "command": each.command}
        for each in found
    )
    return PrintedSheet(_COLUMNS, rows), any(each.level == "error" for each in found)
