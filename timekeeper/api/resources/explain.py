"""``GET /v1/explain``: the life of a pod, or of an owner's pods, as sentences with their figures."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from flask import Flask, Response

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.changes import NEVER
from timekeeper.accounts.claims.claim_findings import read_findings
from timekeeper.accounts.claims.sentences import claim_sentence
from timekeeper.accounts.decisions.sentences import waits_for
from timekeeper.accounts.held.gangs import gangs_as_one
from timekeeper.accounts.held.needs import BudgetNeed, budget_need
from timekeeper.accounts.held.order import HeldPod, in_order
from timekeeper.accounts.requests import budget_sentence
from timekeeper.accounts.session import Session
from timekeeper.api import sheets
from timekeeper.api.http.answers import AmountAnswer, Versioned, amount_of, answer
from timekeeper.api.http.parameters import (
    KIND_IN_PATH,
    NAME_IN_PATH,
    NAMESPACE_ONLY_IN_PATH,
    POD_IN_PATH,
    UID,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import stated
from timekeeper.api.ledger.protected_reading import ProtectedReading, read_protected
from timekeeper.api.resources.budgets import RequestAnswer, fair_share, request_answer
from timekeeper.api.resources.cluster_map import when_devices
from timekeeper.api.resources.decisions import READ, DecisionAnswer, shown, visible_to
from timekeeper.api.sheets.decisions import MOST_OF_LIFE
from timekeeper.core.budgets.modes import mode_sentence
from timekeeper.core.budgets.policy import group_key
from timekeeper.core.budgets.sentences import fair_sentence
from timekeeper.core.cluster_map import OF_DEVICES
from timekeeper.core.decisions import (
    CAPPED,
    DELETED,
    DEMOTED,
    GANG,
    HELD,
    MESSAGE,
    SCHEDULER_NAME,
    WAITING,
    WAITS_FOR_CLAIMS,
    WAITS_FOR_DEVICES,
    Decision,
)
from timekeeper.core.gang_owners import OWNERS
from timekeeper.core.ledger.hold import CLOCK_WAS_SET
from timekeeper.core.object_names import timestamp
from timekeeper.core.protected import Published
from timekeeper.core.request.claims import CLAIM
from timekeeper.core.texts import CREATED, NOT_PLACED, UNPAID, apart, floor, not_bound, received
from timekeeper.core.violation import first_of
from timekeeper.store import cluster_map, held_pods, node_usage, sessions, would
from timekeeper.store.decisions import (
    DecisionFilter,
    DecisionRow,
    controllers_of,
    jobs_of,
    owners_named,
    page,
)
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.workloads import BY_LABEL
from timekeeper.store.ledger import pulse
from timekeeper.store.sessions import ChargedSession

_MOST_NAMED = 20
_USE_MS = 14 * 86_400_000
_MOST_HOLDERS = 4
_NO_ALLOCATION = "no allocation of claim {} is known: it is charged once it holds GPUs"
_CRON_JOB = "CronJob"
_KINDS = {
    **dict.fromkeys(("deployment", "deployments", "deploy"), "Deployment"),
    **dict.fromkeys(("replicaset", "replicasets", "rs"), "ReplicaSet"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts"), "StatefulSet"),
    **dict.fromkeys(("daemonset", "daemonsets", "ds"), "DaemonSet"),
    **dict.fromkeys(("job", "jobs"), "Job"),
    **dict.fromkeys(("cronjob", "cronjobs", "cj"), _CRON_JOB),
    **{word: kind for row in OWNERS for kind in row.kinds for word in (kind.lower(), f"{kind.lower()}s")},
    **{"lws": "LeaderWorkerSet", "rollout": "Rollout", "rollouts": "Rollout"},
}
_PODS = ("pod", "pods", "po")
_CLAIMS = ("claim", "claims", "resourceclaim", "resourceclaims")


class ChargeAnswer(AmountAnswer):
    """A session of the pod, or of a claim that it uses: then `claim` is the claim's name, and `pod` is empty.
    `bound`: when it began; `sentence`: for people."""

    uid: str
    pod: str
    claim: str
    node: str
    bound: int
    rateMilli: int
    sentence: str


class UseHour(TypedDict):
    """What was held in the measured time of a UTC hour, and used then, in milli-GPU x milliseconds."""

    hour: int
    measured: int
    used: int


class ExplanationAnswer(Versioned):
    """`steps`: the newest 500 decisions about the subject, oldest first; `charges`: of its newest 500
    sessions; `use`: of a pod, in the last two weeks of these; `waitsFor`: if it waited by the last of its
    decisions, what would have to change; `budget`: the namespace's account now; `received`: how what its
    group passed on adds to it, else empty; `mode`: its mode now, and what follows, empty where it is the
    cluster's; `protected`: what its entry protects, and whether these pods are, else empty; `request`: null:
    it is not over budget, and no pod waits for more than is left."""

    namespace: str
    subject: str
    steps: list[DecisionAnswer]
    charges: list[ChargeAnswer]
    use: list[UseHour]
    waitsFor: list[str]
    budget: str
    received: str
    mode: str
    protected: list[str]
    request: RequestAnswer | None


POD_ROUTE = ApiRoute(
    path="/v1/explain/{namespace}/{pod}",
    about="why a pod was refused, placed, evicted or charged, or why it waits",
    right=READ,
    answers={JSON: ExplanationAnswer},
    parameters=(NAMESPACE_ONLY_IN_PATH, POD_IN_PATH, UID),
    sheet=sheets.LIFE,
)
OWNER_ROUTE = ApiRoute(
    path="/v1/explain/{namespace}/{kind}/{name}",
    about="the same of the pods of a controller, such as Deployment/web or Job/train; of a CronJob's Jobs; of"
    " claim/NAME: what a device claim holds, costs, and for which pods",
    right=READ,
    answers={JSON: ExplanationAnswer},
    parameters=(NAMESPACE_ONLY_IN_PATH, KIND_IN_PATH, NAME_IN_PATH),
    sheet=sheets.LIFE,
)
ROUTES = (POD_ROUTE, OWNER_ROUTE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def pod(call: Call) -> Response:
        name = call.get("pod")
        which = DecisionFilter(call.get("namespace"), subject=name, uid=call.get("uid", ""))
        return _explained(services, which, f"Pod/{name}")

    def owner(call: Call) -> Response:
        namespace, kind, name = (call.get(each) for each in ("namespace", "kind", "name"))
        if kind.lower() in _PODS:
            return _explained(services, DecisionFilter(namespace, subject=name), f"Pod/{name}")
        if kind.lower() in _CLAIMS:
            return _explained(services, DecisionFilter(namespace), f"{CLAIM}/{name}")
        subject = f"{_KINDS.get(kind.lower(), kind)}/{name}"
        return _explained(services, DecisionFilter(namespace, owners=(subject,)), subject)

    serve(app, services, POD_ROUTE, pod)
    serve(app, services, OWNER_ROUTE, owner)


def _explained(services: Services, which: DecisionFilter, subject: str) -> Response:
    ledger = services.ledger
    with ledger.store.reading() as connection:
        kind, _, name = subject.partition("/")
        if kind == _CRON_JOB:
            jobs = jobs_of(connection, which.namespace, name)
            which = replace(which, owners=(*which.owners, *jobs))
        if which.owners and kind not in _KINDS.values():  # written in other letters than the kind has
            named = owners_named(connection, which.namespace, kind, name)
            which = replace(which, owners=named or which.owners)
        if kind in BY_LABEL:
            makers = controllers_of(connection, which.namespace, kind, name)
            which = replace(which, owners=(*which.owners, *makers))
        now_ms, history = ledger.moment(connection)
        rows = [] if kind == CLAIM else page(connection, which, MOST_OF_LIFE)[::-1]
        rows = _in_order(rows)
        charged = _sessions(connection, which, subject, now_ms)
        use = _use(connection, charged, now_ms) if kind == "Pod" else []
        waits = _waiting(rows, charged)
        held = held_pods.held(connection, which.namespace) if waits else []
        before = _of_its_update(connection, waits, now_ms) if waits else []
        when = cluster_map.when(connection, waits.uid, now_ms) if waits else ""
        if (
            (kind == CLAIM and not charged)
            or when == OF_DEVICES
            or (waits and waits.reason == WAITS_FOR_DEVICES)
        ):
            when = when_devices(connection)
        created = would.of_pod(connection, which.namespace, name) if kind == "Pod" and not charged else None
        statement = stated(connection, history, (which.namespace,))[which.namespace]
        published = ledger.served(connection).protected.get(which.namespace)
        protected = read_protected(connection, history, which.namespace, published, now_ms)
        has_claims = any(each.session.is_claim for each in charged)
        orphans = _orphans(connection, which.namespace) if has_claims else set()
    visible, place = visible_to(services, which.namespace), _place(waits, held)
    lookahead_ms = history.settings(now_ms).lookahead_ms
    need = budget_need(place[-1], statement, lookahead_ms, now_ms) if place else None
    lacks = [
        *before,
        *_waits_for(waits, place, need, statement, history, now_ms),
        *(_order(which.namespace, statement) if waits else ()),
        *([] if charged else _unknown(history, which.namespace, now_ms, subject, created)),
    ]
    body: ExplanationAnswer = {
        "version": 1,
        "namespace": which.namespace,
        "subject": subject,
        "steps": [shown(each, history, visible) for each in rows],
        "charges": [_charge(each, each.session.name in orphans) for each in charged],
        "use": use,
        "waitsFor": [*lacks[:1], *([when] if when else []), *lacks[1:]],
        "budget": budget_sentence(which.namespace, statement),
        "received": _received(which.namespace, statement, statement.received),
        "mode": _mode(which.namespace, history, now_ms),
        "protected": list(_protected(which.namespace, protected, published, rows, charged)),
        "request": request_answer(which.namespace, statement, need, place[-1] if place else None),
    }
    return answer(body)


def _use(connection: Connection, charged: list[ChargedSession], now_ms: int) -> list[UseHour]:
    """By the hour, of the last two weeks in which it held cards."""
    sessions = [each.session for each in charged]
    last_ms = max((session.ended_ms or now_ms for session in sessions), default=now_ms)
    requested = {session.uid: session.requested_milli for session in sessions}
    hours = node_usage.hours_of(connection, requested, last_ms - _USE_MS)
    return [{"hour": at_ms, "measured": measured, "used": used} for at_ms, measured, used in hours]


def _mode(namespace: str, history: History, now_ms: int) -> str:
    """The namespace's mode and what follows; "": it is the cluster's."""
    source = history.mode_source(namespace, now_ms)
    return "" if source == "cluster" else mode_sentence(namespace, history.mode(namespace, now_ms), source)


def _unknown(
    history: History, namespace: str, now_ms: int, subject: str, created: tuple[int, str] | None
) -> Iterator[str]:
    """Why no charge of the subject is known. ``created``: when the pod was, and what enforcement would have
    done with it."""
    kind, _, name = subject.partition("/")
    if kind == CLAIM:
        yield _NO_ALLOCATION.format(name)
        return
    if history.is_metered(namespace, now_ms):
        if created is not None:
            at_ms, verdict = created
            yield f"created at {timestamp(at_ms)}{CREATED}{verdict} it"
        yield not_bound(history.mode(namespace, now_ms), namespace)
    if not history.places(namespace, now_ms):
        yield NOT_PLACED


def _protected(
    namespace: str,
    reading: ProtectedReading | None,
    published: Published | None,
    rows: list[DecisionRow],
    charged: list[ChargedSession],
) -> Iterator[str]:
    """What the entry protects, and which of these pods are protected now."""
    if reading is None:
        return
    its = reading.protection
    labels = ", ".join(f"{name}={value}" for name, value in its.labels)
    owners = f"pods of {' or '.join(its.kinds)}" if its.kinds else "pods"
    selected = f"{owners}{' with ' + labels if labels else ''}, up to {floor(its.cards_milli, its.amount)}"
    used, _ = apart(reading.used, reading.used if its.amount is None else its.amount)
    yield (
        f"{namespace} protects {selected}: once the budget is spent, they keep class and cards; they have"
        f" used {used} GPU-hours in this period"
    )
    names = {each.session.uid: each.session.name for each in charged}
    names |= {each.run.decision.uid: each.run.decision.name for each in rows if each.run.decision.name}
    now = sorted(names[uid] for uid in (published.uids if published else ()) if uid in names)
    if now:
        yield f"protected now: {', '.join(now[:_MOST_NAMED])}{' and more' if len(now) > _MOST_NAMED else ''}"


def _in_order(rows: list[DecisionRow]) -> list[DecisionRow]:
    """By the times of the decisions, because three roles decide and each posts once a second: the record of a
    placement may arrive before the record of the pod's creation. What admission decided about a pod comes
    first for that pod, for its webhook stamps by a clock of its own, and the settler by the API server's,
    which has whole seconds."""
    earliest_ms: dict[str, int] = {}
    for row in rows:
        uid = row.run.decision.uid
        earliest_ms[uid] = min(row.run.last_ms, earliest_ms.get(uid, row.run.last_ms))

    def when(row: DecisionRow) -> tuple[int, bool]:
        decision = row.run.decision
        is_later = not decision.uid or decision.kind not in (HELD, DEMOTED)
        return row.run.last_ms if is_later else earliest_ms[decision.uid], is_later

    return sorted(rows, key=when)


def _sessions(
    connection: Connection, which: DecisionFilter, subject: str, now_ms: int
) -> list[ChargedSession]:
    """Of a pod its own, and those of the claims that it uses, by their beginning."""
    kind, _, name = subject.partition("/")
    if kind == CLAIM:
        return sessions.of_claim(connection, which.namespace, name, now_ms, MOST_OF_LIFE)
    pod = which.subject, which.owners, which.uid
    own = sessions.of_pods(connection, which.namespace, *pod, now_ms, MOST_OF_LIFE)
    if not which.subject:
        return own
    own = [each for each in own if which.uid or not each.session.is_claim]
    used = sessions.used_by(connection, which.namespace, which.subject, now_ms, MOST_OF_LIFE)
    return sorted((*own, *used), key=lambda each: each.session.bound_ms)[-MOST_OF_LIFE:]


def _orphans(connection: Connection, namespace: str) -> set[str]:
    """The names of the namespace's claims that no pod uses, as far as the settler names them."""
    found = read_findings((pulse(connection) or NEVER).device_claims)
    return {name for its, name in found["orphans"]["named"] if its == namespace} if found else set()


def _charge(charged: ChargedSession, is_orphan: bool) -> ChargeAnswer:
    session, amount = charged.session, charged.posted + charged.pending
    (hours,) = apart(amount)
    ended = f" to {timestamp(session.ended_ms)}" if session.ended_ms else ""
    rate = session.rate_milli / 1000
    held = "CPU and memory beyond its cards" if session.charge == "host" else "held cards"
    what = "charge" if CLOCK_WAS_SET in (session.doubt or "") else "rate"
    doubt = f" The {what} is not certain: {session.doubt}." if session.doubt else ""
    if session.is_static:
        doubt += f" It is a static pod: the kubelet of {session.node} chose this namespace for it."
    return {
        "uid": session.uid,
        "pod": "" if session.is_claim else session.name,
        "claim": session.name if session.is_claim else "",
        "node": session.node,
        "bound": session.bound_ms,
        "rateMilli": session.rate_milli,
        **amount_of(amount),
        "sentence": claim_sentence(session, hours, is_orphan)
        if session.is_claim
        else f"Charged {hours} GPU-hours: {held} of node {session.node}"
        f" from {timestamp(session.bound_ms)}{ended}, at the rate {rate:g}.{doubt}",
    }


def _waiting(rows: list[DecisionRow], charged: list[ChargedSession]) -> Decision | None:
    """The last decision about the pods that were not deleted, if that decision leaves a pod waiting and no
    later session let the pod run."""
    decisions = [each.run.decision for each in rows]
    gone = {each.uid for each in decisions if each.kind == DELETED}
    last = next((each for each in reversed(decisions) if each.uid not in gone), None)
    if last is None or last.kind not in (WAITING, HELD, CAPPED, GANG):
        return None
    return None if any(_is_of(each.session, last.uid) for each in charged) else last


def _is_of(session: Session, uid: str) -> bool:
    """Whether the pod with this UID holds, or held, what the session is of."""
    return session.uid == uid or any(each.startswith(f"{uid}/") for each in session.users.split())


def _place(last: Decision | None, held: list[HeldPod]) -> list[HeldPod]:
    """The queue of its namespace up to this decision's pod, or its gang as one; empty: it is not held."""
    named = {pod.uid: pod.released_with for pod in held}
    mine = named.get(last.uid) if last is not None else None
    queue = in_order(pod for pod, _ in gangs_as_one(held)) if mine else []
    return queue[: 1 + [pod.released_with for pod in queue].index(mine)] if mine else []


def _waits_for(
    last: Decision | None,
    place: list[HeldPod],
    need: BudgetNeed | None,
    statement: Statement,
    history: History,
    now_ms: int,
) -> Iterator[str]:
    """What would have to change for the pod of this decision, at this place among the held ones."""
    if last is None:
        return
    if not place or last.reason != WAITS_FOR_CLAIMS:  # a pod whose claims are known waits for others
        yield from waits_for(last.figures)
    of_gang = str(last.figures.get(MESSAGE, "")) if last.kind == GANG else ""
    if of_gang and not (place and UNPAID in of_gang):  # else what follows says more
        yield of_gang.rstrip(".")
    if place:
        mine, by_other = place[-1], SCHEDULER_NAME in last.figures
        whose = f"gang {mine.gang.split('/')[1]} " if mine.is_gang else ""
        needs = _release_needs(mine, need, by_other, history, now_ms)
        yield f"{whose}{needs}; {_ahead(place[:-1])} ahead"
    if statement.standing == "OVER_BUDGET" and need is None:
        yield budget_sentence(last.namespace, statement)


def _of_its_update(connection: Connection, waits: Decision, now_ms: int) -> list[str]:
    """Which pods of the same Deployment hold what one waits for, by a cap or where all cards are held: during
    an update the new pods come before the old ones go."""
    kind, _, name = waits.owner.partition("/")
    if kind != "Deployment" or not {"capMilli", "heldCards"} & waits.figures.keys():
        return []
    own = sessions.of_pods(connection, waits.namespace, "", (waits.owner,), "", now_ms, MOST_OF_LIFE)
    holders = [
        charged.session.name
        for charged in own
        if charged.session.ended_ms is None and charged.session.uid != waits.uid
    ]
    if not holders:
        return []
    return [
        f"held by {first_of(holders, _MOST_HOLDERS)}, of the same {kind} {name}: its update;"
        " with maxSurge 0 and maxUnavailable 1 the old pod goes first"
    ]


def _ahead(queue: list[HeldPod]) -> str:
    """How many pods and gangs these are; a gang counts once."""
    gangs = sum(each.is_gang for each in queue)
    pods = len(queue) - gangs
    counted = [f"{pods} held {'pod' if pods == 1 else 'pods'}"] if pods or not gangs else []
    counted += [f"{gangs} held {'gang' if gangs == 1 else 'gangs'}"] if gangs else []
    return f"{' and '.join(counted)} of the namespace {'is' if len(queue) == 1 else 'are'}"


def _release_needs(
    pod: HeldPod, need: BudgetNeed | None, by_other: bool, history: History, now_ms: int
) -> str:
    """What a held pod needs before it is released, and what its budget lacks. ``by_other``: another scheduler
    than Bursar's places it. The caps of all others bound their placement, not their release."""
    budget = history.budget(pod.namespace, now_ms).budget
    both = (budget, history.budget(group_key(budget.group), now_ms).budget) if budget.group else (budget,)
    cost, lack = ("", "") if need is None else need.texts()
    needs = [cost] if cost else ["some of the budget to be left"] if pod.needs_budget else []
    if budget.max_waiting is not None:
        needs.append(f"fewer than {budget.max_waiting} pods of the namespace to wait for a node (maxWaiting)")
    caps = [most for each in both for most in (each.max_gpus_milli, each.max_gpus_per_pod_milli)]
    if by_other and any(each is not None for each in caps):
        needs.append("what is left within the caps of namespace and group")
    return f"needs {' and '.join(needs) or 'its turn'}{f'; {lack}' if lack else ''}"


def _order(namespace: str, statement: Statement) -> Iterator[str]:
    """Where the namespace's account stands among all with waiting pods."""
    if (share := fair_share(statement)) is not None:
        yield fair_sentence(namespace, statement.in_force.key == namespace, share)


def _received(namespace: str, statement: Statement, amount: int) -> str:
    granted = statement.balance.granted
    if not amount or granted is None:
        return ""
    group = statement.group
    each = dict(group.in_force.budget.split).get(namespace, 0) if group else 0
    return f"{namespace} has {received(granted, amount, each)}"
