"""What the cluster says of a node that is to change."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from timekeeper.cli.doctor.node_checks import AGENT, LABEL
from timekeeper.cli.kubectl import Kubectl
from timekeeper.cli.output import CommandError
from timekeeper.core.dialects import OF_NVIDIA, native
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.kube.holders import fresh_holders
from timekeeper.core.names import AGENTS_NAMESPACE, DEVICES, DOMAIN, INVENTORY, NODE_CHANGE
from timekeeper.core.object_names import TERMINAL
from timekeeper.core.request.cards import decode_inventory
from timekeeper.core.request.inventory import dialects_of, node_facts
from timekeeper.core.request.zeros import asked_limits
from timekeeper.core.values import Card, UndecodableError

# NVIDIA's GPU Operator sets it to true on its nodes, and leaves any other value as it is
OPERATORS = "nvidia.com/gpu.deploy.device-plugin"
ALL_OPERANDS = "nvidia.com/gpu.deploy.operands"
PLUGINS = "nvidia.com/gpu"
_MIG = "nvidia.com/mig-"
_PLUGIN = re.compile(r"(device|gpu)-plugin(?!-valid)")  # the Operator's validator has a container of its name
_OF_GPUS = re.compile("gpu|nvidia|rocm")
# of the kubelet, where each device plugin registers (Kubernetes' documentation: Device Plugins)
_REGISTRY = "kubelet/device-plugins"
_SHELLS = ("sh", "bash")


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """Objects as kubectl gives them."""

    node: Json
    pods: tuple[Json, ...]  # on the node, those that have ended left out
    daemon_sets: tuple[Json, ...]  # of the cluster
    may_not: tuple[str, ...] = ()  # what the user may not do, of what the change needs

    @property
    def name(self) -> str:
        """The node's name."""
        return str(mapping(self.node.get("metadata")).get("name", ""))

    @property
    def labels(self) -> Json:
        """The node's labels."""
        return mapping(mapping(self.node.get("metadata")).get("labels"))

    @property
    def is_cordoned(self) -> bool:
        """Whether kube-scheduler places no pods there."""
        return mapping(self.node.get("spec")).get("unschedulable") is True

    @property
    def change(self) -> str:
        """What the node becomes, where this command has cordoned it; "": it has not."""
        return str(annotations_of(self.node).get(NODE_CHANGE, ""))

    @property
    def agents_labels(self) -> Mapping[str, str]:
        """The labels of nodes that get an agent, as its DaemonSet selects them; none without a DaemonSet."""
        for each in self.daemon_sets:
            metadata = mapping(each.get("metadata"))
            if (metadata.get("namespace"), metadata.get("name")) == (AGENTS_NAMESPACE, AGENT):
                return {key: str(value) for key, value in _selector(_template(each)).items()} or {
                    LABEL: "true"
                }
        return {}

    @property
    def has_operator(self) -> bool:
        """Whether the plugin's DaemonSet follows the label of NVIDIA's GPU Operator on nodes."""
        templates = map(_template, self.daemon_sets)
        return any(OPERATORS in _selector(template) and _gives_cards(template) for template in templates)

    @property
    def other_dialects(self) -> tuple[str, ...]:
        """The dialects of plugins on the node that are not NVIDIA's own."""
        ours = (*OF_NVIDIA, native.DIALECT.name)
        return tuple(each.name for each in dialects_of(node_facts(self.node)) if each.name not in ours)

    @property
    def plugin_pods(self) -> tuple[Json, ...]:
        """The pods of device plugins of GPUs on the node."""
        return tuple(pod for pod in self.pods if _is_owned(pod) and _gives_cards(pod))

    @property
    def other_plugins(self) -> tuple[str, ...]:
        """Those of them that do not follow the Operator's label, and stay."""
        others = (pod for pod in self.plugin_pods if OPERATORS not in _selector(pod))
        return tuple(full_name(pod) for pod in others if not _is_leaving(pod))

    @property
    def ready_agent(self) -> str:
        """The name of the agent's pod, where it is ready; else ""."""
        return next((_name(each) for each in self.pods if _is_agent(each) and is_ready(each)), "")

    @property
    def has_agent(self) -> bool:
        """Whether a pod of the agent is there, ready or not."""
        return any(map(_is_agent, self.pods))

    @property
    def cards(self) -> tuple[Card, ...]:
        """The inventory; empty where there is none, or none that can be read."""
        try:
            return decode_inventory(str(annotations_of(self.node).get(INVENTORY, "")))
        except UndecodableError:
            return ()

    @property
    def closed(self) -> str:
        """Why the agent has closed the node; "": it has not."""
        holders = fresh_holders(self.node)
        return holders.closed if holders else ""

    def amounts(self, of: str, begins: tuple[str, ...]) -> dict[str, str]:
        """``of``: capacity or allocatable. The resources whose names begin so."""
        found = mapping(mapping(self.node.get("status")).get(of))
        return {name: str(found[name]) for name in sorted(found) if name.startswith(begins)}

    def of_plugin(self, of: str = "capacity") -> dict[str, str]:
        """What NVIDIA's plugin offers."""
        return self.amounts(of, (PLUGINS, _MIG))

    def of_bursar(self, of: str = "capacity") -> dict[str, str]:
        """What Bursar's agent offers."""
        return self.amounts(of, (f"{DOMAIN}/",))

    @property
    def whole_card_pods(self) -> tuple[str, ...]:
        """The pods that hold what the plugin has given out."""
        return (*(full_name(each) for each in self.pods if _has_plugins(each)), *self._deleted)

    @property
    def share_pods(self) -> tuple[str, ...]:
        """The pods that Bursar has placed on cards of the node which no plugin gives out."""
        placed = (each for each in self.pods if _is_placed(each) and not _has_plugins(each))
        return (*map(full_name, placed), *self._deleted)

    @property
    def _deleted(self) -> tuple[str, ...]:
        """The pods without an object that the agent still finds on the cards."""
        known = {str(mapping(each.get("metadata")).get("uid")) for each in self.pods}
        holders = fresh_holders(self.node)
        gone = sorted(uid for uid in (holders.pods if holders else ()) if uid not in known)
        return tuple(f"a deleted pod with the UID {uid}" for uid in gone)


def read_node(kubectl: Kubectl, name: str) -> ObservedNode:
    """Raises CommandError, also where there is no such node."""
    node = kubectl.get("node", name)
    if node is None:
        raise CommandError(f"there is no node {name}: kubectl get nodes lists them")
    pods = kubectl.get("pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}")
    daemon_sets = kubectl.get("daemonsets", "--all-namespaces")
    live = (each for each in _items(pods) if mapping(each.get("status")).get("phase") not in TERMINAL)
    return ObservedNode(node, tuple(live), tuple(_items(daemon_sets)))


def missing_rights(kubectl: Kubectl) -> tuple[str, ...]:
    """What the user may not do, of what a change does."""
    lacks = []
    for sentence, *question in (
        ("patch nodes", "nodes"),
        ("patch nodes/status", "nodes", "--subresource=status"),
    ):
        try:
            kubectl.run("auth", "can-i", "patch", *question)
        except CommandError:  # its exit code is 1 where the answer is no
            lacks.append(sentence)
    return tuple(lacks)


def full_name(pod: Json) -> str:
    """Namespace and name."""
    return f"{mapping(pod.get('metadata')).get('namespace')}/{_name(pod)}"


def is_ready(pod: Json) -> bool:
    """By its condition Ready; not while it is being deleted."""
    conditions = map(mapping, sequence(mapping(pod.get("status")).get("conditions")))
    is_said = any((each.get("type"), each.get("status")) == ("Ready", "True") for each in conditions)
    return is_said and not _is_leaving(pod)


def _items(listed: Any) -> list[Json]:
    return [mapping(each) for each in sequence(mapping(listed).get("items"))]


def _name(item: Json) -> str:
    return str(mapping(item.get("metadata")).get("name"))


def _template(daemon_set: Json) -> Json:
    return mapping(mapping(daemon_set.get("spec")).get("template"))


def _selector(pod: Json) -> Json:
    return mapping(mapping(pod.get("spec")).get("nodeSelector"))


def _containers(pod: Json) -> Iterator[Json]:
    spec = mapping(pod.get("spec"))
    return map(mapping, (*sequence(spec.get("containers")), *sequence(spec.get("initContainers"))))


def _is_owned(pod: Json) -> bool:
    owners = map(mapping, sequence(mapping(pod.get("metadata")).get("ownerReferences")))
    return any(each.get("kind") == "DaemonSet" for each in owners)


def _is_leaving(pod: Json) -> bool:
    return "deletionTimestamp" in mapping(pod.get("metadata"))


def _gives_cards(pod: Json) -> bool:
    """Whether a container is a device plugin of GPUs, or the pod has the folder where plugins register. Other
    tools run from the plugin's image: feature discovery, the control daemon of MPS, the config manager."""
    spec = mapping(pod.get("spec"))
    containers = tuple(map(mapping, sequence(spec.get("containers"))))
    folders = (
        mapping(mapping(volume).get("hostPath")).get("path") for volume in sequence(spec.get("volumes"))
    )
    registers = any(str(path).rstrip("/").endswith(_REGISTRY) for path in folders)
    images = ("/".join(str(container.get("image")).split("/")[-2:]) for container in containers)
    programs = tuple(map(_program, containers))
    is_plugin = registers or any(map(_PLUGIN.search, programs))
    return is_plugin and any(map(_OF_GPUS.search, (_name(pod), *programs, *images)))


def _program(container: Json) -> str:
    """What it runs, by its command, or else by its name: a shell's command says nothing."""
    command = next(iter(sequence(container.get("command"))), "")
    program = str(command).rpartition("/")[2]
    return str(container.get("name")) if program in ("", *_SHELLS) else program


def _is_agent(pod: Json) -> bool:
    owners = map(mapping, sequence(mapping(pod.get("metadata")).get("ownerReferences")))
    is_home = mapping(pod.get("metadata")).get("namespace") == AGENTS_NAMESPACE
    return is_home and any((each.get("kind"), each.get("name")) == ("DaemonSet", AGENT) for each in owners)


def _has_plugins(pod: Json) -> bool:
    """Whether a container asks for a resource of NVIDIA's plugin."""
    limits = map(asked_limits, _containers(pod))
    return any(name.startswith((PLUGINS, _MIG)) for each in limits for name in each)


def _is_placed(pod: Json) -> bool:
    limits = map(asked_limits, _containers(pod))
    return DEVICES in annotations_of(pod) or any(
        name.startswith(f"{DOMAIN}/") for each in limits for name in each
    )
