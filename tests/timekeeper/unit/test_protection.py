"""Which pods keep class and cards when the budget is spent: the oldest first, up to the floor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.accounts.protection import BOUND, GATED, WAITING, Selected, choose, selects
from timekeeper.core.budgets.protection import Protection

FOUR_CARDS = Protection((("tier", "serving"),), cards_milli=4_000)


def chosen(takes: dict[str, int], *candidates: Selected, before: frozenset[str] = frozenset()) -> str:
    """The protected pods and what is left."""
    found = choose(FOUR_CARDS, candidates, takes.__getitem__, before=before)
    return f"{''.join(sorted(found.uids))} {found.left}"


def bound(uid: str, at_ms: int) -> Selected:
    return Selected(uid, BOUND, at_ms)


def test_the_oldest_are_protected_until_the_floor_is_used() -> None:
    takes = {"a": 1_000, "b": 2_500, "c": 500}

    assert chosen(takes, bound("c", 3), bound("a", 1), bound("b", 2)) == "abc 0"


def test_the_first_that_has_no_room_ends_the_choice_so_that_no_smaller_one_goes_before_it() -> None:
    takes = {"a": 2_000, "b": 3_000, "c": 500}

    assert chosen(takes, bound("a", 1), bound("b", 2), bound("c", 3)) == "a 0"


def test_a_pod_with_cards_goes_before_one_that_waits_and_that_before_a_gated_one() -> None:
    takes = dict.fromkeys("abc", 2_000)
    gated, waits, holds = (
        Selected("a", GATED, 1),
        Selected("b", WAITING, 2),
        bound("c", 3),
    )

    assert chosen(takes, gated, waits, holds) == "bc 0"
    assert chosen(takes, gated, waits) == "ab 0"


def test_a_protected_pod_never_leaves_for_an_older_one() -> None:
    takes = dict.fromkeys("ab", 3_000)

    assert chosen(takes, bound("a", 1), bound("b", 2), before=frozenset("b")) == "b 0"


def test_what_is_used_up_for_the_period_is_no_more_given_out() -> None:
    hours = Protection(kinds=("Deployment",), amount=100)
    pods = [bound("a", 1), bound("b", 2)]

    assert choose(hours, pods, lambda _: 20, used=60).uids == frozenset("ab")
    assert choose(hours, pods, lambda _: 20, used=70).uids == frozenset("a")
    assert choose(hours, pods, lambda _: 20, used=170).uids == frozenset()


def test_a_floor_of_nothing_protects_no_pod_whose_amount_is_not_known() -> None:
    assert choose(Protection(kinds=("Job",), cards_milli=0), [bound("a", 1)], lambda _: 0).uids == frozenset()


UIDS = st.sampled_from("abcdefghijkl")
STAGES = st.sampled_from((BOUND, WAITING, GATED))
TAKES = st.dictionaries(UIDS, st.integers(0, 3_000))
CANDIDATES = st.lists(st.builds(Selected, UIDS, STAGES, st.integers(0, 9)), unique_by=lambda each: each.uid)


@given(CANDIDATES, TAKES, st.integers(0, 5_000))
def test_the_floor_is_never_exceeded(pods: list[Selected], takes: dict[str, int], used: int) -> None:
    found = choose(FOUR_CARDS, pods, lambda uid: takes.get(uid, 500), used)
    given_out = sum(takes.get(uid, 500) for uid in found.uids)

    assert given_out + found.left <= max(0, 4_000 - used)


@given(st.lists(CANDIDATES, min_size=2, max_size=6), TAKES)
def test_a_protected_pod_stays_protected_as_long_as_it_is_there(
    moments: list[list[Selected]], takes: dict[str, int]
) -> None:
    before: frozenset[str] = frozenset()
    for pods in moments:
        found = choose(FOUR_CARDS, pods, lambda uid: takes.get(uid, 500), before=before)
        assert found.uids >= before & {each.uid for each in pods}
        before = found.uids


@pytest.mark.parametrize(
    ("owner", "labels", "is_selected"),
    [
        ("Deployment/web", '{"tier":"serving","app":"web"}', True),
        ("Deployment/web", '{"tier":"batch"}', False),
        ("Deployment/web", "{}", False),
        ("Job/train", '{"tier":"serving"}', False),
        ("", '{"tier":"serving"}', False),
    ],
)
def test_a_pod_is_selected_by_all_labels_and_the_kind_of_its_controller(
    owner: str, labels: str, is_selected: bool
) -> None:
    both = Protection((("tier", "serving"),), ("Deployment", "StatefulSet"), cards_milli=1)

    assert selects(both, owner, labels) is is_selected
