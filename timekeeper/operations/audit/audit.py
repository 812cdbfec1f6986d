"""Recomputes every balance from the evidence, at one moment of the ledger, and reports differences."""

from contextlib import suppress
from dataclasses import asdict, dataclass

from timekeeper.accounts.laws import LedgerFacts, breaches
from timekeeper.operations.audit.charges import Charges
from timekeeper.operations.audit.cluster import ClusterComparison
from timekeeper.operations.audit.finding import SLACK_MS, Finding, Tell, hours, moment, time_of
from timekeeper.operations.audit.grants import check_carry, check_grants
from timekeeper.operations.audit.spans import Spans
from timekeeper.store import accounts, audit_rows
from timekeeper.store.accounts import NotWrittenError
from timekeeper.store.engine.engine import Connection
from timekeeper.store.ledger import posted_of


@dataclass(frozen=True, slots=True)
class Checked:
    """How many rows were checked."""

    sessions: int
    postings: int
    folded: int
    days: int
    grants: int
    nodes: int

    def wire(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


def audit(
    connection: Connection, now_ms: int, tell: Tell, cluster: ClusterComparison | None = None
) -> Checked:
    """Compare the whole ledger with its evidence and report each difference at once. ``cluster``: compares
    the sessions with the pods and the claims that exist.

    It reads one session at a time, so memory does not grow with the ledger. Order: each session with its
    postings, balances that are wrong because of them, day totals, grants, nodes.
    """
    now_ms = max(now_ms, audit_rows.newest_tick_ms(connection))  # the audit's clock may be behind
    spans = Spans(audit_rows.every_entry(connection))
    for error in spans.history.unreadable_entries:
        tell(Finding(f"entry {error.key}", "text", error.sentence(), "a readable entry"))
    heard = audit_rows.nodes(connection)
    charges = Charges(tell, spans, heard, now_ms)
    for dossier in audit_rows.pod_rows(connection):
        charges.check(dossier)
        if cluster is not None:
            cluster.check(dossier, heard)
    if cluster is not None:
        cluster.end(spans.history)
    _tell_balances(connection, charges, tell)
    _check_accounts(connection, tell)
    days = _check_days(connection, tell)
    grants = check_grants(audit_rows.grants(connection), spans, tell)
    check_carry(
        connection, audit_rows.grants(connection), spans.history, audit_rows.newest_tick_ms(connection), tell
    )
    for node, until_ms in heard.items():
        if until_ms > now_ms + SLACK_MS:
            tell(Finding(f"node {node}", "heard until", moment(until_ms), "not in the future"))
    return Checked(charges.sessions, charges.postings, charges.folded, days, grants, len(heard))


def _tell_balances(connection: Connection, charges: Charges, tell: Tell) -> None:
    """The accounts with wrong sessions, and the total difference of each."""
    for (namespace, from_ms, to_ms), amount in sorted(charges.wrong.items()):
        if amount:
            posted = audit_rows.posted_in(connection, namespace, from_ms, to_ms)
            subject = f"balance of {namespace} for {time_of(from_ms, to_ms)}"
            tell(Finding(subject, "posted", hours(posted), hours(posted - amount), amount))


def _check_accounts(connection: Connection, tell: Tell) -> None:
    """The accounts of namespaces state as posted what is stored, unless a settler is about to write them."""
    with suppress(NotWrittenError):
        rows = [row for name, row in accounts.rows(connection).items() if not name.startswith("_")]
        published = {(row.subject, row.start_ms, row.end_ms): row.posted for row in rows}
        stored = posted_of(connection, published)
        for breach in breaches(LedgerFacts(published=published, stored=stored)):
            law = breach.law.replace("_", " ")
            tell(Finding(f"account of {breach.namespace}", "law", breach.text, f"the law: {law}"))


def _check_days(connection: Connection, tell: Tell) -> int:
    """The day totals of reports must equal the sums of their rows."""
    count = 0
    for day in audit_rows.days(connection):
        count += 1
        if day.kept != day.summed:
            subject = f"total of {day.namespace} for {moment(day.day_ms)[:10]}"
            difference = day.kept - day.summed
            tell(Finding(subject, "charges", hours(day.kept), hours(day.summed), difference))
    return count
