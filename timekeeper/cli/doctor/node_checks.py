"""The nodes with GPUs: inventory, container runtime, clocks."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from timekeeper.cli.doctor.facts import (
    NODE_NAMESPACE,
    CheckResult,
    Facts,
    NotReadable,
    items,
    named,
    old_locks_of,
    some_of,
    unknown,
    upgrading,
)
from timekeeper.core.accelerators import accelerator_of
from timekeeper.core.dialects.nvidia_parts import MIG, SHARED
from timekeeper.core.json_values import Json, annotations_of, mapping
from timekeeper.core.kube.node_lock import waits_for_devices
from timekeeper.core.ledger.hold import clock_ahead_ms, pod_hold
from timekeeper.core.names import GPU_PERCENT, NODE_CHANGE
from timekeeper.core.object_names import millis
from timekeeper.core.quantity import thousandths
from timekeeper.core.request.inventory import counted_cards, dialects_of, node_facts
from timekeeper.core.request.runtime_plugins import OURS

INVENTORY, HOLDERS = "bursar.dev/inventory", "bursar.dev/holders"
LABEL = "bursar.node-restriction.kubernetes.io/gpu-node"
AGENT = "bursar-node"
PLUGINS = "nvidia.com/gpu"
_OF_PARTS = (SHARED, MIG)
_GIVE = "kubectl bursar node fractions"
_GPU_WORDS = ("gpu", "vcuda", "mig-")


def nodes(facts: Facts) -> Iterator[CheckResult]:
    """GPU nodes have an inventory, of our agent or of a plugin that describes its cards, and are open."""
    if isinstance(facts.nodes, NotReadable):
        yield unknown("nodes", facts.nodes)
        return
    selector = agent_selector(facts)
    label = " ".join(f"{key}={value}" for key, value in selector.items())
    with_gpus = {each["metadata"]["name"]: each for each in items(facts.nodes) if has_gpus(each, selector)}
    if not with_gpus:
        command = f"kubectl label node NODE {label} (docs/node-agent.md)"
        yield CheckResult("warning", "nodes", "no node advertises GPUs", command)
        return
    bare = [name for name, each in with_gpus.items() if INVENTORY not in annotations_of(each)]
    inventoried = len(with_gpus) - len(bare)
    yield CheckResult("ok", "nodes", f"{inventoried} of {len(with_gpus)} nodes with GPUs have an inventory")
    unlabelled = [
        each for each in bare if not (_is_labelled(with_gpus[each], selector) or _is_counted(with_gpus[each]))
    ]
    if unlabelled:
        sentence = f"no inventory on {some_of(unlabelled)}: without the label no agent runs there"
        command = f"kubectl label node {unlabelled[0]} {label} (docs/node-agent.md)"
        yield CheckResult("warning", "nodes", sentence, command)
    silent = [each for each in bare if _is_labelled(with_gpus[each], selector)]
    if silent:
        sentence = f"no inventory on {some_of(silent)}: its agent has not read the cards"
        command = f"kubectl logs -n {NODE_NAMESPACE} daemonset/{AGENT} --all-pods --tail=20"
        yield CheckResult("warning", "nodes", sentence, command)
    yield from _plugins(with_gpus)
    if not any(isinstance(each, NotReadable) for each in facts.workloads):
        yield from _by_nri(facts, with_gpus, selector)
    for name, each in sorted(with_gpus.items()):
        if reason := _closed(each):
            command = f"kubectl describe node {name} (docs/node-agent.md)"
            yield CheckResult("warning", "nodes", f"{name} is closed: {reason}", command)


def locks(facts: Facts) -> Iterator[CheckResult]:
    """No pod waits long for the devices of a node that is locked for it."""
    if isinstance(facts.nodes, NotReadable):
        return  # said by the check of the nodes
    if isinstance(facts.lock_holders, NotReadable):
        yield unknown("nodes", facts.lock_holders)
        return
    pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in facts.lock_holders}
    for node in items(facts.nodes):
        name = node["metadata"]["name"]
        for annotation, lock in old_locks_of(node, facts.now_s).items():
            pod = pods.get(lock.holder) if lock.holder is not None else None
            if pod is not None and waits_for_devices(pod, name, annotation):
                namespace, holder = pod["metadata"]["namespace"], pod["metadata"]["name"]
                sentence = (
                    f"{name} is locked for {namespace}/{holder}, which has waited for its devices for more"
                    " than five minutes, so no other pod of its plugin is bound there"
                )
                command = (
                    f"kubectl describe pod {holder} -n {namespace}, and read the log of the plugin there"
                )
                yield CheckResult("warning", "nodes", sentence, f"{command} (docs/coming-from/hami.md)")


def unconfirmed_ends(facts: Facts) -> Iterator[CheckResult]:
    """No pod has failed while its status says that it runs: it holds its cards until its end is known."""
    if isinstance(facts.pods_there, NotReadable):
        return  # said by the check of pods without GPUs
    for pod in items(facts.pods_there):
        said, metadata = pod_hold(pod), pod["metadata"]
        if not said.unconfirmed or (said.deletion_ms or 0) + said.grace_ms > 1000 * facts.now_s:
            continue
        name, namespace, node = metadata["name"], metadata["namespace"], pod["spec"]["nodeName"]
        sentence = (
            f"{namespace}/{name} has failed, but its status says that it runs on {node}: it holds its cards"
            f" until its kubelet says otherwise, its object is gone, or {node} is seen to boot anew"
        )
        command = (
            f"kubectl edit pod {name} -n {namespace}, and remove its finalizers once nothing of it runs there"
        )
        yield CheckResult("warning", "nodes", sentence, f"{command} (docs/ledger.md#a-node-that-died)")


def demoted(facts: Facts) -> Iterator[CheckResult]:
    """No kubelet refuses pods for reasons of devices, so that other nodes come first."""
    if isinstance(facts.demoted, NotReadable):
        yield unknown("nodes", facts.demoted)
        return
    said = {
        (event["involvedObject"]["name"], str(event.get("message", ""))) for event in items(facts.demoted)
    }
    for name, sentence in sorted(said):
        if (millis(f"{sentence} ".split(" ")[1]) or 0) > 1000 * facts.now_s:
            command = f"kubectl get pods -A --field-selector=spec.nodeName={name},status.phase=Failed"
            yield CheckResult("warning", "nodes", f"{name}: {sentence}", f"{command} (docs/placement.md)")


def _plugins(nodes: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Which nodes give out fractions, where some have NVIDIA's plugin; and nodes that are between both."""
    left = {name: _offered(node) for name, node in nodes.items()}
    whole = sorted(name for name in nodes if is_above_zero(left[name].get(PLUGINS)))
    ours = [name for name in nodes if is_above_zero(left[name].get(GPU_PERCENT))]
    if whole and ours:
        sentence = f"{len(ours)} nodes give out fractions, {len(whole)} whole cards by NVIDIA's plugin"
        yield CheckResult("ok", "fractions", sentence)
    elif whole:
        sentence = f"no node gives out fractions: NVIDIA's plugin gives out whole cards on {some_of(whole)}"
        yield CheckResult("warning", "fractions", sentence, f"{_GIVE} {whole[0]} --dry-run (docs/nodes.md)")
    for name, each in sorted(nodes.items()):
        if change := annotations_of(each).get(NODE_CHANGE):
            sentence = f"{name} is cordoned on its way to {change}"
            command = f"kubectl bursar node {change} {name} goes on (docs/nodes.md)"
            yield CheckResult("warning", "fractions", sentence, command)
        elif is_left_over(each) and INVENTORY in annotations_of(each):
            sentence = (
                f"{name} keeps {PLUGINS} with 0 of a plugin that is gone, so its agent offers no fractions"
            )
            yield CheckResult("warning", "fractions", sentence, f"{_GIVE} {name} (docs/nodes.md)")


def _offered(node: Mapping[str, Any]) -> Json:
    """What it gives out of each resource. The kubelet keeps the capacity for a while after a plugin has
    gone."""
    status = mapping(node.get("status"))
    return mapping(status.get("allocatable")) or mapping(status.get("capacity"))


def is_left_over(node: Mapping[str, Any]) -> bool:
    """Whether it keeps the name of NVIDIA's plugin with nothing of it, and gives out no parts by that plugin:
    renamed replicas and instances leave 0 whole cards."""
    capacity, offered = mapping(mapping(node.get("status")).get("capacity")), _offered(node)
    has_parts = any(is_above_zero(offered[name]) for name in offered if name.startswith(_OF_PARTS))
    return PLUGINS in capacity and not is_above_zero(capacity[PLUGINS]) and not has_parts


def _by_nri(facts: Facts, nodes: Mapping[str, Any], selector: Mapping[str, str]) -> Iterator[CheckResult]:
    """Nodes whose container runtime needs the agent for cards, and has none or does not insist on it."""
    told = {name: mapping(_annotation(each, INVENTORY).get("nri")) for name, each in nodes.items()}
    ours = [name for name, nri in told.items() if OURS in (nri.get("plugins") or ())]
    runs = any(named(each, AGENT) for each in facts.workloads)
    without = sorted(name for name in ours if not (runs and _is_labelled(nodes[name], selector)))
    if without:
        sentence = (
            f"no agent runs on {some_of(without)}, and their inventory says that cards come by it:"
            " no container with cards starts there"
        )
        label = " ".join(f"{key}={value}" for key, value in selector.items())
        command = f"kubectl label node {without[0]} {label} (docs/troubleshooting.md)"
        yield CheckResult("error", "nodes", sentence, command)
    open_ones = sorted(name for name in ours if told[name].get("enforced") is False)
    if open_ones:
        sentence = (
            f"NRI's validator is off on {some_of(open_ones)}: while the agent is away there, containers start"
            " without their cards"
        )
        command = "set default_validator in /etc/containerd/conf.d/nri.toml there (docs/node-agent.md)"
        yield CheckResult("warning", "nodes", sentence, command)


def _is_counted(node: Mapping[str, Any]) -> bool:
    """Whether the extender counts the node's cards, so that it needs no inventory for whole ones."""
    return len(dialects_of(node_facts(node))) == 1 and counted_cards(node) is not None


def is_above_zero(amount: object) -> bool:
    """Whether a quantity is one, and more than 0."""
    return (thousandths(amount) or 0) > 0


def runtimes(facts: Facts) -> Iterator[CheckResult]:
    """The agent gets NVML from NVIDIA's runtime: by the default runtime, which the API does not show, or by a
    RuntimeClass."""
    if any(isinstance(each, NotReadable) for each in (facts.runtime_classes, facts.nodes, *facts.workloads)):
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
    selector = agent_selector(facts)
    blind = any(
        _is_labelled(each, selector) and INVENTORY not in annotations_of(each) for each in items(facts.nodes)
    )
    offered = [name for name, handler in classes.items() if "nvidia" in handler]
    if not used and blind and offered:
        sentence = "nodes have no inventory, and the agent does not use the RuntimeClass of NVIDIA's driver"
        body = json.dumps({"spec": {"template": {"spec": {"runtimeClassName": offered[0]}}}})
        patch = f"kubectl patch daemonset {AGENT} -n {NODE_NAMESPACE} --type merge -p '{body}'"
        command = upgrading(facts, f"nodeAgent.runtimeClassName={offered[0]}") or patch
        yield CheckResult("warning", "runtime", sentence, command)


def clocks(facts: Facts) -> Iterator[CheckResult]:
    """The clocks of kubelets, whose timestamps prove charges: a kubelet writes its time into its Lease, and
    the API server notes its own beside it."""
    if isinstance(facts.leases, NotReadable) or isinstance(facts.nodes, NotReadable):
        return
    selector = agent_selector(facts)
    with_gpus = {each["metadata"]["name"] for each in items(facts.nodes) if has_gpus(each, selector)}
    ahead = {each["metadata"]["name"]: clock_ahead_ms(each) / 1000 for each in items(facts.leases)}
    wrong = [name for name, each in ahead.items() if name in with_gpus and each]
    if wrong:
        worst = max(wrong, key=lambda name: abs(ahead[name]))
        sentence = (
            f"clocks of {some_of(wrong)} differ from the API server's, {worst}'s by {ahead[worst]:.0f} s"
        )
        yield CheckResult(
            "warning",
            "clocks",
            sentence,
            "timedatectl set-ntp true, on these nodes: charges follow their clocks",
        )


def _closed(node: Mapping[str, Any]) -> str:
    """Why its agent has closed the node; "": it has not."""
    return str(_annotation(node, HOLDERS).get("closed", ""))


def _annotation(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What it has as JSON; nothing where it is none."""
    try:
        return mapping(json.loads(str(annotations_of(node).get(name, "{}"))))
    except ValueError:
        return {}


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
