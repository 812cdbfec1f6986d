"""The clock of a node, whose kubelet's timestamps prove charges, beside the API server's."""

from collections.abc import Mapping
from typing import Any

from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.ledger.hold import millis

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"  # those that kubelets renew
_TOLERATED_MS = 5_000  # the API server may take seconds for a write, and notes whole ones


def clock_ahead_ms(lease: Mapping[str, Any]) -> int:
    """By how much the clock of a node was ahead when its kubelet last renewed this Lease: the kubelet writes
    its own time into it, and the API server notes its own beside it. 0 within `_TOLERATED_MS`, or if not
    known. Never raises on JSON from an API server."""
    renewed_ms = millis(mapping(lease.get("spec")).get("renewTime"))
    fields = map(mapping, sequence(mapping(lease.get("metadata")).get("managedFields")))
    noted = [at_ms for each in fields if (at_ms := millis(each.get("time"))) is not None]
    if renewed_ms is None or not noted:
        return 0
    ahead_ms = renewed_ms - max(noted)
    return ahead_ms if abs(ahead_ms) > _TOLERATED_MS else 0
