"""The extender's order by the ranks of accounts: below standing and priority, above age."""

import orjson

from scheduler_ext.model.standing import NamespaceStanding
from scheduler_ext.model.standing_table import decode, standings_at
from scheduler_ext.waiting.order import queue_key
from tests.scheduler_ext.preemption_worlds import IN, at, cards, chosen, names_of, of, standing
from tests.scheduler_ext.worlds import on, percent, read
from tests.support.simulated_timekeeper import entry, standings

FIRST, LAST = NamespaceStanding("IN_BUDGET", rank=1), NamespaceStanding("IN_BUDGET", rank=2)
OVER = NamespaceStanding("OVER_BUDGET", "reclaim", rank=1)


def test_who_has_used_least_goes_first_below_standing_and_priority_and_before_the_older_one() -> None:
    who = standing(light=FIRST, heavy=LAST, owes=OVER)
    old = read(of(percent(50, "old"), "heavy"))
    young = read(of(percent(50, "young"), "light"))
    urgent = read(of(percent(50, "urgent", priority=5), "heavy"))
    owing = read(of(percent(50, "owing"), "owes"))

    order = sorted([owing, old, young, urgent], key=lambda pod: queue_key(pod, "", who))

    assert [pod.name for pod in order] == ["urgent", "young", "old", "owing"]


def test_the_rank_is_the_documents_also_of_who_is_not_listed_and_after_the_timekeeper_is_away() -> None:
    document = standings(team_a=entry("IN_BUDGET", rank=1)) | {"default": entry("IN_BUDGET", rank=2)}
    table = decode(orjson.dumps(document), "", 0)

    for now_ms in (0, 60_000):
        who = standings_at(table, now_ms, 30_000)
        assert (who.of("team-a").rank, who.of("stranger").rank) == (1, 2)
    assert standings_at(decode(orjson.dumps(standings()), "", 0), 0, 30_000).of("a").rank == 0


def test_of_victims_of_one_priority_that_one_leaves_whose_account_goes_last() -> None:
    light = on(of(percent(100, "light"), "light"), "n", "GPU-0")
    heavy = on(of(percent(100, "heavy"), "heavy"), "n", "GPU-1")
    waiting, full = read(of(percent(100, "waiting", priority=9), "other")), cards(2, light, heavy)

    for ranks, leaves in (((FIRST, LAST), "heavy"), ((LAST, FIRST), "light")):
        who = standing(other=IN, light=ranks[0], heavy=ranks[1])
        assert names_of(chosen(waiting, full, at(full, who))) == [leaves]
