"""The door for nodes' agents: whose word it is, what is written, what is not taken, what others read."""

import json
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from sqlalchemy import select, update

from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually
from tests.timekeeper.claims import allocated, device_claim, device_slice
from tests.timekeeper.rows import hours
from tests.timekeeper.worlds import (
    CA,
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    agent_status,
    gpu_pod,
    node,
    pod_status,
    token,
)
from timekeeper.accounts.card_use.figures import (
    CardSample,
    MeasuredSession,
    UsageSample,
    UsageTotals,
    in_order,
    used,
)
from timekeeper.api.ledger.intervals import LEAST_REPORT_MS, MAX_REPORT_MS, report_interval_ms
from timekeeper.store import node_usage as node_uses
from timekeeper.store.engine.schema import NODE_USES

BOTH_DATABASES = "posts of one node wait for each other's locks"
POD = gpu_pod(started_ms=T0)
HALF = gpu_pod("half", percent=50, started_ms=T0, card=1)
ELSEWHERE = gpu_pod("elsewhere", node="n2", started_ms=T0)
AGENT = token("agent-n1")
STEP = 15 * SECOND


@pytest.fixture
def running(town: Town) -> Town:
    town.begin(("nodes", node()), ("nodes", node("n2")), ("pods", POD), ("pods", HALF), ("pods", ELSEWHERE))
    town.reviews.tokens[AGENT] = agent_status()
    return town


def card(uuid: str = "GPU-0", utilisation: int | None = 50, memory_mib: int | None = 8_000) -> Json:
    return {"uuid": uuid, "utilisation": utilisation, "memory_mib": memory_mib}


def use(age_ms: int = 0, *, cards: list[Json] | None = None, **pods: list[Json]) -> Json:
    listed = [{"uid": f"uid-{name}", "cards": each} for name, each in pods.items()]
    return {"age_ms": age_ms, "pods": listed, "cards": cards if cards is not None else [card()]}


def body(sequence: int, *uses: Json, boot: str = "run-1") -> Json:
    return {"version": 1, "boot": boot, "sequence": sequence, "uses": list(uses)}


def report(town: Town, sequence: int, *uses: Json, boot: str = "run-1", bearer: str = AGENT) -> Json:
    answer = town.post("/v1/nodeusage", body(sequence, *uses, boot=boot), bearer)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    found: Json = answer.get_json()
    return found


def by_node(town: Town, uid: str = "uid-p") -> dict[int, UsageTotals]:
    with town.store.reading() as connection:
        return hours(connection, uid, "node")


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0


def begun(town: Town) -> None:
    """The agent has reported once, and a step has gone by since."""
    report(town, 1, use(p=[card()]))
    town.clock.turn(STEP)


# What counts.


def test_a_figure_stands_for_the_time_since_the_report_before(running: Town) -> None:
    begun(running)
    report(running, 2, use(p=[card(utilisation=40)], half=[card("GPU-1", 20, 4_000)]))

    assert by_node(running) == {T0: UsageTotals(STEP, 400 * STEP, 8_000 * STEP)}
    assert by_node(running, "uid-half") == {T0: UsageTotals(STEP, 200 * STEP, 4_000 * STEP)}


def test_a_first_report_covers_no_time(running: Town) -> None:
    running.clock.turn(STEP)
    report(running, 1, use(p=[card()]))

    assert by_node(running) == {}


def test_a_report_sent_again_counts_once(running: Town) -> None:
    begun(running)
    before = counted("bursar_nodeusage_reports_total", outcome="repeated")
    for _ in range(3):
        report(running, 2, use(p=[card()]))
        running.clock.turn(SECOND)
    report(running, 1, use(p=[card()]))

    assert by_node(running) == {T0: UsageTotals(STEP, 500 * STEP, 8_000 * STEP)}
    assert counted("bursar_nodeusage_reports_total", outcome="repeated") == before + 3


def test_a_repeat_of_a_run_that_another_has_followed_counts_once(running: Town) -> None:
    begun(running)
    report(running, 2, use(p=[card()]))
    running.clock.turn(STEP)
    report(running, 1, use(p=[card()]), boot="run-2")
    running.clock.turn(STEP)
    report(running, 2, use(p=[card(utilisation=100)]))

    assert by_node(running) == {T0: UsageTotals(2 * STEP, 500 * 2 * STEP, 8_000 * 2 * STEP)}


def test_looks_that_waited_count_for_when_they_were_taken(running: Town) -> None:
    begun(running)
    running.clock.turn(HOUR - STEP)
    report(
        running,
        2,
        use(0, p=[card(utilisation=100)]),
        use(2 * STEP, p=[card(utilisation=10)]),
        use(STEP, p=[card(utilisation=20)]),
    )

    # the oldest stands for two intervals, the others for the time since the one before
    assert by_node(running) == {
        T0: UsageTotals(4 * STEP, (2 * 100 + 200 + 1_000) * STEP, 4 * 8_000 * STEP),
    }


def test_looks_of_an_hour_before_fall_into_that_hour(running: Town) -> None:
    report(running, 1, use(p=[card()]))
    running.clock.turn(HOUR + STEP)
    report(running, 2, use(STEP, p=[card()]), use(0, p=[card()]))

    assert by_node(running) == {
        T0: UsageTotals(2 * STEP, 500 * 2 * STEP, 8_000 * 2 * STEP),
        T0 + HOUR: UsageTotals(STEP, 500 * STEP, 8_000 * STEP),
    }


def test_a_pod_that_was_not_seen_in_between_is_covered_only_from_the_look_before(running: Town) -> None:
    begun(running)
    report(running, 2, use(STEP // 3, p=[]), use(0, p=[card()]))

    assert by_node(running) == {T0: UsageTotals(STEP // 3, 500 * STEP // 3, 8_000 * STEP // 3)}


def test_an_idle_pod_was_watched_and_used_nothing(running: Town) -> None:
    begun(running)
    report(running, 2, use(p=[card(utilisation=0, memory_mib=0)]))

    assert by_node(running) == {T0: UsageTotals(STEP, 0, 0)}


def test_a_pod_of_an_idle_claim_is_listed_as_others_are(running: Town) -> None:
    published = device_slice("gpu-0", attributes={"uuid": {"string": "GPU-9"}})
    held = device_claim("c", allocated(), at_ms=T0, pods=("uid-user",))
    running.change("resourceslices", published)
    running.change("resourceclaims", held)
    running.clock.turn(STEP)
    report(running, 1, use(p=[card(utilisation=0)], cards=[card("GPU-9", utilisation=0)]))
    running.clock.turn(STEP)
    report(running, 2, use(p=[card(utilisation=0)], cards=[card("GPU-9", utilisation=0)]))

    for query in ("", "?namespace=team-a"):
        idle = running.get(f"/v1/idle{query}").get_json()["pods"]
        assert [(each["uid"], each["since"] - T0, each["seen"] - T0) for each in idle] == [
            ("uid-p", STEP, 2 * STEP),
            ("uid-user", STEP, 2 * STEP),
        ]
    assert running.get("/v1/idle?namespace=team-b").get_json()["pods"] == []


def test_cards_without_a_report_cover_nothing(running: Town) -> None:
    begun(running)
    report(running, 2, use(p=[card(utilisation=None)]))

    assert by_node(running) == {}


def test_only_the_time_in_which_the_pod_held_its_cards_counts(running: Town) -> None:
    late = gpu_pod("late", started_ms=T0 + 5 * SECOND, card=0)
    report(running, 1, use())
    running.change("pods", late)
    running.clock.turn(10 * SECOND)
    report(running, 2, use(late=[card()]))
    running.change("pods", gpu_pod("late", started_ms=T0 + 5 * SECOND, ended_ms=T0 + 12 * SECOND, card=0))
    running.clock.turn(10 * SECOND)
    report(running, 3, use(late=[card()]))
    report(running, 4, use(late=[card()]))

    assert by_node(running, "uid-late") == {T0: UsageTotals(7 * SECOND, 500 * 7 * SECOND, 8_000 * 7 * SECOND)}


def test_a_look_that_was_overtaken_does_not_open_its_time_again(running: Town) -> None:
    running.clock.turn(MINUTE)
    begun(running)
    report(running, 2, use(STEP + 2 * SECOND, p=[card()]), use(0, p=[card()]))

    assert by_node(running) == {T0: UsageTotals(STEP, 500 * STEP, 8_000 * STEP)}


def test_a_look_after_a_long_silence_reports_nothing_of_a_pod_that_had_ended_in_it(running: Town) -> None:
    begun(running)
    running.change("pods", gpu_pod(started_ms=T0, ended_ms=running.clock()))
    running.clock.turn(HOUR)
    report(running, 2, use(p=[card()]))

    assert by_node(running) == {}


def test_a_card_that_the_pod_was_not_given_is_none_of_its_use(running: Town) -> None:
    begun(running)
    report(running, 2, use(p=[card(), card("GPU-1", 100, 1), card("GPU-9", 100, 1)]))

    assert by_node(running) == {T0: UsageTotals(STEP, 500 * STEP, 8_000 * STEP)}


def test_reports_on_use_prefer_the_agents_word_to_the_sidecars(running: Town) -> None:
    mine = token("uid-p")
    running.reviews.tokens[mine] = pod_status(POD)
    begun(running)
    report(running, 2, use(p=[card(utilisation=10)]))
    for sequence in (1, 2):
        device = {**card(utilisation=100), "scope": "exclusive"}
        beats = [{"age_ms": 0, "devices": [device]}]
        sent = {"version": 1, "boot": "b", "sequence": sequence, "beats": beats}
        assert running.post("/v1/heartbeats", sent, mine).status_code == 200
        running.clock.turn(SECOND)

    answer = running.get(f"/v1/usage?use=true&group=pod&from={T0}&to={T0 + HOUR}").get_json()

    (row,) = [each for each in answer["rows"] if each["uid"] == "uid-p"]
    assert (row["usedBy"], row["measured"], row["used"]) == ("node", 1_000 * STEP, 100 * STEP)


@given(
    ages=st.lists(st.integers(0, 3 * HOUR), min_size=1, max_size=12),
    before_ms=st.sampled_from((0, T0, T0 + HOUR)),
    since_ms=st.integers(T0 - HOUR, T0 + 2 * HOUR),
    length_ms=st.none() | st.integers(0, HOUR),
)
def test_no_time_is_covered_twice_nor_outside_the_session(
    ages: list[int], before_ms: int, since_ms: int, length_ms: int | None
) -> None:
    now_ms = T0 + 3 * HOUR
    looks = in_order(
        (UsageSample(age, (("u", (CardSample("G", 50, 1, True),)),), ()) for age in ages), now_ms
    )
    ended_ms = None if length_ms is None else since_ms + length_ms
    held = {"u": MeasuredSession("u", since_ms, ended_ms, "", 1_000)}

    found = list(used(looks, held, before_ms, STEP))

    first = max(since_ms, before_ms or looks[0][0])
    last = now_ms if ended_ms is None else min(now_ms, ended_ms)
    covered = sum(each.covered_ms for _, _, each in found)
    assert covered <= max(0, last - first)
    assert covered <= STEP * len(ages)
    assert all(hour % HOUR == 0 and 0 < each.covered_ms <= HOUR for _, hour, each in found)


# Whose word it is.


def test_an_agent_reports_for_no_pod_of_another_node(running: Town) -> None:
    begun(running)
    before = counted("bursar_nodeusage_strays_total", reason="on another node")
    unknown = counted("bursar_nodeusage_strays_total", reason="no session")
    report(running, 2, use(p=[card()], elsewhere=[card()], nobody=[card()]))

    assert by_node(running, "uid-elsewhere") == {}
    assert by_node(running) == {T0: UsageTotals(STEP, 500 * STEP, 8_000 * STEP)}
    assert counted("bursar_nodeusage_strays_total", reason="on another node") == before + 1
    assert counted("bursar_nodeusage_strays_total", reason="no session") == unknown + 1


def test_which_node_it_is_stands_in_the_token_whatever_the_body_says(running: Town) -> None:
    claims = {"node": "n2", "name": "n2"}

    assert running.post("/v1/nodeusage", {**body(1, use()), **claims}, AGENT).status_code == 200
    assert running.get("/v1/nodeusage").get_json()["nodes"].keys() == {"n1"}


def test_the_right_is_checked_for_the_tokens_node_by_name(running: Town) -> None:
    who = "system:serviceaccount:bursar-node:bursar-node"
    running.reviews.denied.add((who, "create", "nodeusage", "n1"))

    answer = running.post("/v1/nodeusage", body(1, use()), AGENT)

    assert (answer.status_code, answer.content_type) == (403, "application/problem+json")
    assert "may not create nodeusage.bursar.dev n1" in answer.get_json()["detail"]


def test_a_token_that_names_no_node_is_refused_with_the_reason(running: Town) -> None:
    mine = token("uid-p")
    running.reviews.tokens[mine] = pod_status(POD)

    answer = running.post("/v1/nodeusage", body(1, use()), mine)

    assert answer.status_code == 403
    assert "does not name a node" in answer.get_json()["detail"]


def test_who_may_not_get_nodeusage_reads_nothing(running: Town) -> None:
    running.reviews.denied.add(("admin", "get", "nodeusage", ""))

    assert running.get("/v1/nodeusage").status_code == 403


# What is not taken.


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["age_ms", "pods", "cards", "uid", "uuid", "utilisation", "memory_mib"]), inner
        )
    ),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    town = Town(tmp_path_factory.mktemp("one"))
    town.reviews.tokens[AGENT] = agent_status()
    yield town
    town.close()


@given(uses=JSON_VALUES, sequence=st.integers())
def test_whatever_a_body_holds_it_is_taken_or_refused_and_never_a_fault(
    one: Town, uses: Any, sequence: int
) -> None:
    sent = json.dumps({**body(sequence), "uses": uses}).encode()

    assert one.post("/v1/nodeusage", sent, AGENT).status_code in (200, 400)


def test_a_body_above_256_kib_is_refused(running: Town) -> None:
    answer = running.post("/v1/nodeusage", b" " * (256 * 1024 + 1), AGENT)

    assert answer.status_code == 413


# What others read.


def test_the_cards_of_the_last_look_are_read_by_node(running: Town) -> None:
    second = token("agent-n2")
    running.reviews.tokens[second] = agent_status("n2")
    report(running, 1, use(0, cards=[card("GPU-0", 70, 9_000), card("GPU-1", None, 0)]), use(9_000, cards=[]))
    report(running, 1, use(cards=[card("GPU-5", 1, 2)]), bearer=second)

    assert running.get("/v1/nodeusage").get_json() == {
        "version": 1,
        "nodes": {
            "n1": {"GPU-0": card("GPU-0", 70, 9_000), "GPU-1": card("GPU-1", None, 0)},
            "n2": {"GPU-5": card("GPU-5", 1, 2)},
        },
    }


def test_a_report_to_one_process_is_read_by_another(running: Town) -> None:
    report(running, 1, use(cards=[card()]))

    running.serve()

    assert running.get("/v1/nodeusage").get_json()["nodes"].keys() == {"n1"}


def test_figures_older_than_two_minutes_are_not_used(running: Town) -> None:
    report(running, 1, use(30_000, cards=[card()]))
    running.clock.turn(89 * SECOND)
    assert running.get("/v1/nodeusage").get_json()["nodes"].keys() == {"n1"}

    running.clock.turn(SECOND)
    assert running.get("/v1/nodeusage").get_json()["nodes"] == {}


def test_looks_that_come_late_do_not_take_the_place_of_newer_ones(running: Town) -> None:
    report(running, 1, use(cards=[card(utilisation=1)]))
    report(running, 2, use(MINUTE, cards=[card(utilisation=99)]))

    assert running.get("/v1/nodeusage").get_json()["nodes"]["n1"]["GPU-0"]["utilisation"] == 1


def test_a_clock_set_back_shows_no_figures_of_the_future(running: Town) -> None:
    report(running, 1, use(cards=[card()]))
    running.clock.turn(-HOUR)
    report(running, 2, use(cards=[card()]))

    assert running.get("/v1/nodeusage").get_json()["nodes"] == {}


def test_a_caller_with_the_same_figures_gets_304(running: Town) -> None:
    report(running, 1, use())
    tag = running.get("/v1/nodeusage").headers["ETag"]

    assert running.get("/v1/nodeusage", **{"If-None-Match": tag}).status_code == 304


def test_a_pod_over_its_memory_share_is_reported_with_since_when(running: Town) -> None:
    report(running, 1, use(p=[card(memory_mib=16_000)], half=[card("GPU-1", 0, 8_001)]))
    since_ms = running.clock()
    running.clock.turn(STEP)
    report(running, 2, use(half=[card("GPU-1", 0, 9_000)]))

    (told,) = running.get("/v1/overuse?namespace=team-a").get_json()["pods"]

    assert told == {
        "uid": "uid-half",
        "namespace": "team-a",
        "pod": "half",
        "node": "n1",
        "since": since_ms,
        "seen": since_ms + STEP,
        "cards": [{"uuid": "GPU-1", "memory_mib": 9_000, "share_mib": 8_000}],
    }
    assert running.get("/v1/overuse?namespace=team-b").get_json()["pods"] == []


def test_a_pod_within_its_share_again_or_gone_is_no_longer_reported(running: Town) -> None:
    report(running, 1, use(half=[card("GPU-1", 0, 9_000)]))
    running.clock.turn(STEP)
    report(running, 3, use(half=[card("GPU-1", 0, 8_000)]))
    assert running.get("/v1/overuse").get_json()["pods"] == []

    running.clock.turn(STEP)
    report(running, 4, use(half=[card("GPU-1", 0, 9_000)]))
    running.change("pods", gpu_pod("half", percent=50, card=1, started_ms=T0, ended_ms=running.clock()))
    assert running.get("/v1/overuse").get_json()["pods"] == []


def test_since_when_outlasts_empty_reports_and_other_reports_of_one_post(running: Town) -> None:
    report(running, 1, use(half=[card("GPU-1", 0, 9_000)]))
    since_ms = running.clock()
    running.clock.turn(STEP)
    report(running, 2, use(half=[card("GPU-1", 0, None)]))
    (told,) = running.get("/v1/overuse").get_json()["pods"]
    assert (told["since"], told["seen"], told["cards"][0]["memory_mib"]) == (since_ms, since_ms, 9_000)
    running.clock.turn(2 * STEP)
    report(running, 3, use(STEP, p=[card()]), use(0, half=[card("GPU-1", 0, 9_500)]))

    (told,) = running.get("/v1/overuse").get_json()["pods"]

    assert (told["since"], told["seen"]) == (since_ms, running.clock())


def test_each_report_of_a_post_counts_and_not_the_last_alone(running: Town) -> None:
    report(running, 1, use(half=[card("GPU-1", 0, 9_000)]))
    running.clock.turn(3 * STEP)
    within, over = [card("GPU-1", 0, 8_000)], [card("GPU-1", 0, 9_000)]
    report(running, 2, use(2 * STEP, half=over), use(STEP, half=within), use(0, half=over))

    (told,) = running.get("/v1/overuse").get_json()["pods"]

    assert told["since"] == running.clock()


def test_at_the_slowest_pace_an_empty_report_ends_nothing_either(running: Town) -> None:
    """With tens of thousands of nodes an agent reports each minute, and a little later by its jitter."""
    minute = MAX_REPORT_MS + 5 * SECOND
    with running.store.writing() as connection:
        for number, mib in enumerate((9_000, None, 9_000)):
            seen = UsageSample(0, (("uid-half", (CardSample("GPU-1", 0, mib, exclusive=True),)),), ())
            sent = node_uses.NodeReport("n1", "run", number, T0 + number * minute, (seen,))
            node_uses.record(connection, sent, MAX_REPORT_MS)

        (over,) = node_uses.over(connection, "", T0 + 2 * minute)

    assert over.episode.since_ms == T0


@pytest.mark.untraced
def test_more_pods_over_their_share_than_a_question_may_name_are_no_error(running: Town) -> None:
    """As after a driver's upgrade that counts wrongly, in a large cluster; all but one have no session."""
    episode = {"since": T0, "cards": [{"uuid": "GPU-1", "memory_mib": 9, "share_mib": 8, "seen": T0}]}
    other = {"since": T0, "cards": []}  # quickly read, for PostgreSQL ends a read that rests for ten seconds
    everybody = {f"uid-{number}": other for number in range(70_000)} | {"uid-half": episode}
    report(running, 1, use())
    with running.store.writing() as connection:
        connection.execute(update(NODE_USES).values(overuse=json.dumps(everybody)))

    def answered() -> Any:
        answer = running.get("/v1/overuse")
        return answer.get_json()["pods"] if answer.status_code == 200 else None

    assert [each["uid"] for each in eventually(answered)] == ["uid-half"]


# When the next one is due.


def test_an_agent_gets_the_ca_with_its_first_report_and_now_and_then(running: Town) -> None:
    answers = [report(running, sequence, use(cards=[])) for sequence in range(1, 23)]

    assert [number for number, each in enumerate(answers, 1) if each.get("ca") == CA] == [1, 21]


def test_few_agents_report_every_15_s_and_many_each_minute_at_most(running: Town) -> None:
    assert report(running, 1, use())["interval_ms"] == LEAST_REPORT_MS == 15 * SECOND
    assert [report_interval_ms(nodes) for nodes in (0, 1_500, 2_000, 5_000, 10**6)] == [
        15 * SECOND,
        15 * SECOND,
        20 * SECOND,
        50 * SECOND,
        MAX_REPORT_MS,
    ]


def test_nodes_that_were_silent_for_a_month_are_forgotten_when_another_is_new(running: Town) -> None:
    report(running, 1, use())
    running.clock.turn(31 * DAY)
    second = token("agent-n2", expiry_ms=T0 + 400 * DAY)
    running.reviews.tokens[second] = agent_status("n2")
    report(running, 1, use(), bearer=second)

    with running.store.reading() as connection:
        kept = connection.execute(select(NODE_USES.c.name)).scalars().all()
    assert kept == ["n2"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_of_two_workers_with_a_nodes_first_report_one_counts(running: Town) -> None:
    begin, heard = Barrier(2), []
    sent = node_uses.NodeReport("n1", "b", 1, running.clock(), (UsageSample(0, (), ()),))

    def record() -> None:
        begin.wait()
        with running.store.writing() as connection:
            heard.append(node_uses.record(connection, sent, STEP).taken.value)

    threads = [Thread(target=record) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_S)

    assert sorted(heard) == ["new", "repeated"]


def test_a_report_that_could_not_be_written_left_nothing_and_counts_when_it_comes_again(
    running: Town,
) -> None:
    begun(running)
    look = UsageSample(0, (("uid-p", (CardSample("GPU-0", 50, 8_000, True),)),), ())
    sent = node_uses.NodeReport("n1", "run-1", 2, running.clock(), (look,))

    def write_and_fail() -> None:
        with running.store.writing() as connection:
            node_uses.record(connection, sent, STEP)
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    assert by_node(running) == {}
    report(running, 2, use(p=[card()]))
    assert by_node(running) == {T0: UsageTotals(STEP, 500 * STEP, 8_000 * STEP)}
