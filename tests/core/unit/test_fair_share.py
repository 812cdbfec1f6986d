"""Fair order: decayed use beside numerical integration, ranks beside an oracle of Slurm's published rule."""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.fair_share import Rank, Share, carried, decayed, ranks

HOUR, DAY = 3_600_000, 86_400_000


def integrated(rate: float, from_ms: int, to_ms: int, at_ms: int, half_life_ms: int) -> float:
    """Boole's rule over pieces of at most a sixteenth of a half-life, summed exactly."""

    def weighed(moment: float) -> float:
        return float(rate * math.exp2(-(at_ms - moment) / half_life_ms))

    end = min(to_ms, at_ms)
    if end <= from_ms:
        return 0.0
    pieces = 1 + 16 * (end - from_ms) // half_life_ms
    step = (end - from_ms) / (4 * pieces)
    sums = []
    for piece in range(pieces):
        points = [from_ms + (4 * piece + at) * step for at in range(5)]
        factors = zip((7, 32, 12, 32, 7), points, strict=True)
        sums.append(2 * step / 45 * math.fsum(factor * weighed(point) for factor, point in factors))
    return math.fsum(sums)


@given(
    st.integers(1, 512_000),
    st.integers(0, 60 * DAY),
    st.integers(0, 60 * DAY),
    st.integers(0, 90 * DAY),
    st.integers(HOUR, 365 * DAY),
)
def test_the_closed_form_equals_numerical_integration(
    rate: int, from_ms: int, length_ms: int, at_ms: int, half_life_ms: int
) -> None:
    span = from_ms, from_ms + length_ms, at_ms, half_life_ms

    assert decayed(rate, *span) == pytest.approx(integrated(rate, *span), rel=1e-9, abs=1e-9)


def test_one_gpu_for_ever_is_worth_its_half_life_by_ln_2() -> None:
    assert decayed(1_000, 0, 1_000 * DAY, 1_000 * DAY, DAY) == pytest.approx(1_000 * DAY / math.log(2))


def test_what_lies_after_the_moment_does_not_count_yet() -> None:
    assert decayed(1_000, 0, 2 * DAY, DAY, DAY) == decayed(1_000, 0, DAY, DAY, DAY)
    assert decayed(1_000, DAY, 2 * DAY, DAY, DAY) == 0


@given(
    st.lists(st.integers(0, 30 * DAY), min_size=2, max_size=8),
    st.integers(HOUR, 365 * DAY),
    st.integers(1, 512_000),
)
def test_carrying_in_steps_equals_carrying_at_once(moments: list[int], half_life_ms: int, rate: int) -> None:
    start, *later = sorted(moments)
    value = begun = decayed(rate, start - DAY, start, start, half_life_ms)

    for before, after in pairwise([start, *later]):
        value = carried(value, before, after, half_life_ms)

    assert value == pytest.approx(carried(begun, start, max(moments), half_life_ms), rel=1e-9, abs=1e-9)
    at_end = decayed(rate, start - DAY, start, max(moments), half_life_ms)
    assert value == pytest.approx(at_end, rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(0, 10 * DAY), min_size=2, max_size=6), st.integers(HOUR, 90 * DAY))
def test_parts_of_an_interval_sum_to_the_whole(cuts: list[int], half_life_ms: int) -> None:
    cuts.sort()
    parts = [decayed(700, start, end, 11 * DAY, half_life_ms) for start, end in pairwise(cuts)]

    whole = decayed(700, cuts[0], cuts[-1], 11 * DAY, half_life_ms)
    assert math.fsum(parts) == pytest.approx(whole, rel=1e-9, abs=1e-9)


# The oracle: Slurm's page (https://slurm.schedmd.com/fair_tree.html), in fractions. Nothing of ours.

Leaf = tuple[str, int, int]  # name, shares, use
Tree = list[tuple[str, int, int, list[Leaf] | None]]  # None: a user at the root; otherwise an account
INFINITE = Fraction(10**40)


def level_fs(shares: int, use: int, all_shares: int, all_use: int) -> Fraction:
    if shares == 0:
        return Fraction(0)
    if use == 0:
        return INFINITE
    return Fraction(shares, all_shares) / Fraction(use, all_use)


def slurm(tree: Tree) -> dict[str, int]:
    """Slurm's traversal: rank by a counter, a tie takes the rank before it."""
    all_shares, all_use = sum(node[1] for node in tree), sum(node[2] for node in tree)
    root = []
    for name, shares, use, children in tree:
        here = level_fs(shares, use, all_shares, all_use)
        leaves = []
        for leaf, leaf_shares, leaf_use in children or ():
            sums = sum(child[1] for child in children or ()), sum(child[2] for child in children or ())
            leaves.append((level_fs(leaf_shares, leaf_use, *sums), leaf))
        root.append((here, children is not None, name, leaves))
    root.sort(key=lambda node: (-node[0], node[1]))  # users before accounts
    given_ranks: dict[str, int] = {}
    rank, counter, before = 1, 1, None
    at = 0
    while at < len(root):
        here, is_account, name, leaves = root[at]
        if not is_account:
            rank = rank if here == before else counter
            given_ranks[name], counter = rank, counter + 1
            at += 1
        else:
            merged: list[tuple[Fraction, str]] = []
            while at < len(root) and root[at][0] == here:
                merged += root[at][3]
                at += 1
            inner = None
            for place, (child_fs, leaf) in enumerate(sorted(merged, key=lambda child: -child[0])):
                is_tied = here == before if place == 0 else child_fs == inner
                rank = rank if is_tied else counter
                given_ranks[leaf], counter, inner = rank, counter + 1, child_fs
        before = here
    return given_ranks


SMALL = st.integers(0, 4)  # so that many tie, and many are 0
LARGE = st.integers(0, 10**15)


def trees(weights: st.SearchStrategy[int], uses: st.SearchStrategy[int]) -> st.SearchStrategy[Tree]:
    leaves = st.lists(st.tuples(weights, uses), max_size=5)
    nodes = st.lists(st.tuples(weights, uses, st.one_of(st.none(), leaves)), max_size=7)

    def named(drawn: list[tuple[int, int, list[tuple[int, int]] | None]]) -> Tree:
        return [
            (
                f"g{at}",
                weight,
                use,
                None if some is None else [(f"g{at}-{leaf}", *pair) for leaf, pair in enumerate(some)],
            )
            for at, (weight, use, some) in enumerate(drawn)
        ]

    return nodes.map(named)


def ours(tree: Tree, use: Callable[[int], float] = float) -> dict[str, Rank]:
    accounts: dict[str, Share] = {}
    groups: dict[str, Share] = {}
    group_of: dict[str, str] = {}
    for name, weight, used, children in tree:
        (accounts if children is None else groups)[name] = Share(weight, use(used))
        for leaf, leaf_weight, leaf_use in children or ():
            accounts[leaf], group_of[leaf] = Share(leaf_weight, use(leaf_use)), name
    return ranks(accounts, groups, group_of)


@given(st.one_of(trees(SMALL, SMALL), trees(SMALL, LARGE), trees(st.integers(0, 10_000), LARGE)))
def test_ranks_are_those_of_slurms_fair_tree(tree: Tree) -> None:
    assert {name: rank.rank for name, rank in ours(tree).items()} == slurm(tree)


@given(trees(SMALL, SMALL))
def test_the_order_in_which_accounts_come_changes_no_rank(tree: Tree) -> None:
    assert ours(tree[::-1]) == ours(tree)


@given(trees(SMALL, LARGE))
def test_what_sums_lose_in_the_last_bits_changes_no_rank(tree: Tree) -> None:
    less, more = ours(tree, lambda use: use * (1 - 2**-53)), ours(tree, lambda use: use * (1 + 2**-52))

    assert less == more


def test_all_of_a_group_go_before_all_of_the_next() -> None:
    groups = {"a": Share(1, 10), "b": Share(1, 30)}
    accounts = {"a1": Share(1, 9), "a2": Share(1, 1), "b1": Share(1, 0), "b2": Share(1, 30)}

    found = ranks(accounts, groups, {"a1": "a", "a2": "a", "b1": "b", "b2": "b"})

    assert {name: rank.rank for name, rank in found.items()} == {"a2": 1, "a1": 2, "b1": 3, "b2": 4}
    assert found["a1"] == Rank(rank=2, of=4, share=0.5, used=0.9)


def test_groups_that_tie_have_their_accounts_merged() -> None:
    groups = {"a": Share(1, 10), "b": Share(2, 20)}
    accounts = {"a1": Share(1, 9), "a2": Share(1, 1), "b1": Share(1, 6), "b2": Share(1, 14)}

    found = ranks(accounts, groups, {"a1": "a", "a2": "a", "b1": "b", "b2": "b"})

    assert sorted(found, key=lambda name: found[name].rank) == ["a2", "b1", "b2", "a1"]


def test_all_that_have_used_nothing_tie_and_weight_zero_goes_last() -> None:
    accounts = {"new": Share(1, 0), "older": Share(5, 0), "none": Share(0, 0), "busy": Share(1, 8)}

    found = ranks(accounts, {}, {})

    assert {name: rank.rank for name, rank in found.items()} == {"new": 1, "older": 1, "busy": 3, "none": 4}


def test_who_has_used_nothing_goes_before_the_least_use_and_the_greatest_weight() -> None:
    accounts = {"new": Share(1, 0), "light": Share(10_000, 1), "busy": Share(1, 10**18)}

    found = ranks(accounts, {}, {})

    assert {name: rank.rank for name, rank in found.items()} == {"new": 1, "light": 2, "busy": 3}


def test_a_correction_below_zero_is_no_use() -> None:
    accounts = {"corrected": Share(1, -4.0), "new": Share(1, 0), "busy": Share(1, 8)}

    assert ranks(accounts, {}, {})["corrected"] == ranks(accounts, {}, {})["new"] == Rank(1, 3, 1 / 3, 0.0)


def test_if_all_weights_are_zero_all_tie() -> None:
    found = ranks({"a": Share(0, 5), "b": Share(0, 0)}, {}, {})

    assert found == {"a": Rank(1, 2, 0.0, 1.0), "b": Rank(1, 2, 0.0, 0.0)}


def test_an_account_that_ties_with_a_group_has_the_rank_of_its_first() -> None:
    groups = {"g": Share(1, 5)}
    accounts = {"alone": Share(1, 5), "g1": Share(1, 1), "g2": Share(1, 4)}

    found = ranks(accounts, groups, {"g1": "g", "g2": "g"})

    assert {name: rank.rank for name, rank in found.items()} == {"alone": 1, "g1": 1, "g2": 3}


def test_a_group_without_accounts_takes_its_part_and_no_rank() -> None:
    found = ranks({"a": Share(1, 0)}, {"empty": Share(3, 0)}, {})

    assert found == {"a": Rank(rank=1, of=1, share=0.25, used=0.0)}
