"""Fields of a valid entry that do nothing there are reported, so that nothing is ignored silently."""

import pytest

from timekeeper.core.budgets.policy import Budget, ineffective_fields
from timekeeper.core.budgets.reader import read_entry

LIMIT = "gpuHours: 9\n"
NONE = "gpuHours: unlimited\n"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (NONE, []),
        (LIMIT + "carryOver: 0.5\nwarnAt: 0.8\nnotify: https://x.example/\nnotifyFormat: alertmanager\n", []),
        (NONE + "carryOver: 0.5\nwarnAt: 0.8\ngroup: g\n", ["carryOver", "warnAt"]),
        (LIMIT + "notifyFormat: alertmanager\n", ["notifyFormat"]),
        (LIMIT + "evictGrace: 1m\nevictRate: 9\novertime: evict\n", ["evictGrace", "evictRate", "overtime"]),
        (LIMIT + "onExhausted: evict\nevictGrace: 1m\nevictRate: 9\n", []),
        (NONE + "reserve: declared\n", ["reserve"]),
        (NONE + "protect: {owners: [Job], cards: 1}\n", ["protect"]),
        (NONE + "reserve: declared\ngroup: g\novertime: evict\n", []),
    ],
)
def test_a_field_without_effect_is_named(text: str, fields: list[str]) -> None:
    budget = read_entry("team-a", text)
    assert isinstance(budget, Budget)

    assert [each.partition(":")[0] for each in ineffective_fields(budget)] == fields
