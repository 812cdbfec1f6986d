"""Whether one kube-scheduler, and only one, calls the extender for every GPU pod."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from timekeeper.cli.doctor.extender_entry import MANAGED_RESOURCES, is_ours
from timekeeper.cli.doctor.facts import (
    RELEASE,
    CheckResult,
    Facts,
    Level,
    NotReadable,
    applying,
    items,
    minor_of,
    named,
    unknown,
    upgrading,
)
from timekeeper.cli.doctor.taint_checks import needs_scheduler
from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.names import API_SERVICE, SCHEDULER

DEPLOYMENT, ALONE = "bursar-scheduler", "bursar-extender"
_SCHEDULER = "kube-scheduler"
_SCHEDULER_PAGE = "docs/kube-scheduler.md"


def schedulers(facts: Facts) -> Iterator[CheckResult]:
    """Which kube-scheduler calls the extender, and with which configuration."""
    if isinstance(facts.static_schedulers, NotReadable):
        yield unknown(_SCHEDULER, facts.static_schedulers)
        return
    static = items(facts.static_schedulers)
    patched = [each for each in static if is_patched(each)]
    second = _second(facts)
    if second is None and not patched and not needs_scheduler(facts):
        yield CheckResult("ok", _SCHEDULER, "placement is off, so none calls the extender")
    elif second is None and not patched:
        sentence = "no kube-scheduler calls the extender, so no GPU pod is bound"
        yield CheckResult(
            "error", _SCHEDULER, sentence, f"{applying(facts, 'scheduler.yaml')} ({_SCHEDULER_PAGE})"
        )
    elif second is not None and patched:
        sentence = f"the second kube-scheduler and the cluster's own one share the profile {SCHEDULER}"
        command = f"restore its manifest on each control plane node ({_SCHEDULER_PAGE})"
        yield CheckResult("error", _SCHEDULER, sentence, command)
    elif patched and len(patched) < len(static):
        names = ", ".join(str(each["spec"].get("nodeName", "")) for each in static if not is_patched(each))
        sentence = f"the static pod of {names} is not patched, as after an upgrade by kubeadm"
        yield CheckResult("error", _SCHEDULER, sentence, f"make the change there again ({_SCHEDULER_PAGE})")
    elif patched:
        yield CheckResult(
            "ok", _SCHEDULER, "the cluster's own kube-scheduler is patched on every control plane node"
        )
    if second is not None:
        yield from _configuration(facts)
        yield from _skew(facts, second)


def is_patched(pod: Any) -> bool:
    """Whether a static pod has the volume of docs/kube-scheduler.md."""
    volumes = sequence(mapping(pod.get("spec")).get("volumes"))
    return any(mapping(volume).get("name") == SCHEDULER for volume in volumes)


def _second(facts: Facts) -> Any:
    """The Deployment with kube-scheduler and extender, or None."""
    readable = (each for each in facts.workloads if not isinstance(each, NotReadable))
    return next((found for each in readable if (found := named(each, DEPLOYMENT))), None)


def _configuration(facts: Facts) -> Iterator[CheckResult]:
    if isinstance(facts.budgets, NotReadable):
        yield unknown("kube-scheduler's configuration", facts.budgets)
        return
    subject = "kube-scheduler's configuration"
    fault = _fault_of(named(facts.budgets, DEPLOYMENT))
    if fault:
        # kube-scheduler reads its configuration once
        restart = f"kubectl rollout restart -n {facts.system_namespace} deployment/{DEPLOYMENT}"
        yield CheckResult("error", subject, fault, f"{applying(facts, 'scheduler.yaml')}; {restart}")
    else:
        yield CheckResult("ok", subject, f"it calls the extender for {len(MANAGED_RESOURCES)} resources")


def _fault_of(config_map: Any) -> str:
    """What is wrong with the configuration; "": nothing."""
    try:
        read = mapping(
            yaml.safe_load(str(mapping(mapping(config_map).get("data")).get("scheduler.yaml", "")))
        )
    except yaml.YAMLError:
        return f"scheduler.yaml of the ConfigMap {DEPLOYMENT} is no YAML"
    profiles = {mapping(each).get("schedulerName") for each in sequence(read.get("profiles"))}
    ours = [each for each in sequence(read.get("extenders")) if is_ours(each)]
    if not ours:
        return "the extender is not registered, so GPU pods are bound without cards"
    if SCHEDULER not in profiles:
        return f"it has no profile {SCHEDULER}, which the webhook sets on GPU pods"
    managed = {mapping(each).get("name") for each in sequence(ours[0].get("managedResources"))}
    missing = [each for each in MANAGED_RESOURCES if each not in managed]
    if missing:
        return f"managedResources lacks {', '.join(missing)}, so pods that request them get no cards"
    return ""


def _skew(facts: Facts, deployment: Any) -> Iterator[CheckResult]:
    """A kube-scheduler is as old as the API server or one minor version older
    (kubernetes.io/releases/version-skew-policy)."""
    containers = sequence(mapping(deployment["spec"]["template"]["spec"]).get("containers"))
    images = [str(each.get("image", "")) for each in containers if each.get("name") == "kube-scheduler"]
    found = RELEASE.search(images[0]) if images else None
    server = minor_of(facts)
    if found and server and not server - 1 <= int(found[1]) <= server:
        sentence = f"kube-scheduler 1.{found[1]} does not fit the API server 1.{server}"
        image = f"{images[0].rpartition(':')[0]}:v1.{server}.PATCH"
        # without a tag the chart takes the API server's version
        command = upgrading(facts, "scheduler.tag=") or (
            f"kubectl set image -n {facts.system_namespace} deployment/{DEPLOYMENT} kube-scheduler={image}"
        )
        yield CheckResult("error", "versions", sentence, command)
    elif found and server:
        yield CheckResult("ok", "versions", f"kube-scheduler 1.{found[1]} fits the API server 1.{server}")


LEAST_MINOR = 30
_VERSIONS = "API server"
_VERSIONS_PAGE = "see docs/versions.md"


@dataclass(frozen=True, slots=True)
class NewerFeature:
    """Something that needs a newer Kubernetes than the least one. A warning: without it more is admitted."""

    minor: int
    level: Level
    missing: str  # what does not work, as a clause


NEWER_FEATURES = (
    NewerFeature(
        34, "warning", "the policies on device claims do not apply, for there is no resource.k8s.io/v1"
    ),
    NewerFeature(
        35,
        "warning",
        "a Binding puts no labels on pods, so those of nano-gpu, elastic-gpu and HAMi lack the label of a"
        " placed pod",
    ),
    NewerFeature(36, "ok", "deploy/samples/void-for-everyone.yaml cannot be applied"),
    NewerFeature(37, "ok", "API servers read no deploy/samples/static-policy.yaml"),
)


def version(facts: Facts) -> Iterator[CheckResult]:
    """The API server answers, is new enough, and what falls away because it is older than the newest."""
    if isinstance(facts.version, NotReadable):
        yield CheckResult("error", _VERSIONS, facts.version.reason, "kubectl version")
        return
    minor = minor_of(facts)
    if minor < LEAST_MINOR:
        older = f"Kubernetes 1.{minor} is older than 1.{LEAST_MINOR}, which the manifests need"
        sentence = f"{older}: no policy guards what Bursar writes, and no token names its node"
        yield CheckResult("error", _VERSIONS, sentence, _VERSIONS_PAGE)
        return
    yield CheckResult("ok", _VERSIONS, f"Kubernetes 1.{minor}")
    for each in NEWER_FEATURES:
        if minor < each.minor:
            sentence = f"it is older than 1.{each.minor}: {each.missing}"
            yield CheckResult(each.level, _VERSIONS, sentence, "" if each.level == "ok" else _VERSIONS_PAGE)


POLICIES = (  # deploy/manifests, compared by a test
    "bursar-anti-affinity",
    "bursar-bindings",
    "bursar-claim-allocations",
    "bursar-claim-finalizers",
    "bursar-claim-tolerations",
    "bursar-device-class-limits",
    "bursar-eviction-grace",
    "bursar-exemptions",
    "bursar-gpubudgets",
    "bursar-grace",
    "bursar-group-claims",
    "bursar-growth",
    "bursar-holds",
    "bursar-kept-devices",
    "bursar-mode-labels",
    "bursar-node-access",
    "bursar-node-agent",
    "bursar-notices",
    "bursar-overhead",
    "bursar-placed-by-others",
    "bursar-privileged",
    "bursar-protections",
    "bursar-releases",
    "bursar-resizes",
    "bursar-sidecar",
    "bursar-sizes",
    "bursar-ways-around",
    "bursar-written-once",
)
# These refuse no pod: they say which account writes what is Bursar's own, also while Bursar observes.
OF_OUR_OWN_FIELDS = (
    "bursar-gpubudgets",
    "bursar-holds",
    "bursar-kept-devices",
    "bursar-mode-labels",
    "bursar-node-agent",
    "bursar-notices",
    "bursar-releases",
)


def policies(facts: Facts) -> Iterator[CheckResult]:
    """Those that only warn by choice are named, and are no fault."""
    yield from _all(facts, "policies", facts.policies)
    lenient = _lenient(facts.policy_bindings)
    yield from _open(facts, lenient)
    warning = f"; only warning: {', '.join(lenient)}" if lenient else ""
    yield from _all(facts, "policy bindings", facts.policy_bindings, warning)


def _all(facts: Facts, subject: str, listed: Any, remark: str = "") -> Iterator[CheckResult]:
    if isinstance(listed, NotReadable):
        yield unknown(subject, listed)
        return
    missing = sorted(set(POLICIES) - {each["metadata"]["name"] for each in items(listed)})
    if missing:
        sentence = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        command = f"{applying(facts)} (docs/bypass.md says what each is for)"
        yield CheckResult("error", subject, sentence, command)
    else:
        yield CheckResult("ok", subject, f"all {len(POLICIES)} are there{remark}")


def _lenient(bindings: Any) -> list[str]:
    """The bindings that do not refuse, beside those for namespaces that are observed."""
    return sorted(
        each["metadata"]["name"]
        for each in items(bindings)
        if not each["metadata"]["name"].endswith("-observed")
        and "Deny" not in sequence(mapping(each.get("spec")).get("validationActions"))
    )


def _open(facts: Facts, lenient: list[str]) -> Iterator[CheckResult]:
    """Without these any account that may write pods or nodes could write fields that Bursar trusts."""
    found = [each for each in lenient if each in OF_OUR_OWN_FIELDS]
    if found:
        sentence = f"{', '.join(found)} must refuse: else other accounts can write what is Bursar's own"
        yield CheckResult("error", "policy bindings", sentence, applying(facts))


_API_SERVICE = "aggregated APIs"
_OF_GPUBUDGETS = "v1alpha1.bursar.dev"  # the API server has one for each CustomResourceDefinition


def api_services(facts: Facts) -> Iterator[CheckResult]:
    """Each APIService is available, and that of GPUBudgets exists; the timekeeper's need not."""
    if isinstance(facts.api_services, NotReadable):
        yield unknown(_API_SERVICE, facts.api_services)
        return
    away = {each["metadata"]["name"]: why for each in items(facts.api_services) if (why := _trouble(each))}
    for name, why in away.items():
        sentence = (
            f"{name} is not available ({why}), so discovery is incomplete and no namespace can be deleted"
        )
        command = f"kubectl describe apiservice {name}"
        if name == API_SERVICE:
            where = f"-n {facts.system_namespace} -l app.kubernetes.io/component=timekeeper"
            command = f"kubectl get pods {where}; or give it up: kubectl delete apiservice {name}"
        yield CheckResult("error", _API_SERVICE, sentence, command)
    if not named(facts.api_services, _OF_GPUBUDGETS):
        sentence = "the CustomResourceDefinition gpubudgets.bursar.dev is gone: kubectl get gpubudgets fails"
        yield CheckResult("warning", _API_SERVICE, sentence, applying(facts, "gpubudgets.yaml"))
    elif not away:
        yield CheckResult("ok", _API_SERVICE, "all are available")


def _trouble(api_service: Mapping[str, Any]) -> str:
    """Why it is not available; "" if it is."""
    conditions = sequence(mapping(api_service.get("status")).get("conditions"))
    found = next((mapping(each) for each in conditions if mapping(each).get("type") == "Available"), {})
    if found.get("status") == "True":
        return ""
    return str(found.get("message") or found.get("reason") or "it was never looked at")
