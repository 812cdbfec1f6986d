"""What is not certain of a session's rate is stored with it, and shown to people."""

from typing import Any

import pytest

from tests.timekeeper.worlds import HOUR, MINUTE, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.accounts.claims.claim_findings import claiming_pods
from timekeeper.accounts.session import MAX_DOUBT
from timekeeper.core.findings import CATALOGUE
from timekeeper.core.texts import moment
from timekeeper.edge.reflector import WatchFailed, WatchOpened, WatchProgress
from timekeeper.edge.source_health import STUCK_MS, SourceHealth
from timekeeper.metrics import FINDINGS
from timekeeper.settler.cluster.cluster_state import WatchUpdate

Json = dict[str, Any]
UNKNOWN = "nothing describes its node's cards: each card counts with weight 1, memory as whole cards"
MODELS = (
    "its node has cards of several models: A100, H100: that of the highest weight that it may have counts"
)
PLAIN: Json = {"metadata": {"name": "plain"}, "status": {"capacity": {"nvidia.com/gpu": "2"}}}


def whole(name: str, node: str, resource: str = "nvidia.com/gpu") -> Json:
    """A running pod with one whole device, bound at T0 by another scheduler."""
    raw = gpu_pod(name, node=node, started_ms=T0)
    raw["metadata"] |= {"annotations": {}, "labels": {}}
    raw["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    return raw


def begun(town: Town, mode: str, *pods: Json) -> Town:
    """Nodes of one model, of two, and without a description; and these pods."""
    mixed = node("mixed", 2)
    of_it = mixed["metadata"]["annotations"]
    of_it["bursar.dev/inventory"] = of_it["bursar.dev/inventory"].replace("A100", "H100", 1)
    town.begin(
        ("configmaps", budgets(_settings=f"mode: {mode}")),
        *(("nodes", each) for each in (node("n1", 2), mixed, PLAIN)),
        *(("pods", each) for each in pods),
    )
    return town


def doubts(town: Town) -> dict[str, str | None]:
    """Name -> doubt of each session, from the database."""
    return {each["pod"]: each["doubt"] for each in town.get("/v1/sessions").get_json()["sessions"]}


@pytest.fixture
def doubtful(town: Town) -> Town:
    """A cluster with five metered pods, of which three have a doubt."""
    on = {"sure": "n1", "plain-1": "plain", "plain-2": "plain", "mixed": "mixed"}
    return begun(town, "meter", whole("amd", "plain", "amd.com/gpu"), *(whole(*each) for each in on.items()))


def test_a_session_has_its_doubt(doubtful: Town) -> None:
    doubtful.advance(HOUR)
    doubtful.resume()

    assert doubts(doubtful) == {
        "amd": None,
        "sure": None,
        "plain-1": UNKNOWN,
        "plain-2": UNKNOWN,
        "mixed": MODELS,
    }
    kept = {each.name: each.doubt for each in doubtful.settler.ledger.sessions.values()}
    assert kept == doubts(doubtful)


def test_running_sessions_are_counted_by_their_doubts(doubtful: Town) -> None:
    answer = doubtful.get("/v1/doubts").get_json()

    assert (answer["sessions"], answer["claims"]) == (3, [])
    assert answer["doubts"] == [{"doubt": UNKNOWN, "sessions": 2}, {"doubt": MODELS, "sessions": 1}]

    ended = gpu_pod("plain-1", node="plain", started_ms=T0, ended_ms=T0)
    doubtful.change("pods", whole("plain-1", "plain") | {"status": ended["status"]})
    doubtful.change("pods", whole("mixed", "mixed"), deleted=True)

    answer = doubtful.get("/v1/doubts").get_json()
    assert (answer["sessions"], answer["doubts"]) == (1, [{"doubt": UNKNOWN, "sessions": 1}])


def failing(town: Town, source: str, change: WatchFailed | WatchOpened | WatchProgress) -> list[Json]:
    """`watches` of the answer after this update of a source, a minute later."""
    town.clock.turn(MINUTE)
    town.settler.apply(WatchUpdate(source, town.clock(), change))
    town.tick()
    found: list[Json] = town.get("/v1/doubts").get_json()["watches"]
    return found


@pytest.mark.parametrize("again", [WatchOpened(), WatchProgress()], ids=["opened", "bookmark"])
def test_each_watch_that_fails_is_named_until_it_is_accepted(
    doubtful: Town, again: WatchOpened | WatchProgress
) -> None:
    first = {"source": "nodes", "since": T0 + MINUTE, "error": "403 nodes is forbidden"}
    second = {"source": "pods", "since": T0 + 2 * MINUTE, "error": "503"}

    assert failing(doubtful, "nodes", WatchFailed("403 nodes is forbidden")) == [first]
    assert failing(doubtful, "pods", WatchFailed("503")) == [first, second]
    assert failing(doubtful, "pods", WatchFailed("504")) == [first, second | {"error": "504"}]
    ready = "ok\nsettler finds undescribed-cards: 1\n"
    said = ready + "".join(
        f"watch of {each}: it fails; GET /v1/doubts says why\n" for each in ("nodes", "pods")
    )
    assert (doubtful.get("/readyz").status_code, doubtful.get("/readyz").text) == (200, said)
    assert failing(doubtful, "nodes", again) == [second | {"error": "504"}]
    assert failing(doubtful, "pods", again) == []
    assert doubtful.get("/readyz").text == ready


def test_a_watch_that_is_accepted_and_breaks_again_has_failed_since_the_first_time(
    doubtful: Town,
) -> None:
    broken = WatchFailed("broken")
    first = failing(doubtful, "pods", broken)
    failing(doubtful, "pods", WatchOpened())

    assert failing(doubtful, "pods", broken) == first
    failing(doubtful, "pods", WatchProgress())
    assert failing(doubtful, "pods", broken) != first


def test_what_the_settler_fails_on_is_a_finding_and_a_source_that_is_stuck_is_counted(town: Town) -> None:
    health = SourceHealth("pods", lambda *_, **__: None, town.clock)
    town.settler.health.append(health)
    health.failed("away")
    health.skip("u", {"kind": "Pod", "metadata": {"name": "a", "namespace": "n"}}, KeyError("x"))
    town.begin(("nodes", node("n1")), ("configmaps", budgets(team_a="gpuHours: 1")))

    assert (sample("object-unread"), sample("watch-fails")) == (1, 0)
    assert town.get("/readyz").text == "ok\nsettler finds object-unread: 1\n"
    town.clock.turn(STUCK_MS)
    town.tick()
    assert (sample("object-unread"), sample("watch-fails")) == (1, 1)
    del health.unread["u"]
    health.is_whole()
    town.clock.turn(MINUTE)
    town.tick()
    assert (sample("object-unread"), sample("watch-fails")) == (0, 0)


def test_a_source_that_was_never_listed_is_named_with_its_error(town: Town) -> None:
    town.settler.apply(WatchUpdate("nodes", T0, WatchFailed("403 nodes is forbidden")))
    town.tick()

    ready = town.get("/readyz")
    assert (ready.status_code, ready.text.splitlines()[1:]) == (
        503,
        ["watch of nodes: it fails; GET /v1/doubts says why"],
    )
    (found,) = town.get("/v1/doubts").get_json()["watches"]
    assert found["error"] == "403 nodes is forbidden"


def test_a_watch_that_is_accepted_again_proves_nothing_before_its_events(town: Town) -> None:
    """A session on estimates is charged to where the watch of pods is known to be complete."""
    begun(town, "meter", whole("sure", "n1"))
    before = town.settler.cluster.pods.current_ms
    failing(town, "pods", WatchFailed("cut"))
    failing(town, "pods", WatchOpened())
    assert town.settler.cluster.pods.current_ms == before

    failing(town, "pods", WatchProgress())
    assert town.settler.cluster.pods.current_ms == town.clock()


def test_pods_that_came_and_went_while_the_watch_was_refused_are_charged(town: Town) -> None:
    begun(town, "meter", whole("stays", "n1"), whole("goes", "n1"))
    failing(town, "pods", WatchFailed("403 pods is forbidden"))
    town.hear("pods", whole("goes", "n1"), deleted=True, unheard=True)
    town.hear("pods", whole("comes", "plain"), unheard=True)
    town.clock.turn(HOUR)
    town.hear("leases", lease(town.clock(), "n1"))
    town.hear_all("pods")
    town.tick()

    shown = {each["pod"]: each for each in town.get("/v1/sessions").get_json()["sessions"]}
    assert shown.keys() == {"stays", "goes", "comes"}
    assert shown["comes"]["bound"] == T0
    assert shown["goes"]["vanished"] is not None
    assert town.get("/v1/doubts").get_json()["watches"] == []


def test_an_explanation_names_the_doubt(doubtful: Town) -> None:
    def sentence(pod: str) -> str:
        (charge,) = doubtful.get(f"/v1/explain/team-a/{pod}").get_json()["charges"]
        return str(charge["sentence"])

    assert sentence("plain-1").endswith(f", at the rate 1. The rate is not certain: {UNKNOWN}.")
    assert sentence("sure").endswith(", at the rate 1.")


def test_a_governed_pod_without_a_placement_has_a_doubt_unless_it_holds_devices_alone(town: Town) -> None:
    amd = whole("amd", "plain", "amd.com/gpu")
    amd["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    begun(
        town, "enforce", whole("gpu", "n1", "bursar.dev/gpu-percent"), gpu_pod("placed", started_ms=T0), amd
    )

    assert doubts(town) == {"gpu": "the pod has no placement", "placed": None, "amd": None}


def test_a_long_doubt_is_cut_and_has_no_characters_that_a_database_refuses(town: Town) -> None:
    model = "A\x00\ud800" + "B" * MAX_DOUBT
    town.begin(("configmaps", budgets(_settings="mode: meter")))
    town.hear("pods", whole("p", "plain", f"nvidia.com/vgpu-{model}"))
    town.hear("nodes", PLAIN)
    town.tick()

    found = doubts(town)["p"]
    assert found is not None
    assert found.isprintable()
    assert len(found) <= MAX_DOUBT


def test_the_most_claiming_namespaces_are_named_and_the_others_counted() -> None:
    found = claiming_pods([f"n{number:03}" for number in range(150) for _ in range(1 + (number == 149))])

    assert found.pods == 151
    assert found.text.startswith('{"n149":2,"n000":1,')
    assert found.text.endswith(',"n098":1,"":50}')


def test_a_settler_that_is_away_is_named_with_the_time_of_its_last_word(doubtful: Town) -> None:
    assert doubtful.get("/v1/doubts").get_json()["silentSince"] is None
    last_ms = doubtful.clock()

    doubtful.clock.turn(MINUTE)

    answer = doubtful.get("/v1/doubts").get_json()
    assert answer["silentSince"] == last_ms
    (away, *_) = findings(doubtful)
    assert away["sentence"].startswith(f"the settler has written nothing since {moment(last_ms)}, and")
    assert (away["code"], away["level"], away["figures"]) == ("settler-away", "error", {"since": last_ms})


def findings(town: Town) -> list[Json]:
    """Of the timekeeper's own."""
    found: list[Json] = town.get("/v1/findings").get_json()["findings"]
    return [each for each in found if each["role"] == "timekeeper"]


def test_the_timekeeper_lists_what_it_finds_as_codes_with_figures_and_sentences(doubtful: Town) -> None:
    failing(doubtful, "nodes", WatchFailed("403 nodes is forbidden"))

    assert [(each["code"], each["figures"].get("number")) for each in findings(doubtful)] == [
        ("watch-fails", None),
        ("doubt", 2),
        ("doubt", 1),
    ]


def test_the_settler_lists_what_it_finds_twice_a_minute(town: Town) -> None:
    def answer() -> tuple[int, list[str]]:
        found: Json = town.get("/v1/findings").get_json()
        (ages,) = [each["ageMs"] for each in found["roles"] if each["role"] == "settler"]
        return ages, [each["code"] for each in found["findings"] if each["role"] == "settler"]

    odd = node("n1") | {"status": {"capacity": {"rdma/hca": "8"}}}
    town.begin(("nodes", odd), ("configmaps", budgets(team_a="gpuHours: 1")))
    assert answer() == (0, ["unclassified"])
    assert town.get("/readyz").text == "ok\nsettler finds unclassified: 1\n"
    assert sample("unclassified") == 1

    town.clock.turn(MINUTE // 2 - 1)
    town.change("nodes", node("n1"))
    assert answer() == (MINUTE // 2 - 1, ["unclassified"])

    town.clock.turn(1)
    town.tick()
    assert answer() == (0, [])
    assert (town.get("/readyz").text, sample("unclassified")) == ("ok\n", 0)


def sample(code: str) -> float | None:
    labels = {"role": "settler", "code": code}
    return next(each.value for each in next(iter(FINDINGS.collect())).samples if each.labels == labels)


def test_the_priority_classes_of_standings_are_there_and_in_order(town: Town) -> None:
    town.begin(("nodes", node("n1")), ("configmaps", budgets(team_a="gpuHours: 1")))
    told = [findings(town)[-1]["sentence"]]
    for name, value in (("gpu-default-priority", 10), ("gpu-lower-priority", 1_000)):
        raw = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
        town.change("priorityclasses", raw)
        told.append(findings(town)[-1]["sentence"])

    assert told == [
        "gpu-default-priority or gpu-lower-priority does not exist",
        "gpu-lower-priority does not exist",
        "gpu-lower-priority (1000) is not below gpu-default-priority (10)",
    ]


def test_each_row_of_the_catalogue_has_a_page_or_a_command_if_it_is_wrong() -> None:
    assert [code for code, kind in CATALOGUE.items() if (kind.level == "ok") == bool(kind.todo)] == []
