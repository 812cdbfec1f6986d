"""The configuration of the local kube-schedulers, one of them with our extender, as a value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from timekeeper.cli.doctor.extender_entry import MANAGED_RESOURCES
from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS

PLAIN_PROFILE = "default-scheduler"
GPU_PROFILE = names.SCHEDULER

UNCOUNTED_RESOURCES = frozenset(
    (*(name for dialect in DIALECTS for name in dialect.ignored_by_scheduler), names.GPU_PLACEMENT)
)

# kube-scheduler adds score (0..10) x weight x 10 to the sum of its plugins' scores, each of which seldom
# differs by more than 100 between two nodes. With 10 the extender's score decides unless several plugins
# agree against it.
EXTENDER_WEIGHT = 10

# Seconds that kube-scheduler lets a pod rest after a try, at most. By default ten: so long could one that is
# woken just after a try wait while others keep kube-scheduler busy.
MAX_BACKOFF_S = 2

# Seconds that kube-scheduler waits for the volumes of a pod, while it counts the node's cards as taken. By
# default 600: so long could a claim that no provisioner serves keep them from others without a charge. A pod
# whose volumes take longer is tried again on the same node, and their provisioning goes on.
MAX_VOLUME_WAIT_S = 10

# The default of 50 calls a second would limit the rate of binds.
CALLS_PER_S = {"qps": 500, "burst": 1000}


@dataclass(frozen=True, slots=True)
class ExtenderTLS:
    """Files for mutual TLS with an extender that is not on loopback. Without a CA kube-scheduler would verify
    nothing, so it is required.
    """

    ca_file: str
    cert_file: str
    key_file: str
    server_name: str | None = None


def extender(
    url: str,
    managed: Sequence[str] = MANAGED_RESOURCES,
    http_timeout: str = "2s",
    tls: ExtenderTLS | None = None,
) -> dict[str, Any]:
    """The entry for our extender at `url` (scheme, host, port, perhaps a path), which answers below it at
    filter, prioritize, preempt and bind.
    """
    entry: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": EXTENDER_WEIGHT,
        "enableHTTPS": tls is not None,
        "httpTimeout": http_timeout,
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": name, "ignoredByScheduler": name in UNCOUNTED_RESOURCES} for name in managed
        ],
    }
    if tls is not None:
        entry["tlsConfig"] = {"caFile": tls.ca_file, "certFile": tls.cert_file, "keyFile": tls.key_file}
        if tls.server_name is not None:
            entry["tlsConfig"]["serverName"] = tls.server_name
    return entry


def profile(name: str) -> dict[str, Any]:
    """By default kube-scheduler offers an extender only a sample of the nodes, and a card that is free
    elsewhere is not found."""
    if name != GPU_PROFILE:
        return {"schedulerName": name}
    volumes = {"name": "VolumeBinding", "args": {"bindTimeoutSeconds": MAX_VOLUME_WAIT_S}}
    return {"schedulerName": name, "percentageOfNodesToScore": 100, "pluginConfig": [volumes]}


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
