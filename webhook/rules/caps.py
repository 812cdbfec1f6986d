"""Whether a pod can ever be placed within its namespace's caps."""

from collections.abc import Iterator

from timekeeper.core.request.held import cards_text, least_milli
from timekeeper.core.standings import Caps
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, shown


def cap_violations(request: GPURequest | None, caps: Caps) -> Iterator[Violation]:
    """One for each cap that the pod's least need exceeds while no other pod holds a card. A request for an
    amount of memory needs less of a larger card, so only the extender, which knows the cards, can refuse
    it."""
    if request is None or not caps.is_set:
        return
    least = least_milli(request)
    for whose, cap in (("the namespace", caps.own), (f"group {caps.group}", caps.of_group)):
        for field, milli in (("maxGPUsPerPod", cap.pod_milli), ("maxGPUs", cap.total_milli)):
            if milli is not None and least > milli:
                yield Violation(
                    "above-cap",
                    "spec.containers",
                    shown(f"{cards_text(least)} GPUs"),
                    f"the budget of {whose} allows no pod so much at one time ({field})",
                    f"at most {cards_text(milli)}",
                    "fewer cards, or smaller shares",
                )
