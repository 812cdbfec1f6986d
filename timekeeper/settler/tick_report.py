"""Reports a tick as log lines and metrics."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from zoneinfo import ZoneInfo

from timekeeper import metrics
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import LABEL, History
from timekeeper.accounts.changes import Changes
from timekeeper.accounts.claims.consumers import UNMADE
from timekeeper.accounts.claims.sentences import searched
from timekeeper.accounts.held.gangs import gangs_as_one
from timekeeper.accounts.held.limits import queue_of, waiting_by_group
from timekeeper.accounts.held.needs import budget_need
from timekeeper.accounts.held.order import HeldPod
from timekeeper.accounts.pods import charged_pod, charged_pods, claim_user
from timekeeper.core.budgets.policy import MODES, BudgetSettings
from timekeeper.core.decisions import Record
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.request.device_classes import DeviceClass
from timekeeper.core.texts import apart, moment
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.log import log
from timekeeper.settler.budget_entries import BudgetNotice, EntryChanges
from timekeeper.settler.claim_notices import ClaimNotice, budget_notices, doubt_notices
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.decide.decide import TickDecision, with_standing
from timekeeper.settler.decide.stages import PATIENCE_MS
from timekeeper.settler.pod_notices import (
    FRESH_MS,
    MAX_PODS,
    BudgetState,
    PodNotice,
    change_notices,
    demotion_notice,
    forecast_decision,
    held_notice,
    hours_text,
    obstacle_decision,
    of_standings,
    short_decision,
    state_of,
    unbound_deletion,
    unknown_decision,
    unknown_notice,
)
from timekeeper.settler.state.ledger_state import LedgerState


@dataclass(frozen=True, slots=True)
class Notices:
    """Where messages for people go. Neither may block or raise."""

    budget: Callable[[BudgetNotice], None]
    pod: Callable[[PodNotice], None]
    record: Record
    claim: Callable[[ClaimNotice], None]
    unmade: Record  # of a pod whose claim is not made, before it is recorded why


MAX_REASONS = 3  # of why one pod waits for its claims, or classes of these
_WORDS = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED")


def report(
    cluster: ClusterState,
    ledger: LedgerState,
    decision: TickDecision,
    read: EntryChanges,
    notices: Notices,
    history: History,
    now_ms: int,
) -> None:
    """Log and count what was written. Called before the ledger state takes the changes in. ``history``:
    with the entries of this tick."""
    settings = history.settings(now_ms)
    for notice in (*read.notices, *_first_limits(cluster, ledger, decision, read)):
        notices.budget(notice)
    for entry in read.entries:
        if entry.key.startswith(LABEL):
            name, word = entry.key.removeprefix(LABEL), entry.text or "none"
            log("mode-label-changed", namespace=name, mode=word)
    _demotions(cluster, notices, history, now_ms)
    _deletions(cluster, notices, now_ms)
    _deletions_before(cluster, ledger, decision.changes, notices)
    _unknown(cluster, notices, now_ms)
    _without_devices(cluster, notices, now_ms)
    _obstructed(cluster, notices, now_ms)
    for pod_notice in _held(cluster, ledger, decision, history, now_ms):
        notices.pod(pod_notice)
    _sessions(decision)
    for doubt in doubt_notices(decision.changes.opened):
        notices.claim(doubt)
    _postings(decision.changes)
    for grant in decision.changes.grants:
        log("granted", namespace=grant.subject, amount=grant.amount, kind=grant.kind, reason=grant.reason)
    _not_charged(cluster)
    _clocks(cluster)
    if decision.statement_cache is not ledger.statement_cache:
        changed, chosen = _standings(ledger, decision, history), decision.protected
        protected = {uid for name in changed if name in chosen for uid in chosen[name].uids}
        pods = charged_pods(cluster.pods) if changed else []
        for pod_notice in change_notices(changed, pods, settings, protected):
            notices.pod(pod_notice)
        sessions = ledger.sessions.values() if changed else ()
        for claim_notice in budget_notices(changed, cluster, sessions, settings, protected):
            notices.claim(claim_notice)
        for each in of_standings(changed, settings, now_ms):
            notices.record(each)
        _forecasts(ledger, decision, notices, now_ms)
    metrics.EVIDENCE.set(len(ledger.sessions))
    metrics.BROKEN.set(len(ledger.errors))
    known = (each.driver for each in cluster.claims.rules.values() if each.has_gpus)
    for driver in {*known, *ledger.claimed_by_driver}:  # all, as an earlier settler may have set others
        metrics.CLAIMED_GPUS.labels(driver).set(ledger.claimed_by_driver.get(driver, 0) / WHOLE_MILLI)
    metrics.CLAIMING_PODS.set(cluster.uncharged_claims().pods)
    _unclassified(cluster, settings)
    for mode in MODES:
        metrics.MODE.labels(mode).set(mode == settings.mode)


def _first_limits(
    cluster: ClusterState, ledger: LedgerState, decision: TickDecision, read: EntryChanges
) -> Iterator[BudgetNotice]:
    """Of entries that limit a namespace or group for the first time, after part of the period was used."""
    homes = {key: config_map for config_map in cluster.config_maps.values() for key, _ in config_map.data}
    made = decision.statement_cache.statements
    for key, at_ms in ((entry.key, entry.from_ms) for entry in read.entries if entry.key in homes):
        statement = made.groups.get(key) or made.namespaces.get(key)
        if statement is None or ledger.history.budget(key, at_ms).budget.amount is not None:
            continue
        account, balance = statement.account, statement.balance
        if balance.granted is not None and (spent := balance.posted + balance.pending):
            used, whole = apart(spent, balance.granted, first=hours_text)
            since = moment(account.span.start_ms, ZoneInfo(account.zone))
            said = f"{key}: {used} of {whole} GPU-hours are used since {since}"
            yield BudgetNotice(homes[key], "UsedBefore", said, key)


def _unknown(cluster: ClusterState, notices: Notices, now_ms: int) -> None:
    """On pods whose claims, templates or classes are not known; the recorder drops repetitions."""
    asking = cluster.pods.claim_requests
    known = (cluster.pods.get(uid) for uid in sorted(asking.changed))
    for pod in [pod for pod in known if pod is not None and pod.charge == "unknown"][:MAX_PODS]:
        reasons = "; ".join(asking.reasons(pod)[:MAX_REASONS])
        notices.pod(unknown_notice(pod, reasons))
        notices.record(unknown_decision(pod, reasons, now_ms))


def _without_devices(cluster: ClusterState, notices: Notices, now_ms: int) -> None:
    """Of governed pods for whose claims kube-scheduler finds no devices."""
    known = cluster.pods.claim_requests
    for uid in sorted(cluster.pods.short)[:MAX_PODS]:
        pod = claim_user(cluster.pods, uid)
        if pod is None or pod.uses.waits is None or not pod.can_be_bound or not pod.is_governed:
            continue
        asked = (known.claims.get((pod.namespace, name), ()) for name in pod.uses.waits.claims)
        by_limits = pod.uses.waits.by_class(known.known_classes.served_resources())
        names = sorted({one.device_class for request in chain(*asked) for one in request} | {*by_limits})
        classes = (known.classes.get(name, DeviceClass(name)) for name in names[:MAX_REASONS])
        looked_at = searched(classes, cluster.claims.pools.of_driver)
        notices.record(short_decision(pod, looked_at, now_ms))


def _obstructed(cluster: ClusterState, notices: Notices, now_ms: int) -> None:
    """Of pods that are placed by their claims, and have had no node for a while for another reason."""
    obstructed = cluster.pods.obstructed
    due = (uid for uid, since_ms in obstructed.items() if now_ms - since_ms >= PATIENCE_MS)
    for uid in sorted(due)[:MAX_PODS]:
        del obstructed[uid]
        pod = charged_pod(cluster.pods, uid)
        obstacle = "" if pod is None else pod.uses.obstacle
        if pod is not None and obstacle and pod.request.dialect == of_claims.NAME:
            record = notices.unmade if obstacle.endswith(UNMADE) else notices.record
            record(obstacle_decision(pod, obstacle, now_ms))


def _not_charged(cluster: ClusterState) -> None:
    """Pods that cannot be read, and ends of pods that were dropped."""
    for pod in cluster.pods.unreadable.values():
        metrics.UNREADABLE_PODS.inc()
        log("pod-not-charged", level="warning", namespace=pod.namespace, pod=pod.name, problem=pod.doubt)
    if cluster.pods.unreadable_omitted:
        metrics.UNREADABLE_PODS.inc(cluster.pods.unreadable_omitted)
        log(
            "pods-not-charged",
            level="warning",
            count=cluster.pods.unreadable_omitted,
            reason="too many unreadable pods to name each",
        )
    if cluster.pods.deletions_dropped:
        metrics.LOST_ENDS.inc(cluster.pods.deletions_dropped)
        log(
            "pod-ends-lost",
            level="error",
            count=cluster.pods.deletions_dropped,
            reason="the database was unreachable for too long",
        )
        cluster.pods.deletions_dropped = 0


def _unclassified(cluster: ClusterState, settings: BudgetSettings) -> None:
    """The resources of nodes that nothing classifies; 0 for one that is gone, or is classified by now."""
    named = dict(settings.devices)
    there = {name: nodes for name, nodes in cluster.nodes.unclassified().items() if name not in named}
    for resource in {*there, *cluster.nodes.counted_resources}:
        metrics.UNCLASSIFIED.labels(resource).set(there.get(resource, 0))
    cluster.nodes.counted_resources = frozenset(there)


def _clocks(cluster: ClusterState) -> None:
    """Wrong clocks of nodes, each logged once until it is right."""
    wrong = cluster.nodes.wrong_clocks()
    metrics.NODE_CLOCK_OFFSET.set(max(wrong.values(), key=abs, default=0) / 1000)
    for node in wrong.keys() - cluster.nodes.logged_clocks:
        log("node-clock-differs", level="warning", node=node, seconds=wrong[node] / 1000)
    cluster.nodes.logged_clocks = frozenset(wrong)


def _demotions(cluster: ClusterState, notices: Notices, history: History, now_ms: int) -> None:
    """Once for each pod that was admitted over budget; the recorder drops repetitions."""
    for uid in cluster.pods.changed:
        pod = charged_pod(cluster.pods, uid)
        if pod is None or pod.standing != "OVER_BUDGET" or history.mode(pod.namespace, now_ms) != "enforce":
            continue
        if notice := demotion_notice(pod, history.lower_class(pod.namespace, now_ms), now_ms):
            notices.pod(notice)


def _deletions(cluster: ClusterState, notices: Notices, now_ms: int) -> None:
    """Of pods without a node: what they wait for has no answer any more."""
    for gone in cluster.pods.deleted_waiting.values():
        if gone.pod.ended_ms is None:
            notices.record(unbound_deletion(gone.pod, gone.at_ms, "seen" if gone.seen else "unseen"))
    for uid in cluster.pods.changed:
        pod = charged_pod(cluster.pods, uid)
        if pod is not None and not pod.node and pod.ended_ms is None and pod.hold.deletion_ms is not None:
            notices.record(unbound_deletion(pod, now_ms, "requested"))


def _deletions_before(cluster: ClusterState, ledger: LedgerState, changes: Changes, notices: Notices) -> None:
    """Of held pods of the ledger that were deleted while no timekeeper ran: the first list has them no more.
    The ledger has no rows of other pods without a node."""
    if cluster.pods.relisted_ms is None:
        return
    shown = cluster.pods.listed, cluster.pods.deleted_waiting, cluster.pods.deleted
    for uid in changes.released:
        if not any(uid in uids for uids in shown) and claim_user(cluster.pods, uid) is None:
            notices.record(unbound_deletion(ledger.held[uid], ledger.pulse.decided_ms, "unseen"))


def _held(
    cluster: ClusterState,
    ledger: LedgerState,
    decision: TickDecision,
    history: History,
    now_ms: int,
) -> Iterator[PodNotice]:
    """Once for each new pod that waits for its budget, with its place in the queue: the first of each
    namespace, if many are created together."""
    pods = (cluster.pods[uid] for uid in cluster.pods.changed if uid in ledger.without_node.held)
    new = {pod.uid: pod for pod in pods if pod.held == "budget" and now_ms - pod.created_ms <= FRESH_MS}
    names = {pod.namespace for pod in new.values()}
    waiting: dict[str, list[HeldPod]] = {name: [] for name in names}
    for held in ledger.without_node.held.values() if new else ():
        if held.namespace in names:
            waiting[held.namespace].append(held)
    made, lookahead_ms = decision.statement_cache.statements, history.settings(now_ms).lookahead_ms
    reserving = waiting_by_group(history, ledger.without_node.rates, now_ms) if names else {}
    for name, pods_of in waiting.items():
        statement = made.namespaces.get(name, made.default)
        waiting_milli = reserving.get(history.group(name, now_ms), 0)
        ones = [pod for pod, _ in gangs_as_one(pods_of)]
        queue = {
            each.pod.released_with: each
            for each in queue_of(ones, statement, lookahead_ms, now_ms, waiting_milli)
        }
        rows = ((pod, queue[pod.released_with]) for pod in pods_of if pod.uid in new)
        for pod, queued in sorted(rows, key=lambda row: (row[1].ahead, row[0].created_ms))[:MAX_PODS]:
            need = budget_need(queued.pod, statement, lookahead_ms, now_ms)
            own = pod.rate_milli * need.length_ms if need is not None and queued.pod.is_gang else 0
            yield held_notice(new[pod.uid], queued, need, own)


def _sessions(decision: TickDecision) -> None:
    by: Counter[str] = Counter()
    for session in decision.changes.opened:
        by["placement" if session.devices else "request"] += 1
        log(
            "session-opened",
            namespace=session.namespace,
            pod=session.name,
            uid=session.uid,
            node=session.node,
            rate_milli=session.rate_milli,
            by_request_because=session.doubt,
        )
    for word, count in by.items():
        metrics.SESSIONS_OPENED.labels(word).inc(count)


def _postings(changes: Changes) -> None:
    by: Counter[str] = Counter()
    for posting in changes.postings:
        by[posting.kind] += 1
        log(
            "posted",
            namespace=posting.namespace,
            uid=posting.session_uid,
            kind=posting.kind,
            from_ms=posting.from_ms,
            to_ms=posting.to_ms,
            amount=posting.amount,
            reason=posting.reason,
        )
    for kind, count in by.items():
        metrics.POSTINGS.labels(kind).inc(count)


def _forecasts(ledger: LedgerState, decision: TickDecision, notices: Notices, now_ms: int) -> None:
    """Records, once in a period, that a budget will be gone before the period ends."""
    made = decision.statement_cache.statements.namespaces
    for name in sorted(decision.statement_cache.fresh & made.keys()):
        forecast = forecast_decision(name, made[name], now_ms)
        start_ms = int(forecast.figures["periodStartMs"]) if forecast else 0
        if forecast is not None and ledger.forecast_periods.get(name) != start_ms:
            ledger.forecast_periods[name] = start_ms
            notices.record(forecast)


def _standings(
    ledger: LedgerState, decision: TickDecision, history: History
) -> dict[str, tuple[BudgetState, Statement]]:
    """Logs standings that changed. Returns the state before, and the account, of the namespaces whose state
    changed. Only statements that were recomputed are compared: a few of thousands."""
    cache, states = decision.statement_cache, ledger.budget_states
    made = with_standing(history, cache.statements.namespaces)
    changed: dict[str, tuple[BudgetState, Statement]] = {}
    for name in states.keys() - made.keys():
        del states[name]
    for name in sorted(cache.fresh & made.keys()):
        state = state_of(made[name])
        before = states.get(name, state)
        if before != state:
            changed[name] = (before, made[name])
        if before.standing != state.standing:
            log("standing-changed", namespace=name, now=state.standing, before=before.standing)
        states[name] = state
    counts = Counter(state.standing for state in states.values())
    for word in _WORDS:
        metrics.STANDINGS.labels(word).set(counts[word])
    return changed
