"""The configuration of the local kube-schedulers, one of them with our extender, as a value."""

from collections.abc import Sequence
from typing import Any

from timekeeper.cli.scheduler.configuration import (
    CALLS_PER_S,
    GPU_PROFILE,
    MANAGED_RESOURCES,
    MAX_BACKOFF_S,
    PLAIN_PROFILE,
    UNCOUNTED_RESOURCES,
    ExtenderTLS,
    extender,
    profile,
)

__all__ = [
    "GPU_PROFILE",
    "MANAGED_RESOURCES",
    "MAX_BACKOFF_S",
    "PLAIN_PROFILE",
    "UNCOUNTED_RESOURCES",
    "ExtenderTLS",
    "extender",
    "scheduler_configuration",
]


def scheduler_configuration(
    kubeconfig: str, profiles: Sequence[str] = (PLAIN_PROFILE,), extenders: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration. Extenders belong to the process and serve every profile of it: give ours
    a process of its own.
    """
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, **CALLS_PER_S},
        "leaderElection": {"leaderElect": False},
        **({"podMaxBackoffSeconds": MAX_BACKOFF_S} if GPU_PROFILE in profiles else {}),
        "profiles": [profile(name) for name in profiles],
        **({"extenders": list(extenders)} if extenders else {}),
    }
