"""Pods that their namespace's budget protects are as good as in budget, whatever befalls the others."""

import orjson
import pytest

from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings, as_if_enforced
from scheduler_ext.model.standing_table import decode, standings_at
from scheduler_ext.preemption.precedence import may_preempt
from scheduler_ext.waiting.order import queue_key
from tests.scheduler_ext.preemption_worlds import IN, at, cards, chosen, names_of, of, standing
from tests.scheduler_ext.worlds import on, percent, read
from tests.support.simulated_timekeeper import entry, standings

UIDS = frozenset({"uid-serving"})
OVER = NamespaceStanding("OVER_BUDGET", "reclaim", spent=True, protected=UIDS)


def test_reclaim_takes_the_cards_of_the_others_and_of_an_idle_one() -> None:
    who = standing(team_a=OVER, team_b=IN)
    serving = on(of(percent(100, "serving"), "team-a"), "n", "GPU-0")
    batch = on(of(percent(100, "batch"), "team-a"), "n", "GPU-1")
    waiting = read(of(percent(100, "waiting"), "team-b"))
    both, alone = cards(2, serving, batch), cards(1, serving)
    idle = {**serving, "metadata": {**serving["metadata"]}}
    idle["metadata"]["annotations"] = {**idle["metadata"]["annotations"], "bursar.dev/reclaimable": "idle"}
    unused = cards(1, idle)

    assert names_of(chosen(waiting, both, at(both, who))) == ["batch"]
    assert chosen(waiting, alone, at(alone, who)) is None
    assert names_of(chosen(waiting, unused, at(unused, who))) == ["serving"]


@pytest.mark.parametrize("on_exhausted", ["deny", "hold", "evict"])
def test_it_is_bound_where_the_others_are_refused(on_exhausted: str) -> None:
    spent = NamespaceStanding("OVER_BUDGET", on_exhausted, spent=True, protected=UIDS)
    who = standing(team_a=spent)
    serving, batch = (read(of(percent(50, name), "team-a")) for name in ("serving", "batch"))

    assert not who.of_pod(serving).refuses
    assert who.of_pod(batch).refuses


def test_it_waits_with_those_in_budget_but_evicts_nobody() -> None:
    who = standing(team_a=OVER, team_b=IN)
    serving, batch = (read(of(percent(50, name), "team-a")) for name in ("serving", "batch"))
    other = read(of(percent(50, "other"), "team-b"))

    order = sorted([batch, serving, other], key=lambda each: queue_key(each, "", who))
    assert order[-1].name == "batch"
    assert not may_preempt(serving, who)


def test_the_table_names_it_also_where_the_budget_is_observed() -> None:
    protect = {"labels": {"a": "b"}, "owners": [], "cards": 1_000, "amount": None, "left": 0, "turns": False}
    fields = {"onExhausted": "deny", "spent": True, "protect": protect | {"uids": sorted(UIDS)}}
    document = standings(
        team_a=entry("OVER_BUDGET", **fields), team_b=entry("OVER_BUDGET", mode="observe", **fields)
    )
    who: NamespaceStandings = standings_at(decode(orjson.dumps(document), "", 0), 0, 30_000)
    enforced = as_if_enforced(who)

    assert who.of("team-a").protected == UIDS
    assert not enforced.of_pod(read(of(percent(50, "serving"), "team-b"))).refuses
    assert enforced.of_pod(read(of(percent(50, "batch"), "team-b"))).refuses
