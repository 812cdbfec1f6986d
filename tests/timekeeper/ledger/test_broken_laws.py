"""A law of the ledger that is broken in a running settler: the account is withheld with its group, what is
known of it is kept, people read it, and other accounts go on."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, node
from timekeeper import metrics
from timekeeper.accounts.laws import LAWS
from timekeeper.accounts.posting import Posting
from timekeeper.accounts.session import Session
from timekeeper.settler.decide import settlement
from timekeeper.settler.decide.settlement import Settlement
from timekeeper.store import fencing
from timekeeper.store.engine.engine import ConflictError
from timekeeper.store.engine.schema import TERMS

ENDED = T0 + 10 * MINUTE
RATE = 1_000

Fault = Callable[[Settlement], Settlement]


def of_postings(change: Callable[[Posting], Posting]) -> Fault:
    return lambda made: replace(made, postings=tuple(map(change, made.postings)))


def of_sessions(change: Callable[[Session], Session]) -> Fault:
    return lambda made: replace(made, settled={uid: change(each) for uid, each in made.settled.items()})


FAULTS: dict[str, Fault] = {
    "no_negative_posting_but_corrections": of_postings(lambda each: replace(each, rate_milli=-RATE)),
    "no_moment_charged_below_zero": of_postings(
        lambda each: replace(each, rate_milli=-RATE, kind="correction")
    ),
    "postings_belong_to_their_session": of_postings(lambda each: replace(each, sequence=each.sequence + 1)),
    "no_session_ends_before_it_began": of_postings(lambda each: replace(each, from_ms=each.from_ms - SECOND)),
    "no_session_ends_twice": of_sessions(lambda each: replace(each, vanished_ms=each.ended_ms)),
    "no_rate_below_zero": of_sessions(lambda each: replace(each, rate_milli=-1)),
}


def only_of(namespace: str, fault: Fault, made: Settlement) -> Settlement:
    """What is made, with the fault in what is of the namespace."""
    mine = Settlement(
        tuple(each for each in made.postings if each.namespace == namespace),
        {uid: each for uid, each in made.settled.items() if each.namespace == namespace},
    )
    broken = fault(mine)
    others = tuple(each for each in made.postings if each.namespace != namespace)
    return Settlement((*others, *broken.postings), {**made.settled, **broken.settled})


def running(town: Town, **entries: str) -> None:
    """A pod of team-a and one of team-b run."""
    given = {"team_a": "gpuHours: 10", "team_b": "gpuHours: 10", "team_c": "gpuHours: 10", **entries}
    pods = [gpu_pod(f"p-{team}", namespace=team, card=card, started_ms=T0) for card, team in enumerate(TEAMS)]
    town.begin(("nodes", node(cards=3)), ("configmaps", budgets(**given)), *(("pods", each) for each in pods))


TEAMS = ("team-a", "team-b", "team-c")


def ends(town: Town, *teams: str) -> None:
    for team in teams or TEAMS:
        pod = gpu_pod(f"p-{team}", namespace=team, card=TEAMS.index(team), started_ms=T0, ended_ms=ENDED)
        town.hear("pods", pod)


def posted(town: Town, team: str) -> list[tuple[int, int, int, str]]:
    return town.postings(f"uid-p-{team}")


def entry(town: Town, team: str) -> dict[str, object]:
    found: dict[str, object] = town.get("/v1/standings").get_json()["namespaces"][team]
    return found


def broken(law: str) -> float:
    return float(metrics.LAWS_BROKEN.labels(law)._value.get())


def test_each_law_has_a_fault_here() -> None:
    others = {"postings_sum_to_the_published_balance", "epochs_rise"}

    assert {law.__name__ for law in LAWS} == FAULTS.keys() | others


@pytest.mark.parametrize("law", FAULTS)
def test_the_account_alone_is_withheld_until_the_law_holds(
    law: str, town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(town)
    town.advance(10 * MINUTE)
    ends(town)
    counted, right, last = broken(law), settlement.settle_due, entry(town, "team-a")
    with monkeypatch.context() as patch:
        patch.setattr(settlement, "settle_due", lambda *given: only_of("team-a", FAULTS[law], right(*given)))
        town.tick()
        town.advance(MINUTE)
        town.tick()

        assert posted(town, "team-a") == []
        assert posted(town, "team-b") == [(T0, ENDED, RATE, "settled")]
        assert broken(law) == counted + 1
        assert entry(town, "team-a") == {**last, "stale": True}
        assert "stale" not in entry(town, "team-b")
        (finding,) = [
            each for each in town.get("/v1/findings").get_json()["findings"] if each["code"] == "broken-law"
        ]
        assert finding["figures"] == {"accounts": "team-a", "law": law, "fault": finding["figures"]["fault"]}
        assert "uid-p-team-a" in finding["figures"]["fault"]

    town.advance(31 * SECOND)

    assert posted(town, "team-a") == [(T0, ENDED, RATE, "settled")]
    assert town.charged("team-a") == town.charged("team-b") == 10 * MINUTE * RATE
    assert "stale" not in entry(town, "team-a")
    assert "broken-law" not in {each["code"] for each in town.get("/v1/findings").get_json()["findings"]}


def test_a_pod_that_is_deleted_meanwhile_is_charged_for_what_it_held(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(town)
    town.advance(10 * MINUTE)
    right, law = settlement.settle_due, "no_rate_below_zero"
    ends(town)
    with monkeypatch.context() as patch:
        patch.setattr(settlement, "settle_due", lambda *given: only_of("team-a", FAULTS[law], right(*given)))
        town.tick()
        pod = gpu_pod("p-team-a", namespace="team-a", started_ms=T0, ended_ms=ENDED)
        town.change("pods", pod, deleted=True)
        town.advance(HOUR)

        assert posted(town, "team-a") == []

    town.advance(SECOND)

    assert posted(town, "team-a") == [(T0, ENDED, RATE, "settled")]


def test_a_group_is_withheld_with_its_members(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = "gpuHours: 10\ngroup: ab"
    running(town, team_a=grouped, team_b=grouped, **{"_group.ab": "gpuHours: 15"})
    town.advance(10 * MINUTE)
    ends(town)
    right, fault = settlement.settle_due, FAULTS["no_rate_below_zero"]
    monkeypatch.setattr(settlement, "settle_due", lambda *given: only_of("team-a", fault, right(*given)))

    town.tick()

    assert posted(town, "team-a") == posted(town, "team-b") == []
    assert posted(town, "team-c") == [(T0, ENDED, RATE, "settled")]
    assert [entry(town, team).get("stale") for team in TEAMS] == [True, True, None]


def test_a_settler_does_not_begin_in_an_epoch_that_was(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = fencing.begin
    monkeypatch.setattr(
        fencing, "begin", lambda *given: replace(begin(*given), number=town.settler.epoch.number)
    )

    with pytest.raises(ConflictError, match="epoch 1 follows epoch 1"):
        town.start_anew()
    with town.store.reading() as connection:
        assert connection.execute(TERMS.select()).one().term == 1
