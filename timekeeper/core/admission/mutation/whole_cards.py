"""Whole cards of NVIDIA's plugin in Bursar's words, where `wholeCards: bursar` sends them to Bursar's nodes.

A pod cannot request one or the other: kube-scheduler counts what it requests. So its resource is another one
before anything else is read of it; a second call finds nothing to change.
"""

from collections.abc import Iterator

from timekeeper.core.admission.admission import placed_by
from timekeeper.core.admission.json_patch import Operation, add, escaped
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.dialects import nvidia
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.names import GPU_PERCENT
from timekeeper.core.values import GPURequest

_CARD = 100  # per cent


def in_bursars_words(pod: Json, request: GPURequest | None, policy: AdmissionPolicy) -> list[Operation]:
    """What makes the pod request the same cards of Bursar's nodes; empty where it stays as it is: where the
    setting is another, or another system places it or reads annotations of it."""
    if request is None or request.dialect != nvidia.DIALECT.name or not policy.takes_whole_cards:
        return []
    if placed_by(pod["spec"], request.dialect, policy) != policy.scheduler_name:
        return []
    if not annotations_of(pod).keys().isdisjoint(nvidia.ANNOTATIONS.names):
        return []
    return list(_operations(pod, {each.container: each.ask.devices for each in request.asks}))


def _operations(pod: Json, cards: dict[str, int]) -> Iterator[Operation]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(pod["spec"].get(field))):
            if container["name"] not in cards:
                continue
            for member in ("limits", "requests"):
                path = f"/spec/{field}/{index}/resources/{member}"
                if nvidia.GPU in mapping(mapping(container.get("resources")).get(member)):
                    # zero, for what is absent gets the default of a LimitRange
                    yield add(f"{path}/{escaped(nvidia.GPU)}", "0")
                    yield add(f"{path}/{escaped(GPU_PERCENT)}", str(_CARD * cards[container["name"]]))
