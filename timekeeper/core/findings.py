"""Sentences about what the ledger's answers show: charges that are not certain, devices that nothing charges
yet, watches that fail, pods that use none of their cards, and estimates."""

from collections import Counter
from collections.abc import Iterator

from timekeeper.core.json_values import Json
from timekeeper.core.texts import age, moment, percent

_MOST = 5


def doubt_sentences(answer: Json) -> Iterator[str]:
    """One for each of the most frequent doubts, and one for all others. ``answer``: of ``/v1/doubts``."""
    left = answer["sessions"]
    for each in answer["doubts"][:_MOST]:
        left -= each["sessions"]
        yield f"{_rates(each['sessions'])} not certain: {each['doubt']}"
    if left:
        yield f"{_rates(left)} not certain for other reasons"


def _rates(sessions: int) -> str:
    return (
        "the rate of 1 running session is"
        if sessions == 1
        else f"the rates of {sessions} running sessions are"
    )


def claiming_sentence(answer: Json) -> str:
    """How many pods hold devices by resource claims alone, and where; "": none."""
    claims = answer["claims"] or ()
    pods = sum(each["pods"] for each in claims)
    if not pods:
        return ""
    where = ", ".join(f"{each['namespace'] or 'others'} ({each['pods']})" for each in claims)
    holders = "1 pod holds" if pods == 1 else f"{pods} pods hold"
    return f"{holders} devices by resource claims alone, uncharged, for claims are not followed: {where}"


def claim_sentences(answer: Json) -> Iterator[str]:
    """One for the claims that are charged for no pod, and one for each driver whose devices are not charged.
    ``answer``: of ``/v1/doubts``."""
    found = answer.get("deviceClaims") or {}
    if number := found.get("orphans"):
        named = [f"{each['namespace']}/{each['claim']}" for each in found["named"][:_MOST]]
        named += [f"and {number - len(named)} more"] if number > len(named) else []
        claims = "1 claim holds devices and is" if number == 1 else f"{number} claims hold devices and are"
        left = f"charged until deleted, or used again: {', '.join(named)}"
        yield f"{claims} reserved for no pod that is left: {left}"
    for each in found.get("unknownDrivers", ()):
        claims = "1 claim" if each["claims"] == 1 else f"{each['claims']} claims"
        yield f"devices of {each['driver']} are not charged ({claims}): no rule says which of them are GPUs"


def watch_sentences(answer: Json) -> Iterator[str]:
    """Whether the settler is away, and one for each kind of objects that the timekeeper cannot follow.
    ``answer``: of ``/v1/doubts``."""
    if silent_ms := answer.get("silentSince"):
        yield (
            f"the settler has written nothing since {moment(silent_ms)}, and figures stand as of then:"
            " pods run on, and nothing is lost, for this time is charged once it is back; until then no held"
            " pod is released and no budget evicts (kubectl bursar doctor)"
        )
    for each in answer.get("watches") or ():
        since = moment(each["since"])
        yield f"{each['source']} are not followed since {since}: {each['error']}; what changes counts later"


def broken_sentences(answer: Json) -> Iterator[str]:
    """One for each budget entry with a mistake. ``answer``: of ``/v1/budgets``."""
    for each in answer.get("broken", ()):
        yield f"a budget entry has a mistake, so this text does not count: {each['error']}"


def idle_sentences(answer: Json) -> Iterator[str]:
    """How many pods have been idle for long, and where; and what is wrong with their measurement. ``answer``:
    of ``/v1/idle``."""
    long = [each["namespace"] for each in answer["pods"] if each["seen"] - each["since"] >= answer["after"]]
    if long:
        counted = Counter(long).most_common(_MOST)
        others = len(long) - sum(number for _, number in counted)
        where = ", ".join(f"{name} ({number})" for name, number in counted)
        where += f", others ({others})" if others else ""
        pods = "1 pod has used none of its" if len(long) == 1 else f"{len(long)} pods have used none of their"
        yield f"{pods} cards for {age(answer['after'])} or longer: {where}"
    yield from measuring_sentences(answer)


def measuring_sentences(answer: Json) -> Iterator[str]:
    """What is wrong with the use of cards that Prometheus measures. ``answer``: of ``/v1/idle``."""
    for each in (answer["prometheus"] or {}).get("findings", ()):
        yield f"use of cards by Prometheus: {each}"


def estimate_sentences(answer: Json) -> Iterator[str]:
    """What a reader must know of an estimate, and what is missing. ``answer``: of ``/v1/estimate``."""
    times = f"from {moment(answer['from'])} to {moment(answer['to'])}, where the ledger begins"
    step = f"each sample stands for {answer['stepMs'] // 60_000} minutes"
    yield f"Estimated, not charged: {times}; {step}"
    known = percent(answer["knownMs"], answer["to"] - answer["from"]) or "0%"
    yield f"There are samples for {known} of this time; the rest is unknown, not zero"
    yield from answer["findings"]
