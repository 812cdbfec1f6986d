"""Simulated pods as a sheet, and the cost and the budget in sentences."""

from collections.abc import Iterator
from typing import Any

from timekeeper.cli.output import Column, Sheet
from timekeeper.core.texts import gpus, moment

_PODS = (
    Column("pod", "POD"),
    Column("outcome", "OUTCOME"),
    Column("priorityClass", "CLASS"),
    Column("node", "NODE"),
    Column("cards", "CARDS"),
    Column("gpus", "GPUS", True),
    Column("victims", "WOULD LEAVE"),
    Column("why", "WHY"),
)
_HELD = {"budget": "it is held until its budget pays for it", "turn": "it is held until its turn"}
_STYLES = {"refused": "bold red", "waits": "yellow", "fits": "green"}


def pods(answer: Any) -> Sheet:
    """A row for each pod."""
    return Sheet(_PODS, tuple(_row(each) for each in answer["pods"]), answer, _STYLES)


def _row(raw: Any) -> dict[str, str]:
    return {
        "pod": raw["name"],
        "outcome": f"held, then {raw['outcome']}" if raw["held"] else raw["outcome"],
        "priorityClass": raw["priorityClass"],
        "node": raw["node"],
        "cards": ",".join(str(each["index"]) for each in raw["cards"]),
        "gpus": gpus(raw["cost"]["rateMilli"]),
        "victims": ", ".join(map(_victim, raw["victims"])),
        "why": _why(raw),
    }


def _why(raw: Any) -> str:
    """What decides about the pod, first."""
    if raw["refusal"]:
        return str(raw["refusal"])
    spared = "the budget is spent and protects it" if raw.get("protected") else ""
    parts = [*filter(None, (_HELD.get(raw["held"], ""), spared)), *_placed(raw)]
    return "; ".join(parts)


def _placed(raw: Any) -> Iterator[str]:
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


def _reason(raw: Any) -> str:
    nodes = "1 node" if raw["nodes"] == 1 else f"{raw['nodes']} nodes"
    return f"{nodes}: {raw['reason']}" if raw["nodes"] else str(raw["reason"])


def _victim(raw: Any) -> str:
    return f"{raw['namespace']}/{raw['name']}" if raw["name"] else "a pod of another namespace"


def sentences(answer: Any) -> Iterator[str]:
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


def _gone(forecast: Any) -> str:
    at_ms, ends_ms, name = forecast["now"]["goneAt"], forecast["to"], forecast["namespace"]
    if at_ms is not None:
        return f"{name} is gone at {moment(at_ms)}"
    return (
        f"{name} is never gone"
        if ends_ms is None
        else f"{name} lasts until its period ends at {moment(ends_ms)}"
    )
