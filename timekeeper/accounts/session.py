"""A session: one pod's unbroken hold of its cards, from its opening to its last correction."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.ledger.metering import Evidence
from timekeeper.core.request import cards as placing
from timekeeper.core.values import Card, ContainerAsk, GPURequest, Placement

# A node whose Lease is older than this has not been heard: kube-controller-manager gives up on it after 50 s.
SILENT_MS = 60_000


_AHEAD_MS = 86_400_000  # by so much a node's clock may be before ours


@dataclass(frozen=True, slots=True)
class Session:
    """What is fixed at opening, then the evidence. Times in milliseconds since 1970, the rate in milli-GPU.

    ``models`` and ``devices`` are the cards' models and the placement as text, empty where no placement could
    be trusted. ``vanished_ms``: the pod's object went without terminal statuses, and the kubelet may run it
    for ``grace_ms`` more. ``watermark_ms``: its node's, kept as it was when the pod ended or went; before
    that the node's own row counts. ``settled_ms``: when all of it was posted. ``others_ended``: only our
    sidecar keeps the pod going; no evidence, for the pod holds its cards all the same. ``labels``: the pod's
    own as canonical JSON, as they were at opening; ``requested_milli`` and ``requested_mib``: what it holds
    of its cards together, unweighted.
    """

    uid: str
    namespace: str
    name: str
    owner: str
    node: str
    models: str
    devices: str
    rate_milli: int
    admitted_in_budget: bool
    charge_from: str
    start_grace_ms: int
    bound_ms: int
    opened_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    vanished_ms: int | None = None
    grace_ms: int = 0
    watermark_ms: int | None = None
    settled_ms: int | None = None
    others_ended: bool = False
    labels: str = "{}"
    requested_milli: int = 0
    requested_mib: int = 0

    @property
    def is_over(self) -> bool:
        """True where the pod can give no further evidence of running."""
        return self.ended_ms is not None or self.vanished_ms is not None

    @property
    def terms(self) -> BudgetSettings:
        """The settings it was opened under: what changes later changes no session that runs."""
        return _terms(self.charge_from, self.start_grace_ms)


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session; ``doubt`` tells why it is charged by its request and not by its placement."""

    session: Session
    doubt: str = ""


@functools.cache
def _terms(charge_from: str, start_grace_ms: int) -> BudgetSettings:
    return BudgetSettings(charge_from=charge_from, start_grace_ms=start_grace_ms)


def evidence(session: Session, node_watermark_ms: int | None, beat_ms: int | None) -> Evidence:
    """All that is known of the session; the node's watermark speaks for it only while its pod is there."""
    return Evidence(
        bound_ms=session.bound_ms,
        started_ms=session.started_ms,
        ended_ms=session.ended_ms,
        beat_ms=beat_ms,
        watermark_ms=session.watermark_ms if session.is_over else node_watermark_ms,
        vanished_ms=session.vanished_ms,
        grace_ms=session.grace_ms,
    )


def open_session(
    pod: LedgerPod, cards: Iterable[Card], settings: BudgetSettings, now_ms: int
) -> OpenedSession:
    """The session of a bound pod on a node with these cards, its rate fixed by what then holds.

    Charged by its placement where that is one the request could have been given; else by the request alone.
    """
    on_node = tuple(cards)
    given = _placement(pod, on_node)
    if isinstance(given, str):
        rate, models, devices = estimated_rate(pod.request, on_node, settings), "", ""
        requested = asked(pod.request)
    else:
        uses = placing.amounts_by_card(pod.request, given)
        rate = placing.rate(uses, on_node, settings.weights, settings.charge_by)
        models, devices = _models(uses, on_node), placing.encode_placement(given)
        requested = sum(uses.values(), start=placing.NO_AMOUNT)
    session = Session(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        owner=pod.owner,
        node=pod.node,
        models=models,
        devices=devices,
        rate_milli=rate,
        admitted_in_budget=admitted_in_budget(pod.standing, settings),
        charge_from=settings.charge_from,
        start_grace_ms=settings.start_grace_ms,
        bound_ms=now_ms if pod.bound_ms is None else pod.bound_ms,
        opened_ms=now_ms,
        labels=pod.labels,
        requested_milli=requested.share_milli,
        requested_mib=requested.memory_mib,
    )
    return OpenedSession(session, given if isinstance(given, str) else "")


def admitted_in_budget(standing: str, settings: BudgetSettings) -> bool:
    """Whether a pod with this ``bursar.dev/standing`` was let in as one that may use what is left."""
    if standing == "UNKNOWN":
        return settings.unknown_standing == "inBudget"
    return standing in ("IN_BUDGET", "UNLIMITED")


def estimated_rate(request: GPURequest, cards: Iterable[Card], settings: BudgetSettings) -> int:
    """The highest rate that the request can have on any of these cards that it allows; on none, its compute
    share at weight 1."""
    choices = tuple(card for card in cards if placing.allowed(request, card))
    init = [_estimate(each, choices, settings) for each in request.asks if each.init]
    together = [_estimate(each, choices, settings) for each in request.asks if not each.init]
    return max((*init, sum(together)))


def asked(request: GPURequest) -> placing.CardAmount:
    """What the request takes of its cards together at one time, as far as it names amounts."""
    uses = [
        (each.init, placing.CardAmount(each.ask.share_milli, each.ask.memory_mib), each.ask.devices)
        for each in request.asks
    ]
    init = [
        placing.CardAmount(use.share_milli * n, use.memory_mib * n) for is_init, use, n in uses if is_init
    ]
    together = [
        placing.CardAmount(use.share_milli * n, use.memory_mib * n) for is_init, use, n in uses if not is_init
    ]
    all_at_once = sum(together, start=placing.NO_AMOUNT)
    most = (*init, all_at_once)
    return placing.CardAmount(max(use.share_milli for use in most), max(use.memory_mib for use in most))


def witness(session: Session, pod: LedgerPod, now_ms: int) -> Session:
    """The session with what the pod's status proves. The earliest start ever told stays: a status forgets it
    after a few restarts. Of a pod that has ended nobody asks which container kept it going.

    Whoever writes statuses may have a wrong clock: no start counts from before the binding, and an end that
    lies more than a day ahead is one of now.
    """
    started_ms = None if pod.started_ms is None else max(pod.started_ms, pod.bound_ms or 0)
    starts = [start for start in (session.started_ms, started_ms) if start is not None]
    return replace(
        session,
        started_ms=min(starts, default=None),
        ended_ms=_ended_ms(session, pod, now_ms),
        vanished_ms=None,
        others_ended=pod.others_ended if pod.ended_ms is None else session.others_ended,
    )


def _ended_ms(session: Session, pod: LedgerPod, now_ms: int) -> int | None:
    if pod.ended_ms is None:
        return session.ended_ms
    if pod.ended_ms <= now_ms + _AHEAD_MS:
        return pod.ended_ms
    return now_ms if session.ended_ms is None else session.ended_ms


def vanish(
    session: Session, pod_grace_ms: int, at_ms: int, known: Evidence, lease_ms: int | None, most_grace_ms: int
) -> Session:
    """The session of a pod whose object went at ``at_ms`` without terminal statuses.

    Where its node was heard then, the kubelet may run it on for its grace period; where nobody had heard the
    node for a while, nothing says that it ran at all since its last evidence.
    """
    if lease_ms is None or at_ms - lease_ms > SILENT_MS:
        return vanish_unseen(session, known)
    return replace(session, vanished_ms=at_ms, grace_ms=min(pod_grace_ms, most_grace_ms))


def vanish_unseen(session: Session, known: Evidence) -> Session:
    """The session of a pod whose object went while nobody watched: it ends with its last evidence."""
    return replace(session, vanished_ms=last_evidence_ms(known), grace_ms=0)


def last_evidence_ms(known: Evidence) -> int:
    """The latest moment that anything is known of the session."""
    return max(known.bound_ms, known.started_ms or 0, known.beat_ms or 0, known.watermark_ms or 0)


def _placement(pod: LedgerPod, cards: tuple[Card, ...]) -> Placement | str:
    """The pod's placement where it is to be trusted, else why it is not."""
    if not pod.devices:
        return "the pod carries no placement"
    try:
        given = placing.decode_placement(pod.devices)
    except placing.UndecodableError as error:
        return f"its placement cannot be decoded: {error}"
    return placing.mismatch(pod.request, given, cards) or given


def _models(uses: Iterable[str], cards: tuple[Card, ...]) -> str:
    return ",".join(sorted({card.model for card in cards if card.uuid in set(uses)}))


def _estimate(each: ContainerAsk, choices: tuple[Card, ...], settings: BudgetSettings) -> int:
    rates = [
        placing.rate({card.uuid: placing.need(each.ask, card)}, [card], settings.weights, settings.charge_by)
        for card in choices
    ]
    return each.ask.devices * max(rates, default=each.ask.share_milli)
