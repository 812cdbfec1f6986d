"""Bindings that the extender reports: a pod that nothing of the ledger ever saw is charged, once."""

import pytest

from tests.timekeeper.worlds import GPU, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, node

PLACED = (
    '{"containers":{"main":[{"index":0,"memory_mib":16000,"share_milli":1000,"uuid":"GPU-0"}]},"version":1}'
)


@pytest.fixture
def home(town: Town) -> Town:
    town.begin(("nodes", node()))
    return town


def bound(name: str = "p", age_ms: object = 0, **fields: object) -> Json:
    ask = {"container": "main", "init": False, "devices": 1, "share_milli": 1000, "memory_mib": 0}
    return {
        "uid": f"uid-{name}",
        "namespace": "team-a",
        "pod": name,
        "node": "n1",
        "age_ms": age_ms,
        "dialect": "bursar",
        "asks": [ask],
        "devices": PLACED,
        "grace_ms": 30_000,
    } | fields


def report(town: Town, *bindings: Json) -> int:
    status: int = town.post("/v1/bindings", {"version": 1, "bindings": list(bindings)}).status_code
    return status


def spent(town: Town) -> int:
    town.tick()
    said = town.budget("team-a")
    return int(said["posted"] + said["pending"])


def ticks(town: Town, ms: int) -> None:
    """Time passes, a second at a time at first."""
    for _ in range(20):
        town.clock.turn(SECOND)
        town.tick()
    town.clock.turn(ms)
    town.tick()


def test_a_pod_that_was_never_seen_is_charged_from_its_binding_through_the_longest_grace(home: Town) -> None:
    home.clock.turn(5 * MINUTE)
    assert report(home, bound(age_ms=3 * MINUTE)) == 200
    assert report(home, bound(age_ms=MINUTE)) == 200  # the same pod again: the first report counts

    ticks(home, 30 * MINUTE)

    assert spent(home) == GPU * 10 * MINUTE
    (session,) = home.get("/v1/sessions").get_json()["sessions"]
    assert (session["pod"], session["bound"]) == ("p", T0 + 2 * MINUTE)


def test_what_an_extender_of_an_earlier_release_says_of_its_nodes_cpu_costs_nothing(home: Town) -> None:
    home.change("configmaps", budgets(_settings="chargeBy: dominant-host"))
    said = '{"cards":{"A100":2},"cpu_milli":62000,"memory_bytes":1,"node_cpu_milli":64000,"version":1}'
    assert report(home, bound(host=said)) == 200

    ticks(home, 0)

    sessions = home.get("/v1/sessions").get_json()["sessions"]
    assert [(session["kind"], session["rateMilli"]) for session in sessions] == [("pod", 1_000)]


def test_a_pod_that_the_watch_shows_is_charged_by_what_it_shows(home: Town) -> None:
    assert report(home, bound()) == 200
    home.hear("pods", gpu_pod(started_ms=T0))
    ticks(home, 0)
    home.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))

    ticks(home, 30 * MINUTE)

    assert spent(home) == GPU * MINUTE
    assert len(home.get("/v1/sessions").get_json()["sessions"]) == 1


def test_a_pod_whose_nodes_plugin_chooses_the_cards_is_charged_by_its_request_without_a_doubt(
    home: Town,
) -> None:
    chosen = bound(age_ms=MINUTE, dialect="nvidia", devices='{"containers":{},"version":1}')
    assert report(home, chosen) == 200

    ticks(home, MINUTE)

    (session,) = home.get("/v1/sessions").get_json()["sessions"]
    assert (session["rateMilli"], session["cards"], session["doubt"]) == (1_000, [], None)


def test_so_is_one_that_the_watch_shows(home: Town) -> None:
    placed = gpu_pod()
    del placed["metadata"]["annotations"]["bursar.dev/devices"]
    placed["spec"]["schedulerName"] = "bursar-scheduler"
    placed["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    home.change("pods", placed)
    home.tick()

    (session,) = home.get("/v1/sessions").get_json()["sessions"]
    assert (session["cards"], session["doubt"]) == ([], None)
