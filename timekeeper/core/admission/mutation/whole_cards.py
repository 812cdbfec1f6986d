"""Whole cards of NVIDIA's plugin in Bursar's words, where `wholeCards: bursar` sends them to Bursar's nodes.

A pod cannot request one or the other: kube-scheduler counts what it requests. So its resource is another one
before anything else is read of it; a second call finds nothing to change.
"""

from collections.abc import Iterator

from timekeeper.core.admission.admission import placed_by
from timekeeper.core.admission.json_patch import Operation, add, escaped, remove
from timekeeper.core.admission.pods import CONTAINER_LISTS, annotations_of, labels_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy, mark_of_its_scheduler
from timekeeper.core.dialects import native, nvidia
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.names import GPU_PERCENT
from timekeeper.core.quantity import integral
from timekeeper.core.values import GPURequest

_CARD = 100  # per cent
_KUEUE = frozenset(("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed"))


def in_bursars_words(pod: Json, request: GPURequest | None, policy: AdmissionPolicy) -> list[Operation]:
    """What makes the pod request the same cards of Bursar's nodes; empty where it stays as it is: where the
    setting is another, where Kueue counts it, or another system places or starts it or reads annotations of
    it."""
    if request is None or request.dialect != nvidia.DIALECT.name or not policy.takes_whole_cards:
        return []
    if counted_by_kueue(pod) or placed_by(pod["spec"], request.dialect, policy) != policy.scheduler_name:
        return []
    if mark_of_its_scheduler(pod, policy):
        return []  # it is refused, as its user wrote it
    if not annotations_of(pod).keys().isdisjoint(nvidia.ANNOTATIONS.names):
        return []
    return list(_operations(pod, {each.container: each.ask.devices for each in request.asks}))


def in_the_plugins_words(pod: Json, request: GPURequest | None, policy: AdmissionPolicy) -> list[Operation]:
    """What gives a pod back what an earlier call took, if Kueue's webhook has put it into a queue since."""
    is_native = request is not None and request.dialect == native.DIALECT.name
    return list(_back(pod)) if is_native and policy.takes_whole_cards and counted_by_kueue(pod) else []


def counted_by_kueue(pod: Json) -> bool:
    """Whether the pod itself is in a queue of Kueue, which counts what it requests by name."""
    return not _KUEUE.isdisjoint(labels_of(pod))


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


def _back(pod: Json) -> Iterator[Operation]:
    for field in CONTAINER_LISTS:
        for index, container in enumerate(sequence_of(pod["spec"].get(field))):
            for member in ("limits", "requests"):
                amounts = mapping(mapping(container.get("resources")).get(member))
                cards, rest = divmod(integral(amounts.get(GPU_PERCENT)) or 1, _CARD)
                if integral(amounts.get(nvidia.GPU)) == 0 and not rest:
                    path = f"/spec/{field}/{index}/resources/{member}"
                    yield add(f"{path}/{escaped(nvidia.GPU)}", str(cards))
                    yield remove(f"{path}/{escaped(GPU_PERCENT)}")
