"""Whether a pod requests more CPU or memory of a node than goes with its part of the cards."""

from collections.abc import Iterator

from timekeeper.core import names
from timekeeper.core.admission.pods import sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.modes import mode_of
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.rating.held import cards_text, held_milli, most_milli
from timekeeper.core.rating.rating import without_constraints
from timekeeper.core.request.host import CPU, MEMORY, CardHost, container_milli, requested
from timekeeper.core.values import Card, GPURequest
from timekeeper.core.violation import Violation, shown

RULE = "host-share"
NOT_JUDGED = (
    "CPU and memory are not compared with the pod's part of its cards, because no node with cards is known "
    "(host-share)."
)
_MIB = 1024 * 1024


def is_unjudged(policy: AdmissionPolicy) -> bool:
    """True where the rule is on and there is nothing to compare pods with."""
    return policy.card_host is None and mode_of(RULE, policy) != "off"


def host_share_violations(
    pod: Json, request: GPURequest | None, policy: AdmissionPolicy
) -> Iterator[Violation]:
    """One for CPU and one for memory, of what the pod's user wrote: Bursar's sidecar does not count."""
    card_host = policy.card_host
    if request is None or card_host is None or mode_of(RULE, policy) == "off":
        return
    part_milli = _part_milli(request, card_host)
    own = _without_sidecar(pod)
    asked, times = requested(own), policy.host_share_milli * part_milli
    for resource, amount, each, text in (
        (CPU, asked.cpu_milli, card_host.cpu_milli, _cpu_text),
        (MEMORY, asked.memory_bytes, card_host.memory_bytes, _memory_text),
    ):
        most = times * each // 1_000_000
        if amount > most:
            yield Violation(
                RULE,
                _field(pod, resource),
                shown(text(amount)),
                f"with {cards_text(part_milli)} cards the pod's containers together may request "
                f"{cards_text(policy.host_share_milli)} times that part of a node's {resource}, and the node "
                f"with the least has {text(each)} for each card (hostShare)",
                f"at most {text(most)} together",
                f"{resource}: {text(most)}, or a larger part of a card",
            )


def _part_milli(request: GPURequest, card_host: CardHost) -> int:
    """The most that the pod can hold of cards, unweighted: an amount of memory is the largest part of the
    smallest card."""
    smallest = Card("", 0, "", max(1, card_host.least_card_mib))
    return min(held_milli(without_constraints(request), {}, 0, (smallest,)), most_milli(request))


def _without_sidecar(pod: Json) -> Json:
    fields = ("initContainers", "containers")
    spec = pod["spec"]
    own = {
        field: [each for each in sequence_of(spec.get(field)) if each["name"] != names.SIDECAR]
        for field in fields
    }
    return {**pod, "spec": {**spec, **own}}


def _field(pod: Json, resource: str) -> str:
    """The pod's own request if it has one, else the largest of a container."""
    spec = pod["spec"]
    if resource in mapping(mapping(spec.get("resources")).get("requests")):
        return f"spec.resources.requests.{resource}"
    every = [
        (container_milli(each, resource), f"spec.{field}[{at}].resources.requests.{resource}")
        for field in ("containers", "initContainers")
        for at, each in enumerate(sequence_of(spec.get(field)))
    ]
    return max(every, key=lambda each: each[0])[1] if every else "spec.containers"


def _cpu_text(milli: int) -> str:
    return f"{milli // 1000}" if milli % 1000 == 0 else f"{milli}m"


def _memory_text(size: int) -> str:
    return f"{size // _MIB}Mi"
