"""Ephemeral containers that an update adds to a pod. They hold no card and are not charged. Those that
existed before are not reviewed again."""

from collections.abc import Iterator

from timekeeper.core.json_values import Json
from webhook.mutation.visible_devices import VISIBLE_DEVICES, VOID, set_variable
from webhook.wire.json_patch import Operation
from webhook.wire.pod_review import sequence_of, variables_of


def added(pod: Json, old: Json) -> Iterator[tuple[int, Json]]:
    """The ephemeral containers that are not in the old pod, each with its index."""
    before = {each["name"] for each in sequence_of(old["spec"].get("ephemeralContainers"))} if old else set()
    for index, container in enumerate(sequence_of(pod["spec"].get("ephemeralContainers"))):
        if container["name"] not in before:
            yield index, container


def hide_cards(pod: Json, old: Json) -> tuple[Operation, ...]:
    """Makes no card visible to new containers that do not set the variable: an image made for CUDA would make
    all cards visible."""
    return tuple(
        operation
        for index, container in added(pod, old)
        for named in [variables_of(container)]
        if VISIBLE_DEVICES not in named
        for operation in set_variable(
            sequence_of(container.get("env")), named, f"/spec/ephemeralContainers/{index}/env", VOID
        )
    )
