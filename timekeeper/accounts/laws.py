"""Laws of the ledger: what no charge contradicts, whatever it follows from.

`LAWS` is one list for all that check it: the settler before it writes a tick, the audit over what is written,
and tests after each step. A breach is a defect of Bursar, or of somebody who wrote into the database. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from timekeeper.accounts.posting import CORRECTION, SETTLED, RateInterval, runs, steps

Part = tuple[str, int, int]  # a namespace, and the bounds of a span of time


class SessionFacts(Protocol):
    """What laws read of a session. Times in milliseconds since 1970, None: not yet; the rate in milli-GPU."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def rate_milli(self) -> int: ...
    @property
    def bound_ms(self) -> int: ...
    @property
    def ended_ms(self) -> int | None: ...
    @property
    def vanished_ms(self) -> int | None: ...
    @property
    def settled_ms(self) -> int | None: ...


class PostingFacts(Protocol):
    """What laws read of a posting."""

    @property
    def sequence(self) -> int: ...
    @property
    def namespace(self) -> str: ...
    @property
    def from_ms(self) -> int: ...
    @property
    def to_ms(self) -> int: ...
    @property
    def rate_milli(self) -> int: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Charged:
    """A session with all of its postings, in their order."""

    session: SessionFacts
    postings: Sequence[PostingFacts] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What the laws are about: a tick's changes, or a whole ledger. ``published``: what accounts state as
    posted, in milli-GPU x ms; ``stored``: the sums of the postings of the same parts, as the database has
    them; ``epochs``: numbers of settlers' epochs, in the order in which these began."""

    charged: Sequence[Charged] = ()
    published: Mapping[Part, int] = field(default_factory=dict)
    stored: Mapping[Part, int] = field(default_factory=dict)
    epochs: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Breach:
    """Facts that contradict a law. ``namespace``: of the account; "": of all."""

    law: str
    namespace: str
    text: str


Contradictions = Iterator[tuple[str, str]]  # each a namespace and a sentence


def no_negative_posting_but_corrections(facts: LedgerFacts) -> Contradictions:
    """Only a correction takes back."""
    for session, posting in _postings(facts):
        if posting.kind not in (SETTLED, CORRECTION) or (
            posting.rate_milli < 0 and posting.kind != CORRECTION
        ):
            text = f"posting {posting.sequence} of {session.uid} has the rate {posting.rate_milli}"
            yield session.namespace, f"{text} and is of the kind {posting.kind}"


def no_moment_charged_below_zero(facts: LedgerFacts) -> Contradictions:
    """Corrections take back at most what was charged for a moment."""
    for charged in facts.charged:
        takes_back = any(posting.rate_milli < 0 for posting in charged.postings)
        for run in _net(charged) if takes_back else ():
            if run.rate_milli < 0:
                text = (
                    f"{charged.session.uid} is charged {run.rate_milli} from {run.from_ms} to {run.to_ms} ms"
                )
                yield charged.session.namespace, text


def postings_belong_to_their_session(facts: LedgerFacts) -> Contradictions:
    """They are numbered from 0, have its namespace, and charge some time."""
    for charged in facts.charged:
        for number, posting in enumerate(charged.postings):
            text = f"posting {posting.sequence} of {charged.session.uid}"
            if posting.sequence != number:
                yield charged.session.namespace, f"{text} is number {number} of its session"
            if posting.namespace != charged.session.namespace:
                yield charged.session.namespace, f"{text} is of namespace {posting.namespace}"
            if posting.to_ms <= posting.from_ms:
                yield (
                    charged.session.namespace,
                    f"{text} ends at {posting.to_ms}, and begins at {posting.from_ms} ms",
                )


def no_session_ends_twice(facts: LedgerFacts) -> Contradictions:
    """A session has ended or vanished, not both; and a settled one has."""
    for session in _sessions(facts):
        if session.ended_ms is not None and session.vanished_ms is not None:
            yield session.namespace, f"{session.uid} has ended and vanished"
        if session.settled_ms is not None and session.ended_ms is None and session.vanished_ms is None:
            yield session.namespace, f"{session.uid} is settled, and has no end"


def no_session_ends_before_it_began(facts: LedgerFacts) -> Contradictions:
    """What a settled session is charged for begins with it at the earliest. An end that a wrong clock dates
    before that is charged as nothing."""
    for charged in facts.charged:
        session = charged.session
        first = next(iter(_net(charged)), None) if session.settled_ms is not None else None
        if first is not None and first.from_ms < session.bound_ms:
            text = f"{session.uid} begins at {session.bound_ms} ms, and is charged from {first.from_ms}"
            yield session.namespace, text


def no_rate_below_zero(facts: LedgerFacts) -> Contradictions:
    """No session earns."""
    for session in _sessions(facts):
        if session.rate_milli < 0:
            yield session.namespace, f"{session.uid} has the rate {session.rate_milli}"


def postings_sum_to_the_published_balance(facts: LedgerFacts) -> Contradictions:
    """What an account states as posted is what the database has."""
    for part, amount in facts.published.items():
        stored = facts.stored.get(part, 0)
        if stored != amount:
            text = f"from {part[1]} to {part[2]} ms {amount} are published as posted, and {stored} are stored"
            yield part[0], text


def epochs_rise(facts: LedgerFacts) -> Contradictions:
    """Each settler's epoch has a higher number than those before it."""
    for before, after in pairwise(facts.epochs):
        if after <= before:
            yield "", f"epoch {after} follows epoch {before}"


Law = Callable[[LedgerFacts], Contradictions]
LAWS: tuple[Law, ...] = (
    no_negative_posting_but_corrections,
    no_moment_charged_below_zero,
    postings_belong_to_their_session,
    no_session_ends_before_it_began,
    no_session_ends_twice,
    no_rate_below_zero,
    postings_sum_to_the_published_balance,
    epochs_rise,
)


def breaches(facts: LedgerFacts) -> Iterator[Breach]:
    """All contradictions to the laws, law by law."""
    for law in LAWS:
        for namespace, text in law(facts):
            yield Breach(law.__name__, namespace, text)


def _net(charged: Charged) -> tuple[RateInterval, ...]:
    return runs(steps((each.from_ms, each.to_ms, each.rate_milli) for each in charged.postings))


def _sessions(facts: LedgerFacts) -> Iterator[SessionFacts]:
    return (charged.session for charged in facts.charged)


def _postings(facts: LedgerFacts) -> Iterator[tuple[SessionFacts, PostingFacts]]:
    return ((charged.session, posting) for charged in facts.charged for posting in charged.postings)
