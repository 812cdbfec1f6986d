"""From a review to its answer, for both webhooks. Pure: the standing and the terms are arguments.

/mutate refuses or governs. /validate sees what other webhooks left of it: it compares the pod with the
standing that /mutate recorded in it, never with a table of its own, for the standing may turn between the two
calls.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from timekeeper.core import names
from timekeeper.core.request import Json, Parsed, annotations_of, mapping, parse
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, message
from timekeeper.core.wire import StandingWord
from webhook import notices, rules
from webhook.govern import govern
from webhook.patch import Operation
from webhook.review import Answer, Review, sequence_of
from webhook.terms import WORDS, PriorityClass, Standing, Terms

NOTHING_TO_DO = Answer("passed")

_MARKS = ("/metadata/", "/spec/priorityClassName", "/spec/schedulerName", "/spec/volumes")

MOST_SHOWN = 50  # no one mends more at once, and an answer stays small


def mutate(review: Review, standing_of: Callable[[str], Standing], terms: Terms) -> Answer:
    """Refuses with every violation, or gives the patch that governs the pod; pods without a request pass.

    ``standing_of`` is asked for a namespace only where a pod is about to be governed.
    """
    if review.operation != "CREATE" or review.subresource:
        return NOTHING_TO_DO
    parsed = parse(review.pod)
    violations = rules.judged(review.pod, parsed, terms)
    if violations:
        return _refusal(violations, terms)
    if parsed.request is None:
        return NOTHING_TO_DO
    return _governed(review, parsed.request, standing_of(review.namespace), terms)


def validate(review: Review, terms: Terms) -> Answer:
    """Refuses a pod that breaks a rule, or that is not governed as its own recorded standing asks; nothing is
    refused while observing."""
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        violations = rules.ephemeral_violations(review.pod, review.old)
        return _refusal(violations, terms) if violations else NOTHING_TO_DO
    if review.operation != "CREATE" or review.subresource:
        return NOTHING_TO_DO
    parsed = parse(review.pod)
    violations = (*rules.judged(review.pod, parsed, terms), *_not_governed(review.pod, parsed, terms))
    return _refusal(violations, terms) if violations else Answer("valid")


def recorded(review: Review, terms: Terms) -> StandingWord | None:
    """The standing with which an earlier call governed this very pod; None where it is not governed yet.

    The API server asks again when others have changed the pod since (`reinvocationPolicy`), and it always
    does, for it fills in defaults itself. What the pod cost at the first call must not count against it then.
    """
    if review.operation != "CREATE" or review.subresource or not _is_labelled(review.pod):
        return None
    word = _word(annotations_of(review.pod).get(names.STANDING))
    request = parse(review.pod).request
    if request is None or any(_is_mark(each) for each in govern(review.pod, request, word, terms)):
        return None
    return word


def _is_labelled(pod: Json) -> bool:
    return mapping(mapping(pod.get("metadata")).get("labels")).get(names.GOVERNED) == "true"


def _is_mark(operation: Operation) -> bool:
    return str(operation["path"]).startswith(_MARKS)


def newly_governed(review: Review, answer: Answer) -> GPURequest | None:
    """The pod's request where this call, and no earlier one for the same pod, governed it for good.

    A second call after other webhooks changes variables of containers at most; a mark that a user has forged
    hides nothing as long as any other is missing.
    """
    marked = any(_is_mark(operation) for operation in answer.operations)
    return answer.request if marked and not review.dry_run else None


def _refusal(violations: tuple[Violation, ...], terms: Terms) -> Answer:
    broken = tuple(dict.fromkeys(violation.rule for violation in violations))
    if terms.mode == "observe":
        return Answer("observed", warnings=notices.observed(violations), rules=broken)
    text = message(violations[:MOST_SHOWN])
    if len(violations) > MOST_SHOWN:
        text += f"\n  and {len(violations) - MOST_SHOWN} more"
    return Answer("refused", refusal=text, rules=broken)


def _governed(review: Review, request: GPURequest, standing: Standing, terms: Terms) -> Answer:
    operations = govern(review.pod, request, standing.word, terms)
    return Answer(
        "governed" if operations else "unchanged",
        operations=tuple(operations),
        warnings=notices.notices(review.pod, request, review.namespace, standing, terms),
        audit={"standing": standing.word},
        request=request,
    )


def _not_governed(pod: Json, parsed: Parsed, terms: Terms) -> Iterable[Violation]:
    if parsed.request is None:
        return
    word = annotations_of(pod).get(names.STANDING)
    for operation in govern(pod, parsed.request, _word(word), _recorded(pod, terms)):
        if not _is_refresh(pod, operation):
            yield Violation(
                "not-governed",
                operation["path"],
                "",
                "another webhook or a race changed what Bursar had written here",
                "what Bursar writes",
                "creating the pod again; if this stays, ask who runs the cluster's webhooks",
            )


def _word(recorded: object) -> StandingWord:
    return next((word for word in WORDS if word == recorded), "UNKNOWN")


def _recorded(pod: Json, terms: Terms) -> Terms:
    """The terms to compare with: without this process's own flags, which differ while replicas are replaced,
    and, where it has heard no table yet, with what only a table could tell taken from the pod itself."""
    terms = replace(terms, runtime_class="")
    if terms.known:
        return terms
    spec = pod["spec"]
    own = PriorityClass(spec.get("priorityClassName") or "", spec.get("priority"))
    injected = any(each["name"] == names.SIDECAR for each in sequence_of(spec.get("initContainers")))
    return replace(
        terms,
        in_budget=own,
        over_budget=own,
        scheduler_name=spec.get("schedulerName") or "",
        sidecar=terms.sidecar if injected else None,
    )


def _is_refresh(pod: Json, operation: Operation) -> bool:
    """True for what only differs because this process holds a newer CA or address than the one that
    governed."""
    places = enumerate(sequence_of(pod["spec"].get("initContainers")))
    return any(
        each["name"] == names.SIDECAR and operation["path"] == f"/spec/initContainers/{index}/env"
        for index, each in places
    )
