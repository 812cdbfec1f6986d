"""From a review to its answer, for both webhooks. Pure: the standing and the terms are arguments.

/mutate refuses or governs. /validate sees what other webhooks left of it: it compares the pod with the
standing that /mutate recorded in it, never with a table of its own, for the standing may turn between the two
calls.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from timekeeper.core import names
from timekeeper.core.request.request import Json, ParsedRequest, annotations_of, mapping, parse
from timekeeper.core.values import GPURequest
from timekeeper.core.violation import Violation, message, shown
from timekeeper.core.wire import StandingWord
from webhook import rules
from webhook.admission import warnings as notices
from webhook.mutation import ephemeral, mps
from webhook.mutation import sidecar as injected
from webhook.mutation.govern import govern
from webhook.policy import WORDS, PriorityClass, Standing, Terms
from webhook.rules.catalogue import answered
from webhook.rules.forged import named_as_ours
from webhook.wire.json_patch import Operation
from webhook.wire.pod_review import Answer, Review

NOTHING_TO_DO = Answer("passed")
UNREADABLE = Answer("passed", warnings=(notices.UNMETERED,))
VALID = Answer("valid")

_MARKS = ("/metadata/", "/spec/priorityClassName", "/spec/schedulerName", "/spec/volumes")

MOST_SHOWN = 50  # no one mends more at once, and an answer stays small


def mutate(review: Review, standing_of: Callable[[str], Standing], terms: Terms) -> Answer:
    """Refuses with every violation, or gives the patch that governs the pod; pods without a request pass.

    ``standing_of`` is asked for a namespace only where a pod is about to be governed.
    """
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        blinded = ephemeral.blinded(review.pod, review.old)
        return Answer("governed", operations=blinded) if blinded else NOTHING_TO_DO
    if review.operation != "CREATE" or review.subresource:
        return NOTHING_TO_DO
    parsed = parse(review.pod)
    violations, exempt = rules.judged(review.pod, parsed, terms), is_exempt(review, terms)
    if parsed.request is None or sorted_by_mode(violations, terms, exempt)[0]:
        return _answered(UNREADABLE if parsed.violations else NOTHING_TO_DO, violations, terms, exempt)
    standing = standing_of(review.namespace)
    good = _governed(review, parsed.request, standing, without_taken_names(violations, terms))
    return _answered(good, (*violations, *denied(review.namespace, standing)), terms, exempt)


def validate(review: Review, terms: Terms) -> Answer:
    """Refuses a pod that breaks a rule, or that is not governed as its own recorded standing asks; nothing is
    refused while observing."""
    violations: tuple[Violation, ...]
    if review.operation == "UPDATE" and review.subresource == "ephemeralcontainers":
        violations, good = rules.ephemeral_violations(review.pod, review.old), NOTHING_TO_DO
    elif review.operation != "CREATE" or review.subresource:
        return NOTHING_TO_DO
    else:
        parsed, good = parse(review.pod), VALID
        then = _recorded(review.pod, terms)
        judged = rules.judged(review.pod, parsed, then)
        governing = without_taken_names(judged, then)
        violations = (*judged, *undone(review.pod, parsed, governing))
    return _answered(good, violations, terms, is_exempt(review, terms))


def sorted_by_mode(
    violations: Iterable[Violation], terms: Terms, exempt: bool = False
) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
    """The violations that refuse, and those that only warn; those of rules that are off are in neither.

    Nothing refuses while observing, and of an exempt user nothing that may be relaxed at all.
    """
    refusing, warned = [], []
    for violation in violations:
        how = answered(violation.rule, terms, exempt)
        if how == "enforce":
            refusing.append(violation)
        elif how != "off":
            warned.append(violation)
    return tuple(refusing), tuple(warned)


def refused(violations: Iterable[Violation], terms: Terms, exempt: bool = False) -> Answer:
    """The refusal with every violation that refuses, of which there is one at least, and a warning for each
    that only warns."""
    refusing, warned = sorted_by_mode(violations, terms, exempt)
    return Answer(
        "refused",
        refusal=first_told(refusing),
        warnings=notices.of_violations(warned, terms, exempt, governed=False),
        rules=by_mode((*refusing, *warned), terms, exempt),
    )


def first_told(refusing: Sequence[Violation]) -> str:
    """The text of a refusal: the first MOST_SHOWN violations, and how many more there are."""
    left = len(refusing) - MOST_SHOWN
    return message(refusing[:MOST_SHOWN]) + (f"\n  and {left} more" if left > 0 else "")


def is_exempt(review: Review, terms: Terms) -> bool:
    """True where who asks is among those whose objects are only warned of."""
    return bool(terms.exempt) and (review.user in terms.exempt or not terms.exempt.isdisjoint(review.groups))


def denied(namespace: str, standing: Standing) -> tuple[Violation, ...]:
    """The violation of a pod whose namespace is over budget and wants new pods refused then."""
    if standing.word != "OVER_BUDGET" or standing.on_exhausted != "deny":
        return ()
    until = "more is granted"
    if standing.until_ms is not None:
        moment = datetime.fromtimestamp(standing.until_ms // 1000, UTC)
        until = f"{moment:%Y-%m-%d %H:%M} UTC, when its next period begins"
    spent = (
        "pods of the last seconds use up the rest of its GPU budget"
        if standing.by_estimate
        else ("its GPU budget is used up")
    )
    return (
        Violation(
            "budget-exhausted",
            "metadata.namespace",
            shown(namespace),
            f"{spent}, and it refuses new GPU pods then",
            f"pods without a GPU, until {until}",
            "asking for more hours those who set the budgets",
        ),
    )


def without_taken_names(violations: Iterable[Violation], terms: Terms) -> Terms:
    """The terms to govern a pod with that is let through although it uses a name of the sidecar's: without
    the sidecar, for the API server would refuse a second container of its name."""
    taken = any(violation.rule in ("sidecar-name", "sidecar-volume") for violation in violations)
    return replace(terms, sidecar=None) if taken else terms


def recorded(review: Review, terms: Terms) -> StandingWord | None:
    """The standing with which an earlier call governed this very pod; None where it is not governed yet.

    The API server asks again when others have changed the pod since (`reinvocationPolicy`), and it always
    does, for it fills in defaults itself. What the pod cost at the first call must not count against it then.
    """
    if review.operation != "CREATE" or review.subresource or not _is_labelled(review.pod):
        return None
    word = _word(annotations_of(review.pod).get(names.STANDING))
    request = parse(review.pod).request
    governing = without_taken_names(named_as_ours(review.pod), terms)
    if request is None or any(_is_mark(each) for each in govern(review.pod, request, word, governing)):
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


def _answered(good: Answer, violations: Sequence[Violation], terms: Terms, exempt: bool) -> Answer:
    """A refusal where one of the violations refuses, else the good answer with a warning for each that
    warns."""
    refusing, warned = sorted_by_mode(violations, terms, exempt)
    if refusing:
        return refused(violations, terms, exempt)
    if not warned:
        return good
    observed = terms.mode == "observe" and good.request is None
    warnings = notices.of_violations(warned, terms, exempt, governed=good.request is not None)
    return replace(
        good,
        verdict="observed" if observed else good.verdict,
        warnings=notices.fitting((*good.warnings, *warnings)),
        rules=by_mode(warned, terms, exempt),
    )


def by_mode(violations: Iterable[Violation], terms: Terms, exempt: bool) -> tuple[tuple[str, str], ...]:
    """The rules that are broken, each once, with how each is answered."""
    return tuple(dict.fromkeys((each.rule, answered(each.rule, terms, exempt)) for each in violations))


def _governed(review: Review, request: GPURequest, standing: Standing, terms: Terms) -> Answer:
    operations = govern(review.pod, request, standing.word, terms)
    return Answer(
        "governed" if operations else "unchanged",
        operations=tuple(operations),
        warnings=notices.notices(review.pod, request, review.namespace, standing, terms),
        audit={"standing": standing.word},
        request=request,
    )


def undone(pod: Json, parsed: ParsedRequest, terms: Terms) -> Iterator[Violation]:
    """What is missing of what governing by these terms would have written, by the standing that the pod
    itself records."""
    if parsed.request is None:
        return
    word = annotations_of(pod).get(names.STANDING)
    for operation in govern(pod, parsed.request, _word(word), terms):
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
    sidecar = terms.sidecar if injected.was_injected(pod) else None
    if terms.runtime_class or sidecar is not terms.sidecar:
        terms = replace(terms, runtime_class="", sidecar=sidecar)
    pipes = mps.to_compare_with(pod, terms.mps_pipes)
    if pipes != terms.mps_pipes:
        terms = replace(terms, mps_pipes=pipes)
    if terms.known:
        return terms
    spec = pod["spec"]
    own = PriorityClass(spec.get("priorityClassName") or "", spec.get("priority"))
    return replace(terms, in_budget=own, over_budget=own, scheduler_name=spec.get("schedulerName") or "")


def _is_refresh(pod: Json, operation: Operation) -> bool:
    """True for what only differs because this process holds a newer CA or address than the one that
    governed."""
    present = injected.found(pod)
    return present is not None and operation["path"] == f"{present[0]}/env"
