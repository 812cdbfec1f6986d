"""Pods that do not use their cards, and since when, by the samples of their nodes' agents; and what follows.

A pod is idle while samples show it using less than a part of what it holds of each of its cards. A sample
without a figure of one of them proves nothing: the last observation holds until a sample contradicts it, or
until it expires. A pod that no sample measures is never idle.

The devices of a claim are cards that no sample shows with a pod: they are judged by the figures of the cards
as a whole, which nothing that uses a part of one can exceed, beside the smallest part that a claim holds. A
pod that uses claims is idle while all devices of all of them are, and its own cards, if it has some.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from timekeeper.accounts.card_use.figures import (
    WHOLE_MILLI,
    CardSample,
    MeasuredSession,
    UsageSample,
    cards_of,
)
from timekeeper.accounts.card_use.overuse import FRESH_MS
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.ledger.metering import FOREVER_MS

IdleAction = Literal["reclaim", "evict", "scale"]
IDLE_ACTIONS: tuple[IdleAction, ...] = ("reclaim", "evict", "scale")

# what to do about an idle pod: "warn" it, let other pods "reclaim" its cards, "evict" it, "scale" its owner
# to zero, or "spare" it: withdraw what was written, because it is not idle any more
IdleStep = Literal["", "warn", "reclaim", "evict", "scale", "spare"]


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
class UsedClaim:
    """A claim that holds GPUs. ``since_ms``: since when; ``uuids``: of each, "" where its driver publishes
    none; ``pods``: UID and name of those that use it."""

    namespace: str
    node: str
    since_ms: int
    uuids: tuple[str, ...]
    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """What a namespace's budget and the settings say about idle pods."""

    action: IdleAction
    after_ms: int  # how long a pod must have been idle before it is warned
    grace_ms: int  # from the warning until the action
    below_milli: int  # a pod that uses less of what it holds, in thousandths, is idle


def follow_idle(
    before: Mapping[str, IdlePeriod],
    samples: Iterable[tuple[int, UsageSample]],
    sessions: Mapping[str, MeasuredSession],
    below_milli: int,
    lapse_ms: int = FRESH_MS,
    claimed: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, IdlePeriod]:
    """The idle pods by UID, and the idle cards of no pod by `card_key`, after these samples of a node.
    ``samples``: with their moments, in order of time, all later than those of ``before``. ``below_milli``:
    the threshold in thousandths of what is held. ``claimed``: the smallest part that a claim holds of a card,
    in thousandths, by UUID, where that is less than all of it."""
    periods = dict(before)
    for at_ms, sample in samples:
        figures, unheld = dict(sample.pods), _unheld(sample)
        for uid in periods.keys() | figures.keys() | unheld.keys():
            if uid.startswith(_CARD):
                is_idle = _is_card_idle(unheld.get(uid), below_milli, claimed)
            else:
                is_idle = _is_idle(uid, at_ms, figures, sessions, below_milli)
            period = periods.pop(uid, None)
            if period is not None and at_ms - period.seen_ms > lapse_ms:
                period = None
            if is_idle:
                periods[uid] = IdlePeriod(period.since_ms if period else at_ms, at_ms)
            elif is_idle is None and period is not None:
                periods[uid] = period
    return periods


_CARD = "card/"


def card_key(uuid: str) -> str:
    """What names a card among the UIDs of pods."""
    return _CARD + uuid


def uuid_of(key: str) -> str:
    """The card's UUID; "": it is a pod's UID."""
    return key.removeprefix(_CARD) if key.startswith(_CARD) else ""


def idle_users(
    claims: Iterable[UsedClaim], cards: Mapping[tuple[str, str], IdlePeriod]
) -> dict[str, IdlePod | None]:
    """The pods that use claims by UID; None: a device of theirs is used, or nothing measures it. ``cards``:
    the idle ones by node and UUID."""
    found: dict[str, IdlePod | None] = {}
    for claim in claims:
        held = IdlePeriod(claim.since_ms, FOREVER_MS)
        period = overlap([held, *(cards.get((claim.node, uuid)) for uuid in claim.uuids)])
        for uid, name in claim.pods:
            mine = found[uid] if uid in found else IdlePod(uid, claim.namespace, name, claim.node, held)
            both = overlap([mine.period, period]) if mine and claim.uuids else None
            found[uid] = replace(mine, period=both) if mine and both else None
    return found


def overlap(periods: Iterable[IdlePeriod | None]) -> IdlePeriod | None:
    """The time that is in all periods; None if one is None, or if there is none."""
    known = tuple(periods)
    found = [each for each in known if each is not None]
    if not found or len(found) < len(known):
        return None
    since_ms, seen_ms = max(each.since_ms for each in found), min(each.seen_ms for each in found)
    return IdlePeriod(since_ms, seen_ms) if seen_ms >= since_ms else None


def of_wholes(idle: Mapping[str, IdlePod], wholes: Mapping[str, Iterable[LedgerPod]]) -> dict[str, IdlePod]:
    """The idle pods of which all that leave with them are idle: by UID, in ``wholes``. The pods of a gang are
    idle since the last of them is."""
    found = {}
    for uid, whole in wholes.items():
        mine, gang = idle[uid], {each.uid for each in whole if each.gang is not None}
        others = gang if uid in gang else ()
        periods = [mine.period, *(idle[each].period for each in others if each in idle)]
        since_ms, seen_ms = max(each.since_ms for each in periods), min(each.seen_ms for each in periods)
        found[uid] = replace(mine, period=IdlePeriod(since_ms, seen_ms))
    return found


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
        period = _since_its_binding(pod, found) if found is not None and found.node == pod.node else None
        terms = terms_of(pod.namespace)
        step = next_step(terms, period, pod.idle_until_ms, pod.is_reclaimable, now_ms)
        if step == "spare":
            yield Spared(pod)
        elif step and terms is not None and period is not None:
            warned_ms = -(-(now_ms + terms.grace_ms) // 1000) * 1000
            until_ms = warned_ms if step == "warn" else pod.idle_until_ms or 0
            yield DueStep(step, pod, period, terms, until_ms)


def _since_its_binding(pod: LedgerPod, found: IdlePod) -> IdlePeriod:
    """The claim that it uses may be idle for longer."""
    return replace(found.period, since_ms=max(found.period.since_ms, pod.hold.bound_ms or 0))


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


def _unheld(sample: UsageSample) -> dict[str, CardSample]:
    """The cards as a whole, without those of the pods in the sample."""
    held = {each.uuid for _, cards in sample.pods for each in cards}
    return {card_key(each.uuid): each for each in sample.cards if each.uuid not in held}


def _is_card_idle(figure: CardSample | None, below_milli: int, claimed: Mapping[str, int]) -> bool | None:
    """Whether the sample shows the card idle; None: it does not say."""
    if figure is None or figure.utilisation is None:
        return None
    return _is_below(figure.utilisation, claimed.get(figure.uuid, WHOLE_MILLI), below_milli)


def _is_below(utilisation: int, share_milli: int, below_milli: int) -> bool:
    return 10 * utilisation * WHOLE_MILLI < below_milli * share_milli


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
    known = [
        _is_below(card.utilisation, cards.shares.get(card.uuid, WHOLE_MILLI), below_milli)
        for card in cards.own(figures[uid])
        if card.utilisation is not None
    ]
    if not all(known):
        return False
    return True if len(known) == cards.most else None
