"""The comparison with another project's extender: what both are given, and the table."""

from collections import Counter

import pytest

from tests.bench.peers import FULL, ORDERS, bound_pods, main, medians, orders_of, table


def test_bound_pods_fit_on_their_cards_and_fill_one_node() -> None:
    held: Counter[tuple[str, str]] = Counter()
    pods = list(bound_pods(20, 300))
    for each in pods:
        requested = each["spec"]["containers"][0]["resources"]["requests"]["gpu.intel.com/millicores"]
        card = each["metadata"]["annotations"]["gas-container-cards"]
        held[each["spec"]["nodeName"], card] += int(requested)

    assert len(pods) == 308
    assert max(held.values()) == 1_000
    assert {place for place, each in held.items() if each == 1_000} == {
        (FULL, f"card{at}") for at in range(8)
    }


def test_each_order_has_every_name_once_and_is_another() -> None:
    names = [f"node-{at}" for at in range(2_000)]

    orders = orders_of(names)

    assert all(sorted(each) == sorted(names) for each in orders)
    assert len({tuple(each) for each in orders}) == ORDERS


def test_the_table_shows_how_many_times_better_each_of_ours_is() -> None:
    rows = {
        "GAS": {"filter p50, ms": 8.0, "pods/s, one by one": 5.0, "wrong answers before": 4},
        "Bursar": {"filter p50, ms": 2.0, "pods/s, one by one": 40.0, "wrong answers before": 0},
        "as installed": {"filter p50, ms": 1.0, "pods/s, one by one": 60.0, "wrong answers before": 0},
    }

    lines = table(rows).splitlines()

    assert [line[42:].split() for line in lines[1:]] == [
        ["8.00", "2.00", "4.00", "1.00", "8.00"],
        ["5.00", "40.00", "8.00", "60.00", "12.00"],
        ["4.00", "0.00", "0.00"],
    ]


def test_each_figure_is_the_median_of_the_turns() -> None:
    turns = [{"start": 3.0, "wrong": 0}, {"start": 9.0, "wrong": 5}, {"start": 4.0, "wrong": 1}]

    assert medians({"GAS": turns}) == {"GAS": {"start": 4.0, "wrong": 1}}


@pytest.mark.parametrize("peer", ["", "gas=/nowhere", "other=/bin/true"])
def test_a_peer_that_is_no_program_is_an_error_that_says_what_is_allowed(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["peers.py", "--peer", peer])

    with pytest.raises(SystemExit, match="allowed: gas=PATH"):
        main()
