"""The comparison with another project's extender: what both are given, and the table."""

from collections import Counter

import pytest

from tests.bench.peers import FULL, bound_pods, main, table


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


def test_the_table_shows_the_ratio_where_both_have_a_figure() -> None:
    rows = {"Bursar": {"filter p50": 2.0, "prioritize p50": 1.0}, "GAS": {"filter p50": 8.0}}

    lines = table(rows, 5, 9).splitlines()

    assert [line.split()[2:] for line in lines[2:]] == [["2.0", "8.0", "0.250"], ["1.0"]]


@pytest.mark.parametrize("peer", ["", "gas=/nowhere", "other=/bin/true"])
def test_a_peer_that_is_no_program_is_an_error_that_says_what_is_allowed(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["peers.py", "--peer", peer])

    with pytest.raises(SystemExit, match="allowed: gas=PATH"):
        main()
