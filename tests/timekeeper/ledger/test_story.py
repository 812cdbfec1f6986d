"""The timekeeper's story, told once from end to end: what it hears, what it charges, what it answers."""

from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.core.budgets.policy import GPU_HOUR


def test_a_budget_is_set_spent_and_reported(town: Town) -> None:
    # An hour of one GPU for team-a, for ever; standings look five minutes ahead.
    settings = "lookahead: 5m\nsettleAfter: 1h"
    entry = "gpuHours: 1\nperiod: once\nonExhausted: deprioritize\nwarnAt: 0.5"
    town.begin(
        ("nodes", node("n1", cards=2)),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a=entry, _settings=settings)),
    )
    assert town.standing("team-a") == "IN_BUDGET"
    assert town.standing("team-b") == "UNLIMITED"
    assert town.budget()["gpuHours"]["remaining"] == "1"

    # A pod of half a card is bound. Nothing is heard of it yet, so nothing is owed, but five minutes of it
    # are reserved.
    town.hear("pods", gpu_pod(percent=50, bound_ms=T0))
    town.tick()
    budget = town.budget()
    assert (budget["posted"], budget["pending"]) == (0, 0)
    assert budget["reserved"] == GPU // 2 * 5 * MINUTE
    assert town.postings() == []

    # It starts two seconds later; the cards are held since the binding. What it owes
    # grows with what is heard of it, not with the clock.
    start = T0 + 2 * SECOND
    pod = gpu_pod(percent=50, bound_ms=T0, started_ms=start)
    town.hear("pods", pod)
    town.advance(10 * MINUTE, heard=False)
    assert town.budget()["pending"] == 0

    # Its sidecar beats: half a card since its binding.
    answer = town.beat(pod, 1, 0)
    assert answer.get_json() == {"version": 1, "interval_ms": 5000, "in_budget": True, "ca": CA_SENT}
    assert town.budget()["pending"] == GPU // 2 * 10 * MINUTE

    # So does its node, and the watch of pods: a watermark, one row for all that run there.
    town.clock.turn(80 * MINUTE)
    town.node_heard()
    town.tick()
    assert town.budget()["pending"] == GPU // 2 * 90 * MINUTE
    assert town.standing("team-a") == "IN_BUDGET"

    # Five minutes of it before all is spent, new pods stand back already.
    town.clock.turn(26 * MINUTE)
    town.node_heard()
    town.tick()
    budget = town.budget()
    assert 0 < GPU_HOUR - budget["pending"] < budget["reserved"]
    assert town.standing("team-a") == "OVER_BUDGET"
    assert town.beat(pod, 2, 0).get_json()["in_budget"] is False

    # The kubelet tells when it ended: proof. The charge is posted at once, to the millisecond.
    end = T0 + 2 * HOUR - SECOND
    town.clock.turn(5 * MINUTE)
    town.hear("pods", gpu_pod(percent=50, bound_ms=T0, started_ms=start, ended_ms=end))
    town.tick()
    assert town.postings() == [(T0, end, GPU // 2, "settled")]
    budget = town.budget()
    assert (budget["posted"], budget["pending"], budget["reserved"]) == (GPU // 2 * (end - T0), 0, 0)
    assert budget["standing"] == "IN_BUDGET"  # one GPU-second is left

    # A late word of the kubelet puts the end a second later: a further row, never a changed one.
    town.hear("pods", gpu_pod(percent=50, bound_ms=T0, started_ms=start, ended_ms=end + SECOND))
    town.tick()
    assert town.postings() == [
        (T0, end, GPU // 2, "settled"),
        (end, end + SECOND, GPU // 2, "settled"),
    ]

    # The month's report tells it by pod, in amounts and in GPU-hours.
    report = town.get("/v1/usage?group=pod&namespace=team-a").get_json()
    (row,) = report["rows"]
    assert (row["pod"], row["node"], row["models"]) == ("p", "n1", "A100")
    assert row["amount"] == report["total"]["amount"] == GPU // 2 * 2 * HOUR
    assert row["gpuHours"] == "1"
    assert town.standing("team-a") == "OVER_BUDGET"

    # An admin gives half an hour more, once, however often the request is repeated.
    for _ in range(2):
        answer = town.post("/budget/team-a/increase", {"minutes": 30}, **{"Idempotency-Key": "ticket-7"})
        assert answer.get_json() == {"budget_available": True, "budget": 90.0, "budget_remaining": 30.0}
    town.tick()
    assert town.standing("team-a") == "IN_BUDGET"


CA_SENT = "-----BEGIN CERTIFICATE-----\n"
