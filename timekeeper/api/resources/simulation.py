"""``POST /v1/simulate``: what would happen to pods that do not exist, perhaps under another budget.

The webhook answers how they would be admitted, the extender where they would be placed and who would leave
for them, both by the functions that decide and under the standings that follow from the supposed budget. The
ledger adds what it costs. Nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import orjson
from flask import Flask, Response, request

from timekeeper.accounts.balance import untouched
from timekeeper.accounts.budget_history import GROUP, History
from timekeeper.accounts.decisions.forecasts import Addition
from timekeeper.accounts.decisions.simulation import (
    SimulatedPlacement,
    SimulatedUse,
    protecting,
    rate_of,
    supposed,
    supposed_protection,
)
from timekeeper.accounts.standings import publish
from timekeeper.api.http.answers import answer
from timekeeper.api.http.routes import JSON, ApiRoute, read_body
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import AccountReading, stated_now
from timekeeper.api.resources.forecasts import ForecastAnswer, Paces
from timekeeper.api.resources.simulated.answers import cost_answer, pod_answer, visibility
from timekeeper.api.resources.simulated.bodies import BODY, SimulationRequest, read_simulation
from timekeeper.api.resources.simulated.owners import review_of, with_owned
from timekeeper.core import names
from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.json_values import mapping
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.core.request.cards import CardAmount, NamedAmount
from timekeeper.core.request.estimates import estimated_rate
from timekeeper.core.request.host import decode_host
from timekeeper.core.request.request import parse_stored
from timekeeper.core.standings import card_host
from timekeeper.core.texts import LEDGER_ALONE, NOT_PLACED
from timekeeper.core.values import Card
from timekeeper.core.wire import Version
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import held_pods, ledger
from timekeeper.store.engine.engine import Connection

_UNCONFIGURED = "simulations need the timekeeper's flag --webhook-url"
_CLAIMS = (
    "kube-scheduler allocates devices to claims: their place is not known, and each counts as a whole GPU of"
    " weight 1"
)
# the review of a pod whose owner is refused
_REFUSED: Mapping[str, Any] = {"pod": None, "warnings": [], "standing": "", "held": ""}
_NO_EXTENDER = "where pods would be placed is unknown: the timekeeper has no --extender-url"


class VictimAnswer(TypedDict):
    """A pod that would leave. `namespace`, `name` and `uid`: null if the caller may not read decisions
    there."""

    namespace: str | None
    name: str | None
    uid: str | None
    priority: int
    standing: str


class CostAnswer(TypedDict):
    """`rateMilli`: in thousandths of a weighted GPU; `perDay`: milli-GPU x milliseconds; `price`: of a day,
    null without a price."""

    rateMilli: int
    perDay: int
    gpuHoursPerDay: str
    price: str | None
    currency: str


class SimulatedPodAnswer(TypedDict):
    """A pod. `outcome`: `refused` (at admission), `not-governed` (it requests no GPU), `fits`, `preempts`
    (once `victims` have left), `waits`, or `unknown` (no extender was asked). `held`: what it is held for
    until its release, or empty; its placement is then as of its release. `protected`: its budget is spent and
    protects it. `reasons`: why nodes refuse it."""

    name: str
    outcome: str
    refusal: str
    warnings: list[str]
    standing: str
    held: str
    protected: bool
    priorityClass: str
    priority: int
    scheduler: str
    node: str
    nodesThatFit: int
    cards: list[dict[str, Any]]
    kind: str
    victims: list[VictimAnswer]
    awaited: int
    reasons: list[dict[str, Any]]
    hasUnreadConstraints: bool
    cost: CostAnswer


class SimulationAnswer(TypedDict):
    """`cost`: of all pods that would be placed; `before`, `after`: the forecast without and with them, after
    under the supposed budget, each of the account that is gone first, the namespace's or its group's; a pod
    runs at most for its `activeDeadlineSeconds`; `note`: what is missing in the answer, or empty."""

    version: Version
    namespace: str
    pods: list[SimulatedPodAnswer]
    cost: CostAnswer
    before: ForecastAnswer
    after: ForecastAnswer
    note: str


SIMULATE = ApiRoute(
    "POST",
    "/v1/simulate",
    "what would happen to these pods: class, placement, victims, cost, and when the budget is gone",
    None,
    {JSON: SimulationAnswer},
    body=BODY,
    refuses=(413, 429, 501),
    needs="`create simulations` in the namespace",
)
ROUTES = (SIMULATE,)


@dataclass(frozen=True, slots=True)
class _Supposed:
    """The namespace's account and that of its group, if it has one, as they are supposed to be, and what
    other roles need to know of them."""

    accounts: tuple[AccountReading, ...]
    settings: BudgetSettings
    price: tuple[str, str]
    standings: Mapping[str, Any]
    note: str  # what is not known of them; "": nothing
    is_left_to_others: bool  # Bursar does not place the namespace's pods


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    @app.post("/v1/simulate")
    def simulation() -> Response:
        services.gate.caller(request.headers.get("Authorization"))
        asked = read_simulation(read_body(), services.clock())
        if services.ledger.only_meter:
            raise Problem(501, LEDGER_ALONE)
        authorization = request.headers.get("Authorization")
        caller = services.gate.allow(authorization, "create", "simulations", asked.namespace)
        if not services.peers.webhook.url:
            raise Problem(503, _UNCONFIGURED)
        if not services.simulating.acquire(blocking=False):
            busy = "another simulation is running; one runs at a time"
            raise Problem(429, busy, headers={"Retry-After": "1"})
        try:
            return answer(_simulated(services, asked, caller))
        finally:
            services.simulating.release()


def _simulated(services: Services, asked: SimulationRequest, caller: Caller) -> dict[str, Any]:
    known = _supposed(services, asked)
    owned = with_owned(services, asked, known.standings, caller)
    asked, reviews = owned.asked, list[Mapping[str, Any]]()
    for each in asked.pods:
        uid = each["metadata"]["uid"]
        if uid in owned.refused:
            reviews.append({**_REFUSED, "refusal": owned.refused[uid]})
            continue
        reviews.append(review := _reviewed(services, asked, each, known, caller))
        known = replace(known, standings=protecting(known.standings, asked.namespace, uid, review))
    by_claims = {uid: each for review in reviews for uid, each in _rate_by_claims(review, known.settings)}
    placed, note = _placed(services, [each for each in reviews if not _has_claims(each)], known)
    rates = {uid: rate_of(_placement(each), known.settings) for uid, each in placed.items()} | by_claims
    additions = {raw["metadata"]["uid"]: _longest_ms(raw["spec"]) for raw in asked.pods}
    supposed_pods = [Addition(rates[uid], length) for uid, length in additions.items() if rates.get(uid)]
    present = [services.ledger.account_now(each.namespace) for each in known.accounts]
    paces = {each.namespace: Paces(services, each.namespace) for each in known.accounts}
    visible = visibility(services, asked.namespace)
    pods = []
    for raw, review in zip(asked.pods, reviews, strict=True):
        uid = raw["metadata"]["uid"]
        shown = pod_answer(raw, review, placed.get(uid), visible)
        pods.append({**shown, "cost": cost_answer(rates.get(uid, 0), known.price)})
    together = sum(rates.values())
    return {
        "version": 1,
        "namespace": asked.namespace,
        "pods": pods,
        "cost": cost_answer(together, known.price),
        "before": _first_gone([paces[each.namespace].of(each) for each in present]),
        "after": _first_gone([paces[each.namespace].of(each, supposed_pods) for each in known.accounts]),
        "note": "; ".join(
            filter(None, (note, known.note, owned.note, _CLAIMS if any(map(_has_claims, reviews)) else ""))
        ),
    }


def _longest_ms(spec: Mapping[str, Any]) -> int:
    """How long a pod can run: until its deadline, and for its grace period after that."""
    deadline, grace = spec.get("activeDeadlineSeconds"), spec.get("terminationGracePeriodSeconds", 30)
    if not isinstance(deadline, int) or not isinstance(grace, int):
        return FOREVER_MS
    return min(FOREVER_MS, 1000 * (deadline + max(0, grace)))


def _first_gone(forecasts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(forecasts, key=lambda each: (each["now"]["goneAt"] is None, each["now"]["goneAt"] or 0))


# the budget


def _supposed(services: Services, asked: SimulationRequest) -> _Supposed:
    with services.ledger.store.reading() as connection:
        now_ms, history = services.ledger.moment(connection)
        if asked.budget is not None:
            history = _with_budget(connection, asked, now_ms)
        group = history.group(asked.namespace, now_ms)
        subjects = (asked.namespace, GROUP + group) if group else (asked.namespace,)
        found = stated_now(connection, history, subjects, now_ms)
        statement, _ = found[asked.namespace]
        standings = services.ledger.served(connection)
        queued = {each.namespace for each in held_pods.held(connection, asked.namespace) if each.needs_budget}
    settings, served = history.settings(now_ms), mapping(orjson.loads(standings.body or b"{}"))
    protected = supposed_protection(history, asked.namespace, standings.protected.get(asked.namespace))
    document = publish(
        settings,
        _classes(served),
        untouched(history, now_ms, {}),
        {asked.namespace: statement},
        now_ms,
        None,
        queued=queued,
        room=card_host(mapping(served.get("settings"))),
        protected=protected.pods,
    )
    accounts = tuple(AccountReading(each, found[each][0], found[each][0].standing, "") for each in subjects)
    price = history.price(asked.namespace, now_ms)
    is_left = not history.places(asked.namespace, now_ms)
    return _Supposed(accounts, settings, price, orjson.loads(document.body), protected.note, is_left)


def _with_budget(connection: Connection, asked: SimulationRequest, now_ms: int) -> History:
    """Raises a Problem for a text that is no entry."""
    found = supposed(ledger.entries(connection), asked.namespace, asked.budget or "", now_ms)
    if isinstance(found, EntryError):
        raise bad("budget", "; ".join(each.sentence() for each in found.each()))
    return found


def _classes(served: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """The priority classes' numbers as the present standings have them."""
    classes = mapping(mapping(served.get("settings")).get("priorityClasses")).values()
    return {
        each["name"]: (each["value"], each["preemptionPolicy"])
        for each in classes
        if each["value"] is not None
    }


# admission


def _reviewed(
    services: Services, asked: SimulationRequest, pod: Mapping[str, Any], known: _Supposed, caller: Caller
) -> Mapping[str, Any]:
    metadata = pod["metadata"]
    review = review_of(pod, metadata["name"], asked.namespace, caller)
    resource = {"group": "", "version": "v1", "resource": "pods"}
    review["request"] |= {"uid": metadata["uid"], "resource": resource}
    supposed_claims = {"claims": list(asked.claims)} if asked.claims else {}
    body = {"review": review, "standings": known.standings, **supposed_claims}
    return services.peers.webhook.ask("/simulate", body)


# placement


def _has_claims(review: Mapping[str, Any]) -> bool:
    """Whether the pod asks for GPUs by device claims."""
    return names.CLAIMS in mapping(mapping(mapping(review["pod"]).get("metadata")).get("annotations"))


def _rate_by_claims(review: Mapping[str, Any], settings: BudgetSettings) -> Iterator[tuple[str, int]]:
    """The UID of a pod with claims, and its rate, if it is known what they ask for."""
    request_ = parse_stored(review["pod"]).request if _has_claims(review) else None
    if request_ is not None:
        rate = estimated_rate(request_, (), settings.weights, settings.charge_by, settings.unit_costs)
        yield review["pod"]["metadata"]["uid"], rate


def _placed(
    services: Services, reviews: Sequence[Mapping[str, Any]], known: _Supposed
) -> tuple[dict[str, Mapping[str, Any]], str]:
    """The extender's answer about each governed pod, by UID; and what is missing."""
    pods = [each["pod"] for each in reviews if each["pod"] is not None and each["standing"]]
    if not pods:
        return {}, ""
    if known.is_left_to_others:
        return {}, f"{NOT_PLACED}. So neither place, cost nor forecast of these pods is known"
    if not services.peers.extender.url:
        return {}, _NO_EXTENDER
    body = {"version": 1, "pods": pods, "standings": known.standings}
    found = services.peers.extender.ask("/v1/simulate", body)
    return {each["uid"]: each for each in found["pods"]}, ""


def _placement(raw: Mapping[str, Any]) -> SimulatedPlacement:
    uses = tuple(_use(each) for each in raw["cards"])
    host = raw.get("host")  # absent in the answer of an extender of the former release
    return SimulatedPlacement(uses, raw["unnamed"], raw["model"], decode_host(host) if host else None)


def _use(raw: Mapping[str, Any]) -> SimulatedUse:
    there, taken = tuple(raw["cardResources"].items()), tuple(raw["resources"].items())
    card = Card(raw["uuid"], raw["index"], raw["model"], raw["cardMemoryMib"], resources=there)
    amounts = raw["shareMilli"], raw["memoryMib"]
    return SimulatedUse(card, NamedAmount(*amounts, taken) if taken else CardAmount(*amounts))
