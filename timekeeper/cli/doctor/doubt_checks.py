"""Which charges are not certain, what is not charged yet, and which pods use none of their cards."""

from collections.abc import Iterator

from timekeeper.cli.doctor.facts import CheckResult, Facts, NotReadable, logs_of, unknown
from timekeeper.core.findings import (
    claim_sentences,
    claiming_sentence,
    doubt_sentences,
    idle_sentences,
    watch_sentences,
)

_PAGE = "read docs/meter.md#what-is-charged; GET /v1/doubts has all"
_CLAIMS = "read docs/claims.md; GET /v1/doubts has all"
_USE = "read docs/meter.md#use-and-idle-pods; GET /v1/idle has all"


def doubts(facts: Facts) -> Iterator[CheckResult]:
    """The rate of each running session is certain, and no pod holds devices that nothing charges."""
    if isinstance(facts.readiness, NotReadable):
        return  # said by the check of the timekeeper
    if isinstance(facts.doubts, NotReadable):
        yield unknown("charges", facts.doubts)
        return
    for sentence in watch_sentences(facts.doubts):
        yield CheckResult("error", "watches", sentence, logs_of(facts, "timekeeper"))
    for sentence in doubt_sentences(facts.doubts):
        yield CheckResult("warning", "charges", sentence, _PAGE)
    if not facts.doubts["sessions"]:
        yield CheckResult("ok", "charges", "the rate of each running session is certain")
    if claiming := claiming_sentence(facts.doubts):
        yield CheckResult("warning", "resource claims", claiming, _PAGE)
    for sentence in claim_sentences(facts.doubts):
        yield CheckResult("warning", "device claims", sentence, _CLAIMS)


def idle(facts: Facts) -> Iterator[CheckResult]:
    """No pod has used none of its cards for long, and what measures them does."""
    if isinstance(facts.readiness, NotReadable) or facts.idle is None:
        return
    if isinstance(facts.idle, NotReadable):
        yield unknown("use", facts.idle)
        return
    for sentence in idle_sentences(facts.idle):
        yield CheckResult("warning", "use", sentence, _USE)
    if facts.idle["prometheus"] and not facts.idle["prometheus"]["findings"]:
        measured = facts.idle["prometheus"]["measured"]
        yield CheckResult("ok", "use", f"Prometheus measures {measured} metered pods")
