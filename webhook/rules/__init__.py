"""What a GPU pod may not hold at admission. Pure: a pod and the terms in, every violation out.

The request itself is the core's to judge; here stands what only an admission can: names that belong to
Bursar, ways to cards that were not asked for, ways past the scheduler, and limits that the operator has set.
Each violation is found whatever else is wrong with the pod, and whatever its rule's mode is.
"""

from timekeeper.core.request.request import Json, ParsedRequest, parse
from timekeeper.core.violation import Violation
from webhook.policy import Terms
from webhook.rules.forged import OURS, OWNED, forged, is_owned, named_as_ours
from webhook.rules.isolation import ephemeral_reaching, reaching, sees_cards_without_asking
from webhook.rules.placement import placed

__all__ = ["OURS", "OWNED", "ephemeral_violations", "is_owned", "judged", "violations"]


def violations(pod: Json, terms: Terms) -> tuple[Violation, ...]:
    """Everything wrong with the pod, in the order of its fields; empty for a pod that may pass.

    Of a pod that asks for no GPU only what would let it reach one, or pass for a governed one, is judged.
    """
    return judged(pod, parse(pod), terms)


def judged(pod: Json, parsed: ParsedRequest, terms: Terms) -> tuple[Violation, ...]:
    """`violations`, for who has parsed the pod already."""
    found = (*parsed.violations, *forged(pod, parsed.request))
    if parsed.request is None and not parsed.violations:
        return (*found, *sees_cards_without_asking(pod))
    return (*found, *placed(pod, terms), *named_as_ours(pod), *reaching(pod, parsed.request))


def ephemeral_violations(pod: Json, old: Json) -> tuple[Violation, ...]:
    """Of the ephemeral containers that an update adds: those that could reach a card. What was there before
    passes."""
    return tuple(ephemeral_reaching(pod, old))
