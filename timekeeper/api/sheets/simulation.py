"""Pods that are supposed, and in sentences what they cost."""

from collections.abc import Iterator

from timekeeper.api.sheets.sheet import GPUS, NODE, POD, SENTENCE, TEXT, Json, Sheet
from timekeeper.core.texts import moment

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
    count = len(raw["victims"])
    match raw["outcome"]:
        case "not-governed":
            yield "it requests no GPU"
        case "unknown":
            yield "no extender was asked where it would run"
        case "fits":
            yield "1 node fits" if raw["nodesThatFit"] == 1 else f"{raw['nodesThatFit']} nodes fit"
        case "preempts":
            yield f"{'1 pod leaves' if count == 1 else f'{count} pods leave'} for it, by {raw['kind']}"
        case _:
            yield from map(_reason, raw["reasons"])


def _reason(raw: Json) -> str:
    nodes = "1 node" if raw["nodes"] == 1 else f"{raw['nodes']} nodes"
    return f"{nodes}: {raw['reason']}" if raw["nodes"] else str(raw["reason"])


def _victim(raw: Json) -> str:
    return f"{raw['namespace']}/{raw['name']}" if raw["name"] else "a pod of another namespace"


def _sentences(answer: Json, _now_ms: int) -> Iterator[str]:
    """Cost, and when the budget is gone without and with the pods."""
    cost = answer["cost"]
    price = f", {cost['price']} {cost['currency']}".rstrip() if cost["price"] else ""
    yield f"Cost of a day: {cost['gpuHoursPerDay']} GPU-hours{price}."
    before, after = (_gone(answer[name]) for name in ("before", "after"))
    yield f"The budget of {before} as things are, and that of {after} with these pods."
    if any(each["hasUnreadConstraints"] for each in answer["pods"]):
        yield "Some pods have constraints, such as affinity to pods, that kube-scheduler alone checks."
    if answer["note"]:
        yield f"{answer['note'][:1].upper()}{answer['note'][1:]}."


def _gone(forecast: Json) -> str:
    at_ms, ends_ms, name = forecast["now"]["goneAt"], forecast["to"], forecast["namespace"]
    if at_ms is not None:
        return f"{name} is gone at {moment(at_ms)}"
    return (
        f"{name} is never gone"
        if ends_ms is None
        else f"{name} lasts until its period ends at {moment(ends_ms)}"
    )


SIMULATED = Sheet(
    columns=(
        POD("pod", "Pod", "of the manifest", "name"),
        TEXT("outcome", "Outcome", "what would happen to it", _outcome),
        TEXT("priorityClass", "Class", "its priority class"),
        NODE("node", "Node", "where it would run"),
        TEXT(
            "cards",
            "Cards",
            "their numbers there",
            lambda raw: ",".join(str(each["index"]) for each in raw["cards"]),
        ),
        GPUS(
            "gpus", "GPUs", "the rate of its charge, in weighted GPUs", lambda raw: raw["cost"]["rateMilli"]
        ),
        TEXT("victims", "Would leave", "for it", lambda raw: ", ".join(map(_victim, raw["victims"]))),
        SENTENCE("why", "Why", "what decides about it", _why),
    ),
    rows=lambda answer: answer["pods"],
    notes=_sentences,
)
