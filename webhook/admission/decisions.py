"""What a review decided about a pod or a pod template, as the record that people read later."""

from collections.abc import Iterator
from dataclasses import replace

from timekeeper.core.admission.admission import Admission
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.exhausted import without_figures
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
from timekeeper.core.dialects.others.claims import is_known
from timekeeper.core.json_values import mapping
from timekeeper.core.object_names import owner_of, owners_of
from timekeeper.core.request.request import canonical
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
    admission = answer.admission
    was_over = admission is not None and admission.standing.status == "OVER_BUDGET"
    if admission is None or not (admission.hold or was_over):
        return None
    figures: dict[str, Figure] = {
        "standing": admission.standing.status,
        "priorityClass": str(review.pod["spec"].get("priorityClassName") or ""),
        "request": canonical(admission.request),
        **({"byEstimate": 1} if was_over and not is_over else {}),
    }
    if not admission.hold:
        return _decision(review, DEMOTED, "OverBudget", figures, at_ms)
    if admission.declared:
        figures["declaredMs"] = 1000 * int(admission.declared)
    if admission.scheduler != policy.scheduler_name:
        figures[SCHEDULER_NAME] = admission.scheduler
    return _decision(review, HELD, _held_reason(admission, was_over, is_over), figures, at_ms)


def _held_reason(admission: Admission, was_over: bool, is_over: bool) -> str:
    """``was_over``: as the pod was governed. A pod of a namespace in budget does not overtake the pods that
    wait before it."""
    if admission.declared:
        return "DeclaredTime"
    if admission.hold == "budget" and was_over:
        return "OverBudget" if is_over else "WaitsForBudget"
    return "WaitsForTurn" if is_known(admission.request) else WAITS_FOR_CLAIMS


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


def of_each_owner(decision: Decision, review: PodReview | ObjectReview) -> Iterator[Decision]:
    """A refusal is recorded under every owner that the refused object names, beside its own subject."""
    yield decision
    refused = review.pod if isinstance(review, PodReview) else review.object
    others = owners_of(mapping(refused.get("metadata"))) if decision.kind == REFUSED else ()
    yield from (replace(decision, owner=owner) for owner in others if owner != decision.owner)


def by_account(decision: Decision, group: str) -> Decision:
    """The decision with the account that decided it. ``group``: the key of the group's budget entry if its
    account determines the namespace's standing, else ""."""
    is_over = decision.reason == "OverBudget" and decision.figures["standing"] == "OVER_BUDGET"
    is_by_standing = is_over or decision.reason == "BudgetExhausted"
    return replace(decision, budget=group) if is_by_standing else decision


def _reason(answer: AdmissionAnswer) -> tuple[str, dict[str, Figure]]:
    """Of a refusal: the first violated rule as one word, and its figures, without those of a budget, which
    grow from one try to the next: tries of one owner are one row."""
    enforced = [rule for rule, mode in answer.rules if mode == "enforce"]
    reason = "".join(part.capitalize() for part in (enforced or ["refused"])[0].split("-"))
    return reason, {MESSAGE: without_figures(answer.refusal)[:MAX_TEXT], "rules": ",".join(enforced)}


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
