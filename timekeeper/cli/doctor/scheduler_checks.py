"""Whether one kube-scheduler, and only one, calls the extender for every GPU pod."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from timekeeper.cli.doctor.check_result import CheckResult
from timekeeper.cli.doctor.facts import Facts, NotReadable
from timekeeper.cli.doctor.reading import applying, items, minor_of, named, unknown, upgrading
from timekeeper.cli.scheduler.configuration import GPU_PROFILE, MANAGED_RESOURCES, is_ours
from timekeeper.cli.scheduler.static_pod import is_patched
from timekeeper.core.json_values import mapping, sequence

DEPLOYMENT, ALONE = "bursar-scheduler", "bursar-extender"
_SUBJECT = "kube-scheduler"
_PAGE = "docs/kube-scheduler.md"
_TAG = re.compile(r":v?1\.(\d+)\.\d+")


def schedulers(facts: Facts) -> Iterator[CheckResult]:
    """Which kube-scheduler calls the extender, and with which configuration."""
    if isinstance(facts.static_schedulers, NotReadable):
        yield unknown(_SUBJECT, facts.static_schedulers)
        return
    static = items(facts.static_schedulers)
    patched = [each for each in static if is_patched(each)]
    second = _second(facts)
    if second is None and not patched:
        sentence = "no kube-scheduler calls the extender, so no GPU pod is bound"
        yield CheckResult("error", _SUBJECT, sentence, f"{applying(facts, 'scheduler.yaml')} ({_PAGE})")
    elif second is not None and patched:
        sentence = f"the second kube-scheduler and the cluster's own one share the profile {GPU_PROFILE}"
        command = f"kubectl bursar scheduler undo FILE on each control plane node ({_PAGE})"
        yield CheckResult("error", _SUBJECT, sentence, command)
    elif patched and len(patched) < len(static):
        names = ", ".join(str(each["spec"].get("nodeName", "")) for each in static if not is_patched(each))
        sentence = f"the static pod of {names} is not patched, as after an upgrade by kubeadm"
        yield CheckResult("error", _SUBJECT, sentence, f"kubectl bursar scheduler patch FILE there ({_PAGE})")
    elif patched:
        yield CheckResult(
            "ok", _SUBJECT, "the cluster's own kube-scheduler is patched on every control plane node"
        )
    if second is not None:
        yield from _configuration(facts)
        yield from _skew(facts, second)


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
    if GPU_PROFILE not in profiles:
        return f"it has no profile {GPU_PROFILE}, which the webhook sets on GPU pods"
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
    found = _TAG.search(images[0]) if images else None
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
