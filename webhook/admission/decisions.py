"""What a review decided about a pod or a pod template, as the record that people read later."""

from dataclasses import replace

from timekeeper.core import names
from timekeeper.core.admission.marks import recorded_hold, recorded_time
from timekeeper.core.admission.pods import annotations_of, sequence_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.decisions import (
    DEMOTED,
    HELD,
    MAX_TEXT,
    MESSAGE,
    REFUSED,
    SCHEDULER_NAME,
    WAITS_FOR_CLAIMS,
    Decision,
    Figure,
)
from timekeeper.core.dialects.others.claims import UNKNOWN
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.object_names import owner_of
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer, PodReview


def of_creation(review: PodReview, answer: AdmissionAnswer, at_ms: int) -> Decision | None:
    """The decision of an answer of /mutate, if it refuses. The pod has no UID yet, and often no name."""
    return _refusal(review, answer, at_ms) if answer.refusal else None


def of_admission(
    review: PodReview, answer: AdmissionAnswer, policy: AdmissionPolicy, is_over: bool, at_ms: int
) -> Decision | None:
    """The decision of an answer of /validate: a refusal, or that the new pod is held or over budget. The pod
    has its name and UID by now. ``policy``: of its namespace; ``is_over``: whether that is over budget by the
    ledger, and not by what a webhook admitted since."""
    if answer.refusal:
        return _refusal(review, answer, at_ms)
    if review.operation != "CREATE" or review.subresource or names.REQUEST not in annotations_of(review.pod):
        return None
    spec, annotations = review.pod["spec"], annotations_of(review.pod)
    word = annotations.get(names.STANDING)
    is_held = names.BUDGET_GATE in [gate["name"] for gate in sequence_of(spec.get("schedulingGates"))]
    if not is_held and (word != "OVER_BUDGET" or policy.mode != "enforce"):
        return None
    figures: dict[str, Figure] = {
        "standing": str(word),
        "priorityClass": str(spec.get("priorityClassName") or ""),
        "request": str(annotations[names.REQUEST]),
        **({"byEstimate": 1} if word == "OVER_BUDGET" and not is_over else {}),
    }
    if is_held:
        declared = recorded_time(review.pod)
        if declared:
            figures["declaredMs"] = 1000 * int(declared)
        if spec.get("schedulerName") != policy.scheduler_name:
            figures[SCHEDULER_NAME] = str(spec.get("schedulerName") or "")
        reason = "DeclaredTime" if declared else _held_reason(review.pod, word == "OVER_BUDGET", is_over)
        return _decision(review, HELD, reason, figures, at_ms)
    return _decision(review, DEMOTED, "OverBudget", figures, at_ms)


def _held_reason(pod: Json, was_over: bool, is_over: bool) -> str:
    """``was_over``: as the pod was governed. A pod of a namespace in budget does not overtake the pods that
    wait before it."""
    hold = recorded_hold(pod)
    if hold == "budget" and was_over:
        return "OverBudget" if is_over else "WaitsForBudget"
    if hold and annotations_of(pod).get(names.CLAIMS) == UNKNOWN:
        return WAITS_FOR_CLAIMS
    return "WaitsForTurn" if hold else "Gated"


def of_template(review: ObjectReview, answer: AdmissionAnswer, at_ms: int) -> Decision | None:
    """The decision of an answer of /templates, if it refuses. Its subject is the workload: it has no pod yet.
    A ReplicaSet counts as its Deployment, as in the records of its pods."""
    if not answer.refusal:
        return None
    metadata = mapping(review.object.get("metadata"))
    owner = owner_of(metadata) if review.kind == "ReplicaSet" else ""
    name = review.name or str(metadata.get("name") or metadata.get("generateName") or "")
    reason, figures = _reason(answer)
    return Decision(
        at_ms=at_ms,
        kind=REFUSED,
        reason=reason,
        namespace=review.namespace,
        figures=figures,
        owner=owner or f"{review.kind}/{name}",
    )


def by_account(decision: Decision, group: str) -> Decision:
    """The decision with the account that decided it. ``group``: the key of the group's budget entry if its
    account determines the namespace's standing, else ""."""
    is_over = decision.reason == "OverBudget" and decision.figures["standing"] == "OVER_BUDGET"
    is_by_standing = is_over or decision.reason == "BudgetExhausted"
    return replace(decision, budget=group) if is_by_standing else decision


def _reason(answer: AdmissionAnswer) -> tuple[str, dict[str, Figure]]:
    """Of a refusal: the first violated rule as one word, and its figures."""
    enforced = [rule for rule, mode in answer.rules if mode == "enforce"]
    reason = "".join(part.capitalize() for part in (enforced or ["refused"])[0].split("-"))
    return reason, {MESSAGE: answer.refusal[:MAX_TEXT], "rules": ",".join(enforced)}


def _refusal(review: PodReview, answer: AdmissionAnswer, at_ms: int) -> Decision:
    return _decision(review, REFUSED, *_reason(answer), at_ms)


def _decision(review: PodReview, kind: str, reason: str, figures: dict[str, Figure], at_ms: int) -> Decision:
    metadata = mapping(review.pod.get("metadata"))
    name, generate_name = metadata.get("name"), metadata.get("generateName")
    return Decision(
        at_ms=at_ms,
        kind=kind,
        reason=reason,
        namespace=review.namespace,
        figures=figures,
        owner=owner_of(metadata),
        name=review.name or (name if isinstance(name, str) else ""),
        generate_name=generate_name if isinstance(generate_name, str) else "",
        uid="" if kind == REFUSED else str(metadata.get("uid", "")),
    )
