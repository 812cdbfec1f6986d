"""What the command says of a month."""

from typing import Any

import pytest

from timekeeper.cli.views import usage

NOW = {"charges": "a", "grantsMade": "b", "prices": "c", "sha256": "d"}
HOUR = 3_600_000_000
CLOSED_MS = 1_793_494_800_000  # 2026-11-01 01:00 UTC


def month(state: str, **others: Any) -> dict[str, Any]:
    """The API's answer about October."""
    return {
        **{
            "month": "2026-10",
            "state": state,
            "from": 1_790_812_800_000,
            "to": 1_793_491_200_000,
            "closed": None,
            "differs": [],
        },
        "now": NOW | {"amount": 2 * HOUR, "sessions": 3, "grants": 2},
        **others,
    }


def closed(*changed: str) -> dict[str, Any]:
    """The same, once it is closed, and what changed since."""
    hashes = {name: "other" if name in changed else each for name, each in NOW.items()}
    late = {"postings": len(changed), "amount": HOUR * len(changed)}
    of_then = {"closed": CLOSED_MS, "hashes": hashes}
    return month("closed", closed=of_then, differs=list(changed), late=late)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (month("future"), "It begins at 2026-10-01"),
        (month("before"), "The ledger began after it, so it is never closed."),
        (month("runs"), "It runs until 2026-11-01"),
        (
            month("waits", waitsFor=1),
            "It waits for 1 session that is not settled, with the last evidence in the month.",
        ),
        (
            month("waits", waitsFor=2),
            "It waits for 2 sessions that are not settled, with the last evidence in the month.",
        ),
        (month("ended"), "It has ended; the settler closes it an hour after its end at the earliest."),
        (closed(), "It is unchanged since it was closed at 2026-11-01"),
        (closed("charges"), "not as they were: charges."),
    ],
)
def test_a_month_is_told_in_sentences(answer: dict[str, Any], says: str) -> None:
    first, *others = usage.month_sentences(answer)

    assert first == "2026-10 has 2.00 GPU-hours of 3 sessions, and 2 grants."
    assert says in others[0]


def test_later_proof_is_told_with_its_amount() -> None:
    told = list(usage.month_sentences(closed("charges")))

    assert told[-1] == "Later proof made 1 correction, together 1.00 GPU-hours."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (month("ended"), {"not closed"}),
        (closed(), {"unchanged"}),
        (closed("charges", "grantsMade", "prices", "sha256"), {"changed"}),
    ],
)
def test_each_hash_has_its_word(answer: dict[str, Any], words: set[str]) -> None:
    rows = usage.month(answer).rows

    assert {row["closed"] for row in rows} == words
