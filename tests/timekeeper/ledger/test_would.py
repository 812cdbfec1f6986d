"""What would have happened to pods of metered namespaces is judged once for each pod, and kept."""

from typing import Any

import pytest
from sqlalchemy import event

from tests.timekeeper.clocks import iso
from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.ledger.test_database_away import Disk
from tests.timekeeper.worlds import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Town,
    budgets,
    gpu_pod,
    node,
    token,
    user_status,
)
from tests.worlds import limits_of, pod
from timekeeper.accounts.would import VERDICTS, VerdictWord
from timekeeper.settler.new_pods import MAX_BYTES, NewPods
from timekeeper.settler.would import TOGETHER, WouldJudge
from timekeeper.store import would
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.engine.schema import WOULD
from timekeeper.store.fencing import EpochOverError, writing
from timekeeper.store.retention import forget
from timekeeper.store.would import WouldRow

Json = dict[str, Any]
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # its subject is no SQL
BATCH = {
    "_settings": "mode: meter",
    "team-a": "gpuHours: 1\nonExhausted: hold",
    "team-b": "gpuHours: 1",
    "team-c": "gpuHours: 1\nonExhausted: evict\nevictGrace: 1m",
    "team-e": "gpuHours: 1\nonExhausted: deny\nmode: enforce",
}


class Judged:
    """A metered cluster, whose pods the watch offers to a judge."""

    def __init__(self, town: Town, only_meter: bool = False) -> None:
        self.town, self.only_meter = town, only_meter
        self.start()

    def start(self, most_bytes: int = MAX_BYTES) -> None:
        """As the process does: before the watches begin."""
        with writing(self.town.store, self.town.settler.epoch) as connection:
            since_ms = would.begin(connection, self.town.clock(), self.only_meter)
        settler = self.town.settler
        self.pods = NewPods(since_ms, lambda name: settler.cluster.pods.metered.meters(name), most_bytes)
        self.judge = WouldJudge(self.pods, self.town.store, settler, self.town.clock, self.town.clock)

    def restart(self) -> None:
        self.town.start_anew()
        self.start()
        for raw in self.town.objects["pods"].values():
            self.pods.offer(raw)
        self.town.list_all()
        self.town.tick()

    def create(
        self,
        name: str,
        namespace: str = "team-a",
        *,
        created_ms: int = -1,
        labels: Json | None = None,
        **spec: Any,
    ) -> Json:
        """A pod of the default scheduler for a whole card, as the watch first shows it."""
        raw = pod(limits_of("main", nvidia_com__gpu="1"), **spec)
        at_ms = self.town.clock() if created_ms < 0 else created_ms
        named = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": iso(at_ms)}
        raw["metadata"] = named | {"annotations": {}, "labels": labels or {}}
        self.show(raw)
        return raw

    def show(self, raw: Json) -> None:
        self.pods.offer(raw)
        self.town.hear("pods", raw)

    def judged(self) -> None:
        while self.judge.step():
            pass

    def answer(self, query: str = "") -> Json:
        found: Json = self.town.get(f"/v1/would{query}").get_json()
        return found

    def rows(self, query: str = "") -> list[tuple[Any, ...]]:
        """(namespace, verdict, rule, pods, of)"""
        keys = "namespace", "verdict", "rule", "pods", "of"
        return [tuple(each[key] for key in keys) for each in self.answer(query)["rows"]]

    def stored(self) -> list[tuple[Any, ...]]:
        """(uid, verdict), also of namespaces that are enforced now"""
        with self.town.store.reading() as connection:
            found = connection.exec_driver_sql("SELECT uid, verdict FROM would ORDER BY id").all()
        return [tuple(each) for each in found]

    def since_ms(self) -> int:
        """Up to which creation all pods are judged."""
        with self.town.store.reading() as connection:
            return int(connection.exec_driver_sql("SELECT since_ms FROM would_since").scalar_one())


@pytest.fixture
def judged(town: Town) -> Judged:
    """Two hours after pods began to hold a card in each namespace, whose budgets are spent by then."""
    found = Judged(town)
    described = [("nodes", node("n1", 8)), ("configmaps", budgets(**BATCH))]
    holding = [gpu_pod(f"old-{each}", namespace=f"team-{each}", started_ms=T0, card=at)
               for at, each in enumerate("abce")]  # fmt: skip
    for raw in holding:
        raw["metadata"]["annotations"] = {}
        raw["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
        raw["spec"]["containers"][0]["resources"].pop("requests", None)
    town.begin(*described, *(("pods", each) for each in holding))
    for raw in holding:
        found.pods.offer(raw)
    found.start()  # the ledger is older than these pods: they are not judged
    town.advance(2 * HOUR)
    return found


def test_pods_are_judged_by_the_standing_of_their_namespace(judged: Judged) -> None:
    judged.create("held")
    judged.create("demoted", "team-b")
    judged.create("refused", "team-b", nodeName="n1")
    judged.create("fine", "team-d")
    judged.judged()

    assert judged.rows() == [
        ("team-a", "held", "", 1, 1),
        ("team-b", "demoted", "", 1, 2),
        ("team-b", "refused", "node-name", 1, 2),
        ("team-d", "admitted", "", 1, 1),
    ]
    row = judged.answer("?namespace=team-b")["rows"][0]
    assert row == {
        "week": "2026-W47",
        "from": 1_794_787_200_000,
        "namespace": "team-b",
        "verdict": "demoted",
        "rule": "",
        "pods": 1,
        "of": 2,
        "late": 0,
        "pod": "demoted",
        "sentence": "The namespace has used its GPU budget: the pod would get priority class"
        " gpu-lower-priority.",
    }


def test_nobody_is_judged_twice_and_no_pod_of_before(judged: Judged) -> None:
    raw = judged.create("held")
    judged.show(raw | {"status": {"phase": "Pending"}})
    judged.judged()
    judged.restart()
    judged.judged()

    assert judged.rows() == [("team-a", "held", "", 1, 1)]
    assert judged.stored() == [("uid-held", "held")]


def test_a_pod_that_no_process_had_judged_is_judged_after_a_restart(judged: Judged) -> None:
    judged.judged()
    judged.town.advance(MINUTE)
    judged.create("held")
    judged.town.advance(HOUR)
    judged.restart()
    judged.judged()

    (row,) = judged.answer()["rows"]
    assert (row["verdict"], row["pod"], row["late"]) == ("held", "held", 1)
    assert any("late" in each for each in judged.answer()["notes"])


def test_while_the_database_cannot_be_written_pods_wait(judged: Judged) -> None:
    disk = Disk(judged.town)
    judged.create("held")
    disk.torn = True
    for _ in range(2):
        with pytest.raises((UnavailableError, ConflictError)):
            judged.judge.step()
    disk.torn = False
    judged.judged()

    assert judged.rows() == [("team-a", "held", "", 1, 1)]


def test_a_judge_whose_epoch_is_over_writes_nothing(judged: Judged) -> None:
    judged.create("held")
    judged.town.start_anew()

    with pytest.raises(EpochOverError):
        judged.judge.step()
    assert judged.rows() == []


def test_pods_of_enforced_namespaces_are_not_judged_and_the_answer_says_so(judged: Judged) -> None:
    judged.create("enforced", "team-e")
    judged.judged()

    assert judged.answer("?namespace=team-e")["enforced"] == ["team-e"]
    assert judged.rows("?namespace=team-e") == []
    assert judged.rows() == []


def test_a_pod_created_under_enforcement_is_never_judged_later(judged: Judged) -> None:
    raw = judged.create("enforced", "team-e")
    judged.town.change("configmaps", budgets(**BATCH | {"team-e": "gpuHours: 1"}))
    judged.show(raw)
    judged.judged()

    assert judged.rows() == []


def test_a_ledger_alone_judges_whatever_entries_say(town: Town) -> None:
    town.only_meter = True
    town.start_anew()
    town.serve()
    judged = Judged(town, only_meter=True)
    town.begin(("nodes", node()), ("configmaps", budgets(_settings="mode: enforce", team_a="gpuHours: 1")))
    judged.create("refused", nodeName="n1")
    judged.judged()

    assert judged.rows() == [("team-a", "refused", "node-name", 1, 1)]
    assert judged.answer()["enforced"] == []


def test_running_pods_of_a_spent_budget_would_have_been_evicted_once(judged: Judged) -> None:
    for _ in range(20):
        judged.judged()
        judged.town.advance(10 * SECOND)
    judged.restart()
    for _ in range(20):
        judged.judged()
        judged.town.advance(10 * SECOND)

    assert judged.rows() == [("team-c", "evicted", "", 1, 0)]


def test_a_pod_that_would_have_been_refused_is_not_evicted(judged: Judged) -> None:
    refused = gpu_pod("refused", namespace="team-c", started_ms=judged.town.clock(), card=6)
    refused["metadata"]["creationTimestamp"] = iso(judged.town.clock())
    refused["spec"]["hostPID"] = True
    judged.show(refused)
    for _ in range(20):
        judged.judged()
        judged.town.advance(10 * SECOND)

    rows = judged.answer("?namespace=team-c")["rows"]
    assert [(each["verdict"], each["pod"], each["pods"]) for each in rows] == [
        ("evicted", "old-c", 1),
        ("refused", "refused", 1),
    ]


@ON_SQLITE
def test_a_pending_pod_of_a_metered_namespace_is_explained_by_its_creation_and_its_mode(
    judged: Judged,
) -> None:
    judged.create("held")
    judged.judged()
    known, unknown = (judged.town.get(f"/v1/explain/team-a/{name}").get_json() for name in ("held", "x"))

    created, unbound = known["waitsFor"]
    assert created == f"created at {iso(judged.town.clock())}; enforcement would have held it"
    assert unbound.startswith(
        "in mode meter a pod is known from its Binding on, and why it waits is not: kubectl"
    )
    assert unknown["waitsFor"] == [unbound]
    assert judged.town.get("/v1/explain/team-e/x").get_json()["waitsFor"] == []  # it is enforced
    assert judged.town.get("/v1/explain/team-a/old-a").get_json()["waitsFor"] == []  # it is charged


CAPPED = {
    "team-d": "gpuHours: unlimited\nmaxGPUs: 2\ngroup: g",
    "team-f": "gpuHours: unlimited\ngroup: g",
    "_group.g": "gpuHours: unlimited\nmaxGPUs: 3",
}


def words(judged: Judged, *namespaces: str) -> list[str]:
    """The verdicts of these namespaces, each with its number of pods."""
    return [
        f"{pods} {verdict}"
        for namespace in namespaces
        for _, verdict, _, pods, _ in judged.rows(f"?namespace={namespace}")
    ]


def test_pods_above_a_cap_with_earlier_ones_would_wait_until_those_have_ended(judged: Judged) -> None:
    judged.town.change("configmaps", budgets(**BATCH | CAPPED))
    raw = [judged.create(f"p{number}", "team-d") for number in range(4)]
    judged.judged()
    assert words(judged, "team-d") == ["2 admitted", "2 held"]

    judged.create("other", "team-f")
    judged.create("beyond", "team-f")
    judged.judged()
    assert words(judged, "team-f") == ["1 admitted", "1 held"]

    judged.town.advance(MINUTE)
    for each in raw[:2]:
        judged.town.hear("pods", each, deleted=True)
    judged.town.advance(SECOND)
    judged.create("later", "team-d")  # those that waited would run now
    judged.judged()
    assert words(judged, "team-d") == ["2 admitted", "3 held"]

    judged.town.hear("pods", raw[2], deleted=True)
    judged.town.advance(MINUTE)
    judged.create("last", "team-d")
    judged.judged()
    assert words(judged, "team-d") == ["2 admitted", "4 held"]


def test_a_pod_that_would_have_been_refused_takes_nothing_of_a_cap(judged: Judged) -> None:
    judged.town.change("configmaps", budgets(**BATCH | CAPPED))
    for number in range(2):
        judged.create(f"refused-{number}", "team-d", nodeName="n1")
        judged.create(f"first-{number}", "team-d")
        judged.judged()
        judged.town.advance(MINUTE)
    judged.create("third", "team-d")
    judged.judged()

    assert words(judged, "team-d") == ["2 admitted", "1 held", "2 refused"]


SERVING = {"tier": "serving"}
PROTECT = "\nprotect: {labels: {tier: serving}, cards: 1}"


def protect(judged: Judged) -> None:
    """team-a and team-c protect a card's worth of pods from now on."""
    entries = {name: BATCH[name] + PROTECT for name in ("team-a", "team-c")}
    judged.town.change("configmaps", budgets(**BATCH | entries))


def verdicts(judged: Judged) -> Json:
    """Of the pods of team-a, by the number of them."""
    rows = judged.answer("?namespace=team-a")["rows"]
    return {each["verdict"]: each["pods"] for each in rows}


def test_a_pod_that_the_budget_protects_would_be_admitted_while_the_floor_has_room(judged: Judged) -> None:
    protect(judged)
    judged.create("batch")
    judged.create("serving", labels=SERVING)
    judged.judged()
    assert verdicts(judged) == {"held": 1, "admitted": 1}

    judged.town.advance()  # the table takes no more
    judged.create("beyond", labels=SERVING)
    judged.judged()
    assert verdicts(judged) == {"held": 2, "admitted": 1}


def test_a_pod_that_is_protected_already_when_it_is_judged_finds_its_own_room(judged: Judged) -> None:
    protect(judged)
    judged.create("serving", labels=SERVING)
    judged.town.advance(SECOND)
    judged.create("younger", labels=SERVING)
    judged.town.advance(SECOND)
    judged.judged()

    assert verdicts(judged) == {"held": 1, "admitted": 1}


def test_running_pods_that_the_budget_protects_would_not_have_been_evicted(judged: Judged) -> None:
    """The floor does not reach the younger one."""
    protect(judged)
    for name, card in (("serving", 5), ("younger", 6)):
        raw = gpu_pod(name, namespace="team-c", started_ms=judged.town.clock(), card=card, labels=SERVING)
        judged.town.hear("pods", raw)
        judged.town.advance(SECOND)
    for _ in range(40):
        judged.judged()
        judged.town.advance(10 * SECOND)

    with judged.town.store.reading() as connection:
        there = would.not_there(connection, {"uid-serving", "uid-younger", "uid-old-c"})
    assert there == {"uid-younger", "uid-old-c"}


def test_weeks_begin_on_monday_in_utc_and_the_newest_comes_first(judged: Judged) -> None:
    monday_ms = 1_795_392_000_000  # 2026-11-23
    judged.town.clock.turn(monday_ms + DAY - judged.town.clock())
    judged.create("sunday", "team-d", created_ms=monday_ms - SECOND)
    judged.create("monday", "team-d", created_ms=monday_ms)
    judged.judged()

    assert [(each["week"], each["pod"]) for each in judged.answer()["rows"]] == [
        ("2026-W48", "monday"),
        ("2026-W47", "sunday"),
    ]
    assert [each["pod"] for each in judged.answer("?from=2026-11-23")["rows"]] == ["monday"]
    assert [each["pod"] for each in judged.answer("?to=2026-11-23")["rows"]] == ["sunday"]


def test_pages_have_every_row_once_and_csv_has_the_same(judged: Judged) -> None:
    for namespace in ("team-b", "team-d", "team-f"):
        judged.create(f"p-{namespace}", namespace)
        judged.create(f"q-{namespace}", namespace, nodeName="n1")
    judged.judged()
    whole = judged.answer()["rows"]

    found, query = [], "?limit=2"
    while query:
        answer = judged.answer(query)
        found += answer["rows"]
        query = f"?limit=2&after={answer['next']}" if answer["next"] else ""

    assert found == whole
    assert len(whole) == 6
    lines = judged.town.get("/v1/would?format=csv").get_data(as_text=True).splitlines()
    assert lines[0] == "week,from,namespace,verdict,rule,pods,of,late,pod,sentence"
    assert lines[1].startswith("2026-W47,2026-11-16T00:00:00Z,team-b,demoted,,1,2,0,p-team-b,The namespace")
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("query", "field"),
    [("?from=2026-12-01&to=2026-11-01", "to"), ("?namespace=-", "namespace"), ("?format=xml", "format"),
     ("?after=x", "after"), ("?from=2027-01-01", "from"), ("?limit=0", "limit")],
)  # fmt: skip
def test_a_bad_parameter_is_named(judged: Judged, query: str, field: str) -> None:
    answer = judged.town.get(f"/v1/would{query}")

    assert (answer.status_code, answer.get_json()["field"]) == (400, field)


def test_a_reader_of_one_namespace_sees_its_own_alone(judged: Judged) -> None:
    judged.create("held")
    judged.judged()
    judged.town.reviews.tokens[token("lead")] = user_status("lead")
    judged.town.reviews.denied |= {("lead", "get", "usage", ""), ("lead", "get", "usage", "team-b")}

    codes = [judged.town.get(f"/v1/would{each}", token("lead")).status_code
             for each in ("", "?namespace=team-b", "?namespace=team-a")]  # fmt: skip
    assert codes == [403, 403, 200]


def test_too_many_at_once_are_counted_as_not_judged(judged: Judged) -> None:
    judged.start(most_bytes=700)
    for number in range(5):
        judged.create(f"p{number}", "team-d")
    judged.judged()
    judged.create("later", "team-d")
    judged.judged()

    found = {verdict: pods for _, verdict, _, pods, _ in judged.rows("?namespace=team-d")}
    assert found.keys() == {"admitted", "unjudged"}
    assert sum(found.values()) == 6


@ON_BOTH
def test_rows_are_forgotten_by_their_age(judged: Judged) -> None:
    judged.create("held")
    judged.judged()
    with judged.town.store.writing() as connection:
        assert forget(connection, WOULD.c.at_ms, judged.town.clock() - SECOND, 10) == 0
        assert forget(connection, WOULD.c.at_ms, judged.town.clock() + SECOND, 10) == 1

    assert judged.rows() == []


def test_pods_of_the_systems_namespaces_and_static_pods_are_left_out(judged: Judged) -> None:
    judged.create("dcgm", "gpu-operator", hostPID=True)
    static = judged.create("static", "team-d", nodeName="n1")
    static["metadata"] |= {"uid": "uid-mirror", "annotations": {"kubernetes.io/config.mirror": "x"}}
    judged.show(static)
    judged.judged()

    assert [each["pod"] for each in judged.answer()["rows"]] == ["static"]
    assert judged.rows() == [("team-d", "refused", "node-name", 1, 1)]


@ON_SQLITE
def test_a_pod_whose_namespace_is_enforced_before_it_is_judged_has_no_verdict(judged: Judged) -> None:
    judged.create("early", "team-b")
    judged.town.change("configmaps", budgets(**BATCH | {"team-b": "gpuHours: 1\nmode: enforce"}))
    judged.judged()

    assert judged.stored() == []


@ON_SQLITE
def test_nobody_of_an_enforced_namespace_would_have_been_evicted(judged: Judged) -> None:
    judged.town.change("configmaps", budgets(**BATCH | {"team-c": BATCH["team-c"] + "\nmode: enforce"}))
    for _ in range(20):
        judged.judged()
        judged.town.advance(10 * SECOND)

    assert judged.stored() == []


@ON_SQLITE
def test_up_to_when_all_is_judged_is_written_once_a_minute_while_nothing_is_new(judged: Judged) -> None:
    times = []
    for seconds in (0, 10, 60):
        judged.town.advance(seconds * SECOND)
        judged.judged()
        times.append(judged.since_ms())

    assert times[0] == times[1] < times[2]


@ON_SQLITE
def test_up_to_when_all_is_judged_is_not_written_while_pods_wait(judged: Judged) -> None:
    judged.judged()
    judged.town.advance(MINUTE)
    for number in range(TOGETHER + 1):
        judged.create(f"p{number}")

    times = [judged.since_ms()]
    for _ in range(2):
        judged.judge.step()
        times.append(judged.since_ms())

    assert times[0] == times[1] < times[2]


@ON_SQLITE
def test_without_a_time_range_there_are_four_weeks_with_this_one(judged: Judged) -> None:
    assert would.week_of(judged.town.clock()) - would.week_of(judged.answer()["from"]) == 3


@ON_SQLITE
def test_the_beginning_of_the_ledger_is_not_looked_for_at_each_request(judged: Judged) -> None:
    """It takes all sessions to find it."""
    looked: list[str] = []

    def see(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        looked.extend([statement] if "min(sessions.opened_ms)" in statement else ())

    event.listen(judged.town.store.engine, "before_cursor_execute", see)
    try:
        assert [judged.answer()["began"] for _ in range(3)] == [T0] * 3
    finally:
        event.remove(judged.town.store.engine, "before_cursor_execute", see)
    assert len(looked) == 1


@ON_SQLITE
def test_where_all_pods_would_be_admitted_nothing_is_said_of_who_is_spared(judged: Judged) -> None:
    judged.create("fine", "team-d")
    judged.judged()
    before = judged.answer()["notes"]
    judged.create("held")
    judged.judged()

    assert (before, len(judged.answer()["notes"])) == ([], 1)


def row(uid: str, verdict: VerdictWord, at_ms: int = T0, judged_ms: int = T0) -> WouldRow:
    return WouldRow(uid, verdict, "team-a", uid, "", "", at_ms, judged_ms)


def test_up_to_when_all_is_judged_never_goes_back(store: Store) -> None:
    with store.writing() as connection:
        would.begin(connection, T0, False)
        would.note(connection, T0 + SECOND)
        would.note(connection, T0)
        assert would.begin(connection, T0 + MINUTE, False) == T0 + SECOND


def test_a_pod_has_one_row_of_its_creation_and_one_of_its_eviction(store: Store) -> None:
    rows = [row("a", "demoted"), row("a", "evicted"), row("a", "admitted"), row("a", "evicted", T0 + 1)]
    with store.writing() as connection:
        for some in (rows, rows, [row("b", "evicted")], [row("b", "held")]):
            would.record(connection, some)
        found = connection.exec_driver_sql("SELECT uid, verdict, at_ms FROM would ORDER BY id").all()

    assert [tuple(each) for each in found] == [
        ("a", "demoted", T0),
        ("a", "evicted", T0),
        ("b", "evicted", T0),
        ("b", "held", T0),
    ]


def test_who_was_refused_held_or_evicted_would_not_be_there(store: Store) -> None:
    with store.writing() as connection:
        would.record(connection, [row(each, each) for each in VERDICTS])
        away = would.not_there(connection, {*VERDICTS, "unknown"})

    assert away == {"refused", "held", "evicted"}


def test_a_pod_is_late_that_was_judged_more_than_ten_minutes_after_its_creation(store: Store) -> None:
    rows = [row("a", "admitted", T0, T0 + 10 * MINUTE), row("b", "held", T0, T0 + 10 * MINUTE + 1)]
    with store.writing() as connection:
        would.record(connection, rows)
        asked = would.WouldQuery(T0, T0 + 1, ("team-a",))
        late = {each.verdict: each.late for each in would.groups(connection, asked, 10)}

    assert late == {"admitted": 0, "held": 1}
