"""The time before the ledger, estimated from what Prometheus has of kube-state-metrics, in a real database
and through the REST API: hours, costs and budgets, and nothing of it in any account."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import event

from tests.support.routed import client_of
from tests.timekeeper.ledger.test_doubts import whole
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, T0, Json, Town, budgets, node
from timekeeper.api.create_app import app_of
from timekeeper.api.http.services import Services
from timekeeper.core.findings import estimate_sentences

ONE_DATABASE = "what Prometheus has; of the database it reads one moment, and the budgets"

STEP = 30 * MINUTE
MODEL = "label_nvidia_com_gpu_product"
A100, T4 = "NVIDIA-A100-SXM4-40GB", "Tesla-T4"
ENTRIES = {
    "_settings": 'mode: meter\nweights: {A100: "2"}\nprice: 1.5\ncurrency: EUR',
    "team-a": "gpuHours: 10\nperiod: day\ngroup: lab",
    "team-b": "gpuHours: unlimited\ngroup: lab\nprice: 4",
    "_group.lab": "gpuHours: 1\nperiod: day",
}


class Prometheus:
    """One whose samples lie at the steps of the asked time: of devices, by namespace, resource and model,
    from a moment to another; none within its gap."""

    def __init__(self) -> None:
        self.held: list[tuple[str, str, str, int, int, object]] = []
        self.gap = range(0)
        self.asked: list[Json] = []
        self.fault: Callable[[Json], None] = lambda _: None

    def ask(self, path: str, **parameters: str) -> bytes:
        self.asked.append(parameters)
        self.fault(parameters)
        begin, end, step = (1000 * int(parameters[name]) for name in ("start", "end", "step"))
        steps = [at for at in range(begin, end + 1, step) if at not in self.gap]
        result = []
        if "group_left" not in parameters["query"]:
            result = [series({}, dict.fromkeys(steps, 40))] if steps else []
        else:
            for namespace, resource, model, since, until, count in self.held:
                labels = {"namespace": namespace, "resource": resource} | ({MODEL: model} if model else {})
                samples = {at: count for at in steps if since <= at < until}
                result += [series(labels, samples)] if samples else []
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    def close(self) -> None:
        """It has no connection."""


def series(labels: Json, samples: dict[int, object]) -> Json:
    return {"metric": labels, "values": [[at / 1000, str(value)] for at, value in samples.items()]}


class Before:
    """A ledger that began at T0, and a Prometheus that knows the time before."""

    def __init__(self, town: Town) -> None:
        self.town, self.prometheus = town, Prometheus()
        entries = budgets(**ENTRIES)
        town.begin(("nodes", node("n1", 2)), ("configmaps", entries), ("pods", whole("p", "n1")))
        town.advance(HOUR)
        town.serve()
        self.services: Services = replace(town._served[-1], prometheus=self.prometheus)
        town.client = client_of(app_of(self.services), ())

    def holds(
        self, namespace: str, resource: str, model: str, days: int, hours: int, count: object = 1
    ) -> None:
        """From so many days before the ledger on, for so many hours."""
        since = T0 - days * DAY
        self.prometheus.held.append((namespace, resource, model, since, since + hours * HOUR, count))

    def answer(self, query: str = "") -> Json:
        answer = self.town.get(f"/v1/estimate{query}")
        assert answer.status_code == 200, answer.get_data(as_text=True)
        found: Json = answer.get_json()
        return found


@pytest.fixture
def before(town: Town) -> Before:
    return Before(town)


def test_hours_and_costs_by_namespace_and_model_are_estimated(before: Before) -> None:
    before.holds("team-a", "nvidia_com_gpu", A100, 3, 10, 2)
    before.holds("team-a", "nvidia_com_gpu", T4, 2, 6)
    before.holds("team-b", "nvidia_com_mig_1g_5gb", "", 1, 7)
    before.holds("team-b", "amd_com_gpu_memory", "", 1, 7)  # no device
    before.holds("team-b", "vke_volcengine_com_mgpu_core", "", 1, 7, 30)  # per cent of one
    before.holds("team-b", "vke_volcengine_com_mgpu_memory", "", 1, 7, 512)
    before.holds("team-a", "mthreads_com_vgpu", "", 1, 2)
    before.holds("team-a", "mthreads_com_sgpu_core", "", 1, 2, 8)  # beside a number of devices
    answer = before.answer()

    assert (answer["estimated"], answer["to"], answer["from"]) == (True, T0, T0 - 30 * DAY)
    assert (answer["stepMs"], answer["knownMs"]) == (STEP, 30 * DAY)
    rows = {(each["namespace"], each["models"]): each for each in answer["rows"]}
    assert {
        key: (Decimal(each["gpuHours"]), each["cost"], each["currency"]) for key, each in rows.items()
    } == {
        ("team-a", A100): (40, "60", "EUR"),
        ("team-a", T4): (6, "9", "EUR"),
        ("team-b", ""): (Decimal("1.001"), "4.004", "EUR"),
        ("team-b", "vke.volcengine.com/mgpu-core"): (Decimal("2.1"), "8.4", "EUR"),
        ("team-a", "mthreads.com/vgpu"): (2, "3", "EUR"),
    }
    assert {each["group"] for each in answer["rows"]} == {"lab"}
    assert next(estimate_sentences(answer)).startswith("Estimated, not charged: from ")


def test_what_todays_budgets_would_have_had_left(before: Before) -> None:
    before.holds("team-a", "nvidia_com_gpu", T4, 20, 10, 4)
    budgets_of = {each["subject"]: each for each in before.answer()["budgets"]}

    own, group = budgets_of["team-a"], budgets_of["_group.lab"]
    assert budgets_of.keys() == {"team-a", "_group.lab"}
    assert (own["granted"], own["amount"]) == (300 * HOUR * 1000, 40 * HOUR * 1000)
    assert (own["left"], own["spentAt"]) == (260 * HOUR * 1000, None)
    assert (group["leftGpuHours"], group["spentAt"]) == ("-10", T0 - 20 * DAY + 8 * HOUR)


def test_a_gap_is_unknown_and_not_zero(before: Before) -> None:
    before.holds("team-a", "nvidia_com_gpu", T4, 10, 24)
    before.prometheus.gap = range(T0 - 10 * DAY, T0 - 10 * DAY + 12 * HOUR)
    answer = before.answer()

    assert answer["knownMs"] == 30 * DAY - 12 * HOUR
    assert [Decimal(each["gpuHours"]) for each in answer["rows"]] == [12]
    assert "There are samples for 98% of this time; the rest is unknown, not zero" in [
        *estimate_sentences(answer)
    ]


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e300"])
def test_a_value_that_is_no_number_of_devices_is_left_out_and_named(before: Before, value: str) -> None:
    before.holds("team-a", "nvidia_com_gpu", T4, 10, 1, value)
    answer = before.answer()

    assert answer["rows"] == []
    assert answer["findings"] == ["2 samples are no number of devices, or of a time without others: left out"]


def test_a_part_without_an_answer_is_unknown_and_one_that_is_away_is_asked_twice(before: Before) -> None:
    def slow(asked: Json) -> None:
        if int(asked["start"]) * 1000 < T0 - 25 * DAY:
            raise ValueError("Prometheus' answer has not arrived within 10 s")

    before.prometheus.fault = slow
    answer = before.answer()
    assert answer["knownMs"] == 25 * DAY
    assert answer["findings"] == ["Prometheus' answer has not arrived within 10 s"]


def test_a_prometheus_that_is_away_is_asked_no_further(before: Before) -> None:
    def away(_: Json) -> None:
        raise ValueError("Prometheus does not answer: refused")

    before.prometheus.fault = away
    answer = before.answer()
    assert len(before.prometheus.asked) == 2
    assert (answer["knownMs"], answer["rows"]) == (0, [])
    assert "Prometheus does not answer: refused" in answer["findings"]
    assert "Prometheus has no series of kube-state-metrics for pods in this time" in answer["findings"]


def test_it_is_in_no_account_no_report_and_no_audit(before: Before) -> None:
    paths = ("/v1/usage?group=pod", "/v1/budgets", "/v1/sessions", "/v1/usage?format=focus")
    told = [before.town.get(path).get_json() for path in paths]
    before.holds("team-a", "nvidia_com_gpu", A100, 30, 24 * 30, 8)
    assert Decimal(before.answer()["rows"][0]["gpuHours"]) == 16 * 720

    assert [before.town.get(path).get_json() for path in paths] == told


def test_a_reader_of_a_namespace_sees_its_own_alone(before: Before) -> None:
    before.holds("team-a", "nvidia_com_gpu", T4, 3, 10)
    before.holds("team-b", "nvidia_com_gpu", T4, 3, 10)
    before.town.reviews.denied.add(("admin", "get", "usage", ""))
    assert before.town.get("/v1/estimate").status_code == 403

    answer = before.answer("?namespace=team-a")
    assert [each["namespace"] for each in answer["rows"]] == ["team-a"]
    assert [each["subject"] for each in answer["budgets"]] == ["team-a"]
    assert len(before.answer("?namespace=_group.lab")["rows"]) == 2


def test_each_row_of_the_csv_says_that_it_is_estimated(before: Before) -> None:
    before.holds("team-a", "nvidia_com_gpu", T4, 3, 10)
    answer = before.town.get("/v1/estimate?format=csv")
    (row,) = csv.DictReader(io.StringIO(answer.get_data(as_text=True)))

    assert answer.content_type == "text/csv; charset=utf-8"
    assert (row["estimated"], row["known"], row["gpuHours"], row["cost"]) == ("estimated", "100%", "10", "15")


def test_while_one_caller_asks_prometheus_others_do_not(before: Before) -> None:
    inner: list[int] = []

    def again(_: Json) -> None:
        if not inner:
            inner.append(0)
            inner[0] = before.town.get("/v1/estimate").status_code

    before.prometheus.fault = again
    before.answer()
    asked = len(before.prometheus.asked)
    before.answer()

    assert (inner, len(before.prometheus.asked)) == ([429], asked)


def test_without_prometheus_it_says_which_flag_is_missing(town: Town) -> None:
    town.begin(("nodes", node()))
    answer = town.get("/v1/estimate").get_json()

    assert (answer["estimated"], answer["knownMs"], answer["rows"]) == (True, 0, [])
    assert "--prometheus-url" in answer["findings"][0]


def test_devices_that_settings_name_now_are_asked_for_at_once(before: Before) -> None:
    """An answer is kept for an hour, for the same queries."""
    before.holds("team-a", "example_com_npu", "", 1, 3)
    before.answer()
    asked = len(before.prometheus.asked)
    before.answer()
    assert len(before.prometheus.asked) == asked

    named = ENTRIES | {"_settings": f"{ENTRIES['_settings']}\ndevices: {{example.com/npu: NPU}}"}
    before.town.change("configmaps", budgets(**named))
    before.town.advance(MINUTE)
    rows = before.answer()["rows"]

    assert len(before.prometheus.asked) > asked
    assert [(each["namespace"], each["gpuHours"]) for each in rows] == [("team-a", "3")]


def test_the_beginning_of_the_ledger_is_not_looked_for_at_each_request(before: Before) -> None:
    """It takes all sessions to find it."""
    looked: list[str] = []

    def see(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        looked.extend([statement] if "min(sessions.opened_ms)" in statement else ())

    event.listen(before.town.store.engine, "before_cursor_execute", see)
    try:
        assert [before.answer()["to"] for _ in range(3)] == [T0] * 3
    finally:
        event.remove(before.town.store.engine, "before_cursor_execute", see)
    assert len(looked) == 1
