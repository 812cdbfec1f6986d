"""Which charges are not certain, and what is not charged yet."""

from collections.abc import Iterator

from timekeeper.cli.doctor.facts import CheckResult, Facts, NotReadable, unknown
from timekeeper.core.charge_doubts import claiming_sentence, doubt_sentences

_PAGE = "read docs/meter.md#what-is-charged; GET /v1/doubts has all"


def doubts(facts: Facts) -> Iterator[CheckResult]:
    """The rate of each running session is certain, and no pod holds devices that nothing charges."""
    if isinstance(facts.readiness, NotReadable):
        return  # said by the check of the timekeeper
    if isinstance(facts.doubts, NotReadable):
        yield unknown("charges", facts.doubts)
        return
    for sentence in doubt_sentences(facts.doubts):
        yield CheckResult("warning", "charges", sentence, _PAGE)
    if not facts.doubts["sessions"]:
        yield CheckResult("ok", "charges", "the rate of each running session is certain")
    if claiming := claiming_sentence(facts.doubts):
        yield CheckResult("warning", "resource claims", claiming, _PAGE)
