"""The IDs of the admission rules, as budget ConfigMaps name them.

The webhook's catalogue (`webhook.rules.catalogue`) describes them; a test compares the two.
"""

# Their mode can be set for the cluster and for a namespace.
SETTABLE = (
    "contradicting-constraint",
    "device-annotation",
    "device-mount",
    "env-from",
    "env-from-plugin",
    "ephemeral-sees-cards",
    "foreign-scheduler",
    "grace-period",
    "host-path",
    "host-pid",
    "init-container",
    "isolation-variable",
    "legacy-sidecar",
    "malformed-name",
    "node-path",
    "pod-size",
    "priority-class",
    "privileged",
    "sees-cards-without-asking",
    "visible-devices",
)

# These are always enforced: without them a pod could not be placed or charged, or a user could forge what
# governs it.
FIXED = (
    "above-cap",
    "amount",
    "budget-exhausted",
    "combination",
    "count-divides",
    "dialect-not-spoken",
    "empty-constraint",
    "forged-annotation",
    "forged-gate",
    "forged-label",
    "gas-annotation",
    "long-constraint",
    "memory-floor",
    "memory-range",
    "memory-with-whole-cards",
    "min-gpu-memory",
    "node-name",
    "not-governed",
    "own-scheduler",
    "request-differs-from-limit",
    "same-gpu-conflict",
    "same-gpu-container",
    "several-dialects",
    "share-range",
    "share-without-memory",
    "sidecar-name",
    "sidecar-volume",
    "unknown-annotation",
    "unknown-policy",
    "unknown-topology",
    "unreadable-request",
    "vgpu-constraint",
    "vgpu-number",
    "vgpu-one-container",
    "vgpu-range",
    "whole-cards-only",
)
