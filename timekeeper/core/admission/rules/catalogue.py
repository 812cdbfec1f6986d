"""Every rule of admission: what it refuses, why, and its default mode.

A rule's mode is ``enforce`` (refused), ``warn`` (admitted with a warning), or ``off``. `docs/rules.md` shows
this table; a test compares the two.
"""

from dataclasses import dataclass
from typing import Literal

from timekeeper.core.admission.rules.device_annotations import DEVICE_WORDS, shown_as
from timekeeper.core.budgets.rule_ids import FIXED

RuleMode = Literal["enforce", "warn", "off"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``instead``: what happens in mode ``warn``, as the warning for a governed pod says."""

    id: str
    refuses: str
    why: str
    default: RuleMode = "enforce"
    instead: str = "admitted"

    @property
    def fixed(self) -> bool:
        """Whether budgets cannot set the rule's mode."""
        return self.id in FIXED


# A valid request. Without one a pod can be neither placed nor charged, so these rules cannot be turned off.
REQUEST = (
    Rule(
        "amount",
        "an amount that is not a positive whole number (`0.5`, `500m`, `NaN`, an exponent beyond 64 bits, "
        "digits that are not ASCII), and more than 64 cards or 1024 replicas. Zero asks for nothing",
        "it would be charged wrongly. Every exact spelling of a whole number passes: `8000`, `8k`, `8e3`, "
        "`4Ki`",
    ),
    Rule(
        "share-range",
        "a share above one card that is not a multiple of 100, and more than 64 cards",
        "`150` could mean one and a half cards, which no container can get",
    ),
    Rule(
        "count-divides",
        "percent or memory that does not divide evenly by the number of cards in `bursar.dev/gpu-count`",
        "each card gets the same integer share, so nothing is rounded",
    ),
    Rule(
        "memory-floor",
        "less than 64 MiB on a card",
        "a CUDA context alone needs more; usually GiB were meant",
    ),
    Rule(
        "memory-range",
        "more than 1 TiB on a card, or 1,048,576 of the units in which a plugin counts memory",
        "no card has so much; usually bytes were meant",
    ),
    Rule(
        "memory-with-whole-cards",
        "`bursar.dev/gpu-memory` together with whole cards",
        "a whole card includes all of its memory",
    ),
    Rule(
        "whole-cards-only",
        "fractions such as `nvidia.com/gpu: 0.5`",
        "NVIDIA's plugin counts whole cards",
    ),
    Rule(
        "share-without-memory",
        "`tencent.com/vcuda-core` below 100 without `vcuda-memory`, and `vcuda-memory` alone",
        "gpu-manager starts no such container",
    ),
    Rule(
        "vgpu-number",
        "`volcano.sh/vgpu-memory` and others without `vgpu-number`, and `nvidia.com/priority` alone",
        "the kubelet calls the plugin for that resource alone",
    ),
    Rule(
        "vgpu-range",
        "more than 100 `gpucores`, 100 `gpumem-percentage`, 64 cards or 1 TiB, and a `priority` above 1",
        "no card has more",
    ),
    Rule(
        "vgpu-constraint",
        "`vgpu-mode` other than `hami-core`, and `numa-bind` that is neither true nor false",
        "the pod would run in another way than it says",
    ),
    Rule(
        "vgpu-one-container",
        "vGPUs of Volcano in two containers of a pod, or in an init container",
        "Volcano's node plugin would never start them",
    ),
    Rule(
        "combination",
        "amounts of koordinator or annotations of KAI that contradict each other, or lack another one, and "
        "two resources of other vendors' accelerators in one container",
        "it would be unclear what the pod gets",
    ),
    Rule(
        "dialect-not-spoken",
        "GPU resources of a system that Bursar does not support, and other vendors' accelerators where "
        "`unknownAccelerators` is `refuse`",
        "such a pod would use GPUs outside every budget",
    ),
    Rule(
        "unreadable-request",
        "a request in annotations or labels that is not of its dialect's form, or has a meaning that Bursar "
        "does not support",
        "such a request can be neither placed nor charged",
    ),
    Rule(
        "request-differs-from-limit",
        "a GPU request that differs from its limit, and a request without a limit",
        "it would be unclear which of the two is charged",
    ),
    Rule(
        "several-dialects",
        "containers that request GPUs in different dialects",
        "a node supports one dialect, so the pod would fit on no node",
    ),
    Rule(
        "device-claim",
        "a claim, or a limit of a DeviceClass, where it is not known whether the class allocates GPUs "
        "(`unknownClasses: deny`), a claim on less than nothing of a capacity, more than 256 claims in a "
        "pod, and any claim where the API server does not serve `resource.k8s.io/v1`",
        "such a pod would use GPUs outside every budget, or more of a device than there is, or fill the "
        "timekeeper's memory",
    ),
    Rule(
        "claim-size",
        "a claim of all GPUs of a node (`allocationMode: All`), or of more than 32",
        "how many they are is not known before their allocation, which gives at most 32",
        "enforce",
        "counted as 32 GPUs",
    ),
    Rule("unknown-policy", "a `bursar.dev/policy` that does not exist", "it would be ignored silently"),
    Rule(
        "empty-constraint",
        "an empty list of models or cards",
        "it could mean no card or every card",
    ),
    Rule(
        "long-constraint",
        "a list of models, cards or containers with more than 64 names, with a name of more than 128 "
        "characters, or with more than 8320 characters in total",
        "each name is compared with every card; for more names use a label on the nodes",
    ),
    Rule(
        "gas-annotation",
        "`gas-allow`, `gas-deny`, `gas-same-gpu` or `gas-allocate-xelink` with a value, or beside requests, "
        "that GAS does not place",
        "the pod would wait for ever",
    ),
    Rule(
        "min-gpu-memory",
        "a `bursar.dev/min-gpu-memory` that is not a whole number of MiB from 1 to 1,048,576",
        "it would be ignored silently, or match no card",
    ),
    Rule(
        "gang",
        "a `bursar.dev/gang` without `bursar.dev/gang-size`, a size that is no number of pods, a minimum "
        "above it, a size of a pod that names no gang, a `bursar.dev/gang-topology` or "
        "`bursar.dev/gang-topology-preferred` that is no key of a label or has no size beside it, all these "
        "beside marks of Kueue, Volcano or KAI, an owner whose fields contradict the size in its template, "
        "or whose templates contradict each other, and a StatefulSet that would wait for itself "
        "([gangs](gangs.md#sizes-of-owners))",
        "the pod would start alone, or never",
    ),
    Rule("unknown-topology", "a value other than `pair`, `numa`, `node`", "it would be ignored silently"),
    Rule(
        "same-gpu-container",
        "`bursar.dev/same-gpu` with a container that requests no card or is not in the pod, or with fewer "
        "than two different containers",
        "there would be nothing to put on the same card",
    ),
    Rule(
        "same-gpu-conflict",
        "containers in `bursar.dev/same-gpu` with several cards, with a whole card beside others, or with "
        "more than 100 per cent together",
        "the pod would fit on no node",
    ),
)

# What only Bursar and the nodes' plugins may write. A user who could forge it could choose their own price.
FORGERY = (
    Rule(
        "forged-annotation",
        "an annotation that Bursar or a node plugin writes: a placement, a standing, and a request other "
        "than the pod's own. From a new pod it is removed, with a warning; a template is refused",
        "the scheduler, the ledger and the node would act on it",
    ),
    Rule(
        "unknown-annotation",
        "any other annotation under `bursar.dev/`",
        "a misspelt constraint would be ignored silently",
    ),
    Rule("forged-label", "a label under `bursar.dev/`, likewise", "the same as for annotations"),
    Rule("forged-gate", "a scheduling gate under `bursar.dev/`, likewise", "only Bursar could remove it"),
    Rule(
        "sidecar-name",
        "a container named `bursar-sidecar` that is not the injected one, or whose image is neither "
        "`--sidecar-image`, also by a digest of its repository, nor one under `--sidecar-mirrors`; a new pod "
        "gets the injected one anew",
        "its heartbeats would count as those of the sidecar",
    ),
    Rule(
        "sidecar-volume",
        "a volume named `bursar-token` or `bursar-spool` that is not the injected one",
        "the sidecar would use it",
    ),
    Rule(
        "node-name",
        "`spec.nodeName` in a GPU pod, unless `placement` is `off` and the node's plugin assigns its cards",
        "no scheduler would assign its cards, and its node would be closed for sharing",
    ),
    Rule(
        "not-governed",
        "a pod in which another webhook has undone what Bursar wrote",
        "it would run with other cards, or without metering",
    ),
    Rule(
        "budget-exhausted",
        "a new GPU pod in a namespace that is over budget and has `onExhausted: deny`",
        "`onExhausted` sets it, not `rules`",
    ),
)

# Ways to GPUs that were not requested.
BYPASS = (
    Rule(
        "sees-cards-without-asking",
        "`NVIDIA_VISIBLE_DEVICES` other than `void`, `none` or empty in a pod without a GPU request, and "
        "`gpu.intel.com/i915_monitoring` or `xe_monitoring` in any pod",
        "it can make every card of the node visible, outside every budget",
    ),
    Rule(
        "ephemeral-sees-cards",
        "the same in an ephemeral container",
        "an ephemeral container holds no card and is not charged",
    ),
    Rule(
        "visible-devices",
        "`NVIDIA_VISIBLE_DEVICES` set by hand in a pod with a GPU request",
        "the scheduler decides which cards a container sees",
        "warn",
        "replaced: a container sees the cards that are assigned to it",
    ),
    Rule(
        "isolation-variable",
        "variables that change or disable isolation on the node: `CUDA_DISABLE_CONTROL`, `CUDA_MPS_*`, "
        "`CUDA_DEVICE_MEMORY_LIMIT*`, `NVIDIA_MIG_*` and others, in a container that requests a GPU or has "
        "the sidecar's name",
        "with one of them a tenant removes the limit of its own share",
    ),
    Rule(
        "env-from",
        "`envFrom` that could set one of those variables, in a container that requests a GPU",
        "a ConfigMap or Secret can change after admission. A `prefix` with which none of the variables "
        "begins makes it safe",
        "warn",
        "admitted: admission does not see what it sets",
    ),
    Rule(
        "env-from-plugin",
        "`envFrom` that could set `NVIDIA_VISIBLE_DEVICES`, in a container whose cards the node's plugin "
        "chooses (`nvidia.com/gpu`)",
        "it takes precedence over the plugin's value, and `all` would make every card visible. A `prefix` "
        "makes it safe as above, as do `wholeCards: bursar` and "
        "[the nodes' toolkit](frameworks.md#envfrom)",
    ),
    Rule(
        "privileged",
        "a privileged container, also an ephemeral one, in a pod with a GPU request",
        "it can open every card of its node",
    ),
    Rule(
        "host-path",
        "a hostPath volume that contains a GPU's device files, the driver's files, or the sockets of "
        "kubelet and container runtime",
        "with these a container reaches cards that are not assigned to it",
    ),
    Rule(
        "node-path",
        "a hostPath volume that is, or lies below, `/sys`, `/dev/vfio` or `/var/lib/kubelet/pods`",
        "these show raw devices, control groups, and other pods' volumes and tokens. Node software mounts "
        "them too, so it only warns",
        "warn",
        "admitted",
    ),
    Rule(
        "device-annotation",
        "annotations whose name, domain or beginning is one of "
        + ", ".join(f"`{shown_as(word)}`" for word in DEVICE_WORDS),
        "the container runtime reads devices, mounts or limits of cards from them",
    ),
    Rule(
        "device-mount",
        "a mount under `/var/run/nvidia-container-devices` in a pod with a GPU request",
        "the name of such a mount requests cards from NVIDIA's container runtime",
    ),
    Rule(
        "host-pid",
        "`hostPID` in a pod with a GPU request",
        "it exposes other tenants' processes, and their files under /proc",
    ),
)

# Where a pod may run, and for how long it stays after its deletion.
PLACING = (
    Rule(
        "init-container",
        "an init container that requests a GPU in the dialects tencent, gas, and, unless it is a native "
        "sidecar, those of nano-gpu",
        "the plugins give it no card, so the pod would wait on its node for ever. In the other dialects a "
        "sidecar's cards are added to the pod's, and an init container's count where they are more than all "
        "of these",
    ),
    Rule(
        "foreign-scheduler",
        "another `schedulerName` than Bursar's, the default, and the one of a scheduler that Bursar replaces "
        "for the pod's dialect",
        "only Bursar's scheduler assigns cards",
        "warn",
        "replaced",
    ),
    Rule(
        "own-scheduler",
        "a pod of another system, if `--other-schedulers` does not name its scheduler, or it has another one",
        "no scheduler would place the pod and assign its cards",
    ),
    Rule(
        "placement-off",
        "where `placement` is `off`, what only Bursar's scheduler serves: a share, a constraint, its name",
        "no scheduler would place the pod as it requests. Whole devices of a node's plugin are admitted",
    ),
    Rule(
        "priority-class",
        "a priority class above the one of pods in budget",
        "the pod would go before pods whose namespace has budget left",
        "warn",
        "replaced by the highest class that the namespace's budget allows",
    ),
    Rule(
        "grace-period",
        "`terminationGracePeriodSeconds` above `maxGracePeriod`",
        "a GPU pod holds its cards during its grace period",
    ),
    Rule(
        "above-cap",
        "a pod that needs more than the budget's `maxGPUsPerPod`, or alone or with its gang more than its "
        "`maxGPUs`, or those of its group's budget",
        "the pod would wait for ever. The budget sets it, not `rules`",
    ),
    Rule(
        "no-duration",
        "a pod without `activeDeadlineSeconds`, if its namespace's budget has `requireDuration: true`. A "
        "Job's own counts for its template",
        "the budget reserves what pods declare. Of controllers, only a Job and a CronJob can set it in their "
        "templates. The budget sets it, not `rules`",
    ),
    Rule(
        "host-share",
        "a GPU pod that requests more CPU or memory than `hostShare` times (2) what goes with its part of a "
        "card on the node with the most of it for each card",
        "a pod with one per cent of a card and all CPUs keeps the node's other cards from everyone. While no "
        "node with cards is known, pods are admitted with a warning that says so. Bursar's own sidecar does "
        "not count",
        "off",
    ),
    Rule(
        "malformed-name",
        "a model or a card's UUID that no inventory can contain, such as `A100;H100` or the index `0`",
        "the pod would wait for ever",
    ),
    Rule(
        "contradicting-constraint",
        "`bursar.dev/gpu-models` when `bursar.dev/exclude-gpu-models` excludes every one of them",
        "the pod would wait for ever",
    ),
    Rule(
        "pod-size",
        "a GPU pod of more than 1 MiB, including what admission adds, of more than 192 KiB of annotations, "
        "or of cards and containers whose Binding would write more than 64 KiB",
        "close to the limits of etcd (1.5 MiB) and the API server (256 KiB of annotations) later writes are "
        "refused, even the deletion, and the pod would hold its cards for ever",
    ),
    Rule(
        "pod-parts",
        "any pod, with GPUs or without, of more than 1,000 annotations, labels, volumes, gates or containers "
        "of a kind, 20,000 variables, mounts, limits and requests, or of too many letters in names and paths",
        "to search it takes seconds. Nothing else is said of it. The policy `bursar-sizes` says the same",
    ),
    Rule(
        "legacy-sidecar",
        "a container named `gpu-sidecar`, as kubernetes-gpusharing injects it",
        "it reports to a Service that no longer exists, and in a Job it never ends",
        "warn",
        "admitted: remove it, Bursar injects its own sidecar",
    ),
    Rule(
        "without-effect",
        "an amount or a setting that nothing reads where it stands: a resource in an annotation, a label or "
        "`spec.resources`, an annotation of pods on a Job, amounts beside a number of cards of zero",
        "the pod runs without what its user wrote. The warning names the right place",
        "warn",
        "admitted without it",
    ),
)

CATALOGUE = {rule.id: rule for rule in (*REQUEST, *FORGERY, *BYPASS, *PLACING)}
