"""Pods that are supposed: where they fit, and in a sentence what they need and what is left."""

from collections.abc import Iterator

from timekeeper.accounts.budget_history import is_group
from timekeeper.api.sheets.sheet import NODE, POD, SENTENCE, TEXT, Json, Sheet
from timekeeper.core.budgets.sentences import account_name
from timekeeper.core.texts import few_digits, moment

_HELD = {"budget": "it is held until its budget pays for it", "turn": "it is held until its turn"}


def _outcome(raw: Json) -> str:
    return f"held, then {raw['outcome']}" if raw["held"] else str(raw["outcome"])


def _why(raw: Json) -> str:
    """What decides about the pod, first."""
    if raw["refusal"]:
        return str(raw["refusal"])
    spared = "the budget is spent and protects it" if raw["protected"] else ""
    return "; ".join((*filter(None, (_HELD.get(raw["held"], ""), spared)), *_placed(raw)))


def _placed(raw: Json) -> Iterator[str]:
    match raw["outcome"]:
        case "not-governed":
            yield "it requests no GPU"
        case "unknown":
            yield "it is not known where it would run"
        case "fits":
            yield "1 node fits" if raw["nodesThatFit"] == 1 else f"{raw['nodesThatFit']} nodes fit"
        case _:
            yield from map(_reason, raw["reasons"])


def _reason(raw: Json) -> str:
    nodes = "1 node" if raw["nodes"] == 1 else f"{raw['nodes']} nodes"
    return f"{nodes}: {raw['reason']}" if raw["nodes"] else str(raw["reason"])


def _sentences(answer: Json, _now_ms: int) -> Iterator[str]:
    """What the pods need, what is left of the budget that limits them, and until when."""
    if answer["cost"]["rateMilli"]:
        yield _paid(answer)
    if any(pod["hasUnreadConstraints"] for pod in answer["pods"]):
        yield "Some pods have constraints, such as affinity to pods, that kube-scheduler alone checks."
    if answer["note"]:
        yield f"{answer['note'][:1].upper()}{answer['note'][1:]}."


def _paid(answer: Json) -> str:
    needs, after = answer["needs"], answer["after"]
    amount, a_day = (answer["cost"]["perDay"], " a day") if needs is None else (needs["amount"], "")
    says = f"Needs {few_digits(amount)} GPU-hours{a_day}"
    if after["remaining"] is None:
        return f"{says}; no budget limits it."
    group = f" of {account_name(after['namespace'])}" if is_group(after["namespace"]) else ""
    until = f" until {moment(after['to'])}" if after["to"] else ""
    says += f"; {few_digits(max(0, after['remaining']))} are left{group}{until}"
    gone_ms = after["now"]["goneAt"]
    last = f"; they last until {moment(gone_ms) if gone_ms else 'then'}" if needs is None else ""
    return f"{says}{last}."


SIMULATED = Sheet(
    columns=(
        POD("pod", "Pod", "of the manifest", "name"),
        TEXT("outcome", "Outcome", "what would happen to it", _outcome),
        NODE("node", "Node", "where it would run"),
        SENTENCE("why", "Why", "what decides about it", _why),
    ),
    rows=lambda answer: answer["pods"],
    notes=_sentences,
)
