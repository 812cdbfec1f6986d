"""Sentences about charges that are not certain, and about devices that nothing charges yet."""

from collections.abc import Iterator

from timekeeper.core.json_values import Json

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
    return f"{holders} devices by resource claims alone, which are not charged yet: {where}"
