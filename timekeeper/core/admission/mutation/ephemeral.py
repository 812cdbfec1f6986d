"""Ephemeral containers that an update adds to a pod. They hold no card and are not charged. Those that
existed before are not reviewed again."""

from timekeeper.core.admission.json_patch import Operation
from timekeeper.core.admission.marks import VISIBLE_DEVICES
from timekeeper.core.admission.mutation.visible_devices import VOID, set_variable
from timekeeper.core.admission.pods import added_ephemeral, sequence_of, variables_of
from timekeeper.core.json_values import Json


def hide_cards(pod: Json, old: Json) -> tuple[Operation, ...]:
    """Makes no card visible to new containers that do not set the variable: an image made for CUDA would make
    all cards visible."""
    return tuple(
        operation
        for index, container in added_ephemeral(pod, old)
        for named in [variables_of(container)]
        if VISIBLE_DEVICES not in named
        for operation in set_variable(
            sequence_of(container.get("env")), named, f"/spec/ephemeralContainers/{index}/env", VOID
        )
    )
