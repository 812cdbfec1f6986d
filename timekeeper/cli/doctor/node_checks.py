"""Nodes with GPUs: their agent, and its container runtime."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from timekeeper.cli.doctor.facts import (
    CheckResult,
    Facts,
    NotReadable,
    items,
    named,
    upgrading,
)
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.json_values import annotations_of, mapping
from timekeeper.core.names import AGENTS_NAMESPACE, INVENTORY

LABEL = "bursar.node-restriction.kubernetes.io/gpu-node"
AGENT = "bursar-node"
_GPU_WORDS = ("gpu", "vcuda", "mig-")


def runtimes(facts: Facts) -> Iterator[CheckResult]:
    """The agent gets NVML from NVIDIA's runtime: by the default runtime, which the API does not show, or by a
    RuntimeClass."""
    read = (facts.runtime_classes, facts.findings, *facts.workloads)
    if any(isinstance(each, NotReadable) for each in read):
        return  # said by other checks, or of no use alone
    agent = next((found for each in facts.workloads if (found := named(each, AGENT))), None)
    classes = {
        each["metadata"]["name"]: str(each.get("handler", "")) for each in items(facts.runtime_classes)
    }
    if agent is None:
        return
    used = mapping(agent["spec"].get("template", {}).get("spec")).get("runtimeClassName")
    if used and used not in classes:
        sentence = f"the agent's runtimeClassName {used} does not exist, so its pods cannot start"
        yield CheckResult("error", "runtime", sentence, "kubectl get runtimeclasses (docs/node-agent.md)")
    blind = any(found["code"] == "silent-agent" for found in facts.findings["findings"])
    offered = [name for name, handler in classes.items() if "nvidia" in handler]
    if not used and blind and offered:
        sentence = "nodes have no inventory, and the agent does not use the RuntimeClass of NVIDIA's driver"
        body = json.dumps({"spec": {"template": {"spec": {"runtimeClassName": offered[0]}}}})
        patch = f"kubectl patch daemonset {AGENT} -n {AGENTS_NAMESPACE} --type merge -p '{body}'"
        command = upgrading(facts, f"nodeAgent.runtimeClassName={offered[0]}") or patch
        yield CheckResult("warning", "runtime", sentence, command)


def agent_selector(facts: Facts) -> Mapping[str, str]:
    """The labels of the nodes that get an agent: those of the DaemonSet, which may be others than ours."""
    agent = next((found for each in facts.workloads if (found := named(each, AGENT))), None)
    pod = mapping(mapping(mapping(mapping(agent).get("spec")).get("template")).get("spec"))
    return {str(key): str(value) for key, value in mapping(pod.get("nodeSelector")).items()} or {
        LABEL: "true"
    }


def _is_labelled(node: Mapping[str, Any], selector: Mapping[str, str]) -> bool:
    return selector.items() <= mapping(node["metadata"].get("labels")).items()


def has_gpus(node: Mapping[str, Any], selector: Mapping[str, str]) -> bool:
    """True if it has an inventory, the labels of nodes that get an agent, or advertises GPUs."""
    capacity = mapping(mapping(node.get("status")).get("capacity"))
    return (
        INVENTORY in annotations_of(node)
        or _is_labelled(node, selector)
        or any(
            word in name and "/" in name and str(amount) not in ("", "0") and accelerator_of(name) is None
            for name, amount in capacity.items()
            for word in _GPU_WORDS
        )
    )
