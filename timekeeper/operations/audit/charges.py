"""Compares sessions, their postings and rolled-up rows with the evidence."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from timekeeper.accounts.laws import Charged, LedgerFacts, breaches
from timekeeper.accounts.posting import Charge, RateInterval, runs, steps
from timekeeper.operations.audit.evidence import bounds, owed
from timekeeper.operations.audit.finding import SLACK_MS, Finding, Tell, hours, moment, time_of
from timekeeper.operations.audit.spans import Spans
from timekeeper.store.audit_rows import PodRows, StoredPosting, StoredRollup, StoredSession


@dataclass(slots=True)
class Charges:
    """Checks all rows under a pod UID.

    ``wrong``: by namespace and account, the amount posted too much; only accounts that differ.
    """

    tell: Tell
    spans: Spans
    heard: dict[str, int]
    now_ms: int
    sessions: int = 0
    postings: int = 0
    folded: int = 0
    wrong: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def check(self, dossier: PodRows) -> None:
        """Report everything that is wrong under this UID."""
        self.postings += len(dossier.postings)
        self.folded += len(dossier.folded)
        if dossier.session is None:
            self._check_without_session(dossier)
        else:
            self.sessions += 1
            self._check_session(dossier, dossier.session)
        self._check_folded(dossier)
        if dossier.doubtful_beats:
            subject = f"session {dossier.uid}"
            self.tell(Finding(subject, "heartbeats", f"{dossier.doubtful_beats} dated after receipt", "none"))

    def _check_without_session(self, dossier: PodRows) -> None:
        if dossier.postings:
            amount = sum(each.amount for each in dossier.postings)
            stored = f"{len(dossier.postings)} postings of {hours(amount)}"
            self.tell(Finding(f"session {dossier.uid}", "row", stored, "no such session", amount))
        if dossier.beat_ms is not None:
            self.tell(Finding(f"session {dossier.uid}", "heartbeats", "some", "no such session"))

    def _check_session(self, dossier: PodRows, session: StoredSession) -> None:
        for breach in breaches(LedgerFacts(charged=(Charged(session, dossier.postings),))):
            law = breach.law.replace("_", " ")
            self.tell(Finding(name_of(session), "law", breach.text, f"the law: {law}"))
        for posting in dossier.postings:
            self._check_posting(session, posting)
        self._check_times(session)
        if dossier.folded or session.folded_ms is not None:
            self.tell(Finding(name_of(session), "folding", "folded row and session row", "one of them"))
        if session.settled_ms is None:
            self._check_open(dossier, session)
        else:
            self._check_settled(dossier, session)

    def _check_posting(self, session: StoredSession, posting: StoredPosting) -> None:
        subject = f"posting {posting.sequence} of {name_of(session)}"
        amount = posting.rate_milli * (posting.to_ms - posting.from_ms)
        if posting.amount != amount:
            stored = hours(posting.amount)
            self.tell(Finding(subject, "amount", stored, hours(amount), posting.amount - amount))
        self._check_rate(session, posting, subject)
        self._check_account(posting, subject)

    def _check_rate(self, session: StoredSession, posting: StoredPosting, subject: str) -> None:
        """Only a correction may be negative; every posting has the session's rate."""
        takes_back = posting.kind == "correction" and posting.rate_milli < 0
        rate_milli = -session.rate_milli if takes_back else session.rate_milli
        if posting.rate_milli != rate_milli:
            wrong = posting.amount - rate_milli * (posting.to_ms - posting.from_ms)
            stored, expected = f"{posting.rate_milli} milli-GPU", f"{rate_milli} milli-GPU"
            self.tell(Finding(subject, "rate", stored, expected, wrong))

    def _check_account(self, posting: StoredPosting, subject: str) -> None:
        if posting.to_ms <= posting.from_ms:
            return  # a law says so
        stored = time_of(posting.from_ms, posting.to_ms)
        bound = self.spans.crossed(posting.namespace, posting.from_ms, posting.to_ms, posting.created_ms)
        if bound is not None:
            self.tell(Finding(subject, "account", stored, f"a cut at {moment(bound)}"))

    def _check_times(self, session: StoredSession) -> None:
        subject = name_of(session)
        if session.bound_ms > self.now_ms + SLACK_MS:
            self.tell(Finding(subject, "binding", moment(session.bound_ms), "not in the future"))

    def _check_settled(self, dossier: PodRows, session: StoredSession) -> None:
        if session.ended_ms is None and session.vanished_ms is None:
            return  # a law says so
        net = runs(steps(_charges(dossier.postings)))
        posted_ms = net[-1].to_ms if net else 0
        due = owed(session, dossier.beat_ms, posted_ms if dossier.postings else None)
        self._compare(dossier, session, (due.from_ms, due.to_ms), "settled")

    def _check_open(self, dossier: PodRows, session: StoredSession) -> None:
        """Postings of an open session must be one interval at its rate, within its evidence."""
        if not dossier.postings:
            return
        found = runs(steps(_charges(dossier.postings)))
        if not found:
            return
        heard, posted_ms = self.heard.get(session.witness), max(each.created_ms for each in dossier.postings)
        allowed = bounds(session, dossier.beat_ms, heard, posted_ms)
        self._compare(
            dossier, session, (allowed.begin_ms, min(found[-1].to_ms, allowed.until_ms)), "not settled yet"
        )

    def _compare(self, dossier: PodRows, session: StoredSession, due: tuple[int, int], state: str) -> None:
        """Compares posted and due over time, so equal sums for different times are found too."""
        posted = _charges(dossier.postings)
        from_ms, to_ms = due
        difference = runs(steps([*posted, (from_ms, to_ms, -session.rate_milli)]))
        if not difference:
            return
        self._charge_wrong(session.namespace, difference)
        stored = ", ".join(_told(each) for each in runs(steps(posted))) or "nothing"
        expected = _told(RateInterval(from_ms, to_ms, session.rate_milli)) if to_ms > from_ms else "nothing"
        amount = sum(each.amount for each in difference)
        self.tell(Finding(name_of(session), f"posted ({state})", stored, expected, amount))

    def _charge_wrong(self, namespace: str, difference: Iterable[RateInterval]) -> None:
        for run in difference:
            for from_ms, to_ms in self.spans.accounts(namespace, run.from_ms, run.to_ms):
                key = (namespace, *self.spans.account(namespace, from_ms))
                self.wrong[key] = self.wrong.get(key, 0) + run.rate_milli * (to_ms - from_ms)

    def _check_folded(self, dossier: PodRows) -> None:
        before: StoredRollup | None = None
        for each in dossier.folded:
            subject = f"folded row {moment(each.from_ms)} of session {dossier.uid} ({each.namespace})"
            amount = each.rate_milli * (each.to_ms - each.from_ms)
            if each.amount != amount:
                self.tell(Finding(subject, "amount", hours(each.amount), hours(amount), each.amount - amount))
            if before is not None and before.to_ms > each.from_ms:
                twice = min(before.to_ms, each.to_ms) - each.from_ms
                stored = f"{time_of(before.from_ms, before.to_ms)} and {time_of(each.from_ms, each.to_ms)}"
                self.tell(Finding(subject, "time", stored, "no moment twice", each.rate_milli * twice))
            if before is not None and before.namespace != each.namespace:
                self.tell(Finding(subject, "namespace", each.namespace, before.namespace, each.amount))
            before = each


def name_of(session: StoredSession) -> str:
    """The session's name for readers."""
    return f"session {session.uid} ({session.namespace}/{session.name})"


def _charges(postings: Iterable[StoredPosting]) -> list[Charge]:
    return [(each.from_ms, each.to_ms, each.rate_milli) for each in postings]


def _told(run: RateInterval) -> str:
    return f"{hours(run.amount)} ({time_of(run.from_ms, run.to_ms)} at {run.rate_milli} milli-GPU)"
