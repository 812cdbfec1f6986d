"""The field `protect` of a budget entry: what it is read as, and what is said of a mistake."""

import pytest

from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import GPU_HOUR, Budget
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.budgets.reader import read_entry

READ = {
    "{labels: {tier: serving, app: web}, cards: 2.5}": Protection(
        (("app", "web"), ("tier", "serving")), cards_milli=2_500
    ),
    "{owners: [Deployment, LeaderWorkerSet], hours: 0.5}": Protection(
        kinds=("Deployment", "LeaderWorkerSet"), amount=GPU_HOUR // 2
    ),
}


@pytest.mark.parametrize("text", READ)
def test_it_is_read(text: str) -> None:
    assert read_entry("team-a", f"gpuHours: 1\nprotect: {text}") == Budget(GPU_HOUR, protect=READ[text])


SELECTS_ALL = "protect: it selects every pod; allowed: labels, owners, or both"
WRONG = {
    "3": "protect: not a mapping; allowed: fields as name: value",
    "{cards: 3}": SELECTS_ALL,
    "{labels: {}, cards: 3}": SELECTS_ALL,
    "{owners: [Job]}": "protect: it has no floor; allowed: either cards or hours",
    "{owners: [Job], cards: 1, hours: 2}": "protect: it has two floors; allowed: either cards or hours",
    "{owners: [Job], hours: unlimited}": (
        'protect.hours: "unlimited" is not a valid value; allowed: a number of GPU-hours a period with at '
        "most 8 decimals"
    ),
    "{owners: [a b], cards: 1}": (
        'protect.owners[0]: "a b" is not a valid value; allowed: a kind of controllers such as Deployment or '
        "StatefulSet"
    ),
    "{owners: Job, cards: 1}": "protect.owners: not a list; allowed: a list of values",
    "{labels: {a/b/c: x}, cards: 1}": (
        "protect.labels: \"a/b/c\" is not a label's name; allowed: a label's name such as app "
        "or example.com/tier"
    ),
    "{labels: {app: a b}, cards: 1}": (
        'protect.labels.app: "a b" is not a valid value; allowed: a label\'s value of at most 63 letters, '
        "digits and . _ -"
    ),
    "{labels: {pod-template-hash: x}, cards: 1}": (
        "protect.labels: pod-template-hash is written by a controller or by Bursar; allowed: labels of the "
        "pod template"
    ),
    "{owners: [Job], cards: 1, floor: 2}": (
        "protect.floor: no such field; allowed: labels, owners, cards, hours"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_named_with_what_is_allowed(text: str) -> None:
    read = read_entry("team-a", f"gpuHours: 1\nprotect: {text}")

    assert isinstance(read, EntryError)
    assert [each.sentence() for each in read.each()] == [f"team-a, line 2, {WRONG[text]}"]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("_group.all", "a group's entry cannot set it"),
        ("_defaults", "a floor for every namespace, also for those to come, is no bound"),
    ],
)
def test_only_a_namespaces_own_entry_protects(key: str, problem: str) -> None:
    read = read_entry(key, "gpuHours: 1\nprotect: {owners: [Job], cards: 1}")

    assert isinstance(read, EntryError)
    assert (read.field, read.problem) == ("protect", problem)
