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
        "why": raw["refusal"]
        or "; ".join(f"{each['nodes']} nodes: {each['reason']}" for each in raw["reasons"]),
    }


def _reason(raw: Any) -> str:
    return f"{raw['nodes']} nodes: {raw['reason']}" if raw["nodes"] else str(raw["reason"])


def _victim(raw: Any) -> str:
    return f"{raw['namespace']}/{raw['name']}" if raw["name"] else "a pod of another namespace"


def sentences(answer: Any) -> Iterator[str]:
    """Cost, and when the budget is gone without and with the pods."""
    cost = answer["cost"]
    price = f", {cost['price']} {cost['currency']}".rstrip() if cost["price"] else ""
    yield f"Cost of a day: {cost['gpuHoursPerDay']} GPU-hours{price}."
    gone = (_gone(answer[name]["now"]["goneAt"]) for name in ("before", "after"))
    yield "The budget {} as things are, and {} with these pods.".format(*gone)
    if any(each["hasUnreadConstraints"] for each in answer["pods"]):
        yield "Some pods have constraints, such as affinity to pods, that kube-scheduler alone checks."
    if answer["note"]:
        yield f"{answer['note'][:1].upper()}{answer['note'][1:]}."


def _gone(at_ms: int | None) -> str:
    return "is never gone" if at_ms is None else f"is gone at {moment(at_ms)}"
