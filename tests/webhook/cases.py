"""Pods with what each of them breaks: tables for the rules in Python and for the policies in the API server,
so that neither can drift from the other."""

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tests.webhook.worlds import plain
from tests.worlds import Json, container, limits_of, of_resources
from timekeeper.core.violation import Violation

Broken = frozenset[tuple[str, str]]
"""Rules with the paths at which they are broken; containers stand there by name."""

LIMITS = "spec.containers[main].resources.limits"
PERCENT, MEMORY = f"{LIMITS}[bursar.dev/gpu-percent]", f"{LIMITS}[bursar.dev/gpu-memory]"
COUNT = f"{LIMITS}[bursar.dev/gpu-count]"
QGPU = "tke.cloud.tencent.com/qgpu"
CORE, VMEMORY = f"{LIMITS}[tencent.com/vcuda-core]", f"{LIMITS}[tencent.com/vcuda-memory]"
GPU = f"{LIMITS}[nvidia.com/gpu]"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to a card past every request: the pod that takes it, the nearest that does not, and what is
    said."""

    bad: Json
    good: Json
    rule: str
    path: str


def a_pod(*containers: Json, init: Iterable[Json] = (), **spec: object) -> Json:
    """A pod as a user sends it; ``annotations`` go into its metadata, other keywords into its spec."""
    metadata: Json = {"name": "p"}
    if "annotations" in spec:
        metadata["annotations"] = spec.pop("annotations")
    if init:
        spec["initContainers"] = list(init)
    body = {"containers": list(containers), **spec}
    return copy.deepcopy({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})


def tencent(name: str = "main", **limits: str) -> Json:
    """A container that asks in the tencent dialect: ``core``, ``memory``."""
    return limits_of(name, **{f"tencent_com__vcuda_{key}": value for key, value in limits.items()})


def hami(name: str = "main", **limits: str) -> Json:
    """A container that asks in the hami dialect: ``gpu``, ``gpumem``."""
    return of_resources({f"nvidia.com/{key}": value for key, value in limits.items()}, name)


def volcano(name: str = "main", **limits: str) -> Json:
    """A container that asks in the volcano dialect: ``number``, ``memory``."""
    return of_resources({f"volcano.sh/vgpu-{key}": value for key, value in limits.items()}, name)


def nvidia(cards: str, name: str = "main") -> Json:
    """A container that asks for whole cards."""
    return limits_of(name, nvidia_com__gpu=cards)


def by_name(pod: Json, path: str) -> str:
    """The path with containers by name where it has their places."""
    return re.sub(
        r"^spec\.(containers|initContainers)\[(\d+)\]",
        lambda found: f"spec.{found[1]}[{pod['spec'][found[1]][int(found[2])]['name']}]",
        path,
    )


def broken_by(pod: Json, violations: Iterable[Violation]) -> Broken:
    """What the rules in Python have found."""
    return frozenset((each.rule, by_name(pod, each.path)) for each in violations)


def told(message: str) -> Broken:
    """What a policy of ours has found, from the message of its refusal; empty where none has spoken."""
    said = re.search(r"denied request: (spec.*|metadata.*)", message)
    sentences = said[1].split(" | ") if said else []
    found = [
        re.fullmatch(r"(\S+): .*; allowed: .*; for example .* \[([a-z-]+)\]", each) for each in sentences
    ]
    assert all(found), f"no sentence with path, allowed, example and rule: {message}"
    return frozenset((each[2], each[1]) for each in found if each)


def _one(rule: str, *paths: str) -> Broken:
    return frozenset((rule, path) for path in paths)


NOTHING: Broken = frozenset()

# What a GPU request may and may not be.
REQUESTS: dict[str, tuple[Json, Broken]] = {
    "half a card": (a_pod(container(gpu_percent="50")), NOTHING),
    "one per cent": (a_pod(container(gpu_percent="1")), NOTHING),
    "a whole card": (a_pod(container(gpu_percent="100")), NOTHING),
    "two whole cards": (a_pod(container(gpu_percent="200")), NOTHING),
    "as many cards as a node has": (a_pod(container(gpu_percent="6400")), NOTHING),
    "a share and memory": (a_pod(container(gpu_percent="30", gpu_memory="8192")), NOTHING),
    "the least memory": (a_pod(container(gpu_memory="64")), NOTHING),
    "the most memory": (a_pod(container(gpu_memory="1048576")), NOTHING),
    "cards counted": (a_pod(container(gpu_count="64")), NOTHING),
    "half of each of two cards": (a_pod(container(gpu_count="2", gpu_percent="100")), NOTHING),
    "all of each of two cards": (a_pod(container(gpu_count="2", gpu_percent="200")), NOTHING),
    "memory on each of two cards": (a_pod(container(gpu_count="2", gpu_memory="128")), NOTHING),
    "amounts as the API server respells them": (
        a_pod(
            container("a", gpu_memory="8k"), container("b", gpu_memory="4Ki"), container(gpu_percent="1e2")
        ),
        NOTHING,
    ),
    "a share with memory, tencent": (a_pod(tencent(core="50", memory="32")), NOTHING),
    "whole cards, tencent": (a_pod(tencent(core="200")), NOTHING),
    "whole cards with memory, tencent": (a_pod(tencent(core="100", memory="32")), NOTHING),
    "whole cards, nvidia": (a_pod(nvidia("64")), NOTHING),
    "cards for an init container": (
        a_pod(container(gpu_percent="50"), init=[container("first", gpu_percent="100")]),
        NOTHING,
    ),
    "containers without cards beside": (a_pod(plain(), container(gpu_percent="50")), NOTHING),
    "a request that equals its limit": (
        a_pod(container(requests={"bursar.dev/gpu-percent": "50"}, gpu_percent="50")),
        NOTHING,
    ),
    "nothing of a card": (a_pod(container(gpu_percent="0")), NOTHING),
    "nothing of anything": (a_pod(container(gpu_percent="0", gpu_memory="0", gpu_count="0")), NOTHING),
    "nothing, and too much beside it": (
        a_pod(container(gpu_percent="150", gpu_memory="0")),
        _one("share-range", PERCENT),
    ),
    "amounts beside a number of cards of zero": (
        a_pod(
            hami(gpu="0", gpumem="10Gi"),
            volcano("b", number="0", cores="300"),
            container("c", gpu_count="0", gpu_percent="150"),
        ),
        NOTHING,
    ),
    "zeros of others beside a share": (
        a_pod(
            of_resources(
                {
                    "nvidia.com/gpu": "0",
                    "nvidia.com/x": "0",
                    "volcano.sh/gpu-x": "0",
                    "bursar.dev/gpu-percent": "50",
                }
            )
        ),
        NOTHING,
    ),
    "bytes where units count, gpushare": (
        a_pod(of_resources({"aliyun.com/gpu-mem": "10G"})),
        _one("memory-range", f"{LIMITS}[aliyun.com/gpu-mem]"),
    ),
    "bytes where units count, Volcano's former sharing": (
        a_pod(of_resources({"volcano.sh/gpu-memory": "10Gi"})),
        _one("memory-range", f"{LIMITS}[volcano.sh/gpu-memory]"),
    ),
    "bytes where units count, tencent": (
        a_pod(tencent(core="50", memory="4097")),
        _one("memory-range", VMEMORY),
    ),
    "the most of two cards, tencent": (a_pod(tencent(core="200", memory="8192")), NOTHING),
    "a card and a half with too much memory, tencent": (
        a_pod(tencent(core="150", memory="4097")),
        _one("share-range", CORE) | _one("memory-range", VMEMORY),
    ),
    "a share between TKE's steps, and more GiB than its cards have": (
        a_pod(
            of_resources({f"{QGPU}-core": "33", f"{QGPU}-memory": "8"}, "a"),
            of_resources({f"{QGPU}-core": "200", f"{QGPU}-memory": "2049"}, "b"),
            of_resources({f"{QGPU}-core": "0", f"{QGPU}-memory": "4"}, "c"),
        ),
        _one("share-range", f"spec.containers[a].resources.limits[{QGPU}-core]")
        | _one("memory-range", f"spec.containers[b].resources.limits[{QGPU}-memory]"),
    ),
    "bytes where units count, elastic": (
        a_pod(of_resources({"elasticgpu.io/gpu-core": "0", "elasticgpu.io/gpu-memory": "10G"})),
        _one("memory-range", f"{LIMITS}[elasticgpu.io/gpu-memory]"),
    ),
    "more replicas than a card has": (
        a_pod(of_resources({"nvidia.com/gpu.shared": "10G"})),
        _one("amount", f"{LIMITS}[nvidia.com/gpu.shared]"),
    ),
    "more cards than any node has": (a_pod(container(gpu_count="65")), _one("amount", COUNT)),
    "a little more than a card": (a_pod(container(gpu_percent="101")), _one("share-range", PERCENT)),
    "a card and a half": (a_pod(container(gpu_percent="150")), _one("share-range", PERCENT)),
    "65 cards in per cent": (a_pod(container(gpu_percent="6500")), _one("share-range", PERCENT)),
    "a card and a half, with memory": (
        a_pod(container(gpu_percent="150", gpu_memory="8192")),
        _one("share-range", PERCENT) | _one("memory-with-whole-cards", MEMORY),
    ),
    "a whole card with memory": (
        a_pod(container(gpu_percent="100", gpu_memory="8192")),
        _one("memory-with-whole-cards", MEMORY),
    ),
    "two whole cards with memory": (
        a_pod(container(gpu_percent="200", gpu_memory="8192")),
        _one("memory-with-whole-cards", MEMORY),
    ),
    "two counted whole cards with memory": (
        a_pod(container(gpu_count="2", gpu_percent="200", gpu_memory="8192")),
        _one("memory-with-whole-cards", MEMORY),
    ),
    "a hundred over three": (
        a_pod(container(gpu_count="3", gpu_percent="100")),
        _one("count-divides", PERCENT),
    ),
    "more than two cards have": (
        a_pod(container(gpu_count="2", gpu_percent="202")),
        _one("count-divides", PERCENT),
    ),
    "less than a per cent of each": (
        a_pod(container(gpu_count="2", gpu_percent="1")),
        _one("count-divides", PERCENT),
    ),
    "memory over three": (
        a_pod(container(gpu_count="3", gpu_memory="8192")),
        _one("count-divides", MEMORY),
    ),
    "neither divides": (
        a_pod(container(gpu_count="2", gpu_percent="3", gpu_memory="129")),
        _one("count-divides", PERCENT, MEMORY),
    ),
    "less memory than a process needs": (a_pod(container(gpu_memory="63")), _one("memory-floor", MEMORY)),
    "less on each of two cards": (
        a_pod(container(gpu_count="2", gpu_memory="126")),
        _one("memory-floor", MEMORY),
    ),
    "GiB written as MiB": (a_pod(container(gpu_memory="8")), _one("memory-floor", MEMORY)),
    "bytes written as MiB": (a_pod(container(gpu_memory="8Gi")), _one("memory-range", MEMORY)),
    "amounts of which the sum is beyond 64 bits": (
        a_pod(container(gpu_count="1", gpu_percent="9E", gpu_memory="9E")),
        _one("count-divides", PERCENT) | _one("memory-range", MEMORY),
    ),
    "a MiB more than the most": (a_pod(container(gpu_memory="1048577")), _one("memory-range", MEMORY)),
    "a card and a half, tencent": (a_pod(tencent(core="150")), _one("share-range", CORE)),
    "65 cards, tencent": (a_pod(tencent(core="6500")), _one("share-range", CORE)),
    "a share without memory, tencent": (
        a_pod(tencent(core="50")),
        _one("share-without-memory", VMEMORY),
    ),
    "memory without a share, tencent": (a_pod(tencent(memory="32")), _one("share-without-memory", CORE)),
    "nothing, tencent": (a_pod(tencent(core="0", memory="0")), NOTHING),
    "memory beside a share of zero, tencent": (a_pod(tencent(core="0", memory="32")), NOTHING),
    "a share beside memory of zero, tencent": (
        a_pod(tencent(core="50", memory="0")),
        _one("share-without-memory", VMEMORY),
    ),
    "no card, nvidia": (a_pod(nvidia("0"), init=[nvidia("0", "first")]), NOTHING),
    "65 cards, nvidia": (a_pod(nvidia("65")), _one("whole-cards-only", GPU)),
    "amounts of hami": (
        a_pod(hami(gpu="2", gpumem="3000", gpucores="0", priority="0"), nvidia("1", "whole")),
        NOTHING,
    ),
    "compute of hami without a number": (a_pod(hami(gpucores="30")), NOTHING),
    "more of volcano's whole cards than any node has": (
        a_pod(of_resources({"volcano.sh/gpu-number": "65"})),
        _one("amount", f"{LIMITS}[volcano.sh/gpu-number]"),
    ),
    "a priority of hami alone": (a_pod(hami(priority="1")), _one("vgpu-number", GPU)),
    "a priority of zero alone": (a_pod(hami(priority="0")), NOTHING),
    "65 cards and a priority of zero": (a_pod(hami(gpu="65", priority="0")), _one("vgpu-range", GPU)),
    "memory of volcano without a number": (
        a_pod(volcano(memory="30")),
        _one("vgpu-number", f"{LIMITS}[volcano.sh/vgpu-number]"),
    ),
    "amounts of hami beyond a card": (
        a_pod(hami(**{"gpu": "65", "gpumem-percentage": "101", "gpucores": "101", "priority": "2"})),
        _one(
            "vgpu-range",
            GPU,
            *(f"{LIMITS}[nvidia.com/{name}]" for name in ("gpumem-percentage", "gpucores", "priority")),
        ),
    ),
    "no amounts of hami": (a_pod(hami(gpu="0", gpumem="0", gpucores="0")), NOTHING),
    "hami beside bursar": (
        a_pod(hami(gpu="1", gpumem="5"), container("other", gpu_percent="50")),
        _one("several-dialects", "spec.containers"),
    ),
    "vgpus of volcano": (
        a_pod(volcano(number="2", memory="3000", cores="0"), plain()),
        NOTHING,
    ),
    "vgpus of volcano in two containers and beyond a card": (
        a_pod(volcano(number="1", cores="101"), volcano("other", number="1")),
        _one("vgpu-range", f"{LIMITS}[volcano.sh/vgpu-cores]")
        | _one("vgpu-one-container", "spec.containers"),
    ),
    "a vgpu of volcano in an init container": (
        a_pod(plain(), init=[volcano("first", number="1")]),
        _one("vgpu-one-container", "spec.containers"),
    ),
    "memory of Volcano's former sharing in an init container": (
        a_pod(plain(), init=[limits_of("first", volcano_sh__gpu_memory="1")]),
        _one("vgpu-one-container", "spec.containers"),
    ),
    "dialects that are not spoken": (
        a_pod(limits_of("main", volcano_sh__gpu_x="3", **{"nvidia_com__vgpu.x": "1"})),
        _one("dialect-not-spoken", f"{LIMITS}[volcano.sh/gpu-x]", f"{LIMITS}[nvidia.com/vgpu.x]"),
    ),
    "one that is spoken badly beside one that is not": (
        a_pod(limits_of("main", bursar_dev__gpu_percent="150", volcano_sh__gpu_x="1")),
        _one("dialect-not-spoken", f"{LIMITS}[volcano.sh/gpu-x]"),
    ),
    "a resource of ours that does not exist": (
        a_pod(container(gpu_percents="50")),
        _one("dialect-not-spoken", f"{LIMITS}[bursar.dev/gpu-percents]"),
    ),
    "two dialects in two containers": (
        a_pod(container("a", gpu_percent="50"), nvidia("1")),
        _one("several-dialects", "spec.containers"),
    ),
    "two dialects in one container": (
        a_pod(limits_of("main", bursar_dev__gpu_percent="150", nvidia_com__gpu="1")),
        _one("several-dialects", "spec.containers"),
    ),
    "two dialects, one in an init container": (
        a_pod(tencent(core="50", memory="32"), init=[nvidia("1", "first")]),
        _one("several-dialects", "spec.containers"),
    ),
    "all that is wrong at once": (
        a_pod(
            container("a", gpu_percent="150"),
            container("b", gpu_memory="1"),
            tencent("c", core="101"),
            init=[nvidia("65", "first")],
        ),
        _one("share-range", "spec.containers[a].resources.limits[bursar.dev/gpu-percent]")
        | _one("memory-floor", "spec.containers[b].resources.limits[bursar.dev/gpu-memory]")
        | _one("share-range", "spec.containers[c].resources.limits[tencent.com/vcuda-core]")
        | _one("whole-cards-only", "spec.initContainers[first].resources.limits[nvidia.com/gpu]")
        | _one("several-dialects", "spec.containers"),
    ),
}
REQUEST_RULES = frozenset(rule for _, broken in REQUESTS.values() for rule, _ in broken)


def mounting(path: str, *, privileged: bool = False) -> Json:
    """A pod that asks for no card, with a hostPath volume."""
    context = {"securityContext": {"privileged": True}} if privileged else {}
    volume = {"name": "v", "hostPath": {"path": path}}
    return a_pod(plain("main", **context), volumes=[volume])


def _mounted_at(path: str) -> Json:
    mounts = [{"name": "v", "mountPath": path}]
    return a_pod(plain("main", volumeMounts=mounts), volumes=[{"name": "v", "emptyDir": {}}])


def _apart(**term: object) -> Json:
    """A required anti-affinity to the pods with a label."""
    terms = [{"topologyKey": "kubernetes.io/os", "labelSelector": {"matchLabels": {"app": "x"}}} | term]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
HOST_PATH = "spec.volumes[v].hostPath.path"
PRIVILEGED = "spec.containers[main].securityContext.privileged"


def _cardless(path: str, amounts: Json) -> Json:
    """A pod with a hostPath volume whose container names GPU resources and asks for none."""
    pod = mounting(path)
    pod["spec"]["containers"][0]["resources"] = {"limits": amounts}
    return pod


ZEROS = {"nvidia.com/gpu": "0", "bursar.dev/gpu-percent": "0"}


def _path(bad: str, good: str) -> Way:
    return Way(mounting(bad), mounting(good), "host-path", HOST_PATH)


# Ways of a pod that asks for no card to reach one.
WAYS: dict[str, Way] = {
    "NVIDIA's device files": _path("/dev/nvidia0", "/dev/shm"),
    "NVIDIA's control device": _path("/dev/nvidiactl", "/dev/null"),
    "MIG's capabilities": _path("/dev/nvidia-caps/nvidia-cap1", "/dev/net/tun"),
    "Intel's and AMD's device files": _path("/dev/dri", "/dev/kvm"),
    "AMD's compute device": _path("/dev/kfd", "/dev/fuse"),
    "devices by number": _path("/dev/char/195:0", "/dev/disk"),
    "all devices": _path("/dev", "/data/dev"),
    "the whole node": _path("/", "/srv"),
    "processes, and through them every root": _path("/proc/1/root", "/srv/proc"),
    "the driver's root": _path("/run/nvidia/driver", "/run/udev"),
    "the toolkit": _path("/usr/local/nvidia/toolkit", "/usr/local/share"),
    "the toolkit's configuration": _path("/etc/nvidia-container-runtime", "/etc/ssl/certs"),
    "CDI's specifications": _path("/etc/cdi", "/etc/localtime"),
    "the kubelet's device plugins": _path("/var/lib/kubelet/device-plugins", "/var/lib/dbus"),
    "the kubelet's PodResources": _path("/var/lib/kubelet/pod-resources/kubelet.sock", "/var/lib/data"),
    "the sockets of DRA drivers": _path("/var/lib/kubelet/plugins", "/var/lib/kubelet/seccomp"),
    "the socket of plugins that add devices": _path("/var/run/nri/nri.sock", "/var/run/nrich"),
    "containerd's socket": _path("/run/containerd/containerd.sock", "/run/log"),
    "Docker's socket, by the link": _path("/var/run/docker.sock", "/var/run/log"),
    "CRI-O's socket": _path("/var/run/crio/crio.sock", "/var/run/udev"),
    "Podman's socket": _path("/run/podman/podman.sock", "/run/systemd"),
    "the pipes of MPS": _path("/tmp/nvidia-mps", "/tmp"),
    "one of the pipes of MPS": _path("/tmp/nvidia-mps/control", "/tmp/nvidia-mps-notes"),
    "static pods": _path("/etc/kubernetes/manifests", "/etc/hosts"),
    "a folder that holds them": _path("/var", "/var/log"),
    "a path that is written crookedly": _path("dev//./nvidia0/", "dev//./shm/"),
    "a runtime class beside KAI's zero": Way(
        a_pod(
            plain("main"),
            schedulerName="kai-scheduler",
            runtimeClassName="nvidia",
            annotations={"gpu-fraction": "0.0"},
        ),
        a_pod(plain("main"), schedulerName="kai-scheduler", annotations={"gpu-fraction": "0.0"}),
        "runtime-class",
        "spec.runtimeClassName",
    ),
    "device files beside limits of zero": Way(
        _cardless("/dev/nvidia0", ZEROS), _cardless("/dev/shm", ZEROS), "host-path", HOST_PATH
    ),
    "privileged with a device": Way(
        mounting("/dev/fuse", privileged=True), mounting("/dev/fuse"), "privileged", PRIVILEGED
    ),
    "privileged with a device, and another path": Way(
        mounting("/dev/bus", privileged=True),
        mounting("/srv", privileged=True),
        "privileged",
        PRIVILEGED,
    ),
    "a privileged init container with a device": Way(
        a_pod(
            plain("main"),
            init=[plain("first", securityContext={"privileged": True})],
            volumes=[{"name": "v", "hostPath": {"path": "/dev/fuse"}}],
        ),
        a_pod(
            plain("main"),
            init=[plain("first", securityContext={"privileged": False})],
            volumes=[{"name": "v", "hostPath": {"path": "/dev/fuse"}}],
        ),
        "privileged",
        "spec.initContainers[first].securityContext.privileged",
    ),
    "the processes of the node": Way(
        a_pod(plain("main"), hostPID=True),
        a_pod(plain("main"), shareProcessNamespace=True),
        "host-pid",
        "spec.hostPID",
    ),
    "a runtime class for GPUs": Way(
        a_pod(plain("main"), runtimeClassName="nvidia"),
        a_pod(plain("main"), runtimeClassName="gvisor"),
        "runtime-class",
        "spec.runtimeClassName",
    ),
    "an annotation that runtimes read": Way(
        a_pod(plain("main"), annotations={"cdi.k8s.io/mine": "nvidia.com/gpu=all"}),
        a_pod(plain("main"), annotations={"example.com/cdi.k8s.io": "nvidia.com/gpu=all"}),
        "device-annotation",
        "metadata.annotations[cdi.k8s.io/mine]",
    ),
    "an annotation that NVIDIA's plugin of the runtime reads": Way(
        a_pod(plain("main"), annotations={"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}),
        a_pod(plain("main"), annotations={"nvidia.cdi.example.com/container.main": "nvidia.com/gpu=all"}),
        "device-annotation",
        "metadata.annotations[nvidia.cdi.k8s.io/container.main]",
    ),
    "cards that KAI's plugin of the runtime shows": Way(
        a_pod(plain("main"), annotations={"nvidia.com/container.main.gpus.devices": "all"}),
        a_pod(plain("main"), annotations={"nvidia.com/containers.main.gpus.devices": "all"}),
        "device-annotation",
        "metadata.annotations[nvidia.com/container.main.gpus.devices]",
    ),
    "memory of a card from KAI's plugin": Way(
        a_pod(plain("main"), annotations={"nvidia.com/container.main.gpu-memory.request": "1Mi"}),
        a_pod(plain("main"), annotations={"nvidia.com/gpu-memory.request": "1Mi"}),
        "device-annotation",
        "metadata.annotations[nvidia.com/container.main.gpu-memory.request]",
    ),
    "more memory of a card from KAI's plugin": Way(
        a_pod(plain("main"), annotations={"nvidia.com/container.main.gpu-memory.limit": "80Gi"}),
        a_pod(plain("main"), annotations={"example.com/container.main.gpu-memory.limit": "80Gi"}),
        "device-annotation",
        "metadata.annotations[nvidia.com/container.main.gpu-memory.limit]",
    ),
    "a part of a card's memory for KAI's plugin": Way(
        a_pod(plain("main"), annotations={"kai.scheduler/container.main.gpu-memory.portion.limit": "1"}),
        a_pod(plain("main"), annotations={"kai.scheduler/container-name": "1"}),
        "device-annotation",
        "metadata.annotations[kai.scheduler/container.main.gpu-memory.portion.limit]",
    ),
    "memory that KAI hands to its plugin": Way(
        a_pod(plain("main"), annotations={"gpu-memory.limit": "80Gi"}),
        a_pod(plain("main"), annotations={"gpu-memory.limits": "80Gi"}),
        "device-annotation",
        "metadata.annotations[gpu-memory.limit]",
    ),
    "an annotation that containerd's device-injector reads for all containers": Way(
        a_pod(plain("main"), annotations={"devices.nri.io": "- path: /dev/nvidia0"}),
        a_pod(plain("main"), annotations={"io-priority.nri.io": "class: IOPRIO_CLASS_BE"}),
        "device-annotation",
        "metadata.annotations[devices.nri.io]",
    ),
    "a mount that the toolkit reads": Way(
        _mounted_at("/var/run/nvidia-container-devices/all"),
        _mounted_at("/var/run/nvidia-container"),
        "device-mount",
        "spec.containers[main].volumeMounts",
    ),
    "such a mount by way of the folder above": Way(
        _mounted_at("/var/run/x/../nvidia-container-devices/all"),
        _mounted_at("/var/run/x/../nvidia-container/all"),
        "device-mount",
        "spec.containers[main].volumeMounts",
    ),
    "such a mount from the root again": Way(
        _mounted_at("/../var/run/nvidia-container-devices/all"),
        _mounted_at("/../var/run/nvidia-container-devices.d/all"),
        "device-mount",
        "spec.containers[main].volumeMounts",
    ),
    "such a mount by another root": Way(
        _mounted_at("/srv/../../run/nvidia-container-devices/all"),
        _mounted_at("/srv/../../run/nvidia/all"),
        "device-mount",
        "spec.containers[main].volumeMounts",
    ),
    "such a mount without a root": Way(
        _mounted_at("srv/..//var/./run/nvidia-container-devices/all/."),
        _mounted_at("srv/..//var/./run/all/."),
        "device-mount",
        "spec.containers[main].volumeMounts",
    ),
    "a device class behind an extended resource": Way(
        a_pod(limits_of("main", acme_com__card="1")),
        a_pod(limits_of("main", acme_com__nic="1", acme_com__card="0")),
        "device-claim",
        "spec.containers[main].resources.limits",
    ),
    "a runtime class whose overhead takes a GPU": Way(
        a_pod(plain("main"), runtimeClassName="heavy", overhead={"nvidia.com/gpu": "1", "cpu": "10m"}),
        a_pod(plain("main"), runtimeClassName="light", overhead={"cpu": "10m"}),
        "overhead",
        "spec.overhead[nvidia.com/gpu]",
    ),
    "an anti-affinity to pods of all namespaces": Way(
        a_pod(plain("main"), affinity=_apart(namespaceSelector={})),
        a_pod(plain("main"), affinity=_apart()),
        "anti-affinity",
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    ),
    "an anti-affinity to pods of another namespace": Way(
        a_pod(plain("main"), affinity=_apart(namespaces=["team-a", "team-b"])),
        a_pod(plain("main"), affinity=_apart(namespaces=["team-a"])),
        "anti-affinity",
        "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    ),
}


# Ways of which a policy warns by default, and which it refuses where its binding says so.
SUSPECT: dict[str, Way] = {
    "the memory of devices": Way(mounting("/sys"), mounting("/systems"), "node-path", HOST_PATH),
    "control groups": Way(mounting("/sys//fs/cgroup/"), mounting("/srv/sys/fs"), "node-path", HOST_PATH),
    "volumes and tokens of other pods": Way(
        mounting("/var/lib/kubelet/pods"), mounting("/var/lib/kubelets/pods"), "node-path", HOST_PATH
    ),
    "raw devices": Way(mounting("/dev/vfio/12"), mounting("/dev/vfio12"), "node-path", HOST_PATH),
    "an image from before the variable": Way(
        a_pod(plain("main", env=[{"name": "CUDA_VERSION", "value": "12"}])),
        a_pod(plain("main", env=[{"name": "CUDA_VERSION", "value": "12"}, VOID])),
        "cuda-version",
        "spec.containers[main].env",
    ),
}
