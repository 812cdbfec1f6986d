"""KAI's reservation pods. Each holds a whole card of the device plugin for pods with fractions of it, and is
charged what these leave of the card.

KAI's label alone makes no reservation pod, for who may edit a pod may write it: its namespace must be one
that `_settings` names. Whenever the fractions change, the session begins anew, and the time before becomes a
session of its own. Source: KAI-Scheduler, `pkg/binder/binding/resourcereservation`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from timekeeper.accounts.pods import charged_pod
from timekeeper.accounts.session import BEFORE, Session, open_session
from timekeeper.core.dialects.others.kai import DIALECT as KAI
from timekeeper.core.rating.weights import weight_of
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.settler.decide.stages import PodChanges, SessionChanges, TickFacts

_GROUP, _GROUPS = KAI.placement_labels  # the latter begins the names of labels, one for each of several cards
_Part = tuple[int, int | None, int]  # of a card: from when, until when (None: it lasts), in thousandths


def reservation_changes(facts: TickFacts, pods: PodChanges) -> SessionChanges:
    """What the reservation pods are charged."""
    ledger, now_ms, changes = facts.ledger, facts.now_ms, SessionChanges()
    namespaces = set(facts.settings.reservation_namespaces)
    new = (session.namespace for session in pods.sessions.values())
    if namespaces.isdisjoint(ledger.namespaces) and namespaces.isdisjoint(new):
        return changes
    sessions = [
        session
        for session in {**ledger.sessions, **pods.sessions}.values()
        if session.kind == "pod" and _GROUP in session.labels and not session.is_earlier
        if session.settled_ms is None
    ]
    fractions: dict[tuple[str, str], list[_Part]] = {}
    changed: set[tuple[str, str]] = set()
    for session in sessions:
        groups = _groups_of(session)
        changed |= {(session.node, group) for group in groups if session.uid in pods.sessions}
        share_milli = session.requested_milli // max(1, len(groups))
        if session.namespace in namespaces or share_milli >= WHOLE_MILLI:
            continue
        part = (session.bound_ms, _end_ms(facts, session), share_milli)
        for group in groups:
            fractions.setdefault((session.node, group), []).append(part)
    for session in sessions:
        if session.namespace in namespaces:
            keys = [(session.node, group) for group in _groups_of(session)]
            end_ms = _end_ms(facts, session)
            parts = [part for key in keys for part in fractions.get(key, ())]
            rests = _rests(session.bound_ms, now_ms if end_ms is None else end_ms, parts)
            if len(rests) > 1 or not changed.isdisjoint(keys):
                _charge(session, _whole_rate(facts, session), rests, now_ms, changes)
    return changes


def _groups_of(session: Session) -> tuple[str, ...]:
    """The groups of cards that KAI's binder wrote on the pod."""
    labels: Mapping[str, object] = json.loads(session.labels)
    several = tuple(str(group) for name, group in labels.items() if name.startswith(_GROUPS))
    return several or ((str(labels[_GROUP]),) if _GROUP in labels else ())


def _end_ms(facts: TickFacts, session: Session) -> int | None:
    """When the session ended; None: it may go on."""
    watermark_ms = facts.cluster.watermark_ms(session.node)
    found = facts.ledger.unsettled(session, watermark_ms).witnessed(facts.now_ms)
    return found.interval.end_ms if found.closed else None


def _whole_rate(facts: TickFacts, session: Session) -> int:
    """Of the whole card, by its weight now."""
    pod = charged_pod(facts.cluster.pods, session.uid)
    if pod is None:
        return weight_of(session.models, facts.settings.weights)
    node = facts.cluster.nodes.rated(session.node)
    return open_session(pod, node, facts.settings, facts.now_ms).rate_milli


def _rests(begin_ms: int, end_ms: int, parts: Iterable[_Part]) -> list[tuple[int, int]]:
    """From when on how many thousandths of the card are left, each time that a part begins or ends: a session
    that has settled is not looked at again."""
    known = list(parts)
    moments = {at for begin, end, _ in known for at in (begin, end) if at is not None}
    found: list[tuple[int, int]] = []
    for at in sorted({begin_ms, *(moment for moment in moments if begin_ms < moment <= end_ms)}):
        taken = sum(milli for begin, end, milli in known if begin <= at and (end is None or at < end))
        found.append((at, max(0, WHOLE_MILLI - taken)))
    return found


def _charge(
    session: Session, whole_milli: int, rests: list[tuple[int, int]], now_ms: int, changes: SessionChanges
) -> None:
    def rate(rest_milli: int) -> int:
        return -(-whole_milli * rest_milli // WHOLE_MILLI)

    for (from_ms, rest_milli), (to_ms, _) in pairwise(rests):
        past = replace(session, uid=f"{session.uid}{BEFORE}{from_ms}", bound_ms=from_ms, opened_ms=now_ms)
        past = replace(past, ended_ms=to_ms, vanished_ms=None, started_ms=None, rate_milli=rate(rest_milli))
        past = replace(past, is_earlier=True)
        if past.rate_milli:
            changes.open(past)
    from_ms, rest_milli = rests[-1]
    current = replace(session, bound_ms=from_ms, rate_milli=rate(rest_milli))
    if current != session:
        changes.put(current)
