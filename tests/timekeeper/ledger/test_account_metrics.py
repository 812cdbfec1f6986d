"""The accounts' figures for Prometheus, against those of the balance in JSON."""

import pytest

from tests.timekeeper.worlds import HOUR, MINUTE, T0, Town, budgets, gpu_pod, node

ONE_DATABASE = "the figures are those of /v1/balances, which other tests compare on both"


@pytest.fixture
def spending(town: Town) -> Town:
    """A pod on a whole card has run for an hour of the ten of its namespace, and of the four of its group."""
    entries = budgets(team_a="gpuHours: 10\nperiod: month\ngroup: lab", team_b="gpuHours: unlimited")
    entries["data"]["_group.lab"] = "gpuHours: 4\nwarnAt: 0.25"
    town.begin(("nodes", node()), ("configmaps", entries), ("pods", gpu_pod("train", started_ms=T0)))
    town.advance(HOUR)
    return town


def test_each_figure_is_that_of_the_budget_and_an_unlimited_one_has_no_limit(spending: Town) -> None:
    text = spending.get("/v1/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    told = {key: float(value) for key, value in lines.items() if 'namespace="team-a"' in key}
    budget = spending.budget()

    seconds = {name: 3600 * float(value) for name, value in budget["gpuHours"].items()}
    assert told == {
        'bursar_account_granted_gpu_seconds{namespace="team-a"}': 36_000,
        'bursar_account_posted_gpu_seconds{namespace="team-a"}': pytest.approx(seconds["posted"]),
        'bursar_account_pending_gpu_seconds{namespace="team-a"}': pytest.approx(seconds["pending"]),
        'bursar_account_remaining_gpu_seconds{namespace="team-a"}': pytest.approx(seconds["remaining"]),
        'bursar_account_used_ratio{namespace="team-a"}': budget["ratioMilli"] / 1000,
        'bursar_account_warn_ratio{namespace="team-a"}': 0.8,
        'bursar_account_exhausted_timestamp_seconds{namespace="team-a"}': budget["exhaustedAt"] / 1000,
    }
    assert seconds["pending"] == 3_600
    assert sorted(key.partition("{")[0] for key in lines if 'namespace="team-b"' in key) == [
        "bursar_account_pending_gpu_seconds",
        "bursar_account_posted_gpu_seconds",
    ]


def test_a_group_has_its_ratios_and_its_end_and_no_amounts_that_a_sum_would_count_twice(
    spending: Town,
) -> None:
    lines = spending.get("/v1/metrics").text.splitlines()
    of_group = dict(line.rsplit(" ", 1) for line in lines if 'namespace="_group.lab"' in line)

    # at one card the four hours last for four, less the ten minutes that a running session reserves ahead
    assert {key: float(value) for key, value in of_group.items()} == {
        'bursar_account_used_ratio{namespace="_group.lab"}': 0.25,
        'bursar_account_warn_ratio{namespace="_group.lab"}': 0.25,
        'bursar_account_exhausted_timestamp_seconds{namespace="_group.lab"}': (T0 + 4 * HOUR - 10 * MINUTE)
        / 1000,
    }


@pytest.mark.parametrize(("entry", "ratio"), [("", "0.8"), ("warnAt: 0.5", "0.5"), ("warnAt: 0", "0.0")])
def test_the_part_from_which_people_are_warned_is_the_entrys(town: Town, entry: str, ratio: str) -> None:
    town.begin(("nodes", node()), ("configmaps", budgets(team_a=f"gpuHours: 10\n{entry}")))

    lines = town.get("/v1/metrics").text.splitlines()

    assert f'bursar_account_warn_ratio{{namespace="team-a"}} {ratio}' in lines
    assert 'bursar_account_used_ratio{namespace="team-a"} 0.0' in lines


def test_who_may_not_read_every_balance_gets_no_figure_of_any(spending: Town) -> None:
    assert spending.get("/v1/metrics", bearer="nobody").status_code == 401
    assert "team-a" not in spending.get("/metrics").text != ""
    assert 'namespace="team-b"' not in spending.get("/v1/metrics?namespace=team-a").text
