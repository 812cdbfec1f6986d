"""Evictions of exhausted accounts: budgets, pods and their charges in a real database and settler, an API
server whose answers are told, and a clock turned by hand."""

from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.leaving import PDB_429, Leaving
from tests.timekeeper.worlds import (
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    node,
)
from timekeeper.accounts.pods import LedgerPod
from timekeeper.settler import vetoes
from timekeeper.settler.evictions import reasons
from timekeeper.settler.evictions.budget_round import BudgetRound
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import fencing

ONE_DATABASE = "decisions and calls of the API server; the reads that they need run on both in other modules"

EVICT_AFTER, DELETE_AFTER = "bursar.dev/evict-after", "bursar.dev/delete-after"
SETTINGS = "lookahead: 0s\nevictGrace: 5m\nevictRate: 6\npdbGrace: 10m"
ONE_HOUR = "gpuHours: 1\nonExhausted: evict"


class Spending(Leaving):
    """Pods of whole cards that spend budgets, and who evicts. Patches and evictions that the API server
    accepts change the pods, and the settler hears of it."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path) -> None:
        super().__init__(town, api, url, folder)
        self.seconds = 0.0  # looking takes no time
        self.evictor = self.new_evictor()

    def new_evictor(self) -> BudgetRound:
        """Of a process that has just begun to settle."""
        return BudgetRound(self.context(), seconds=lambda: self.seconds)

    def begin(self, *pods: Json, **entries: str) -> None:
        entries = {"_settings": SETTINGS} | entries
        on = [("nodes", node(cards=8)), ("configmaps", budgets(**entries))]
        self.town.begin(*on, *(("pods", each) for each in pods))
        self.evictor = self.new_evictor()

    def turn(self, ms: int) -> list[str]:
        """Time passes, and the evictor looks each minute, or each ten seconds of the last minute; the pods
        that were asked to leave meanwhile."""
        gone: list[str] = []
        whole, rest = divmod(ms, MINUTE)
        for step_ms in [MINUTE] * whole + [10 * SECOND] * (rest // (10 * SECOND)):
            self.town.advance(step_ms)
            gone += self.look()
        return gone

    def later(self, *spans_ms: int) -> list[str]:
        """As `turn`, but the evictor looks once after each span, however long."""
        gone: list[str] = []
        for span_ms in spans_ms:
            self.town.advance(span_ms)
            gone += self.look()
        return gone

    def look(self) -> list[str]:
        """One step of the evictor, and what follows from it; the pods that it asked to leave."""
        patched, evicted, deleted = (len(each) for each in self._calls())
        self.evictor.step()
        self.apply(self.api.patches[patched:] if self.api.patch_answer == 200 else ())
        asked = [each["metadata"]["name"] for each in self.api.evictions[evicted:]]
        gone = [name for name in asked if name not in self.api.refusals]
        gone += [each["path"].split("/")[-1] for each in self.api.deletions[deleted:]]
        for name in gone:
            self.town.hear("pods", self.pod(name), deleted=True)
        self.town.tick()
        return gone

    def notice(self, name: str, annotation: str = EVICT_AFTER) -> int | None:
        """The time in the pod's annotation; None without it."""
        text = self.pod(name)["metadata"]["annotations"].get(annotation)
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)

    def restart(self) -> None:
        """The settler is killed, and another one takes over."""
        self.town.restart()
        self.town.tick()
        self.evictor = self.new_evictor()

    def _calls(self) -> tuple[list[tuple[str, Json]], list[Json], list[Json]]:
        return self.api.patches, self.api.evictions, self.api.deletions


def pod(name: str, card: int = 0, *, priority: int = 0, age_ms: int = 0, **fields: Json | str | int) -> Json:
    made: Json = gpu_pod(name, card=card, started_ms=T0 - age_ms, created_ms=T0 - age_ms, **fields)  # type: ignore[arg-type]
    made["spec"]["priority"] = priority
    return made


@pytest.fixture
def spending(town: Town, tmp_path: Path) -> Iterator[Spending]:
    api = FakeApiServer()
    with serving(api) as url:
        yield Spending(town, api, url, tmp_path)


def test_a_static_pod_of_an_exhausted_namespace_stays_for_its_kubelet_runs_it_again(
    spending: Spending,
) -> None:
    static = pod("static-n1", 1)
    static["metadata"]["annotations"] |= {"kubernetes.io/config.mirror": "4f3e"}
    spending.begin(pod("job"), static, team_a=ONE_HOUR)

    assert spending.turn(3 * HOUR) == ["job"]
    assert spending.notice("static-n1") is None


def test_pods_of_an_exhausted_namespace_get_a_notice_and_leave_in_order_after_their_grace(
    spending: Spending,
) -> None:
    """Lowest priority first, of equals the youngest, one in each ten seconds; a namespace in budget loses
    none."""
    spending.begin(
        pod("old", 0, age_ms=MINUTE),
        pod("young", 1),
        pod("low", 2, priority=-5, age_ms=2 * MINUTE),
        pod("rich", 3, namespace="team-b"),
        team_a=ONE_HOUR,
        team_b="gpuHours: 100\nonExhausted: evict",
    )
    assert spending.later(18 * MINUTE) == []
    assert spending.notice("old") is None
    spent_ms = (
        T0 + 19 * MINUTE
    )  # three cards for 19 minutes, and one for two and one for one more: a GPU-hour

    assert spending.later(MINUTE, 4 * MINUTE + 50 * SECOND) == []
    assert {spending.notice(name) for name in ("old", "young", "low")} == {spent_ms + 5 * MINUTE}
    notices = [each for each in spending.api.events if each["reason"] == reasons.NOTICE]
    assert {each["regarding"]["name"] for each in notices} == {"old", "young", "low"}
    assert "not before 2026-11-20T10:24:00Z" in notices[0]["note"]
    assert [spending.turn(10 * SECOND) for _ in range(5)] == [["low"], ["young"], ["old"], [], []]

    assert spending.notice("rich") is None
    conditions = [body["status"]["conditions"][0] for _, body in spending.api.patches if "status" in body]
    assert [(each["type"], each["status"], each["reason"]) for each in conditions] == [
        ("DisruptionTarget", "True", "BursarBudgetExhausted")
    ] * 3


def test_a_reservation_alone_evicts_no_pod(spending: Spending) -> None:
    """With a lookahead the namespace is over budget before it has spent: its pods get their notice then, and
    leave once the charges reach the grant. An eviction before would bring back what the pod had reserved, its
    replacement would be admitted, and be evicted in its turn."""
    settings = "lookahead: 30m\nevictGrace: 1m\nevictRate: 6"
    spending.begin(pod("p"), _settings=settings, team_a=ONE_HOUR)
    assert spending.later(30 * MINUTE - 10 * SECOND) == []
    assert spending.town.standing() == "IN_BUDGET"

    assert spending.turn(20 * SECOND) == []
    assert spending.town.standing() == "OVER_BUDGET"
    assert spending.notice("p") == T0 + 31 * MINUTE
    assert spending.later(10 * MINUTE, 19 * MINUTE + 40 * SECOND) == []
    assert spending.turn(20 * SECOND) == ["p"]


@pytest.mark.parametrize("remedy", ["grant", "raised", "period", "observe", "deprioritize"])
def test_a_budget_again_ends_it_at_once_and_a_later_exhaustion_gives_a_new_grace(
    spending: Spending, remedy: str
) -> None:
    hours = ONE_HOUR + "\nperiod: hour" if remedy == "period" else ONE_HOUR
    pods = [pod("p", 0, bound_ms=T0, age_ms=0), pod("q", 1)]
    spending.begin(*pods, team_a=hours, _settings=SETTINGS.replace("10m", "1h"))
    spending.later(30 * MINUTE, 5 * MINUTE - 10 * SECOND)
    assert spending.notice("p") == T0 + 35 * MINUTE
    if remedy == "period":
        spending.api.refusals |= {"p": (429, PDB_429), "q": (429, PDB_429)}
        assert spending.later(10 * SECOND, 10 * MINUTE, 15 * MINUTE) == []
        return _check_the_new_period(spending)
    if remedy == "grant":
        body = {"subject": "team-a", "gpuHours": "1", "reason": "more"}
        answer = spending.town.post("/v1/grants", body, **{"Idempotency-Key": "one"})
        assert answer.status_code == 200, answer.get_json()
    else:
        text = {
            "raised": "gpuHours: 2\nonExhausted: evict",
            "observe": ONE_HOUR + "\nmode: observe",
            "deprioritize": "gpuHours: 1",
        }[remedy]
        spending.town.hear("configmaps", budgets(_settings=SETTINGS, team_a=text))
    spending.town.tick()

    assert spending.later(10 * SECOND, 10 * MINUTE - 10 * SECOND) == []
    assert spending.notice("p") is None
    if remedy in ("grant", "raised"):
        assert spending.later(15 * MINUTE + 10 * SECOND) == []
        assert (
            spending.notice("p") == T0 + 65 * MINUTE
        )  # the second GPU-hour is spent an hour after the first pod began
        assert len(spending.turn(6 * MINUTE)) == 2


def _check_the_new_period(spending: Spending) -> None:
    before = len(spending.api.evictions)
    spending.turn(MINUTE)
    assert len(spending.api.evictions) == before
    assert spending.notice("p") is None
    assert spending.town.standing() == "IN_BUDGET"


def test_a_settler_that_takes_over_neither_skips_nor_repeats_the_grace(spending: Spending) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.later(HOUR, 4 * MINUTE)
    after_ms = spending.notice("p")
    patches = len(spending.api.patches)

    spending.restart()
    assert spending.turn(40 * SECOND) == []
    assert (spending.notice("p"), len(spending.api.patches)) == (after_ms, patches)
    assert spending.turn(30 * SECOND) == ["p"]


def test_a_disruption_budget_is_respected_for_its_grace_and_then_the_pod_is_deleted(
    spending: Spending,
) -> None:
    """Also if the settler restarts meanwhile: the pod says until when it is protected."""
    spending.begin(pod("p"), pod("q", 1, age_ms=SECOND), team_a=ONE_HOUR)
    spending.api.refusals["p"] = (429, PDB_429)
    spending.later(30 * MINUTE, 4 * MINUTE + 50 * SECOND)

    assert spending.turn(20 * SECOND) == ["q"]  # a protected pod takes nobody's turn
    ends_ms = spending.notice("p", DELETE_AFTER)
    assert ends_ms is not None
    assert ends_ms >= T0 + 45 * MINUTE
    assert [each["reason"] for each in spending.api.events][-2:] == [
        reasons.SPENT_PROTECTED,
        reasons.SPENT,
    ]
    spending.later(5 * MINUTE)
    spending.restart()
    gone_ms = _until_gone(spending, "p")
    assert ends_ms <= gone_ms <= ends_ms + 30 * SECOND
    (deletion,) = spending.api.deletions
    assert deletion["preconditions"] == {"uid": "uid-p"}
    path, patch = spending.api.patches[-1]
    target = patch["status"]["conditions"][0]
    assert path.endswith("/pods/p/status")
    assert (target["type"], target["reason"]) == ("DisruptionTarget", "BursarBudgetExhausted")


WEBHOOK = (
    'admission webhook "evictions.example.com" denied the request: the virtual machine is evacuated first'
)
VETO_429, VETO_403 = ({"message": WEBHOOK, "code": code} for code in (429, 403))


def test_a_webhook_that_refuses_for_now_is_respected_as_a_disruption_budget_is(spending: Spending) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.api.refusals["p"] = (429, VETO_429)
    spending.later(HOUR, 6 * MINUTE)
    ends_ms = spending.notice("p", DELETE_AFTER)
    assert ends_ms is not None

    gone_ms = _until_gone(spending, "p")

    assert ends_ms <= gone_ms <= ends_ms + 30 * SECOND
    notes = {event["reason"]: event["note"] for event in spending.api.events}
    assert WEBHOOK in notes[reasons.VETOED]
    assert notes[reasons.SPENT_PROTECTED].startswith("A webhook prevents the eviction")


def test_what_refuses_for_good_stands_costs_hours_that_are_named_and_is_tried_ever_more_rarely(
    spending: Spending,
) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.api.refusals["p"] = (403, VETO_403)
    spending.later(HOUR, 6 * MINUTE)
    tries = []
    for _ in range(6):  # of ten minutes
        before = len(spending.api.evictions)
        for _ in range(60):
            spending.turn(10 * SECOND)
        tries.append(len(spending.api.evictions) - before)

    assert tries[0] > 3 * tries[-1]
    assert tries[-1] >= 1
    assert spending.notice("p", DELETE_AFTER) is None
    assert not spending.api.deletions
    assert WEBHOOK in next(
        event["note"] for event in spending.api.events if event["reason"] == reasons.VETOED
    )
    settler = spending.town.settler
    (found,) = vetoes.findings(settler.vetoes, settler.view.charged, spending.town.clock())
    assert found.code == "vetoed-evictions"
    assert (found.figures["number"], found.figures["where"]) == (1, "team-a/p")
    assert 0.9 < float(found.figures["hours"]) < 1.2  # of one card, for about an hour


def test_a_protected_pod_whose_condition_is_refused_for_good_is_deleted_all_the_same(
    spending: Spending, capfd: pytest.CaptureFixture[str]
) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.api.refusals["p"] = (429, PDB_429)
    spending.later(HOUR, 6 * MINUTE)
    ends_ms = spending.notice("p", DELETE_AFTER)
    assert ends_ms is not None
    spending.api.patch_answer = 403

    gone_ms = _until_gone(spending, "p")

    assert ends_ms <= gone_ms <= ends_ms + 30 * SECOND
    assert "event=condition-refused" in capfd.readouterr().err


def test_a_protected_pod_whose_condition_cannot_be_written_for_now_gets_it_before_it_is_deleted(
    spending: Spending, capfd: pytest.CaptureFixture[str]
) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.api.refusals["p"] = (429, PDB_429)
    spending.later(HOUR, 6 * MINUTE)
    spending.api.patch_answer = 500

    spending.later(10 * MINUTE, 5 * MINUTE, 20 * SECOND)  # after a refusal there is a pause of 30 s
    assert spending.api.deletions == []
    results = [line.partition("result=")[2].split()[0] for line in _lines(capfd)]
    assert results == ["protected", "refused", "refused"]
    spending.api.patch_answer = 200
    _until_gone(spending, "p")

    target = spending.api.patches[-1][1]["status"]["conditions"][0]
    assert target["type"] == "DisruptionTarget"


def _lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if "event=budget-eviction" in line]


def _until_gone(spending: Spending, name: str) -> int:
    ends_ms = spending.notice(name, DELETE_AFTER) or 0
    assert spending.later(max(ends_ms - 10 * SECOND - spending.town.clock(), 0)) == []
    for _ in range(6):
        if name in spending.turn(10 * SECOND):
            return spending.town.clock()
    raise AssertionError(f"{name} is still there")


def test_a_pod_that_is_spared_after_a_refused_eviction_is_no_disruption_target(spending: Spending) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.api.refusals["p"] = (429, PDB_429)
    spending.later(HOUR, 6 * MINUTE)
    assert spending.notice("p", DELETE_AFTER) is not None

    spending.town.change("configmaps", budgets(_settings=SETTINGS, team_a="gpuHours: 9\nonExhausted: evict"))
    spending.turn(20 * SECOND)

    assert (spending.notice("p"), spending.notice("p", DELETE_AFTER)) == (None, None)
    condition = spending.api.patches[-1][1]["status"]["conditions"][0]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "False")


def test_an_exhausted_group_evicts_over_all_its_namespaces_in_one_order(spending: Spending) -> None:
    member = "gpuHours: unlimited\ngroup: lab"
    spending.begin(
        pod("a", 0, priority=1),
        pod("b", 1, namespace="team-b"),
        pod("c", 2, namespace="team-c", priority=-1),
        team_a=member,
        team_b=member,
        team_c=member + "\nmode: observe",
        _group__lab=ONE_HOUR + "\nevictGrace: 1m\nevictRate: 2",
        **{"_group.lab": ONE_HOUR + "\nevictGrace: 1m\nevictRate: 2"},
    )
    assert spending.later(20 * MINUTE) == []
    left = [(spending.town.clock(), name) for _ in range(12) for name in spending.turn(10 * SECOND)]
    assert spending.later(10 * MINUTE, 20 * MINUTE) == []

    assert [name for _, name in left] == ["b", "a"]  # team-c is only observed
    assert left[1][0] - left[0][0] == 30 * SECOND
    assert left[0][0] == T0 + 21 * MINUTE
    assert spending.notice("c") is None


def test_a_notice_that_was_given_while_the_account_was_in_another_period_does_not_count(
    spending: Spending,
) -> None:
    """Nor one that lies further ahead than a new one would: nobody but the timekeeper may write it, and the
    policy may be missing."""
    forged = pod("p", annotations={EVICT_AFTER: "2099-01-01T00:00:00Z"})
    stale = pod("q", 1, annotations={EVICT_AFTER: "2026-10-20T10:00:00Z"})
    spending.begin(forged, stale, team_a="gpuHours: 0\nonExhausted: evict")
    spending.look()

    assert spending.notice("p") == spending.notice("q") == T0 + 5 * MINUTE


def test_only_the_newest_settler_evicts(spending: Spending) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.later(HOUR, 4 * MINUTE)
    elder = spending.evictor
    spending.town.restart()
    spending.town.advance(2 * MINUTE)
    view_is_old = spending.town.clock() - 2 * MINUTE

    assert view_is_old
    assert elder._context.view().statements is not None  # the elder still sees its own last decision
    with pytest.raises(fencing.EpochOverError):
        _step_as_if_fresh(elder, spending)
    assert spending.api.evictions == []


def _step_as_if_fresh(elder: BudgetRound, spending: Spending) -> None:
    fresh = replace(elder._context.view(), decided_ms=spending.town.clock())
    object.__setattr__(elder._context, "view", lambda: fresh)
    elder.step()


def test_stale_accounts_evict_no_pod(spending: Spending) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.later(HOUR, 4 * MINUTE)
    spending.town.clock.turn(2 * MINUTE)  # without a tick: the database cannot be written

    spending.evictor.step()

    assert spending.api.evictions == []


def test_a_namespace_that_is_observed_is_only_reported(
    spending: Spending, capfd: pytest.CaptureFixture[str]
) -> None:
    spending.begin(pod("p"), pod("q", 1), team_a=ONE_HOUR + "\nmode: observe")

    assert spending.later(30 * MINUTE, 10 * MINUTE) == []
    assert spending.api.patches == []
    assert "event=would-evict namespace=team-a pods=2" in capfd.readouterr().err


def test_a_pod_that_was_created_without_enforcement_stays_and_a_newer_one_leaves(
    spending: Spending,
) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR + "\nmode: meter")
    assert spending.later(30 * MINUTE) == []
    spending.town.change("configmaps", budgets(_settings=SETTINGS, team_a=ONE_HOUR))
    assert spending.later(5 * MINUTE) == []
    spending.town.hear("pods", pod("q", 1, age_ms=-35 * MINUTE))

    assert spending.later(20 * MINUTE, 10 * MINUTE, 10 * MINUTE) == ["q"]
    assert spending.notice("p") is None


def test_an_ended_period_evicts_no_pod_before_the_settler_has_decided_again(
    spending: Spending,
) -> None:
    spending.begin(pod("p"), team_a="gpuHours: 0.9\nonExhausted: evict\nperiod: hour\nevictGrace: 5m55s")
    assert spending.later(54 * MINUTE, 5 * MINUTE + 50 * SECOND) == []
    assert spending.notice("p") == T0 + HOUR - 5 * SECOND
    spending.town.advance(9 * SECOND)
    assert spending.town.standing() == "OVER_BUDGET"
    spending.town.clock.turn(2 * SECOND)  # without a tick

    spending.evictor.step()

    assert spending.api.evictions == []


def test_a_notice_that_could_not_be_withdrawn_does_not_count_in_the_next_exhaustion(
    spending: Spending,
) -> None:
    spending.begin(pod("p"), team_a=ONE_HOUR)
    spending.later(HOUR)
    assert spending.notice("p") == T0 + HOUR + 5 * MINUTE
    spending.api.patch_answer = 500
    spending.town.change("configmaps", budgets(_settings=SETTINGS, team_a="gpuHours: 9\nonExhausted: evict"))
    spending.look()
    assert spending.notice("p") is not None
    spending.api.patch_answer = 200
    spending.town.change("configmaps", budgets(_settings=SETTINGS, team_a=ONE_HOUR))

    assert spending.turn(3 * MINUTE) == []
    assert spending.notice("p") == T0 + HOUR + 6 * MINUTE
    assert spending.turn(2 * MINUTE) == []
    assert spending.turn(2 * MINUTE) == ["p"]


def test_where_looking_takes_long_only_namespaces_whose_standing_changed_are_looked_at_meanwhile(
    spending: Spending,
) -> None:
    spending.begin(pod("a"), pod("b", 1, namespace="team-b"), team_a=ONE_HOUR, team_b="gpuHours: 9")
    spending.later(HOUR)
    last = spending.evictor._context.view

    class Slow(TickView):
        def pods(self) -> tuple[LedgerPod, ...]:
            spending.seconds += 1
            return super().pods()

    def slow() -> TickView:
        view = last()
        return Slow(**{each.name: getattr(view, each.name) for each in fields(view)})

    object.__setattr__(spending.evictor._context, "view", slow)
    assert spending.turn(4 * MINUTE) == []  # a look of a second, and then none for nine seconds
    entry = "gpuHours: 0\nonExhausted: evict"
    spending.town.change("configmaps", budgets(_settings=SETTINGS, team_a=ONE_HOUR, team_b=entry))
    spending.look()
    assert spending.notice("b") == T0 + HOUR + 9 * MINUTE

    assert spending.turn(2 * MINUTE) == []
    spending.seconds += 10
    assert spending.look() == ["a"]
