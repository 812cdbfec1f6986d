"""What the watches make of an API server: over real HTTP, with an API server that is small."""

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Event

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.clock import Clock
from tests.support.events import sending
from tests.support.kubeconfig import kubeconfig
from tests.support.sources import unnoted
from tests.support.waiting import eventually
from tests.timekeeper.clocks import iso
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.worlds import T0, Json, budgets, gpu_pod, lease, node
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.edge.events import RETRY_FOR_MS, EventRecorder
from timekeeper.edge.list_watch import pages, watch
from timekeeper.edge.log import log
from timekeeper.edge.reflector import (
    ExpiredError,
    ObjectChanged,
    ObjectsListed,
    UnreachableError,
    WatchFailed,
    WatchOpened,
    WatchProgress,
)
from timekeeper.runtime.api_server import Answered, Api, Reply, Unsent, accepted, event_sender
from timekeeper.runtime.connect import connect
from timekeeper.settler.budget_entries import BudgetNotice
from timekeeper.settler.cluster.cluster_state import BudgetConfigMap, WatchUpdate
from timekeeper.settler.cluster.watches import (
    WatchSource,
    await_served,
    follow_source,
    read_config_map,
    read_lease,
    read_node,
    read_priority_class,
    sources,
    start_watching,
)
from timekeeper.settler.process import REPORTER, report

NOTICE = BudgetNotice(BudgetConfigMap("bursar-budgets", "u", ()), "BrokenBudget", "team-a: broken")


@pytest.fixture
def api() -> FakeApiServer:
    return FakeApiServer()


@pytest.fixture
def server(api: FakeApiServer, tmp_path: Path) -> Iterator[Api]:
    with serving(api) as url:
        yield connect(kubeconfig(tmp_path, url))


def source(name: str, watch_s: int = 1) -> WatchSource:
    (found,) = (each for each in sources("bursar-system") if each.name == name)
    return WatchSource(found.name, found.path, watch_s, found.read)


def test_a_source_is_listed_then_followed(api: FakeApiServer, server: Api) -> None:
    api.put("nodes", node("n1"))
    clock, failures = Clock(T0), []
    events = follow_source(
        source("nodes"), server, clock, lambda _: None, lambda *each: failures.append(each), unnoted()
    )

    listed = next(events)
    clock.turn(7)
    api.put("nodes", node("n2", cards=1))
    changed = next(events)
    clock.turn(7)
    api.remove_as("nodes", node("n1"))
    removed = next(events)
    clock.turn(7)
    api.bookmark()

    assert listed == WatchUpdate("nodes", T0, ObjectsListed((read_node(node("n1")),)))
    assert changed == WatchUpdate(
        "nodes", T0 + 7, ObjectChanged(read_node(node("n2", cards=1)), deleted=False)
    )
    assert removed == WatchUpdate("nodes", T0 + 14, ObjectChanged(read_node(node("n1")), deleted=True))
    assert next(events) == WatchUpdate("nodes", T0 + 21, WatchProgress())
    assert failures == []


def test_a_list_is_true_from_when_it_was_requested(server: Api) -> None:
    """Answering may take seconds, in which something may happen that is not in it."""
    moments = iter((100, 200))
    events = follow_source(
        source("pods"), server, lambda: next(moments), lambda _: None, lambda *_: None, unnoted()
    )

    assert next(events).at_ms == 100


def test_the_end_of_a_watch_says_that_everything_arrived(server: Api) -> None:
    events = follow_source(source("pods"), server, Clock(T0), lambda _: None, lambda *_: None, unnoted())

    assert next(events).change == ObjectsListed(())
    assert next(events).change == WatchProgress()


def test_a_pod_without_a_gpu_is_only_a_sign_of_life(api: FakeApiServer, server: Api) -> None:
    events = follow_source(source("pods"), server, Clock(T0), lambda _: None, lambda *_: None, unnoted())
    next(events)
    plain = gpu_pod()
    plain["spec"]["containers"][0]["resources"] = {}
    api.put("pods", plain)

    assert next(events).change == WatchProgress()


def test_an_api_server_that_is_away_is_reported_and_called_again(tmp_path: Path) -> None:
    away = connect(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    waits: list[int] = []
    failures: list[tuple[str, str]] = []

    class Enough(Exception):
        """Stops the endless loop."""

    def wait(ms: int) -> None:
        waits.append(ms)
        if len(waits) == 3:
            raise Enough

    with pytest.raises(Enough):
        list(
            follow_source(
                source("pods"), away, Clock(T0), wait, lambda *each: failures.append(each), unnoted()
            )
        )

    assert waits == [200, 400, 800]
    assert {name for name, _ in failures} == {"pods"}
    assert "the API server cannot be reached" in failures[0][1]


def test_a_refused_watch_is_told_until_one_is_accepted_and_nothing_is_lost(
    api: FakeApiServer, server: Api
) -> None:
    """The API server sends nothing but the answer's head when it accepts one: no bookmark is waited for."""
    api.put("nodes", node("n1"))
    refused = WatchFailed("403 nodes is forbidden")
    events = follow_source(source("nodes"), server, Clock(T0), lambda _: None, lambda *_: None, unnoted())
    api.forbidden.add("nodes")
    refusals = [next(events).change for _ in range(2)]
    api.forbidden.clear()
    listed = next(events).change
    api.forbidden.add("nodes")
    ended = next(each.change for each in events if not isinstance(each.change, WatchProgress))
    api.put("nodes", node("n2"))
    api.forbidden.clear()
    api.watching = False  # an accepted watch sends nothing
    accepted_again = next(each.change for each in events if each.change != refused)
    api.watching = True

    assert refusals == [refused, refused]
    assert listed == ObjectsListed((read_node(node("n1")),))
    assert ended == refused
    assert accepted_again == WatchOpened()
    later = (each.change for each in events)
    assert next(each for each in later if each != WatchProgress()) == ObjectChanged(
        read_node(node("n2")), False
    )


def test_a_watch_runs_in_a_thread_of_its_own_and_ends_when_stopped(api: FakeApiServer, server: Api) -> None:
    heard: Queue[WatchUpdate] = Queue()
    stop = Event()
    thread = start_watching(source("leases"), server, heard, Clock(T0), stop, lambda *_: None, unnoted())

    assert heard.get(timeout=LONGEST_S).change == ObjectsListed(())
    stop.set()
    api.put("leases", lease(T0))
    thread.join(LONGEST_S)

    assert not thread.is_alive()


def test_a_watch_whose_api_server_is_away_ends_when_stopped_too(tmp_path: Path) -> None:
    away = connect(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    failures: list[tuple[str, str]] = []
    stop = Event()
    thread = start_watching(
        source("pods"), away, Queue(), Clock(T0), stop, lambda *each: failures.append(each), unnoted()
    )
    eventually(lambda: bool(failures))

    stop.set()
    thread.join(LONGEST_S)

    assert not thread.is_alive()


def test_a_list_is_read_page_by_page() -> None:
    class Paged(Api):
        def __init__(self) -> None:
            self.asked: list[str] = []

        def call(self, method: str, path: str, *_: object, **__: object) -> Answered:
            self.asked.append(path)
            if "continue" in path:
                return Answered(200, {"metadata": {"resourceVersion": "9"}, "items": [lease(T0, "b")]})
            more = {"resourceVersion": "9", "continue": "more"}
            return Answered(200, {"metadata": more, "items": [lease(T0, "a")]})

    paged = Paged()

    assert list(pages(paged, "/api/v1/pods")) == [([lease(T0, "a")], "9"), ([lease(T0, "b")], "9")]
    assert paged.asked == ["/api/v1/pods?limit=500", "/api/v1/pods?limit=500&continue=more"]


def test_what_the_api_server_refuses_is_reported_with_its_status(server: Api) -> None:
    reply = server.call("GET", "/api/v1/unknown", timeout_s=LONGEST_S)

    assert isinstance(reply, Answered)
    assert reply.status == 404
    with pytest.raises(UnreachableError, match="404 not found"):
        accepted(reply)


def test_a_410_means_to_list_anew(api: FakeApiServer, server: Api) -> None:
    api.expired = True

    with pytest.raises(ExpiredError):
        list(watch(server, "/api/v1/pods", "1", 1))


def test_our_own_token_is_sent(api: FakeApiServer, server: Api) -> None:
    server.call("GET", "/api/v1/pods", timeout_s=LONGEST_S)

    assert api.bearers == {"Bearer own"}


def test_no_kubeconfig_and_no_cluster_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--kubeconfig: none is given, and the pod's own "):
        connect(None)
    with pytest.raises(ValueError, match="kubeconfig"):
        connect(tmp_path / "missing")


def test_a_notice_becomes_an_event_on_its_config_map(api: FakeApiServer, server: Api) -> None:
    events = EventRecorder[str](event_sender(server), REPORTER, "settler-0", Clock(T0), log)

    with sending(events):
        report(events, "bursar-system", NOTICE)

    (event,) = api.events
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "bursar-budgets",
        "namespace": "bursar-system",
        "uid": "u",
    }
    assert (event["type"], event["reason"], event["eventTime"], event["note"]) == (
        "Warning",
        "BrokenBudget",
        "2026-11-20T10:00:00.000000Z",
        "team-a: broken",
    )


def test_a_notice_that_cannot_be_posted_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    away = connect(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    clock = Clock(T0)
    events = EventRecorder[str](
        event_sender(away), REPORTER, "settler-0", lambda: clock.turn(RETRY_FOR_MS // 2), log
    )

    with sending(events):
        report(events, "bursar-system", NOTICE)

    lines = capfd.readouterr().err
    assert "event=budgets config_map=bursar-budgets reason=BrokenBudget" in lines
    assert "event=event-not-posted namespace=bursar-system about=bursar-budgets reason=BrokenBudget" in lines
    assert "cannot be reached" in lines


def test_an_inventory_that_cannot_be_read_is_a_fault_and_no_card() -> None:
    broken = {"metadata": {"name": "n", "annotations": {"bursar.dev/inventory": "{"}}}

    read = read_node(broken)

    assert (read.cards, read.fault[:8]) == ((), "not JSON")
    assert read_node({"metadata": {"name": "n"}}).cards == ()


def test_a_lease_that_was_never_renewed_says_nothing() -> None:
    assert read_lease({"metadata": {"name": "n"}, "spec": {}}).renewed_ms is None
    assert read_lease(lease(T0)).renewed_ms == T0


def test_other_config_maps_hold_no_budgets() -> None:
    other = budgets("kube-root-ca.crt", team_a="gpuHours: 1")
    other["metadata"]["labels"] = {}

    assert read_config_map(other).data == ()
    assert read_config_map(budgets(team_a="x")).data == (("team-a", "x"),)


def test_a_priority_class_has_its_value() -> None:
    assert read_priority_class({"metadata": {"name": "low"}, "value": -5}).value == -5


def test_when_a_pod_was_bound() -> None:
    """By the condition; where a scheduler has set that back since, by the kubelet's first word; else
    unknown."""
    bound = gpu_pod(bound_ms=T0)
    assert isinstance(pod := read_pod(bound), LedgerPod)
    assert pod.hold.bound_ms == T0

    bound["status"]["conditions"][0]["status"] = "False"
    bound["status"]["startTime"] = iso(T0 + 5000)
    assert isinstance(pod := read_pod(bound), LedgerPod)
    assert pod.hold.bound_ms == T0 + 5000

    del bound["status"]["startTime"]
    assert isinstance(pod := read_pod(bound), LedgerPod)
    assert pod.hold.bound_ms is None


@pytest.mark.parametrize("raw", [{}, {"metadata": None, "spec": 7}, {"spec": {"containers": [None]}}])
def test_reading_a_pod_never_raises(raw: Json) -> None:
    assert read_pod(raw) is None


def test_a_malformed_request_is_reported_with_its_first_violation() -> None:
    bad = gpu_pod()
    bad["spec"]["containers"][0]["resources"]["limits"] = {"bursar.dev/gpu-percent": "-1"}

    read = read_pod(bad)

    assert read is not None
    assert read.charge == "none"
    assert "an amount cannot be negative" in read.doubt


class Serving:
    """Answers a look for an API with these, one after the other."""

    def __init__(self, *answers: Reply) -> None:
        self.answers = list(answers)

    def call(self, method: str, path: str, **_: object) -> Reply:
        assert (method, path) == ("GET", "/apis/resource.k8s.io/v1")
        return self.answers.pop(0)


def test_claims_are_watched_once_their_api_is_served_and_until_then_nothing_is_said() -> None:
    (claims,) = (each for each in sources("bursar-system") if each.name == "resourceclaims")
    api = Serving(*[Answered(404, {})] * 2, Unsent("away"), Answered(200, {}))
    updates: Queue[WatchUpdate] = Queue()
    waited: list[int] = []
    failures: list[str] = []

    await_served(
        claims, api.call, Clock(T0), updates, waited.append, lambda _source, error: failures.append(error)
    )

    assert waited == [300_000, 300_000, 2_000]
    assert failures == ["away"]
    assert updates.get() == WatchUpdate("resourceclaims", T0, WatchFailed("away"))
    assert updates.empty()
    away = Serving(Answered(404, {})).call
    assert not await_served(claims, away, Clock(T0), updates, lambda _ms: True, lambda *_: None)
