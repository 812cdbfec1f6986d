"""The entry of the extender in a KubeSchedulerConfiguration, as kube-scheduler has to have it."""

from typing import Any

from timekeeper.core import names
from timekeeper.core.dialects import DIALECTS
from timekeeper.core.json_values import mapping, sequence

# kube-scheduler calls the extender for pods that request one of these. It also counts them against the node's
# capacity, except those that nodes do not have.
MANAGED_RESOURCES = (
    *(name for dialect in DIALECTS if not dialect.placed_by_others for name in dialect.resources),
    names.GPU_PLACEMENT,
)


def is_ours(entry: Any) -> bool:
    """Whether an extender's entry is Bursar's: it binds pods that request Bursar's own resource."""
    managed = {mapping(resource).get("name") for resource in sequence(mapping(entry).get("managedResources"))}
    return names.GPU_PERCENT in managed
