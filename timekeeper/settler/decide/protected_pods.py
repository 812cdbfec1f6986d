"""The protected pods of all namespaces whose entry has ``protect``, from what cluster and ledger say now."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from timekeeper.accounts.budget_history import History, protected_span
from timekeeper.accounts.claims.claim_sessions import consumers_of
from timekeeper.accounts.pods import LedgerPod, charged_pod, claim_user
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.protection import (
    BOUND,
    GATED,
    WAITING,
    ProtectedPods,
    Selected,
    choose,
    selects,
)
from timekeeper.accounts.session import Session
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.ledger.metering import Interval
from timekeeper.settler.cluster.cluster_state import ClusterState
from timekeeper.settler.state.ledger_state import LedgerState
from timekeeper.settler.state.selected_use import posted_of, selects_session
from timekeeper.settler.state.totals import StoredTotals


@dataclass(frozen=True, slots=True)
class TickPostings:
    """What a tick changes: the sessions that it opens, changes or settles, and its postings by namespace."""

    sessions: Mapping[str, Session]
    postings: Mapping[str, tuple[Posting, ...]]


def protected_pods(
    cluster: ClusterState,
    ledger: LedgerState,
    history: History,
    tick: TickPostings,
    stored: StoredTotals,
    now_ms: int,
) -> Mapping[str, ProtectedPods]:
    """The choice of each namespace; the same object while it is the same. Call it after the totals of open
    sessions are brought up to now."""
    if not history.protections and not ledger.protected:
        return ledger.protected
    choice = _Choice(cluster, ledger, history, tick, stored, now_ms)
    found = choice.of_all()
    return ledger.protected if found == ledger.protected else found


@dataclass(frozen=True, slots=True)
class _Choice:
    cluster: ClusterState
    ledger: LedgerState
    history: History
    tick: TickPostings
    stored: StoredTotals
    now_ms: int

    # namespace -> UID of a pod -> the sessions of its claims on GPUs
    claims: dict[str, dict[str, list[Session]]] = field(default_factory=dict)

    def of_all(self) -> dict[str, ProtectedPods]:
        protections = self.history.protections
        spans = {name: protected_span(self.history, name, self.now_ms) for name in protections}
        self.ledger.selected_use.retain(spans.keys(), spans.values())
        self._find_claims()
        return {name: self._of(name, self._candidates(name), spans[name]) for name in protections}

    def _candidates(self, namespace: str) -> list[Selected]:
        protection, pods = self.history.protections[namespace], self.cluster.pods
        uids = self.cluster.pods.namespaces.get(namespace, set())
        using = (claim_user(pods, uid) for uid in self.claims.get(namespace, {}) if uid not in uids)
        users = (pod for pod in using if pod is not None and pod.uses.gone_ms is None)
        there = (*(pods[uid] for uid in uids), *users)
        return [each for pod in there for each in self._candidate(pod, protection)]

    def _find_claims(self) -> None:
        running = {uid: self.ledger.sessions[uid] for uid in self.ledger.running_claims.values()}
        for session in {**running, **self.tick.sessions}.values():
            if session.is_claim and session.namespace in self.history.protections:
                mine = self.claims.setdefault(session.namespace, {})
                for uid in consumers_of(session):
                    mine.setdefault(uid, []).append(session)

    def _claims_of(self, pod: LedgerPod) -> list[Session]:
        return self.claims.get(pod.namespace, {}).get(pod.uid, [])

    def _candidate(self, pod: LedgerPod, protection: Protection) -> Iterator[Selected]:
        session = self._session(pod.uid)
        bound = pod if session is None else session  # its labels count as of its binding
        if not selects(protection, bound.owner, bound.labels):
            return
        if protection.amount is not None and not all(
            selects_session(protection, each) for each in self._claims_of(pod)
        ):
            return  # what these claims use would not be taken from the floor
        if pod.is_charged:
            yield Selected(pod.uid, BOUND, pod.hold.bound_ms or pod.created_ms)
        elif pod.can_be_bound:
            yield Selected(pod.uid, GATED if pod.is_gated else WAITING, pod.created_ms)

    def _of(self, namespace: str, candidates: list[Selected], span: Interval) -> ProtectedPods:
        protection, before = self.history.protections[namespace], self.ledger.protected.get(namespace)
        is_hours = protection.amount is not None
        ahead_ms = min(self.history.settings(self.now_ms).lookahead_ms, span.end_ms - self.now_ms)

        counted: set[str] = set()  # UIDs of sessions of claims that protected pods share

        def takes(uid: str) -> int:
            claims = {each.uid: each for each in self.claims.get(namespace, {}).get(uid, ())}
            new = [claims[each] for each in claims.keys() - counted]
            counted.update(claims)
            pod = charged_pod(self.cluster.pods, uid)
            is_own = not claims or self._session(uid) is not None or (pod is not None and pod.can_be_bound)
            if is_hours:
                rate = sum(each.rate_milli for each in new)
                return (rate + (self._rate_milli(uid) if is_own else 0)) * max(0, ahead_ms)
            cards = sum(each.requested_milli for each in new)
            return cards + (self._cards_milli(uid) if is_own else 0)

        used = self._used(namespace, protection, span) if is_hours else 0
        return choose(protection, candidates, takes, used, before.uids if before else frozenset())

    def _rate_milli(self, uid: str) -> int:
        session = self._session(uid)
        return (
            self.ledger.without_node.unallocated_rate(self.cluster.pods[uid])
            if session is None
            else session.rate_milli
        )

    def _cards_milli(self, uid: str) -> int:
        """What it holds of its cards; without a node, the most that it can hold."""
        session = self._session(uid)
        held = session.requested_milli if session else 0
        return held or self.ledger.without_node.most_milli(self.cluster.pods[uid])

    def _used(self, namespace: str, protection: Protection, span: Interval) -> int:
        totals, new = self.ledger.table, self.tick.postings.get(namespace, ())
        before = self.ledger.selected_use.posted(namespace, span, protection, self.stored)
        pending = (
            totals.pending_of(uid, span)
            for uid in totals.sessions_of(namespace)
            if (session := self._session(uid)) is not None and selects_session(protection, session)
        )
        return before + posted_of(new, self._session, namespace, span, protection) + sum(pending)

    def _session(self, uid: str) -> Session | None:
        return self.tick.sessions.get(uid) or self.ledger.session(uid)
