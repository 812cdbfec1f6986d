"""Every rule of admission: what it refuses, why, and how it is answered where nobody has settled otherwise.

A rule's mode is ``enforce`` (refused), ``warn`` (let through, and the user is told), or ``off``.
`docs/rules.md` shows this table with an example of each, and a test holds the two together.
"""

from dataclasses import dataclass
from typing import Literal

from timekeeper.core.budgets.rule_ids import FIXED
from webhook.policy import Terms

RuleMode = Literal["enforce", "warn", "off"]
Answered = Literal["enforce", "warn", "off", "observe", "exempt"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``instead``: what happens in mode ``warn``, as the warning says it of a governed pod."""

    id: str
    refuses: str
    why: str
    default: RuleMode = "enforce"
    instead: str = "let through"

    @property
    def fixed(self) -> bool:
        """True where nobody may set its mode."""
        return self.id in FIXED


# What a request must be. Without one nothing can be placed or charged, so none of these can be turned off.
REQUEST = (
    Rule(
        "amount",
        "an amount that is no whole number (`0.5`, `500m`, `NaN`, an exponent beyond 64 bits, digits that "
        "are "
        "not ASCII), or zero, or negative; more than 64 cards",
        "cards, percent and MiB are counted, and what is read wrongly is charged wrongly. Every exact "
        "spelling "
        "of a whole number is read: `8000`, `8k`, `8e3`, `4Ki`, as the API server itself respells them",
    ),
    Rule(
        "share-range",
        "a share above one card that is no multiple of 100, or more than 64 cards",
        "`150` could mean a card and a half, which no container can be given",
    ),
    Rule(
        "count-divides",
        "percent or memory that do not divide evenly over `bursar.dev/gpu-count` cards",
        "each of the cards gets the same integer share, so that nothing is rounded away",
    ),
    Rule(
        "memory-floor",
        "less than 64 MiB on a card",
        "a CUDA context alone takes more: most often GiB were meant",
    ),
    Rule("memory-range", "more than 1 TiB on a card", "no card has that: most often bytes were meant"),
    Rule(
        "memory-with-whole-cards",
        "`bursar.dev/gpu-memory` beside whole cards",
        "a whole card comes with all of its memory; a smaller number beside it would not be kept",
    ),
    Rule(
        "whole-cards-only",
        "`nvidia.com/gpu: 0.5` and the like",
        "NVIDIA's plugin counts whole cards; the message names the resource that takes parts",
    ),
    Rule(
        "share-without-memory",
        "`tencent.com/vcuda-core` below 100 without `vcuda-memory`, or `vcuda-memory` alone",
        "gpu-manager starts no container that has one without the other",
    ),
    Rule(
        "dialect-not-spoken",
        "GPU resources of a system that Bursar does not speak",
        "such a pod would pass by every budget",
    ),
    Rule(
        "request-differs-from-limit",
        "a GPU request that differs from its limit, or stands without one",
        "an extended resource cannot be overcommitted; and which of the two would be charged is anybody's "
        "guess",
    ),
    Rule(
        "several-dialects",
        "containers that ask in different dialects",
        "a node speaks one of them, so the pod would fit nowhere",
    ),
    Rule("unknown-policy", "a `bursar.dev/policy` that does not exist", "it would be ignored in silence"),
    Rule("empty-constraint", "a list of models or cards that names none", "it would allow no card, or any"),
    Rule(
        "long-constraint",
        "a list of models, cards or containers of more than 64 names, or with a name of more than 128 "
        "characters, or of more than 8320 characters altogether",
        "each name is compared with each card of every node, again and again while the pod waits; whoever "
        "needs more names means a label of the nodes",
    ),
    Rule("unknown-topology", "a word other than `pair`, `numa`, `node`", "it would be ignored in silence"),
    Rule(
        "same-gpu-container",
        "`bursar.dev/same-gpu` with a container that asks for no card or is not in the pod, or with fewer "
        "than two different ones",
        "there would be nothing to put on the same card",
    ),
    Rule(
        "same-gpu-conflict",
        "containers in `bursar.dev/same-gpu` that no card can hold together: of more than one card, whole "
        "ones beside others, or of more than 100 per cent in all at one time",
        "the pod would fit nowhere",
    ),
)

# What only Bursar and the nodes' plugins may say. Whoever could forge it would be governed by their own word.
FORGERY = (
    Rule(
        "forged-annotation",
        "an annotation that Bursar or a node plugin writes: a placement, a standing, a request other than "
        "the "
        "pod's own",
        "the scheduler, the ledger and the node would act on it",
    ),
    Rule(
        "unknown-annotation",
        "another annotation under `bursar.dev/`",
        "most often a constraint's name misspelt, which would be ignored in silence",
    ),
    Rule("forged-label", "a label under `bursar.dev/`", "as for annotations"),
    Rule("forged-gate", "a scheduling gate under `bursar.dev/`", "only Bursar could open it again"),
    Rule(
        "sidecar-name",
        "a container named `bursar-sidecar` that is not the injected one",
        "its heartbeats would count as ours",
    ),
    Rule("sidecar-volume", "a volume named `bursar-token` or `bursar-spool` that is another", "as above"),
    Rule(
        "node-name",
        "`spec.nodeName` in a GPU pod",
        "it passes by the scheduler that gives out cards, so nothing could be charged, and the node would be "
        "closed for sharing while the pod runs",
    ),
    Rule(
        "not-governed",
        "a pod in which another webhook has undone what Bursar wrote",
        "it would run with another class, other cards, or without its meter",
    ),
    Rule(
        "budget-exhausted",
        "a new GPU pod in a namespace that is over budget and whose entry says `onExhausted: deny`",
        "the budget says so: it is set by `onExhausted` and not by `rules`",
    ),
)

# Ways to cards that were not asked for.
BYPASS = (
    Rule(
        "sees-cards-without-asking",
        "`NVIDIA_VISIBLE_DEVICES` other than `void`, `none` or empty in a pod that asks for no GPU",
        "on many nodes it shows every card of the node, outside every budget",
    ),
    Rule(
        "ephemeral-sees-cards",
        "the same in an ephemeral container",
        "it holds no card and none is charged for it",
    ),
    Rule(
        "visible-devices",
        "`NVIDIA_VISIBLE_DEVICES` set by hand in a pod that asks for GPUs",
        "which cards a container sees is decided when the pod is placed; CUDA images and old manifests "
        "carry it "
        "without meaning it, so it is replaced",
        "warn",
        "replaced: a container sees the cards that it is given",
    ),
    Rule(
        "isolation-variable",
        "variables by which isolation on the node is steered or switched off: `CUDA_DISABLE_CONTROL`, "
        "`CUDA_MPS_*`, `CUDA_DEVICE_MEMORY_LIMIT*`, `NVIDIA_MIG_*` and others, in a container that asks "
        "for a GPU or has the sidecar's name",
        "with one of them a tenant lifts the limit of its own share",
    ),
    Rule(
        "env-from",
        "`envFrom` that could set one of those, in a container that asks for a GPU",
        "a ConfigMap or Secret can change after admission, so nobody can look into it here. A `prefix` that "
        "none of them begins with makes it safe",
        "warn",
        "let through: what it sets is not seen at admission",
    ),
    Rule(
        "env-from-plugin",
        "`envFrom` that could set `NVIDIA_VISIBLE_DEVICES`, in a container whose cards the node's own plugin "
        "picks (`nvidia.com/gpu`)",
        "the plugin tells the container its cards by this variable, and what a pod sets, by `envFrom` too, "
        "goes before that: a ConfigMap with `all` in it would show every card of the node. In the other "
        "dialects Bursar sets the variable in `env`, which goes before `envFrom`. A `prefix` that the "
        "variable does not begin with makes it safe",
    ),
    Rule(
        "privileged",
        "a privileged container in a pod that asks for GPUs, ephemeral ones too",
        "it can open every card of its node, whatever it was given",
    ),
    Rule(
        "host-path",
        "a hostPath volume that holds a GPU's device files, the driver's, or the sockets of kubelet and "
        "container "
        "runtime",
        "with these a container reaches cards that it was not given",
    ),
    Rule(
        "device-annotation",
        "annotations under `cdi.k8s.io/`",
        "they name devices to the container runtime itself",
    ),
    Rule(
        "device-mount",
        "a mount under `/var/run/nvidia-container-devices` in a pod that asks for GPUs",
        "its name asks NVIDIA's container runtime for cards",
    ),
    Rule(
        "host-pid",
        "`hostPID` in a pod that asks for GPUs",
        "it shows the processes of the other tenants of a card, and their files under /proc",
    ),
)

# Where a pod goes, and how long it stays.
PLACING = (
    Rule(
        "init-container",
        "an init container that asks for a GPU in the tencent dialect",
        "gpu-manager gives cards to ordinary containers alone: the pod would wait on its node for ever. In "
        "the "
        "other dialects init containers and native sidecars may ask; a sidecar's cards are added to the "
        "pod's, "
        "an init container's are counted where they are more than all of those",
    ),
    Rule(
        "foreign-scheduler",
        "another `schedulerName` than Bursar's or the default",
        "only Bursar's scheduler knows cards. It is replaced whatever the mode is",
        "warn",
        "replaced",
    ),
    Rule(
        "priority-class",
        "a priority class above the one that pods in budget get",
        "it would stand in front of those whose budget is not spent. It is replaced whatever the mode is, "
        "but "
        "while observing",
        "warn",
        "replaced by the highest class that the namespace's budget gives",
    ),
    Rule(
        "grace-period",
        "`terminationGracePeriodSeconds` above `maxGracePeriod`",
        "a GPU pod holds its cards for as long; and one that is deleted by force is reckoned with for "
        "`maxGracePeriod` only",
    ),
    Rule(
        "malformed-name",
        "a model or a card's UUID that no inventory can hold, such as `A100;H100` or the index `0`",
        "the pod would wait for ever",
    ),
    Rule(
        "contradicting-constraint",
        "`bursar.dev/gpu-models` of which every one is excluded by `bursar.dev/exclude-gpu-models`",
        "the pod would wait for ever",
    ),
    Rule(
        "pod-size",
        "a GPU pod of more than 1 MiB, with what admission is still to add to it",
        "etcd takes 1.5 MiB: a pod just below that is stored, but what the scheduler and the kubelet write "
        "on top is refused, even its deletion, and it would hold its cards for ever",
    ),
    Rule(
        "legacy-sidecar",
        "a container named `gpu-sidecar`, as kubernetes-gpusharing injects it",
        "Bursar injects its own; the old one reports to a Service that is no more, and in a Job it never "
        "ends",
        "warn",
        "let through: remove it, Bursar injects its own sidecar",
    ),
)

CATALOGUE = {rule.id: rule for rule in (*REQUEST, *FORGERY, *BYPASS, *PLACING)}


def mode_of(rule: str, terms: Terms) -> RuleMode:
    """The mode of a rule for these terms; an unknown rule is enforced."""
    if is_fixed(rule):
        return "enforce"
    match terms.rules.get(rule):
        case "enforce" | "warn" | "off" as settled:
            return settled
    return CATALOGUE[rule].default


def answered(rule: str, terms: Terms, exempt: bool = False) -> Answered:
    """How a violation of the rule is answered now: by its mode, but while observing and of an exempt user an
    enforced one only warns. Nobody is exempt from what may not be relaxed."""
    mode = mode_of(rule, terms)
    if mode != "enforce":
        return mode
    if exempt and not is_fixed(rule):
        return "exempt"
    return "observe" if terms.mode == "observe" else "enforce"


def is_fixed(rule: str) -> bool:
    """True where nobody may set the rule's mode; so for one that is not in the catalogue."""
    return rule not in CATALOGUE or CATALOGUE[rule].fixed
