"""``POST /v1/simulate``: whether the pods of a manifest fit, where, what they need, and what is left.

The webhook answers how they would be admitted, the extender where they would be placed, both by the functions
that decide and as they know budgets at this moment. The ledger adds what it costs. Nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from flask import Flask, Response, request

from timekeeper.accounts.budget_history import GROUP
from timekeeper.accounts.decisions.forecasts import Addition
from timekeeper.api import sheets
from timekeeper.api.http.answers import AmountAnswer, Versioned, amount_of, answer
from timekeeper.api.http.routes import JSON, ApiRoute, Call, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.seats import SeatKey
from timekeeper.api.resources.forecasts import ForecastAnswer, Paces
from timekeeper.api.resources.simulated.answers import CostAnswer, SimulatedPodAnswer, cost_answer, pod_answer
from timekeeper.api.resources.simulated.bodies import BODY, SimulationBody, read_simulation
from timekeeper.api.resources.simulated.pods import ReviewedPod, reviewed_pods
from timekeeper.core import names
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.json_values import annotations_of, mapping
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.rating.nodes import NO_CARDS, NodeCards
from timekeeper.core.rating.rating import Demand, rated
from timekeeper.core.request.card_amounts import CardAmount, NamedAmount
from timekeeper.core.request.request import parse_stored
from timekeeper.core.texts import LEDGER_ALONE, NOT_PLACED
from timekeeper.core.values import WHOLE_MILLI, Card
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.http.problem_details import Problem

_UNCONFIGURED = "simulations need the timekeeper's flag --webhook-url"
_CLAIMS = (
    "kube-scheduler allocates devices to claims: their place is not known, and each counts as a whole GPU of"
    " weight 1"
)
_PARTIAL = (
    "the extender answers within 100 ms of a processor: it did not look at every node, nor at pods whose"
    " outcome is unknown"
)
_NO_EXTENDER = "where pods would be placed is unknown: the timekeeper has no --extender-url"


class SimulationAnswer(Versioned):
    """`cost`: of all pods that would be placed; `needs`: what these use until they end, null where one of
    them has no `activeDeadlineSeconds`; `after`: the forecast with them, of the account that is gone first,
    the namespace's or its group's, and where neither is, of that with less left; `note`: what is missing in
    the answer, or empty."""

    namespace: str
    pods: list[SimulatedPodAnswer]
    cost: CostAnswer
    needs: AmountAnswer | None
    after: ForecastAnswer
    note: str


SIMULATE = ApiRoute(
    method="POST",
    path="/v1/simulate",
    about="whether a manifest's pods fit, where, what they need, and what is left",
    right=None,
    answers={JSON: SimulationAnswer},
    body=BODY,
    refuses=(501,),
    needs="`create simulations` in the namespace",
    sheet=sheets.SIMULATED,
)
ROUTES = (SIMULATE,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def simulation(_call: Call) -> Response:
        asked = read_simulation(read_body())
        if services.ledger.only_meter:
            raise Problem(501, LEDGER_ALONE)
        authorization = request.headers.get("Authorization")
        caller = services.gate.allow(authorization, "create", "simulations", asked.namespace)
        if not services.peers.webhook.url:
            raise Problem(503, _UNCONFIGURED)
        with services.simulations.taken(SeatKey(caller.tenant, asked.namespace)):
            return answer(_simulated(services, asked, caller))

    serve(app, services, SIMULATE, simulation)


def _simulated(services: Services, asked: SimulationBody, caller: Caller) -> SimulationAnswer:
    reviewed, unread = reviewed_pods(services, asked, caller)
    with services.ledger.store.reading() as connection:
        now_ms, history = services.ledger.moment(connection)
    settings, price = history.settings(now_ms), history.price(asked.namespace, now_ms)
    group = history.group(asked.namespace, now_ms)
    placed, note = _placed(services, reviewed, history.places(asked.namespace, now_ms))
    rates = {uid: _rate(placement, settings) for uid, placement in placed.items()}
    rates |= {uid: rate for pod in reviewed for uid, rate in _rate_by_claims(pod, settings)}
    additions = [
        Addition(rates[pod.uid], _longest_ms(pod.raw["spec"])) for pod in reviewed if rates.get(pod.uid)
    ]
    subjects = (asked.namespace, GROUP + group) if group else (asked.namespace,)
    forecasts = [(Paces(services, name), services.ledger.account_now(name)) for name in subjects]
    pods = [
        pod_answer(pod, placed.get(pod.uid, {}), cost_answer(rates.get(pod.uid, 0), price))
        for pod in reviewed
    ]
    return {
        "version": 1,
        "namespace": asked.namespace,
        "pods": pods,
        "cost": cost_answer(sum(rates.values()), price),
        "needs": _needs(additions),
        "after": _first_gone([paces.of(account, additions) for paces, account in forecasts]),
        "note": "; ".join(filter(None, (note, unread, _CLAIMS if any(map(_has_claims, reviewed)) else ""))),
    }


def _longest_ms(spec: Mapping[str, Any]) -> int:
    """How long a pod can run: until its deadline, and for its grace period after that."""
    deadline, grace = spec.get("activeDeadlineSeconds"), spec.get("terminationGracePeriodSeconds", 30)
    if not isinstance(deadline, int) or not isinstance(grace, int):
        return FOREVER_MS
    return min(FOREVER_MS, 1000 * (deadline + max(0, grace)))


def _needs(additions: Sequence[Addition]) -> AmountAnswer | None:
    """What the pods use until they end; None: one of them has no end."""
    if any(addition.length_ms >= FOREVER_MS for addition in additions):
        return None
    return amount_of(sum(addition.milli * addition.length_ms for addition in additions))


def _first_gone(forecasts: Sequence[ForecastAnswer]) -> ForecastAnswer:
    """That which is gone first, else that with the least left."""

    def order(forecast: ForecastAnswer) -> tuple[float, float]:
        gone_ms, left = forecast["now"]["goneAt"], forecast["remaining"]
        return (inf if gone_ms is None else gone_ms, inf if left is None else left)

    return min(forecasts, key=order)


def _has_claims(pod: ReviewedPod) -> bool:
    """Whether the pod asks for GPUs by device claims."""
    return names.CLAIMS in annotations_of(mapping(pod.review["pod"]))


def _rate_by_claims(pod: ReviewedPod, settings: BudgetSettings) -> Iterator[tuple[str, int]]:
    """The UID of a pod with claims, and its rate, if it is known what they ask for."""
    request_ = parse_stored(pod.review["pod"]).request if _has_claims(pod) else None
    if request_ is not None:
        yield pod.uid, rated(Demand(request=request_), NO_CARDS, settings).rate_milli


def _placed(
    services: Services, reviewed: Sequence[ReviewedPod], places: bool
) -> tuple[dict[str, Mapping[str, Any]], str]:
    """The extender's answer about each governed pod without claims, by UID; and what is missing."""
    asked = [pod for pod in reviewed if pod.review["standing"] and not _has_claims(pod)]
    if not asked:
        return {}, ""
    if not places:
        return {}, f"{NOT_PLACED}. So neither place, cost nor forecast of these pods is known"
    if not services.peers.extender.url:
        return {}, _NO_EXTENDER
    protected = [pod.uid for pod in asked if pod.review["protected"]]
    body = {"version": 1, "pods": [pod.review["pod"] for pod in asked], "protected": protected}
    found = services.peers.extender.ask("/v1/simulate", body)
    note = _PARTIAL if found.get("partial") else ""
    return {placement["uid"]: placement for placement in found["pods"]}, note


def _rate(placement: Mapping[str, Any], settings: BudgetSettings) -> int:
    """Of a session there, now. Cards that only a device plugin names are whole ones of the node's model."""
    unnamed = [Card(str(at), at, placement["model"], WHOLE_MILLI) for at in range(placement["unnamed"])]
    uses = {card.uuid: CardAmount(WHOLE_MILLI, card.memory_mib) for card in unnamed}
    uses |= {raw["uuid"]: _amount(raw) for raw in placement["cards"]}
    cards = (*unnamed, *map(_card, placement["cards"]))
    return rated(Demand(uses=uses), NodeCards(cards), settings).rate_milli


def _card(raw: Mapping[str, Any]) -> Card:
    there = tuple(raw["cardResources"].items())
    return Card(raw["uuid"], raw["index"], raw["model"], raw["cardMemoryMib"], resources=there)


def _amount(raw: Mapping[str, Any]) -> CardAmount:
    amounts, taken = (raw["shareMilli"], raw["memoryMib"]), tuple(raw["resources"].items())
    return NamedAmount(*amounts, taken) if taken else CardAmount(*amounts)
