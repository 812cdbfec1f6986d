"""For each rule one object that breaks it and no other."""

from dataclasses import replace

from tests.webhook.worlds import (
    POLICY,
    UNPLACED,
    admitted,
    governed,
    half,
    plain,
    violations_of,
    with_annotations,
    with_class,
)
from tests.worlds import Json, container, limits_of, of_resources
from timekeeper.core.admission.policy import Standing
from timekeeper.core.admission.rules.exhausted import budget_violations
from timekeeper.core.admission.rules.isolation import ephemeral_violations
from timekeeper.core.admission.rules.pod_rules import cap_violations
from timekeeper.core.admission.rules.size import TOO_MANY_PARTS
from timekeeper.core.request.claims import EXPLICIT, KnownClaims
from timekeeper.core.request.device_classes import DeviceClass
from timekeeper.core.request.host import CardHost
from timekeeper.core.request.request import parse, parse_new
from timekeeper.core.standings import Cap, Caps
from timekeeper.core.violation import Violation
from webhook.admission.validation import not_governed, recorded_admission

TENCENT = {"tencent_com__vcuda_core": "50", "tencent_com__vcuda_memory": "32"}
SEES_ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

# two cards on 64 CPUs and 512 GiB
ROOMY = replace(
    POLICY, rules={"host-share": "enforce"}, card_host=CardHost(32_000, 256 * 1024**3, least_card_mib=16_000)
)
FOUR_IN_PARTS = Caps(own=Cap(4_000, pod_milli=1_500))
CLASSES = KnownClaims({"h100": DeviceClass("h100", "gpu.nvidia.com"), "odd": DeviceClass("odd")})
SPENT = Standing("OVER_BUDGET", 1_000, 800, on_exhausted="deny", until_ms=1_796_083_200_000)


def labelled(raw: Json, name: str, value: str) -> Json:
    """The pod with a label."""
    raw["metadata"]["labels"] = {name: value}
    return raw


PODS: dict[str, Json] = {
    "amount": admitted(container(gpu_percent="500m")),
    "share-range": admitted(container(gpu_percent="150")),
    "count-divides": admitted(container(gpu_count="3", gpu_percent="100")),
    "memory-floor": admitted(container(gpu_memory="8")),
    "memory-range": admitted(container(gpu_memory="8589934592")),
    "memory-with-whole-cards": admitted(container(gpu_percent="100", gpu_memory="8k")),
    "whole-cards-only": admitted(limits_of("main", nvidia_com__gpu="500m")),
    "share-without-memory": admitted(limits_of("main", tencent_com__vcuda_core="50")),
    "vgpu-number": admitted(limits_of("main", volcano_sh__vgpu_memory="3000")),
    "vgpu-range": admitted(limits_of("main", nvidia_com__gpu="1", nvidia_com__gpucores="150")),
    "vgpu-constraint": with_annotations(
        admitted(limits_of("main", nvidia_com__gpu="1")), {"nvidia.com/vgpu-mode": "mig"}
    ),
    "vgpu-one-container": admitted(
        limits_of("a", volcano_sh__vgpu_number="1"), limits_of("b", volcano_sh__vgpu_number="1")
    ),
    "combination": admitted(limits_of("main", koordinator_sh__gpu_core="50")),
    "own-scheduler": admitted(limits_of("main", koordinator_sh__gpu="50")),
    "dialect-not-spoken": admitted(limits_of("main", amd_com__gpu="3")),
    "request-differs-from-limit": admitted(
        container(requests={"bursar.dev/gpu-percent": "20"}, gpu_percent="50")
    ),
    "unreadable-request": with_annotations(admitted(plain()), {"KubeDevice/DeviceInfo": "2"}),
    "several-dialects": admitted(half("a"), limits_of("b", nvidia_com__gpu="1")),
    "unknown-policy": with_annotations(admitted(half()), {"bursar.dev/policy": "best"}),
    "empty-constraint": with_annotations(admitted(half()), {"bursar.dev/gpu-models": " , "}),
    "long-constraint": with_annotations(admitted(half()), {"bursar.dev/gpu-models": "H100," * 65}),
    "unknown-topology": with_annotations(admitted(half()), {"bursar.dev/topology": "rack"}),
    "same-gpu-container": with_annotations(admitted(half("a"), half("b")), {"bursar.dev/same-gpu": "a,bb"}),
    "same-gpu-conflict": with_annotations(
        admitted(half("a"), container("b", gpu_percent="60")), {"bursar.dev/same-gpu": "a,b"}
    ),
    "forged-annotation": with_annotations(admitted(half()), {"visible-devices.bursar.dev/main": "GPU-7"}),
    "unknown-annotation": with_annotations(admitted(half()), {"bursar.dev/gpu-model": "H100"}),
    "forged-label": labelled(admitted(half()), "bursar.dev/governed", "false"),
    "forged-gate": admitted(half(), schedulingGates=[{"name": "bursar.dev/hold"}]),
    "sidecar-name": admitted(half(), plain("bursar-sidecar")),
    "sidecar-volume": admitted(half(), volumes=[{"name": "bursar-token", "emptyDir": {}}]),
    "node-name": admitted(half(), nodeName="n1"),
    "sees-cards-without-asking": admitted(plain(env=SEES_ALL)),
    "visible-devices": admitted(half(env=SEES_ALL)),
    "isolation-variable": admitted(half(env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])),
    "env-from": admitted(half(envFrom=[{"configMapRef": {"name": "settings"}}])),
    "env-from-plugin": admitted(
        limits_of("main", nvidia_com__gpu="1")
        | {"envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "NVIDIA_V"}]}
    ),
    "privileged": admitted(half(securityContext={"privileged": True})),
    "host-path": admitted(half(), volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}]),
    "node-path": admitted(half(), volumes=[{"name": "v", "hostPath": {"path": "/sys/fs/cgroup"}}]),
    "device-annotation": with_annotations(admitted(half()), {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}),
    "device-mount": admitted(
        half(volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}])
    ),
    "host-pid": admitted(half(), hostPID=True),
    "init-container": admitted(
        limits_of("main", **TENCENT), init=[limits_of("setup", tencent_com__vcuda_core="100")]
    ),
    "foreign-scheduler": admitted(half(), schedulerName="my-scheduler"),
    "priority-class": with_class(admitted(half()), "urgent", 7),
    "grace-period": admitted(half(), terminationGracePeriodSeconds=601),
    "malformed-name": with_annotations(admitted(half()), {"bursar.dev/gpu-uuids": "GPU-5a3c, 0"}),
    "gas-annotation": with_annotations(
        admitted(of_resources({"gpu.intel.com/i915": "1"})), {"gas-allow": "card0,GPU-1"}
    ),
    "gang": with_annotations(admitted(half()), {"bursar.dev/gang": "train", "bursar.dev/gang-size": "0"}),
    "min-gpu-memory": with_annotations(admitted(half()), {"bursar.dev/min-gpu-memory": "40Gi"}),
    "contradicting-constraint": with_annotations(
        admitted(half()),
        {"bursar.dev/gpu-models": "A100,H100", "bursar.dev/exclude-gpu-models": "H100,a100,T4"},
    ),
    "pod-size": admitted(half(args=["x" * 1_200_000])),
    "legacy-sidecar": admitted(half(), plain("gpu-sidecar")),
    "without-effect": with_annotations(
        admitted(limits_of("main", nvidia_com__gpu="1")), {"nvidia.com/gpumem": "4000"}
    ),
}

EPHEMERAL = admitted(half(), ephemeralContainers=[{"name": "debug", "image": "cuda", "env": SEES_ALL}])


def examples() -> dict[str, Violation]:
    """The violation of each rule."""
    alone = {rule: violations_of(raw, POLICY) for rule, raw in PODS.items()}
    found = {rule: broken for rule, each in alone.items() for broken in each if broken.rule == rule}
    (found["ephemeral-sees-cards"],) = ephemeral_violations(EPHEMERAL, admitted(half()))
    (found["budget-exhausted"],) = budget_violations("team-a", SPENT)
    (found["above-cap"],) = cap_violations(parse(admitted(container(gpu_count="4"))).request, FOUR_IN_PARTS)
    (found["placement-off"],) = violations_of(admitted(half()), UNPLACED)
    (found["no-duration"],) = violations_of(admitted(half()), replace(POLICY, requires_duration=True))
    hog = admitted(container(requests={"cpu": "62"}, gpu_percent="1"))
    (found["host-share"],) = violations_of(hog, ROOMY)
    for rule, name, count in (("device-claim", "odd", "1"), ("claim-size", "h100", "33")):
        limited = admitted(of_resources({f"{EXPLICIT}{name}": count}))
        (found[rule],) = parse_new(limited, "refuse", CLASSES, "team-a").violations
    changed = governed(admitted(half()))
    changed["spec"]["schedulerName"] = "default-scheduler"
    found["pod-parts"] = TOO_MANY_PARTS
    request = parse(changed).request
    assert request is not None
    (found["not-governed"],) = not_governed(changed, recorded_admission(changed, request, POLICY))
    return found
