"""Metered pods whose use a Prometheus tells: they are idle or not, people are told, and whatever it says no
charge changes."""

import json
from threading import Event, Thread
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from tests.timekeeper.claims import device_slice
from tests.timekeeper.ledger.test_doubts import whole
from tests.timekeeper.ledger.test_idle import claim, user
from tests.timekeeper.worlds import HOUR, MINUTE, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.accounts.card_use.figures import CardSample, UsageSample
from timekeeper.core.findings import of_use
from timekeeper.settler.use_reader import UseReader
from timekeeper.store import node_usage

ONE_DATABASE = (
    "what Prometheus says; its row and the figures are written by statements that others use on both"
)


class Prometheus:
    """One that answers with these series, or with this text, or not at all."""

    def __init__(self, town: Town) -> None:
        self.series: list[Json] = []
        self.text: bytes | None = None
        self.is_away = False
        self.behind_ms = 0
        self._town = town

    def busy(self, name: str, value: object, uuid: str = "", host: str = "n1", **labels: str) -> None:
        """A card of this pod, in use for so many per cent of the time."""
        named = {"UUID": uuid or f"GPU-{name}", "Hostname": host, "instance": "10.0.0.1:9400"}
        metric = named | {"exported_namespace": "team-a", "exported_pod": name, "pod": "dcgm-x"} | labels
        self.series.append({"metric": {k: v for k, v in metric.items() if v}, "value": [0, str(value)]})

    def ask(self, path: str, **parameters: str) -> bytes:
        if self.is_away:
            raise ValueError("Prometheus does not answer: refused")
        if self.text is not None:
            return self.text
        at_s = (self._town.clock() - self.behind_ms) / 1000
        result = [{**each, "value": [at_s, each["value"][1]]} for each in self.series]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    def close(self) -> None:
        """It has no connection."""


class Watched:
    """A metered cluster with these whole cards on node n1, and who reads their use."""

    def __init__(self, town: Town) -> None:
        self.town, self.prometheus = town, Prometheus(town)

    def begin(self, *pods: Json, mode: str = "meter") -> None:
        pods = pods or (whole("rests", "n1"), whole("works", "n1"))
        entries = budgets(_settings=f"mode: {mode}\nidleAfter: 10m", **{"team-a": "gpuHours: 100"})
        described = (("nodes", node("n1", 4)), ("nodes", node("n2", 4)), ("configmaps", entries))
        self.town.begin(*described, *(("pods", each) for each in pods))
        settler = self.town.settler
        self.reader = UseReader(
            self.prometheus, self.town.store, settler, self.town.recorded.append, self.town.clock
        )

    def minutes(self, number: int) -> None:
        for _ in range(number):
            self.town.advance(MINUTE)
            self.reader.step()

    def answer(self) -> Json:
        found: Json = self.town.get("/v1/idle").get_json()
        return found

    def wrong(self) -> list[str]:
        return [found.sentence for found in of_use(self.answer()) if found.kind.level != "ok"]

    def idle(self) -> list[str]:
        return [each["pod"] for each in self.answer()["pods"]]

    def findings(self) -> list[str]:
        found: list[str] = self.answer()["prometheus"]["findings"]
        return found

    def charges(self) -> Any:
        usage = self.town.get("/v1/usage?group=pod&use=true").get_json()["rows"]
        return {each["pod"]: (each["amount"], each["measured"], each["used"]) for each in usage}


@pytest.fixture
def watched(town: Town) -> Watched:
    return Watched(town)


def test_a_pod_that_uses_none_of_its_cards_is_idle_and_people_are_told_once(watched: Watched) -> None:
    watched.begin()
    watched.prometheus.busy("rests", 0.4)
    watched.prometheus.busy("works", 63.2)
    watched.minutes(10)

    (found,) = watched.answer()["pods"]
    assert (found["pod"], found["node"], found["since"]) == ("rests", "n1", T0 + MINUTE)
    assert watched.wrong() == []  # not for long yet

    watched.minutes(5)
    assert watched.wrong() == [
        "1 pod has used less than 5 % of what it holds for 10m0s or longer: team-a (1)"
    ]
    told = [each for each in watched.town.recorded if each.reason == "PodIdle"]
    assert [(each.kind, each.name, each.namespace) for each in told] == [("warned", "rests", "team-a")]
    amount, measured, used = watched.charges()["works"]
    assert (amount, measured, used) == (15 * MINUTE * 1000, 14 * MINUTE * 1000, 14 * MINUTE * 640)

    watched.prometheus.series[0]["value"][1] = "50"
    watched.minutes(1)
    assert watched.idle() == []


def test_what_prometheus_says_changes_no_charge(watched: Watched) -> None:
    watched.begin()
    watched.prometheus.busy("rests", 0)
    watched.minutes(30)
    before = watched.town.get("/v1/usage?group=pod").get_json()["rows"]

    assert {each["pod"]: each["amount"] for each in before} == {
        "rests": 30 * MINUTE * 1000,
        "works": 30 * MINUTE * 1000,
    }


def lies(prometheus: Prometheus, kind: str) -> None:
    if kind == "range":
        prometheus.busy("rests", 9.2e18)
    elif kind == "nan":
        prometheus.busy("rests", "NaN")
    elif kind == "elsewhere":
        prometheus.busy("rests", 0, host="n2")
    elif kind == "unknown":
        prometheus.busy("nobody", 0)
    elif kind == "old":
        prometheus.busy("rests", 0)
        prometheus.behind_ms = 5 * MINUTE
    elif kind == "crowded":
        prometheus.busy("rests", 0)
        prometheus.busy("rests", 0, uuid="GPU-other")
    elif kind == "two":
        prometheus.busy("rests", 0)
        prometheus.busy("rests", 80, instance="10.0.0.2:9400")
    elif kind == "text":
        prometheus.text = b"<html>"
    elif kind == "shape":
        prometheus.text = b'{"data": {"resultType": "vector", "result": [{"value": 7}]}}'
    elif kind == "none":
        prometheus.series.clear()
    else:
        prometheus.is_away = True


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("range", "1 series is of cards no percentage"),
        ("nan", "1 series is of cards no percentage"),
        ("elsewhere", "1 series is of a pod on another node"),
        ("unknown", "1 series is of a pod that holds no card"),
        ("old", "1 series is of use more than 120 s old"),
        ("crowded", "1 pod has more cards by the exporter"),
        ("two", "exporters disagree about 1 card"),
        ("text", "unexpected character"),
        ("shape", "a sample of Prometheus' answer: cannot unpack"),
        ("none", "Prometheus has no series DCGM_FI_DEV_GPU_UTIL"),
        ("away", "Prometheus does not answer: refused"),
    ],
)
def test_a_prometheus_that_lies_or_is_away_is_a_finding_and_makes_no_pod_idle(
    watched: Watched, kind: str, sentence: str
) -> None:
    watched.begin(whole("rests", "n1"))
    lies(watched.prometheus, kind)
    watched.minutes(15)

    assert watched.idle() == []
    assert any(sentence in each for each in watched.findings()), watched.findings()
    assert watched.charges()["rests"][0] == 15 * MINUTE * 1000
    assert any("use of cards by Prometheus" in sentence for sentence in watched.wrong())


def test_a_card_that_pods_share_tells_of_them_only_where_it_is_not_used_at_all(watched: Watched) -> None:
    watched.begin()
    for pod in ("rests", "works"):
        watched.prometheus.busy(pod, 2, uuid="GPU-0")
    watched.minutes(2)
    assert watched.idle() == []

    for each in watched.prometheus.series:
        each["value"][1] = "0"
    watched.minutes(2)
    assert watched.idle() == ["rests", "works"]


def with_claims(watched: Watched, *pods: str, mode: str = "meter") -> None:
    """Pods that share a claim on one device of node n1, whose UUID its driver publishes."""
    published = device_slice("gpu-0")
    published["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "GPU-gpu-0"}
    held = claim("c", *pods)
    entries = budgets(_settings=f"mode: {mode}\nidleAfter: 10m", **{"team-a": "gpuHours: 100"})
    named = ("nodes", node("n1", 4)), ("configmaps", entries), ("resourceslices", published)
    users = (("pods", user(name, "c", governed=mode == "enforce")) for name in pods)
    watched.town.begin(*named, ("resourceclaims", held), *users)
    settler = watched.town.settler
    watched.reader = UseReader(
        watched.prometheus, watched.town.store, settler, watched.town.recorded.append, watched.town.clock
    )


def test_a_pod_with_a_claim_is_idle_while_its_card_is_and_holds_a_card(watched: Watched) -> None:
    with_claims(watched, "rests")
    watched.prometheus.busy("rests", 0, uuid="GPU-gpu-0")
    watched.minutes(15)

    assert (watched.idle(), watched.findings()) == (["uid-rests"], [])
    told = [decision for decision in watched.town.recorded if decision.reason == "PodIdle"]
    assert [decision.uid for decision in told] == ["uid-rests"]

    watched.prometheus.series[0]["value"][1] = "50"
    watched.minutes(1)
    assert watched.idle() == []


def test_of_pods_that_share_a_claim_the_busiest_counts_and_a_card_of_another_uuid_says_nothing(
    watched: Watched,
) -> None:
    with_claims(watched, "rests", "works")
    watched.prometheus.busy("rests", 0, uuid="GPU-gpu-0")
    watched.prometheus.busy("works", 40, uuid="GPU-gpu-0")
    watched.prometheus.busy("rests", 0, uuid="GPU-other")
    watched.minutes(15)

    assert (watched.idle(), watched.findings()) == ([], [])


def test_a_claim_of_a_governed_pod_is_left_to_the_agents(watched: Watched) -> None:
    with_claims(watched, "rests", mode="enforce")
    watched.prometheus.busy("rests", 0, uuid="GPU-gpu-0")
    watched.minutes(15)

    assert (watched.idle(), watched.findings()) == ([], [])


def test_labels_of_exporters_are_read_whether_they_are_honoured_or_not(watched: Watched) -> None:
    watched.begin()
    of_exporter = {"exported_pod": "", "exported_namespace": ""}
    watched.prometheus.busy("rests", 0, **of_exporter | {"namespace": "team-a", "pod": "rests"})
    watched.prometheus.busy("works", 0)
    watched.prometheus.busy("free", 0, **of_exporter | {"namespace": "gpu-operator"})
    watched.minutes(2)

    assert watched.idle() == ["rests", "works"]


def test_without_an_answer_the_last_one_lapses_and_the_page_says_so(watched: Watched) -> None:
    watched.begin()
    watched.prometheus.busy("rests", 0)
    watched.prometheus.busy("works", 90)
    watched.minutes(5)
    assert (watched.idle(), watched.findings()) == (["rests"], [])

    watched.prometheus.is_away = True
    watched.minutes(2)
    assert watched.idle() == ["rests"]
    watched.minutes(2)
    assert watched.idle() == []
    prometheus = watched.answer()["prometheus"]
    assert (prometheus["heard"], prometheus["asked"]) == (T0 + 5 * MINUTE, T0 + 9 * MINUTE)

    watched.town.advance(HOUR)
    assert watched.answer()["prometheus"] is None  # nothing asks it any more


def test_pods_that_are_governed_are_measured_by_their_agents_alone(watched: Watched) -> None:
    watched.begin(gpu_pod("p", started_ms=T0), mode="enforce")
    watched.prometheus.busy("p", 0)
    watched.minutes(15)

    assert (watched.idle(), watched.answer()["prometheus"]["measured"]) == ([], 0)
    with watched.town.store.reading() as connection:
        now_ms = watched.town.clock()
        assert (node_usage.measured(connection, now_ms), node_usage.reporting(connection, now_ms)) == ([], 0)


def test_a_governed_pod_that_its_agent_finds_idle_is_left_to_what_its_budget_says(watched: Watched) -> None:
    watched.begin(gpu_pod("p", started_ms=T0), mode="enforce")
    watched.prometheus.busy("p", 50)
    card = CardSample("GPU-0", 0, None, exclusive=True)
    for number in range(15):
        watched.minutes(1)
        look = UsageSample(0, (("uid-p", (card,)),), (card,))
        report = node_usage.NodeReport("n1", "boot", number, watched.town.clock(), (look,))
        with watched.town.store.writing() as connection:
            node_usage.record(connection, report, 15_000, 50)
    watched.minutes(1)

    assert watched.idle() == ["p"]
    assert [each for each in watched.town.recorded if each.reason == "PodIdle"] == []


def test_the_settler_ticks_while_prometheus_is_silent(watched: Watched) -> None:
    watched.begin()
    is_asked, answers = Event(), Event()

    def ask(path: str, **parameters: str) -> bytes:
        is_asked.set()
        answers.wait(LONGEST_S)
        raise ValueError("Prometheus does not answer: timed out")

    watched.prometheus.ask = ask  # type: ignore[method-assign]
    thread = Thread(target=watched.reader.step)
    thread.start()
    assert is_asked.wait(LONGEST_S)
    watched.town.advance(5 * MINUTE)
    assert watched.charges()["works"][0] == 5 * MINUTE * 1000
    answers.set()
    thread.join()
    assert watched.findings() == ["Prometheus does not answer: timed out"]
