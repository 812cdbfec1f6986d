"""Decisions in the ledger: posted, equal ones in succession as one record, forgotten after their time."""

from tests.timekeeper.worlds import MINUTE, Json, Town
from timekeeper.core.decisions import Decision, DecisionRun, recordable
from timekeeper.store import decisions
from timekeeper.store.engine.engine import Store
from timekeeper.store.engine.schema import DECISIONS
from timekeeper.store.retention import forget

BOTH_DATABASES = "how decisions are found, joined and forgotten is SQL"


def posted(**fields: object) -> Json:
    return {
        "kind": "refused",
        "reason": "SpentGrant",
        "namespace": "team-a",
        "owner": "Job/train",
        "name": "",
        "generate_name": "train-",
        "uid": "",
        "budget": "team-a",
        "figures": {"message": "the grant is spent", "requestedMilli": 1000},
        "count": 1,
        "first_age_ms": 0,
        "last_age_ms": 0,
    } | fields


def post(town: Town, *entries: Json) -> int:
    body = {"version": 1, "source": "webhook", "decisions": list(entries)}
    return int(town.post("/v1/decisions", body).status_code)


def rows(store: Store) -> list[tuple[object, ...]]:
    its = DECISIONS.c
    shown = (its.subject, its.is_generated, its.kind, its.reason, its["count"], its.first_ms, its.last_ms)
    with store.reading() as connection:
        return [
            tuple(row)
            for row in connection.execute(DECISIONS.select().with_only_columns(*shown).order_by(its.id))
        ]


def test_equal_decisions_in_succession_are_one_record_with_its_count_and_times(town: Town) -> None:
    start = town.clock()
    assert post(town, posted(count=2, first_age_ms=MINUTE, last_age_ms=1_000), posted(name="p")) == 200
    town.clock.turn(MINUTE)

    assert post(town, posted(), posted(), posted(figures={"message": "other"}), posted()) == 200

    end = start + MINUTE
    assert rows(town.store) == [
        ("train-", True, "refused", "SpentGrant", 4, start - MINUTE, end),
        ("p", False, "refused", "SpentGrant", 1, start, start),
        ("train-", True, "refused", "SpentGrant", 1, end, end),
        ("train-", True, "refused", "SpentGrant", 1, end, end),
    ]


def test_a_pod_that_kube_scheduler_preempts_has_one_record_of_it_from_whichever_extender(town: Town) -> None:
    start = town.clock()
    its = {"name": "p", "generate_name": "", "uid": "uid-1"}
    preempted = posted(**its, kind="preempted", reason="PreemptedByScheduler", figures={"victimPriority": 0})
    assert post(town, preempted, preempted, posted(**its, kind="waiting", reason="TooLittleFree")) == 200
    town.clock.turn(MINUTE)

    restarted = {**preempted, "figures": {"victimPriority": 0, "victimStanding": "over budget"}}
    assert post(town, restarted, {**restarted, "uid": "uid-2"}) == 200

    assert rows(town.store) == [
        ("p", False, "preempted", "PreemptedByScheduler", 1, start, start),
        ("p", False, "waiting", "TooLittleFree", 1, start, start),
        ("p", False, "preempted", "PreemptedByScheduler", 1, start + MINUTE, start + MINUTE),
    ]


def test_decisions_are_forgotten_by_the_time_of_the_last_of_them(store: Store) -> None:
    def run(name: str, last_ms: int) -> DecisionRun:
        return DecisionRun(
            Decision(at_ms=1, kind="placed", reason="Placed", namespace="a", name=name), 2, last_ms
        )

    with store.writing() as connection:
        decisions.record(connection, "extender", [run("old", 9), run("older", 8), run("kept", 10)])

    with store.writing() as connection:
        assert forget(connection, DECISIONS.c.last_ms, 10, 1) == 1
    assert [row[0] for row in rows(store)] == ["old", "kept"]
    with store.writing() as connection:
        assert forget(connection, DECISIONS.c.last_ms, 10, 9) == 1
        assert forget(connection, DECISIONS.c.last_ms, 10, 9) == 0
    assert [row[0] for row in rows(store)] == ["kept"]


def test_decisions_are_read_newest_first_by_their_own_time_page_by_page(town: Town) -> None:
    assert post(town, posted(name="new"), posted(name="old", first_age_ms=MINUTE, last_age_ms=MINUTE)) == 200
    town.clock.turn(MINUTE)
    assert (
        post(
            town, posted(name="newer"), posted(name="oldest", first_age_ms=9 * MINUTE, last_age_ms=9 * MINUTE)
        )
        == 200
    )

    for which in ("", "namespace=team-a&", "owner=Job/train&"):
        found: list[str] = []
        after = ""
        while len(found) < 4:
            page = town.get(f"/v1/decisions?{which}limit=1{after}").get_json()
            found += [each["pod"] for each in page["decisions"]]
            after = f"&after={page['next']}"
        assert found == ["newer", "new", "old", "oldest"], which


def test_a_text_of_several_lines_is_recorded_on_one() -> None:
    assert recordable("2 problems:\n  1. this\n  2. \x00that", 40) == "2 problems: 1. this 2. ?that"
