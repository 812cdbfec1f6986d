"""CPU requests as kube-scheduler counts them, in thousandths of a core.

Source: k8s.io/component-helpers/resource, ``PodRequests`` with the options of ``NodeResourcesFit``.
"""

from timekeeper.core.json_values import Json, mapping
from timekeeper.core.quantity import thousandths
from timekeeper.core.request import host

# A million cores: more than any node has, so a larger request fits on no node either. Small enough that the
# 64-bit sums of `fragmentation` cannot overflow: at most 8,192 typical pods, times a CPU left of
# -2 x 10^9, times 1,000 thousandths, stay below 2 x 10^16.
MAX_MILLI = 10**9


def bounded(milli: int) -> int:
    """The CPU, limited to +-MAX_MILLI. A sum over many pods may exceed that."""
    return max(-MAX_MILLI, min(milli, MAX_MILLI))


def cpu_milli(amounts: Json) -> int:
    """The CPU in a resource list, limited to MAX_MILLI; 0 if it is absent or unreadable."""
    return bounded(max(0, thousandths(amounts.get("cpu")) or 0)) if "cpu" in amounts else 0


def requested_milli(pod: Json) -> int:
    """The pod's CPU request (`host.requested_milli`), limited to MAX_MILLI.

    A bound pod that requests MAX_MILLI counts as 0: kube-scheduler binds it only because its own 64-bit sum
    has overflowed, and takes nothing from the node for it.
    """
    milli = bounded(host.requested_milli(pod, host.CPU))
    return 0 if milli == MAX_MILLI and mapping(pod.get("spec")).get("nodeName") else milli
