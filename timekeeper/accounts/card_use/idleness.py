"""Pods that do not use their cards, and since when, by the samples of their nodes' agents; and what follows.

A pod is idle while samples show each of its cards in use below a threshold. A sample without a figure of one
of them proves nothing: the last observation holds until a sample contradicts it, or until it expires. A pod
that no sample measures is never idle.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from timekeeper.accounts.card_use.figures import CardSample, MeasuredSession, UsageSample, cards_of
from timekeeper.accounts.card_use.overuse import FRESH_MS
from timekeeper.accounts.pods import LedgerPod

IdleAction = Literal["reclaim", "evict"]

# what to do about an idle pod: "warn" it, let other pods "reclaim" its cards, "evict" it, or "spare" it:
# withdraw what was written, because it is not idle any more
IdleStep = Literal["", "warn", "reclaim", "evict", "spare"]


@dataclass(frozen=True, slots=True)
class IdlePeriod:
    """``since_ms``: the first sample that showed the pod idle; ``seen_ms``: the last one."""

    since_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class IdlePod:
    """An idle pod by its node's reports; times by our clock."""

    uid: str
    namespace: str
    name: str
    node: str
    period: IdlePeriod


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """What a namespace's budget and the settings say about idle pods."""

    action: IdleAction
    after_ms: int  # how long a pod must have been idle before it is warned
    grace_ms: int  # from the warning until the action


def follow_idle(
    before: Mapping[str, IdlePeriod],
    samples: Iterable[tuple[int, UsageSample]],
    sessions: Mapping[str, MeasuredSession],
    below_milli: int,
    lapse_ms: int = FRESH_MS,
) -> dict[str, IdlePeriod]:
    """The idle pods by UID after these samples of a node. ``samples``: with their moments, in order of time,
    all later than those of ``before``. ``below_milli``: the threshold in thousandths of a card."""
    periods = dict(before)
    for at_ms, sample in samples:
        figures = dict(sample.pods)
        for uid in periods.keys() | figures.keys():
            is_idle = _is_idle(uid, at_ms, figures, sessions, below_milli)
            period = periods.pop(uid, None)
            if period is not None and at_ms - period.seen_ms > lapse_ms:
                period = None
            if is_idle:
                periods[uid] = IdlePeriod(period.since_ms if period else at_ms, at_ms)
            elif is_idle is None and period is not None:
                periods[uid] = period
    return periods


@dataclass(frozen=True, slots=True)
class DueStep:
    """What is due about an idle pod. ``until_ms``: how long it is left alone after its warning."""

    step: IdleStep
    pod: LedgerPod
    period: IdlePeriod
    terms: IdleTerms
    until_ms: int


@dataclass(frozen=True, slots=True)
class Spared:
    """A pod that is not idle any more: what was written on it is withdrawn."""

    pod: LedgerPod


def due(
    pods: Iterable[LedgerPod],
    idle: Mapping[str, IdlePod],
    terms_of: Callable[[str], IdleTerms | None],
    now_ms: int,
) -> Iterator[DueStep | Spared]:
    """What is due about each pod that is idle or was warned. ``idle``: the idle pods by UID; ``terms_of``: a
    namespace's terms, None where idle pods are left alone."""
    for pod in pods:
        found = idle.get(pod.uid)
        if not pod.is_charged or (found is None and pod.idle_until_ms is None and not pod.is_reclaimable):
            continue
        period = found.period if found is not None and found.node == pod.node else None
        terms = terms_of(pod.namespace)
        step = next_step(terms, period, pod.idle_until_ms, pod.is_reclaimable, now_ms)
        if step == "spare":
            yield Spared(pod)
        elif step and terms is not None and period is not None:
            warned_ms = -(-(now_ms + terms.grace_ms) // 1000) * 1000
            until_ms = warned_ms if step == "warn" else pod.idle_until_ms or 0
            yield DueStep(step, pod, period, terms, until_ms)


def next_step(
    terms: IdleTerms | None,
    period: IdlePeriod | None,
    until_ms: int | None,
    is_reclaimable: bool,
    now_ms: int,
) -> IdleStep:
    """What to do about a pod now. ``terms``: None where idle pods are left alone; ``period``: None while it
    is not idle; ``until_ms`` and ``is_reclaimable``: what its annotations say."""
    if terms is None or period is None or period.seen_ms - period.since_ms < terms.after_ms:
        return "spare" if until_ms is not None or is_reclaimable else ""
    # a warning from before this idle time does not count
    if (
        until_ms is None
        or until_ms > now_ms + terms.grace_ms + 1_000
        or until_ms < period.since_ms + terms.after_ms
    ):
        return "warn"
    if until_ms > now_ms or (terms.action == "reclaim" and is_reclaimable):
        return ""
    return terms.action


def _is_idle(
    uid: str,
    at_ms: int,
    figures: Mapping[str, tuple[CardSample, ...]],
    sessions: Mapping[str, MeasuredSession],
    below_milli: int,
) -> bool | None:
    """Whether the sample shows the pod idle; None: it does not say. A pod without a session is not idle."""
    session = sessions.get(uid)
    if uid not in figures:
        return None
    if session is None or session.ended_ms is not None:
        return False
    if at_ms < session.since_ms:
        return None
    cards = cards_of(session.devices, session.requested_milli)
    known = [each.utilisation for each in cards.own(figures[uid]) if each.utilisation is not None]
    if any(10 * each >= below_milli for each in known):
        return False
    return True if len(known) == cards.most else None
