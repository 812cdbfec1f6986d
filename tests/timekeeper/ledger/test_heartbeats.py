"""The door for heartbeats: how often they are asked for, what is not taken, what they say of the cards."""

import json
import time
from threading import Thread
from threading import enumerate as enumerate_threads

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from sqlalchemy import insert, text

from deploy.local.limits import LONGEST_S
from sidecar.beats import MAX_INTERVAL_MS
from tests.timekeeper.rows import SESSION, decided, hours
from tests.timekeeper.worlds import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    gpu_pod,
    lease,
    node,
    pod_status,
    token,
    user_status,
)
from timekeeper.accounts.card_use.figures import CardSample, SessionCards, UsageTotals, by_hour, cards_of
from timekeeper.api.ledger.heartbeat_writer import HeartbeatWriter, WrittenPost
from timekeeper.api.ledger.intervals import MAX_A_SECOND, MAX_MS, interval_ms
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.store import heartbeats as beats
from timekeeper.store.engine.engine import ConflictError, commit_together
from timekeeper.store.engine.schema import HEARTBEATS, SESSIONS

BOTH_DATABASES = "heartbeats at the same time lock their rows"
POD = gpu_pod(started_ms=T0)
HALF = gpu_pod("half", percent=50, card=1, started_ms=T0)


@pytest.fixture
def running(town: Town) -> Town:
    """A pod with a whole card and one with half a card, running since T0."""
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", POD), ("pods", HALF))
    return town


def more_sessions(town: Town, count: int) -> None:
    with town.store.writing() as connection:
        connection.execute(insert(SESSIONS), [{**SESSION, "uid": f"more-{n}"} for n in range(count)])


def asked_ms(town: Town, sequence: int) -> int:
    return int(town.beat(POD, sequence).get_json()["interval_ms"])


def stored(town: Town) -> list[tuple[str, int]]:
    """(pod UID, sequence) of every run that is known."""
    with town.store.reading() as connection:
        rows = connection.execute(HEARTBEATS.select().order_by(HEARTBEATS.c.session_uid))
        return [(row.session_uid, row.sequence) for row in rows]


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


# How often.


def test_few_sidecars_beat_as_often_as_the_operator_says(running: Town) -> None:
    assert asked_ms(running, 1) == 5_000


@pytest.mark.parametrize("least_ms", [100, 5_000, 300_000])
@given(sessions=st.integers(0, 10**7))
def test_the_interval_never_brings_more_heartbeats_than_can_be_taken(least_ms: int, sessions: int) -> None:
    asked = interval_ms(sessions, least_ms)

    assert least_ms <= asked <= MAX_MS
    assert asked == MAX_MS or sessions * 1000 < MAX_A_SECOND * (asked + 1)
    assert asked <= interval_ms(sessions + 1, least_ms)


def test_no_interval_is_longer_than_sidecars_follow() -> None:
    assert MAX_MS == MAX_INTERVAL_MS
    assert interval_ms(10**9, 5_000) == MAX_MS


def test_every_worker_sets_the_same_longer_interval_where_there_are_many(running: Town) -> None:
    more_sessions(running, 4_998)
    first = asked_ms(running, 1)
    running.serve()

    assert (first, asked_ms(running, 2)) == (10_000, 10_000)


def test_the_interval_follows_the_number_of_sessions_within_seconds(running: Town) -> None:
    assert asked_ms(running, 1) == 5_000
    more_sessions(running, 9_998)
    running.clock.turn(5 * SECOND)
    assert asked_ms(running, 2) == 20_000

    with running.store.writing() as connection:
        connection.execute(text("UPDATE sessions SET ended_ms = 1, settled_ms = 1 WHERE uid LIKE 'more-%'"))
    running.clock.turn(5 * SECOND)

    assert asked_ms(running, 3) == 5_000


def test_where_beats_are_far_apart_the_ca_comes_with_more_of_them(running: Town) -> None:
    more_sessions(running, 49_998)
    answers = [running.beat(POD, number).get_json() for number in range(1, 8)]

    assert {answer["interval_ms"] for answer in answers} == {100_000}
    assert ["ca" in answer for answer in answers] == [True, False, False, True, False, False, True]


# What is not taken.

GOOD: Json = {"version": 1, "boot": "b", "sequence": 1, "beats": [{"age_ms": 0, "devices": []}]}


NO_POST = [
    (b'{"version": NaN}', None),
    (b'{"version": 1, "boot": "b", "sequence": Infinity}', None),
    (json.dumps(GOOD).encode() + b"}", None),
    (json.dumps(GOOD).replace('"b"', '"\\ud800"').encode(), None),
    (json.dumps(GOOD)[:-1].encode() + b', "sequence": 2}', "sequence"),
    (json.dumps(GOOD)[:-1].encode() + b', "beats": []}', "beats"),
    (json.dumps({**GOOD, "boot": "a\u0000b"}).encode(), "boot"),
    (json.dumps({**GOOD, "sequence": 2**64}).encode(), "sequence"),
    (json.dumps({**GOOD, "sequence": 10**400}).encode(), "sequence"),
    (json.dumps({**GOOD, "deep": 0}).replace("0}", "[" * 5_000 + "]" * 5_000 + "}").encode(), None),
]


def test_what_is_no_post_is_a_problem_and_nothing_is_written(running: Town) -> None:
    mine = token("uid-p")
    running.reviews.tokens[mine] = pod_status(POD)
    before = counted("bursar_requests_total", route="/v1/heartbeats", status="400")

    answers = [running.post("/v1/heartbeats", body, mine) for body, _ in NO_POST]

    told = [(each.status_code, each.content_type, each.get_json().get("field")) for each in answers]
    assert told == [(400, "application/problem+json", field) for _, field in NO_POST]
    assert stored(running) == []
    after = counted("bursar_requests_total", route="/v1/heartbeats", status="400")
    assert after == before + len(NO_POST)


def test_a_thousand_beats_in_one_post_are_taken(running: Town) -> None:
    running.clock.turn(HOUR)

    assert running.beat(POD, 1, *range(1_000, 0, -1)).status_code == 200


def test_who_beats_stands_in_the_token_whatever_the_body_says(running: Town) -> None:
    mine = token("uid-half")
    running.reviews.tokens[mine] = pod_status(HALF)
    claims = {"uid": "uid-p", "pod": "p", "namespace": "team-a", "session_uid": "uid-p"}

    assert running.post("/v1/heartbeats", {**GOOD, **claims}, mine).status_code == 200
    assert stored(running) == [("uid-half", 1)]


def test_a_token_of_another_namespaces_pod_beats_for_that_pod_alone(running: Town) -> None:
    namesake = gpu_pod("p", namespace="team-b")
    namesake["metadata"]["uid"] = "uid-other"

    answer = running.beat(namesake, 1)

    assert (answer.status_code, answer.get_json()["field"]) == (404, "pod")
    assert stored(running) == []


@pytest.mark.parametrize(
    ("bearer", "status", "reviews"),
    [
        (token("uid-p", expiry_ms=T0 - DAY), 401, 0),
        (token("uid-p", audience="kubernetes"), 401, 0),
        (token("uid-p", issuer="me"), 401, 1),
        ("junk", 401, 0),
        (token("forged"), 401, 1),
        (token("nobody's pod"), 403, 1),
    ],
    ids=["expired", "another audience", "another issuer", "junk", "forged", "of no pod"],
)
def test_an_invalid_token_writes_nothing_and_is_reviewed_once_at_most(
    running: Town, bearer: str, status: int, reviews: int
) -> None:
    running.reviews.tokens[token("nobody's pod")] = user_status("system:serviceaccount:team-a:default")
    before = counted("bursar_requests_total", route="/v1/heartbeats", status=str(status))

    answers = [running.post("/v1/heartbeats", GOOD, bearer) for _ in range(20)]

    assert {answer.status_code for answer in answers} == {status}
    assert len(running.reviews.asked) == reviews
    assert stored(running) == []
    assert counted("bursar_requests_total", route="/v1/heartbeats", status=str(status)) == before + 20


# What they say of the cards.


def figure(
    uuid: str = "GPU-0",
    utilisation: int | None = 50,
    memory_mib: int | None = 8_000,
    scope: str = "shared",
) -> Json:
    return {"uuid": uuid, "utilisation": utilisation, "memory_mib": memory_mib, "scope": scope}


def tell(
    town: Town, sequence: int, *beats_told: tuple[int, list[Json]], pod: Json = POD, boot: str = "b"
) -> int:
    """Post beats with figures, (age, figures) each; the answer's status."""
    mine = token(pod["metadata"]["uid"])
    town.reviews.tokens[mine] = pod_status(pod)
    told = [{"age_ms": age, "devices": devices} for age, devices in beats_told]
    body = {"version": 1, "boot": boot, "sequence": sequence, "beats": told}
    return town.post("/v1/heartbeats", body, mine).status_code


def used(town: Town, uid: str = "uid-p") -> dict[int, UsageTotals]:
    with town.store.reading() as connection:
        return hours(connection, uid)


def test_a_whole_cards_figures_are_the_pods_own_for_the_time_since_the_beat_before(running: Town) -> None:
    tell(running, 1, (0, [figure()]))
    running.clock.turn(5 * SECOND)
    tell(running, 2, (0, [figure(utilisation=40)]))

    assert used(running) == {T0: UsageTotals(5 * SECOND, 400 * 5 * SECOND, 8_000 * 5 * SECOND)}


def test_figures_of_a_shared_card_are_the_pods_own_only_where_the_sidecar_says_so(running: Town) -> None:
    for sequence, scope in enumerate(["shared", "shared", "exclusive"], 1):
        tell(running, sequence, (0, [figure("GPU-1", scope=scope)]), pod=HALF)
        running.clock.turn(SECOND)

    assert used(running, "uid-half") == {T0: UsageTotals(SECOND, 500 * SECOND, 8_000 * SECOND)}


def test_what_is_repeated_reordered_or_late_adds_no_use_twice(running: Town) -> None:
    tell(running, 1, (0, [figure()]))
    running.clock.turn(10 * SECOND)
    for sequence in (3, 3, 2, 1):
        assert tell(running, sequence, (4_000, [figure()]), (0, [figure()])) == 200
        running.clock.turn(SECOND)
    tell(running, 1, (9_000, [figure(utilisation=100)]), boot="another run")

    assert used(running) == {T0: UsageTotals(10 * SECOND, 500 * 10 * SECOND, 8_000 * 10 * SECOND)}


def test_a_beat_after_a_silence_stands_for_two_intervals_at_most(running: Town) -> None:
    tell(running, 1, (0, [figure()]))
    running.clock.turn(30 * MINUTE)
    tell(running, 2, (0, [figure()]))

    assert used(running) == {T0: UsageTotals(10 * SECOND, 500 * 10 * SECOND, 8_000 * 10 * SECOND)}


def test_spooled_figures_fall_into_the_hours_in_which_they_were_taken(running: Town) -> None:
    tell(running, 1, (0, [figure()]))
    running.clock.turn(HOUR + 2 * SECOND)
    tell(running, 2, (5_000, [figure()]), (0, [figure(utilisation=100)]))

    # the first beat stands for the ten seconds before it, the second for the five between them
    assert used(running) == {
        T0: UsageTotals(13 * SECOND, (10 * 500 + 3 * 1000) * SECOND, 13 * 8_000 * SECOND),
        T0 + HOUR: UsageTotals(2 * SECOND, 2 * 1000 * SECOND, 2 * 8_000 * SECOND),
    }


def test_beats_without_figures_cover_nothing(running: Town) -> None:
    for sequence, told in enumerate([[], [], [figure(utilisation=None)], [figure(utilisation=None)]], 1):
        tell(running, sequence, (0, told))
        running.clock.turn(SECOND)

    assert used(running) == {}


def test_an_ended_pod_uses_nothing_after_its_end(running: Town) -> None:
    tell(running, 1, (0, [figure()]))
    running.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * SECOND))
    running.advance(5 * SECOND, heard=False)
    tell(running, 2, (0, [figure()]))
    tell(running, 3, (0, [figure()]))

    assert used(running) == {T0: UsageTotals(2 * SECOND, 500 * 2 * SECOND, 8_000 * 2 * SECOND)}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([figure(utilisation=10_000)], UsageTotals(1_000, 1_000 * 1_000, 8_000 * 1_000)),
        ([figure(memory_mib=2**31)], UsageTotals(1_000, 500 * 1_000, 2**20 * 1_000)),
        ([figure()] * 64, UsageTotals(1_000, 500 * 1_000, 8_000 * 1_000)),
        ([figure(), figure("GPU-1", scope="exclusive")], UsageTotals(1_000, 500 * 1_000, 8_000 * 1_000)),
        ([figure(memory_mib=None)], UsageTotals(1_000, 500 * 1_000, 0)),
        ([figure("'; DROP TABLE figures; --", scope="exclusive")], None),
        ([figure("\u0000", scope="exclusive")], None),
    ],
    ids=["percent", "memory", "one card often", "a card of others", "no memory", "unknown", "NUL"],
)
def test_figures_that_cannot_be_are_clamped_or_dropped(
    running: Town, told: list[Json], expected: UsageTotals | None
) -> None:
    tell(running, 1, (0, told))
    running.clock.turn(SECOND)

    assert tell(running, 2, (0, told)) == 200
    assert used(running) == ({T0: expected} if expected else {})


def test_without_a_placement_the_requested_cards_count() -> None:
    cards = cards_of("", 2_000)
    told = [CardSample(f"GPU-{n}", 100, 1, exclusive=True) for n in range(5)]

    assert [each.uuid for each in cards.own(told)] == ["GPU-0", "GPU-1"]
    assert cards_of("not a placement", 0) == SessionCards({}, 1)
    assert cards.own([CardSample("GPU-0", 100, 1, exclusive=False)]) == ()


@example(moments=[T0, T0 + 90 * MINUTE], before_ms=T0 + HOUR, most_ms=HOUR, percent=1)
@given(
    moments=st.lists(st.integers(T0, T0 + 3 * HOUR), max_size=20).map(sorted),
    before_ms=st.integers(T0 - HOUR, T0 + HOUR),
    most_ms=st.integers(1, HOUR),
    percent=st.integers(0, 2**31),
)
def test_no_time_is_covered_twice_and_no_card_is_used_more_than_whole(
    moments: list[int], before_ms: int, most_ms: int, percent: int
) -> None:
    told = [(at_ms, (CardSample("GPU-0", percent, 1, exclusive=True),)) for at_ms in moments]

    found = by_hour(told, before_ms, most_ms, SessionCards({"GPU-0": 1_000}, 1))

    assert all(hour % HOUR == 0 and 0 < each.covered_ms <= HOUR for hour, each in found.items())
    assert sum(each.covered_ms for each in found.values()) <= max(0, max(moments, default=0) - before_ms)
    assert all(each.milli_ms == min(GPU, 10 * percent) * each.covered_ms for each in found.values())


def test_figures_of_a_post_that_could_not_be_written_are_not_there_either(running: Town) -> None:
    tell(running, 1, (0, [figure()]))
    running.clock.turn(SECOND)
    post = beats.HeartbeatPost("uid-p", "b", 2, (0,), running.clock(), ((CardSample("GPU-0", 50, 1, True),),))

    nothing = text("INSERT INTO nodes (name, watermark_ms) VALUES (:name, 1)"), [{"name": None}]

    def write_and_fail() -> None:
        with running.store.writing() as connection:
            _, changes = decided(connection, [post])
            commit_together(connection, [*changes, nothing])

    with pytest.raises(ConflictError):
        write_and_fail()
    assert used(running) == {}
    assert stored(running) == [("uid-p", 1)]


# Several workers.


def one_waits(town: Town) -> bool:
    """Whether a transaction waits for another's lock."""
    with town.store.reading() as connection:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(connection.execute(waiting).scalar_one())


def heard_by_the_second(
    town: Town, first: beats.HeartbeatPost, second: beats.HeartbeatPost
) -> list[beats.PostOutcome]:
    """What the second worker hears that gets its post before the first has committed."""
    heard: list[beats.PostOutcome] = []

    def record() -> None:
        with town.store.writing() as connection:
            heard.extend(each.outcome for each in decided(connection, [second])[0])

    thread = Thread(target=record)
    with town.store.writing() as connection:
        _, changes = decided(connection, [first])
        thread.start()
        begun = time.monotonic()
        while not one_waits(town):
            assert time.monotonic() < begun + LONGEST_S, "the second never met the first"
        commit_together(connection, changes)
    thread.join()
    return heard


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_of_a_runs_first_posts_at_two_workers_at_once_the_later_stays(running: Town) -> None:
    later, earlier = (
        beats.HeartbeatPost("uid-p", "b", sequence, (0,), running.clock()) for sequence in (2, 1)
    )

    assert heard_by_the_second(running, later, earlier) == [beats.PostOutcome.REPEATED]
    assert stored(running) == [("uid-p", 2)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_runs_first_post_that_is_sent_to_two_workers_adds_its_use_once(running: Town) -> None:
    running.clock.turn(SECOND)
    card = (CardSample("GPU-0", 50, 8_000, True),)
    post = beats.HeartbeatPost("uid-p", "b", 1, (1_000, 0), running.clock(), (card, card))

    assert heard_by_the_second(running, post, post) == [beats.PostOutcome.REPEATED]
    assert used(running) == {T0: UsageTotals(SECOND, 500 * SECOND, 8_000 * SECOND)}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_closed_writer_has_stored_all_that_waited_and_leaves_no_thread(running: Town) -> None:
    writer = HeartbeatWriter(running.store, LedgerReader(running.store, running.clock), 5_000)
    threads = set(enumerate_threads())
    outcomes: list[WrittenPost | Exception] = []
    for sequence in range(1, 301):  # more than one transaction takes
        writer.submit(beats.HeartbeatPost("uid-p", "b", sequence, (0,), running.clock()), outcomes.append)
    writer.close()

    assert [type(each) for each in outcomes] == 300 * [WrittenPost]
    assert stored(running) == [("uid-p", 300)]
    assert set(enumerate_threads()) == threads


def test_a_closed_town_leaves_no_thread_that_waits_for_heartbeats(running: Town) -> None:
    threads = set(enumerate_threads())
    assert running.beat(POD, 1).status_code == 200
    assert set(enumerate_threads()) > threads

    running.close()

    assert set(enumerate_threads()) == threads
