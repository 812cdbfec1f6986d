"""The steps by which a node is given to fractions and taken back, from what the cluster says."""

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.node_worlds import OPERATORS, daemon_set, plugin
from tests.worlds import Json
from timekeeper.cli.doctor.node_checks import LABEL
from timekeeper.cli.main import cli
from timekeeper.cli.nodes.facts import ObservedNode
from timekeeper.cli.nodes.steps import Plan, outcome, to_fractions, to_whole

CARDS = [
    {
        **{"uuid": f"GPU-{at}", "index": at, "model": "A100", "memory_mib": 40_960, "healthy": True},
        **{"numa": 0, "links": [], "mig": None},
    }
    for at in range(2)
]
INVENTORY = {"bursar.dev/inventory": json.dumps({"version": 1, "cards": CARDS})}
OURS = {"bursar.dev/gpu-memory": "81920", "bursar.dev/gpu-percent": "200"}
AGENTS = daemon_set("bursar-node", "bursar-node", {LABEL: "true"}, "agent")


def node(
    capacity: Json,
    labels: Json,
    annotations: Json | None = None,
    spec: Json | None = None,
    allocatable: Json | None = None,
) -> Json:
    status = {
        "capacity": {"cpu": "64", **capacity},
        "allocatable": capacity if allocatable is None else allocatable,
    }
    metadata = {"name": "n", "labels": labels, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def pod(name: str, namespace: str = "team", limits: Json | None = None, **metadata: Any) -> Json:
    containers = [{"name": "main", "image": "i", "resources": {"limits": limits or {}}}]
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, **metadata},
        "spec": {"containers": containers},
        "status": {"phase": "Running"},
    }


def of(daemon: Json, name: str, is_ready: bool = True) -> Json:
    """A pod of a DaemonSet."""
    owner = {"kind": "DaemonSet", "name": daemon["metadata"]["name"]}
    made = pod(name, daemon["metadata"]["namespace"], ownerReferences=[owner])
    made["spec"] = daemon["spec"]["template"]["spec"]
    made["status"]["conditions"] = [{"type": "Ready", "status": str(is_ready)}]
    return made


PLUGIN, AGENT = of(plugin(), "nvidia-device-plugin-daemonset-x"), of(AGENTS, "bursar-node-x")
ON, OFF = {OPERATORS: "true"}, {OPERATORS: "false"}
OURS_ON = {LABEL: "true"}
BOTH = (plugin(), AGENTS)
WHOLE = ObservedNode(node({"nvidia.com/gpu": "2"}, ON), (PLUGIN,), BOTH)
FRACTIONS = ObservedNode(node(OURS, {**OFF, **OURS_ON}, INVENTORY), (AGENT,), BOTH)
CORDONED = {"unschedulable": True}
MARK = {"bursar.dev/node-change": "fractions"}


def next_of(plan: Plan) -> str:
    """What is to be done or awaited first: the command, or else the sentence."""
    step = next((each for each in plan.steps if not each.is_done), None)
    return "" if step is None else " ".join(step.command) or step.sentence


def test_each_step_follows_from_what_the_cluster_says_and_the_last_leaves_none() -> None:
    gone = ObservedNode(node({"nvidia.com/gpu": "2"}, OFF, MARK, CORDONED, {"nvidia.com/gpu": "0"}), (), BOTH)
    zero = ObservedNode(node({"nvidia.com/gpu": "0"}, OFF, MARK, CORDONED), (), BOTH)
    bare = ObservedNode(node({}, OFF, MARK, CORDONED), (), BOTH)
    labelled = ObservedNode(node({}, {**OFF, **OURS_ON}, MARK, CORDONED), (AGENT,), BOTH)
    offered = ObservedNode(node(OURS, {**OFF, **OURS_ON}, {**MARK, **INVENTORY}, CORDONED), (AGENT,), BOTH)
    cordoned = ObservedNode(node({"nvidia.com/gpu": "2"}, ON, MARK, CORDONED), (PLUGIN,), BOTH)
    off = ObservedNode(node({"nvidia.com/gpu": "2"}, OFF, MARK, CORDONED), (PLUGIN,), BOTH)

    way = [WHOLE, cordoned, off, gone, zero, bare, labelled, offered, FRACTIONS]
    amounts = '{"nvidia.com/gpu":null}'
    assert [next_of(to_fractions(each)) for each in way] == [
        "patch node n --type merge -p"
        ' {"metadata":{"annotations":{"bursar.dev/node-change":"fractions"}},"spec":{"unschedulable":true}}',
        f"label node n {OPERATORS}=false --overwrite",
        "the plugin's pod is gone",
        "the kubelet counts none of the plugin's devices any more (5 minutes after the plugin has gone)",
        "patch node n --subresource status --type merge -p"
        f' {{"status":{{"capacity":{amounts},"allocatable":{amounts}}}}}',
        f"label node n {LABEL}=true --overwrite",
        "the agent is ready, and has written inventory and capacity",
        "patch node n --type merge -p"
        ' {"metadata":{"annotations":{"bursar.dev/node-change":null}},"spec":{"unschedulable":null}}',
        "",
    ]


def test_the_way_back_ends_the_shares_first() -> None:
    mark = {"bursar.dev/node-change": "whole"}
    half = pod("half", limits={"bursar.dev/gpu-percent": "50"})
    full = replace(FRACTIONS, pods=(AGENT, half), node=node(OURS, {**OFF, **OURS_ON}, mark, CORDONED))
    empty = replace(full, pods=(AGENT,))
    on = replace(empty, node=node(OURS, {**ON, **OURS_ON}, mark, CORDONED))
    both = {**OURS, "nvidia.com/gpu": "2"}
    starting = replace(on, pods=(AGENT, of(plugin(), "nvidia-device-plugin-x", False)))
    counted = replace(on, node=node(both, {**ON, **OURS_ON}, mark, CORDONED), pods=(AGENT, PLUGIN))
    served = replace(
        on, node=node({"nvidia.com/gpu": "2"}, {**ON, **OURS_ON}, mark, CORDONED), pods=(AGENT, PLUGIN)
    )

    assert [
        next_of(to_whole(each)) for each in (FRACTIONS, full, empty, on, starting, counted, served, WHOLE)
    ] == [
        "patch node n --type merge -p"
        ' {"metadata":{"annotations":{"bursar.dev/node-change":"whole"}},"spec":{"unschedulable":true}}',
        "pods that Bursar has placed on its cards end",
        f"label node n {OPERATORS}=true --overwrite",
        "the plugin's pod is ready, and the kubelet counts its devices",
        "the plugin's pod is ready, and the kubelet counts its devices",
        "the agent takes Bursar's capacities off the node",
        "patch node n --type merge -p"
        ' {"metadata":{"annotations":{"bursar.dev/node-change":null}},"spec":{"unschedulable":null}}',
        "",
    ]
    without_agent = replace(counted, pods=(PLUGIN,))
    assert '"bursar.dev/gpu-percent":null' in next_of(to_whole(without_agent))


def test_a_node_that_somebody_else_cordoned_stays_cordoned() -> None:
    offered = replace(FRACTIONS, node=node(OURS, {**OFF, **OURS_ON}, INVENTORY, CORDONED))
    halfway = replace(WHOLE, node=node({"nvidia.com/gpu": "2"}, ON, {}, CORDONED))

    assert next_of(to_fractions(halfway)) == f"label node n {OPERATORS}=false --overwrite"
    assert next_of(to_fractions(offered)) == ""
    assert outcome(offered) == (
        "Node n offers bursar.dev/gpu-memory 81920, bursar.dev/gpu-percent 200.",
        "Its agent bursar-node-x is ready: 2 of 2 cards are healthy.",
        "It was cordoned before: kubectl uncordon n lets pods in.",
    )


def test_the_pods_in_the_way_are_those_on_the_cards_of_either_kind() -> None:
    two = pod("two", limits={"nvidia.com/gpu": "2"})
    slice_ = pod("slice", limits={"nvidia.com/mig-1g.5gb": "1"})
    half = pod("half", limits={"bursar.dev/gpu-percent": "50"})
    other = pod("genius", annotations={"bursar.dev/devices": "{}"})
    both = pod("placed", limits={"nvidia.com/gpu": "1"}, annotations={"bursar.dev/devices": "{}"})
    held = {"version": 1, "boot": "b", "known": True, "pods": {"half": [], "ghost": ["GPU-0"]}, "closed": ""}
    facts = ObservedNode(
        node({}, {}, {"bursar.dev/holders": json.dumps(held)}),
        (two, slice_, half, other, both, pod("cpu")),
        (),
    )

    ghost = "a deleted pod with the UID ghost"
    assert facts.whole_card_pods == ("team/two", "team/slice", "team/placed", ghost)
    assert facts.share_pods == ("team/half", "team/genius", ghost)
    there = node(OURS, {**OFF, **OURS_ON}, {**INVENTORY, "bursar.dev/holders": json.dumps(held)})
    assert next_of(to_fractions(replace(FRACTIONS, node=there))) == "", "it gives fractions already"


def test_what_cannot_be_done_is_said_before_anything_is() -> None:
    own = daemon_set("nvidia-device-plugin-daemonset", "kube-system", {}, "nvidia-device-plugin-ctr")
    by_hand = ObservedNode(WHOLE.node, (of(own, "nvidia-device-plugin-daemonset-y"),), (own, AGENTS))
    manager = replace(WHOLE, node=node({"tencent.com/vcuda-core": "200"}, ON))
    problems = [
        to_fractions(replace(WHOLE, daemon_sets=(plugin(),))).problems,
        to_fractions(by_hand).problems,
        to_fractions(manager).problems,
        to_fractions(replace(WHOLE, may_not=("patch nodes/status",))).problems,
        to_whole(replace(FRACTIONS, daemon_sets=(AGENTS,))).problems,
        to_whole(replace(FRACTIONS, node=node(OURS, {"nvidia.com/gpu.deploy.operands": "false"}))).problems,
    ]

    assert [[each.split(":")[0] for each in found] for found in problems] == [
        ["no node agent is installed"],
        [
            "the plugin's pod kube-system/nvidia-device-plugin-daemonset-y does not follow the GPU Operator's"
            f" label {OPERATORS}"
        ],
        ["the node's plugin speaks the dialect tencent, and this command knows NVIDIA's device plugin alone"],
        ["you may not patch nodes/status"],
        ["no DaemonSet follows the GPU Operator's label, so nothing would bring the plugin back"],
        ["the node's label nvidia.com/gpu.deploy.operands=false keeps all of the GPU Operator off it"],
    ]
    assert [to_fractions(WHOLE).problems, to_whole(FRACTIONS).problems] == [(), ()]


NVIDIAS = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
SHELL = ["/bin/sh", "-c"]
FOLDER = ("/var/lib/kubelet/device-plugins",)


def component(
    name: str, *containers: Json, paths: tuple[str, ...] = (), selector: dict[str, str] | None = None
) -> Json:
    """A pod of a DaemonSet of this name; ``paths``: folders of the node in it."""
    made = of(daemon_set(name, "gpu-operator", selector or {}, "c"), f"{name}-x")
    made["spec"]["containers"] = list(containers)
    made["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": path}} for path in paths]
    return made


def runs(name: str, image: str = NVIDIAS, *command: str) -> Json:
    return {"name": name, "image": image, **({"command": list(command)} if command else {})}


def test_a_device_plugin_is_told_from_other_tools_of_its_image() -> None:
    manager = runs("nvidia-device-plugin-sidecar", NVIDIAS, "config-manager")
    by_shell, mps = (
        runs("nvidia-device-plugin", NVIDIAS, *SHELL),
        runs("mps-control-daemon-ctr", NVIDIAS, *SHELL),
    )
    plugins = [
        component("nvidia-device-plugin-daemonset", by_shell, selector=ON),
        component("nvdp-nvidia-device-plugin", manager, runs("nvidia-device-plugin-ctr", NVIDIAS)),
        component("cards", runs("main", NVIDIAS, "/usr/bin/nvidia-device-plugin")),
        component("cards", runs("main"), paths=("/var/lib/k0s/kubelet/device-plugins/",)),
        component(
            "nvidia-gpu-device-plugin-small-cos",
            runs(
                "nvidia-gpu-device-plugin",
                "gke.gcr.io/nvidia-gpu-device-plugin",
                "/usr/bin/nvidia-gpu-device-plugin",
            ),
        ),
        component("hami-device-plugin", runs("device-plugin", "projecthami/hami", "nvidia-device-plugin")),
        component(
            "amdgpu-device-plugin-daemonset",
            runs("amdgpu-dp-cntr", "rocm/k8s-device-plugin"),
            paths=("/var/lib/kubelet/device-plugins", "/sys"),
        ),
        component("intel-gpu-plugin", runs("intel-gpu-plugin", "intel/intel-gpu-plugin:0.34.0")),
    ]
    once = component(
        "nvidia-operator-validator", runs("nvidia-device-plugin-validator", "g/gpu-operator", *SHELL)
    )
    once["metadata"]["name"] = "nvidia-device-plugin-validator"
    checks = component("checks", runs("main", "example/nvidia-checks"))
    checks["spec"]["initContainers"] = [
        runs("nvidia-device-plugin", NVIDIAS, "nvidia-device-plugin", "--version")
    ]
    by_hand = component("nvidia-device-plugin", runs("nvidia-device-plugin-ctr"), paths=FOLDER)
    del by_hand["metadata"]["ownerReferences"]
    others = [
        component("gpu-feature-discovery", runs("gpu-feature-discovery", NVIDIAS, "gpu-feature-discovery")),
        component("nvdp-nvidia-device-plugin-gpu-feature-discovery", runs("gpu-feature-discovery-ctr")),
        component(
            "nvidia-device-plugin-gfd",
            runs("nvidia-device-plugin", NVIDIAS, "/usr/bin/gpu-feature-discovery"),
        ),
        component("nvidia-device-plugin-mps-control-daemon", mps, selector=ON),
        component(
            "nvdp-nvidia-device-plugin-mps-control-daemon", runs("c", NVIDIAS, "mps-control-daemon"), manager
        ),
        component("nvidia-operator-validator", runs("nvidia-operator-validator", "g/gpu-operator", *SHELL)),
        once,
        checks,
        by_hand,
        component(
            "nvidia-dcgm-exporter", runs("nvidia-dcgm-exporter"), paths=("/var/lib/kubelet/pod-resources",)
        ),
        component("nvidia-dra-driver-gpu-kubelet-plugin", runs("gpus"), paths=("/var/lib/kubelet/plugins",)),
        component(
            "amdgpu-labeller-daemonset", runs("amdgpu-lbl-cntr", "rocm/k8s-device-plugin:labeller-latest")
        ),
        # plugins of other devices
        component(
            "sriov-device-plugin",
            runs("dp", "nvcr.io/nvidia/mellanox/sriov-network-device-plugin"),
            paths=FOLDER,
        ),
        component("aws-efa-k8s-device-plugin", runs("aws-efa-k8s-device-plugin", "eks/efa"), paths=FOLDER),
    ]

    found = [ObservedNode(WHOLE.node, (each,), BOTH).plugin_pods for each in (*plugins, *others)]
    assert found == [*((each,) for each in plugins), *(() for _ in others)]
    assert to_fractions(replace(WHOLE, pods=(PLUGIN, *others))).problems == ()


def test_a_plugin_that_is_being_deleted_is_awaited_and_serves_nothing() -> None:
    own = component("nvidia-device-plugin-daemonset", runs("nvidia-device-plugin-ctr"))
    dying = {**own, "metadata": {**own["metadata"], "deletionTimestamp": "2026-11-27T10:00:00Z"}}
    by_hand = replace(WHOLE, node=node({"nvidia.com/gpu": "2"}, OFF, MARK, CORDONED), pods=(dying,))
    back = node({**OURS, "nvidia.com/gpu": "2"}, {**ON, **OURS_ON}, {}, CORDONED)

    assert (by_hand.other_plugins, next_of(to_fractions(by_hand))) == ((), "the plugin's pod is gone")
    awaited = next_of(to_whole(replace(FRACTIONS, node=back, pods=(AGENT, dying))))
    assert awaited == "the plugin's pod is ready, and the kubelet counts its devices"


@pytest.mark.parametrize(
    ("capacity", "annotations", "is_refused"),
    [
        ({"nvidia.com/gpu": "8"}, {}, True),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"}, {}, True),
        ({"nvidia.com/gpu.shared": "32"}, {}, True),
        ({"nvidia.com/gpu": "0"}, {}, False),
        ({}, {}, False),
        ({"nvidia.com/gpu": "8"}, MARK, False),  # it goes
    ],
)
def test_a_plugin_without_a_pod_is_a_service_that_this_command_cannot_end(
    capacity: Json, annotations: Json, is_refused: bool
) -> None:
    facts = ObservedNode(node(capacity, {}, annotations), (), (AGENTS,))

    problems = to_fractions(facts).problems

    assert len(problems) == is_refused
    assert all(problem.startswith("no pod of a DaemonSet gives out nvidia.com/") for problem in problems)


def test_the_control_daemon_of_mps_alone_brings_no_plugin_back() -> None:
    mps = daemon_set("nvidia-device-plugin-mps-control-daemon", "gpu-operator", ON, "mps-control-daemon-ctr")

    assert [replace(FRACTIONS, daemon_sets=(each, AGENTS)).has_operator for each in (plugin(), mps)] == [
        True,
        False,
    ]


def test_a_node_without_the_operator_needs_the_label_alone() -> None:
    plan = to_fractions(ObservedNode(node({}, {}), (), (AGENTS,)))

    assert [each.sentence for each in plan.steps if not each.is_done and each.command] == [
        "the node is cordoned, so that no pod comes meanwhile",
        "the node gets the label of nodes with an agent",
    ]
    assert plan.notes == (
        "No DaemonSet follows the GPU Operator's label: driver and NVIDIA's container runtime must be on the"
        " node by other means.",
    )


def test_a_time_that_is_none_is_a_wrong_command_line() -> None:
    done = CliRunner().invoke(cli, ["node", "fractions", "n", "--timeout", "soon"])

    assert (done.exit_code, "--timeout: a duration such as" in done.output) == (2, True)
