"""A session: one pod's continuous hold of its cards, or one allocation of a claim, from its opening to its
last correction."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Literal, NamedTuple

from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.decisions import recordable
from timekeeper.core.kube.static_pods import STATIC
from timekeeper.core.ledger.hold import Vanished
from timekeeper.core.ledger.metering import Evidence
from timekeeper.core.rating.nodes import NodeCards
from timekeeper.core.rating.rating import Demand, rated, without_constraints
from timekeeper.core.request.cards import amounts_by_card, decode_placement, encode_placement, mismatch
from timekeeper.core.values import Card, Placement, Slice, UndecodableError

SessionKind = Literal["pod", "claim", "host"]
Charge = Literal["pod", "claim", "host", "reserved"]
# in the UID of a session, after its pod's or claim's, and before a number; `kind_of` alone searches them
HOLD, HOST, CLAIM, BEFORE = ":hold:", ":host:", ":claim:", ":before:"
# in place of a node: until when the claims of the cluster are known
CLAIMS = "resource.k8s.io/claims"
CLAIMS_SEEN = "resource.k8s.io/claims-seen"  # until when the next settler knows of all claims
MAX_DOUBT = 500  # characters of a doubt
_AHEAD_MS = 86_400_000  # a node's clock may be this far ahead of ours


class ChargeKind(NamedTuple):
    """What a session is for: a pod's cards, those that are reserved for it, its CPU and memory (an earlier
    release charged them), or a claim; whether a later session of its pod has taken its place; and the UID of
    its pod or claim."""

    charge: Charge
    is_earlier: bool
    owner_uid: str


def kind_of(uid: str) -> ChargeKind:
    """What the UID of a session says, for rows of releases before the schema 0035."""
    own, is_earlier, _ = uid.partition(BEFORE)
    charges: dict[str, Charge] = {HOLD: "reserved", HOST: "host", CLAIM: "claim"}
    mark = next((each for each in charges if each in own), "")
    return ChargeKind(charges[mark] if mark else "pod", bool(is_earlier), own.partition(mark or BEFORE)[0])


@dataclass(frozen=True, slots=True)
class Session:
    """What is fixed at opening, then the evidence. Times in milliseconds since 1970, rates in milli-GPU."""

    uid: str
    namespace: str
    name: str
    owner: str
    node: str
    models: str  # the cards' models as text; "": the placement could not be trusted
    devices: str  # the placement as text; "": it could not be trusted
    rate_milli: int
    admitted_in_budget: bool
    bound_ms: int
    opened_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    vanished_ms: int | None = None  # the pod object was deleted without terminal statuses
    # how long a vanished pod holds its cards; before that the longest grace period of a requested deletion
    grace_ms: int = 0
    # the last witness when the pod ended or vanished, or its phase became terminal: its node's watermark, or
    # the first report of the end without proof; until it is over the node's row counts
    watermark_ms: int | None = None
    settled_ms: int | None = None  # when all of it was posted
    # only our sidecar keeps the pod running; not evidence, because the pod holds its cards
    others_ended: bool = False
    labels: str = "{}"  # the pod's own labels as canonical JSON, as of opening
    requested_milli: int = 0  # what it holds of its cards together, unweighted
    requested_mib: int = 0  # the same for memory
    # until when it reserves its rate: its declared time and grace; None: it reserves the lookahead
    reserves_until_ms: int | None = None
    # it vanished, and no process of the ledger saw that: what an extender saw replaces the estimate
    was_unseen: bool = False
    # why its rate or its end is not certain; None: both are
    doubt: str | None = None
    # claim: then ``name`` is the claim's; host: what CPU and memory cost in an earlier release; reserved: of
    # cards for a waiting pod, then ``vanished_ms`` is the reservation's end
    charge: Charge = "pod"
    # UIDs of the pods that a claim is reserved for, with blanks between them
    consumers: str = ""
    # the pods that it was ever reserved for, each as UID/name, with blanks between them
    users: str = ""
    # of its node, when its pod's phase was last seen and was not terminal; None: not known
    boot: str | None = None
    is_earlier: bool = False  # a later session of its pod has taken its place
    owner_uid: str = ""  # of its pod or claim

    @property
    def kind(self) -> SessionKind:
        """What the release before reads in place of ``charge``."""
        return "pod" if self.charge == "reserved" else self.charge

    @property
    def is_claim(self) -> bool:
        """True if it is of a claim's allocation. Its ``ended_ms`` is the allocation's end."""
        return self.charge == "claim"

    @property
    def is_static(self) -> bool:
        """True if it is of a static pod: `core.kube.static_pods`."""
        return self.uid.startswith(STATIC)

    @property
    def witness(self) -> str:
        """Whose watermark extends it: its node's, or that of all claims."""
        return CLAIMS if self.is_claim else self.node

    @property
    def until_ms(self) -> int:
        """When the hold of a removed pod is over, as far as is known; 0: none was removed."""
        return 0 if self.vanished_ms is None else self.vanished_ms + self.grace_ms

    @property
    def is_over(self) -> bool:
        """True if the pod can give no further evidence of running."""
        return self.ended_ms is not None or self.vanished_ms is not None


def stored(*columns: Any) -> Session:
    """A session as its row has it; what a row of an earlier release does not say follows from its UID."""
    session = Session(*columns)
    return session if session.charge else replace(session, **kind_of(session.uid)._asdict())


def evidence(
    session: Session, node_watermark_ms: int | None, beat_ms: int | None, is_listed: bool = False
) -> Evidence:
    """All evidence of the session. The node's watermark counts only while the pod exists. ``is_listed``: the
    pod vanished, and a fresh report of its node's agent lists it."""
    return Evidence(
        bound_ms=session.bound_ms,
        started_ms=session.started_ms,
        ended_ms=session.ended_ms,
        beat_ms=beat_ms,
        watermark_ms=session.watermark_ms if session.is_over else node_watermark_ms,
        vanished_ms=session.vanished_ms,
        grace_ms=session.grace_ms,
        is_listed=is_listed,
    )


def open_session(
    pod: LedgerPod,
    node: NodeCards,
    settings: BudgetSettings,
    now_ms: int,
    since_ms: int = 0,
) -> Session:
    """The session of a bound pod on such a node; its rate is fixed by the settings now.

    Charged by its placement if that is one the request could have been given, else by the request. A pod to
    which Bursar gave no cards is charged by its request alone, and a metered one from ``since_ms`` on at the
    earliest.
    """
    placement = _placement(pod, node.cards, settings.scheduler_name)
    bound_ms = now_ms if pod.hold.bound_ms is None else pod.hold.bound_ms
    if isinstance(placement, str):
        asked = Demand(request=without_constraints(pod.request), doubt=pod.doubt or placement)
    else:
        asked = Demand(request=pod.request, uses=amounts_by_card(pod.request, placement))
    rating = rated(asked, node, settings)
    session = Session(
        uid=pod.uid,
        owner_uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        owner=pod.owner,
        node=pod.node,
        models="" if placement and isinstance(placement, str) else rating.models,
        devices="" if isinstance(placement, str) else encode_placement(placement),
        rate_milli=rating.rate_milli,
        admitted_in_budget=admitted_in_budget(pod.standing, settings),
        bound_ms=max(bound_ms, since_ms) if pod.is_metered else bound_ms,
        opened_ms=now_ms,
        labels=pod.labels,
        requested_milli=rating.requested.share_milli,
        requested_mib=rating.requested.memory_mib,
        doubt=intern(recordable(rating.doubt, MAX_DOUBT)) if rating.doubt else None,
    )
    if pod.length_ms:
        return replace(session, reserves_until_ms=session.bound_ms + pod.length_ms)
    return session


def within(session: Session, most_milli: int) -> Session:
    """The session of a static pod, whose kubelet alone says what it requests: at most so much of cards."""
    requested = session.requested_milli
    if requested <= most_milli:
        return session

    def part(amount: int) -> int:
        return amount * most_milli // requested

    mib = part(session.requested_mib)
    return replace(
        session, rate_milli=part(session.rate_milli), requested_milli=most_milli, requested_mib=mib
    )


def admitted_in_budget(standing: str, settings: BudgetSettings) -> bool:
    """Whether a pod with this ``bursar.dev/standing`` was admitted in budget."""
    if standing == "UNKNOWN":
        return settings.unknown_standing == "inBudget"
    return standing in ("IN_BUDGET", "UNLIMITED")


def witness(session: Session, pod: LedgerPod, now_ms: int) -> Session:
    """The session with what the pod's status proves. The earliest start ever reported is kept: a status
    forgets it after a few restarts.

    A node's clock may be wrong: no start counts from before the binding, and an end more than a day ahead
    counts as now.
    """
    started_ms = None if pod.started_ms is None else max(pod.started_ms, pod.hold.bound_ms or 0)
    starts = [start for start in (session.started_ms, started_ms) if start is not None]
    before_ms = 0 if session.vanished_ms is not None else session.grace_ms  # of an earlier deletion
    ended_ms, doubt = _ended_ms(session, pod, now_ms)
    return replace(
        session,
        started_ms=min(starts, default=None),
        ended_ms=ended_ms,
        doubt=doubt,
        vanished_ms=None,
        grace_ms=before_ms if pod.hold.deletion_ms is None else max(before_ms, pod.hold.grace_ms),
        others_ended=pod.others_ended if pod.ended_ms is None else session.others_ended,
    )


def _ended_ms(session: Session, pod: LedgerPod, now_ms: int) -> tuple[int | None, str | None]:
    """The end, and the session's doubt. What was proved before stays, whatever the status says now
    (`hold.later`), unless the watch has received this end: an object that is read again may be dated by a
    clock that was wrong."""
    before_ms, last = session.ended_ms, pod.hold
    if not pod.ended_ms and before_ms is not None:
        return before_ms, session.doubt
    if pod.ended_ms is None:
        return None, session.doubt
    if before_ms and last.received_ms is None:
        return before_ms, session.doubt
    if pod.ended_ms > now_ms + _AHEAD_MS:
        return now_ms if before_ms is None else before_ms, session.doubt
    if not last.doubt or last.doubt in (session.doubt or ""):
        return pod.ended_ms, session.doubt
    doubts = "; ".join(filter(None, (session.doubt, last.doubt)))
    return min(pod.ended_ms, now_ms), intern(recordable(doubts, MAX_DOUBT))


def vanish(session: Session, gone: Vanished, known: Evidence) -> Session:
    """The session of a pod whose object was removed without terminal statuses: it holds its cards as `gone`
    says."""
    grace_ms = gone.until_ms - gone.removed_ms
    return replace(session, vanished_ms=gone.removed_ms, grace_ms=grace_ms, watermark_ms=known.watermark_ms)


def last_evidence_ms(known: Evidence) -> int:
    """The latest moment with any evidence of the session."""
    return max(known.bound_ms, known.started_ms or 0, known.beat_ms or 0, known.watermark_ms or 0)


def _placement(pod: LedgerPod, cards: Sequence[Card], scheduler: str) -> Placement | str:
    """The pod's placement if it can be trusted, else the reason why not; "": it needs none, because Bursar
    gave it no cards, or it requests devices alone, which their own plugin gives out, whole."""
    if pod.is_charged_by_spec(scheduler):
        return ""
    if not pod.devices:
        is_of_cards = not all(container.ask.device for container in pod.request.asks)
        return "the pod has no placement" if is_of_cards else ""
    try:
        placement = decode_placement(pod.devices)
    except UndecodableError as error:
        return f"the placement cannot be decoded: {error}"
    return mismatch(pod.request, placement, cards) or placement


def moved_placement(session: Session, given: Collection[str], cards: Iterable[Card]) -> str:
    """The text of the session's placement on the cards that a device plugin gave its pod, whole; "": it names
    these already, or it is not known for each of them."""
    if not session.devices:
        return ""
    placement, by_uuid = decode_placement(session.devices), {card.uuid: card for card in cards}
    named = {part.uuid for _, parts in placement.containers for part in parts}
    left, new = sorted(named.difference(given)), sorted(set(given) - named)
    if not new or len(left) != len(new) or not by_uuid.keys() >= set(new):
        return ""
    moves = {uuid: by_uuid[to] for uuid, to in zip(left, new, strict=True)}
    containers = (
        (name, tuple(_on(moves[part.uuid], part) if part.uuid in moves else part for part in parts))
        for name, parts in placement.containers
    )
    return encode_placement(Placement(tuple(containers)))


def _on(card: Card, part: Slice) -> Slice:
    return replace(part, uuid=card.uuid, index=card.index, memory_mib=card.memory_mib)


def with_cards_of(session: Session, moved: Session, cards: Iterable[Card]) -> Session:
    """The session on the cards of ``moved``, which it would open on now. Unless the models differ, its rate
    stays."""
    by_uuid = {card.uuid: card.model for card in cards}
    models, others = (_models_by_card(each.devices, by_uuid) for each in (session, moved))
    rate = session.rate_milli if models == others else moved.rate_milli
    return replace(
        session,
        devices=moved.devices,
        models=moved.models,
        rate_milli=rate,
        requested_mib=moved.requested_mib,
    )


def _models_by_card(devices: str, by_uuid: Mapping[str, str]) -> list[str]:
    placement = decode_placement(devices)
    uuids = {part.uuid for _, parts in placement.containers for part in parts}
    return sorted(by_uuid.get(uuid, "") for uuid in uuids)
