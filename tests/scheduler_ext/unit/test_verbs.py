"""filter, prioritize and what else is asked over HTTP, with the API server's watch behind it."""

import json
from typing import NoReturn

import pytest
from werkzeug.test import Client

from scheduler_ext import settings
from scheduler_ext.assembly.extender import Extender
from tests.scheduler_ext.stepped import Start, Stepped
from tests.scheduler_ext.store import Fault, Store
from tests.scheduler_ext.worlds import asking, bound, node, on, percent
from tests.support.raw_values import VALUES
from tests.support.waiting import eventually
from tests.worlds import card, container
from timekeeper.edge.http_client import tcp
from timekeeper.runtime.api_server import Api


@pytest.fixture
def world(running: Stepped) -> Stepped:
    """Two nodes of one card, the first half full."""
    running.put_node(node("a"))
    running.put_node(node("b"))
    running.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))
    return running


def test_filter_answers_every_node_with_its_reason(world: Stepped) -> None:
    answer = world.filter(percent(60), "b", "a", "unknown")

    assert answer == {
        "NodeNames": ["b"],
        "FailedNodes": {"a": "no card has 60 percent free"},
        "FailedAndUnresolvableNodes": {"unknown": "node is not known to the extender yet"},
        "Error": "",
    }


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_whatever_a_pod_has_where_nothing_is_read_filter_answers_as_without_it(
    world: Stepped, value: bytes
) -> None:
    pod = percent(60)
    pod["metadata"]["managedFields"] = "what is odd"
    body = json.dumps({"Pod": pod, "NodeNames": ["a", "b"]}).encode()

    plain = world.client.post("/filter", data=body)
    odd = world.client.post("/filter", data=body.replace(b'"what is odd"', value))

    assert (odd.status_code, odd.data) == (plain.status_code, plain.data) == (200, plain.data)


def test_what_only_the_cards_refuse_is_not_offered_to_kube_schedulers_preemption(world: Stepped) -> None:
    world.put_node(node("c", card(0), card(1)))
    world.put_pod(on(percent(60, "u0"), "c", "c-GPU-0"))
    world.put_pod(on(percent(60, "u1"), "c", "c-GPU-1"))

    answer = world.filter(percent(50), "c")

    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"] == {"c": "no card has 50 percent free"}


def test_whole_node_objects_are_answered_with_node_objects(world: Stepped) -> None:
    items = [node("a"), node("b")]
    body = {"Pod": percent(60), "Nodes": {"items": items}, "NodeNames": None}

    answer = world.client.post("/filter", json=body).get_json()

    assert answer["Nodes"] == {"items": [items[1]]}
    assert answer["NodeNames"] == ["b"]
    assert world.client.post("/prioritize", json=body).get_json() == [
        {"Host": "a", "Score": 0},
        {"Host": "b", "Score": 10},
    ]


def test_keys_are_read_in_any_case(world: Stepped) -> None:
    answer = world.client.post("/filter", json={"pod": percent(60), "NODENAMES": ["a", "b"]}).get_json()

    assert answer["NodeNames"] == ["b"]
    listed = world.client.post(
        "/filter", json={"pod": percent(60), "nodes": {"Items": [node("b")]}}
    ).get_json()
    assert listed["NodeNames"] == ["b"]


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        {"NodeNames": None},
        {"NodeNames": []},
        {"Nodes": None, "NodeNames": None},
        {"Nodes": {"items": None}},
        {"nodes": {"ITEMS": []}, "nodeNames": None},
    ],
)
def test_no_nodes_are_no_nodes(world: Stepped, nodes: dict[str, object]) -> None:
    answer = world.client.post("/filter", json={"Pod": percent(60), **nodes}).get_json()

    assert answer["NodeNames"] == []
    assert answer["Error"] == ""
    assert world.client.post("/prioritize", json={"Pod": percent(60), **nodes}).get_json() == []


@pytest.mark.parametrize("verb", ["filter", "dryrun", "prioritize"])
def test_every_verb_of_nodes_takes_both_forms_in_any_case(world: Stepped, verb: str) -> None:
    pod, items = percent(60), [node("a"), node("b")]

    answers = [
        world.client.post(f"/{verb}", json=body).get_json()
        for body in (
            {"Pod": pod, "NodeNames": ["a", "b"], "Nodes": None},
            {"pod": pod, "nodenames": ["a", "b"]},
            {"POD": pod, "NODES": {"ITEMS": items}, "NODENAMES": None},
            {"Pod": pod, "Nodes": {"metadata": {}, "items": items}},
            {"Pod": pod, "Nodes": {"items": items}, "NodeNames": []},
        )
    ]

    for answer in answers:
        if isinstance(answer, dict):
            assert answer.pop("Nodes", {"items": [items[1]]}) == {"items": [items[1]]}
    assert answers[1:] == answers[:1] * 4


def test_a_reason_stays_the_same_while_what_is_free_moves(world: Stepped) -> None:
    pod = percent(60)
    reasons = []
    for used in (50, 70, 90, 41):
        world.put_pod(on(percent(used, "user"), "a", "a-GPU-0"))
        answer = world.filter(pod, "a")
        reasons.append({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]})

    assert reasons == [{"a": "no card has 60 percent free"}] * 4


def test_filter_writes_nothing(world: Stepped) -> None:
    waiting = world.put_pod(percent(60, "waiting"))
    snapshot, calls = world.extender.cache.snapshot, world.api.calls.copy()

    for names in (["a"], ["b"], ["a", "b"], ["unknown"]):
        world.filter(waiting, *names)

    assert world.extender.cache.snapshot is snapshot
    assert world.api.calls == calls


def test_a_pod_without_a_gpu_may_go_anywhere(world: Stepped) -> None:
    assert world.filter(asking(container()), "a", "b", "unknown")["NodeNames"] == ["a", "b", "unknown"]


def test_a_malformed_pod_is_refused_everywhere_with_what_is_wrong(world: Stepped) -> None:
    answer = world.filter(percent(150), "a", "b")

    assert answer["NodeNames"] == []
    reasons = set(answer["FailedAndUnresolvableNodes"].values())
    assert len(reasons) == 1
    assert "gpu-percent" in reasons.pop()


def test_binpack_ranks_the_fuller_node_first_and_spread_the_freer(world: Stepped) -> None:
    assert world.prioritize(percent(10), "a", "b") == {"a": 10, "b": 9}
    spread = percent(10, annotations={"bursar.dev/policy": "spread"})
    assert world.prioritize(spread, "a", "b") == {"a": 9, "b": 10}
    assert world.prioritize(percent(150), "a", "b") == {"a": 0, "b": 0}


def test_the_clusters_policy_is_that_of_pods_that_name_none(start: Start) -> None:
    world = start("--policy", "spread")
    world.put_node(node("a"))
    world.put_node(node("b"))
    world.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))

    assert world.prioritize(percent(10), "a", "b") == {"a": 9, "b": 10}
    packed = percent(10, annotations={"bursar.dev/policy": "binpack"})
    assert world.prioritize(packed, "a", "b") == {"a": 10, "b": 9}


def test_load_acts_as_fragmentation_while_nothing_is_measured_and_says_so_once(start: Start) -> None:
    world = start("--policy", "load")
    for name in ("a", "b"):
        raw = node(name)
        raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": "64"}
        world.put_node(raw)
    world.put_pod(on(percent(50, "user"), "b", "b-GPU-0"))

    for _ in range(3):
        assert world.prioritize(percent(50), "a", "b") == {"a": 9, "b": 10}
    said = [line for line in world.lines if line.startswith("policy")]
    assert said == ["policy asked=load acts_as=fragmentation why=no measurements of card load"]


def test_a_pod_without_a_gpu_is_kept_from_the_cpu_that_free_gpus_need(start: Start) -> None:
    world = start("--policy", "fragmentation")
    for name, cores in (("a", "20"), ("b", "64")):
        raw = node(name, card(0), card(1))
        raw["status"]["allocatable"] = {**raw["status"]["allocatable"], "cpu": cores}
        world.put_node(raw)
    raw = {**percent(10), "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "16"}}}]}}

    assert world.prioritize(raw, "a", "b") == {"a": 9, "b": 10}
    assert start("--policy", "binpack").prioritize(raw, "a", "b") == {"a": 0, "b": 0}


def test_of_many_nodes_that_fit_filter_returns_as_many_of_the_best_as_its_setting_says(start: Start) -> None:
    world, names = start("--policy", "binpack", "--most-offered", "2"), ["a", "b", "c", "d"]
    for name, used in zip(names, (10, 30, 20, 0), strict=True):
        world.put_node(node(name))
        if used:
            world.put_pod(on(percent(used, f"on-{name}"), name, f"{name}-GPU-0"))

    answer = world.filter(percent(50), *names, "unknown")
    assert answer["NodeNames"] == ["b", "c"]
    assert {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.keys() == {"unknown"}
    assert world.prioritize(percent(50), *answer["NodeNames"]) == {"b": 10, "c": 9}
    assert world.filter(percent(75), *names)["NodeNames"] == ["a", "c"]
    assert world.filter(percent(95), *names)["NodeNames"] == ["d"]
    spread = percent(50, annotations={"bursar.dev/policy": "spread"})
    assert world.filter(spread, *names)["NodeNames"] == ["a", "d"]
    assert world.filter(asking(container()), *names)["NodeNames"] == names


def test_a_node_that_was_made_free_for_a_pod_is_in_its_answer_too(start: Start) -> None:
    world, names = start("--policy", "binpack", "--most-offered", "1"), ["a", "b"]
    for name in names:
        world.put_node(node(name))
    world.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))
    raw = world.put_pod(percent(10, "p"))
    assert world.filter(raw, *names)["NodeNames"] == ["a"]

    nominated = world.put_pod({**raw, "status": {"phase": "Pending", "nominatedNodeName": "b"}})
    assert world.filter(nominated, *names)["NodeNames"] == names


def test_filter_agrees_with_bind_on_which_nodes_fit(world: Stepped) -> None:
    for share in (60, 50, 40, 10, 100):
        raw = world.put_pod(percent(share, f"p{share}"))
        answer = world.filter(raw, "a", "b")
        for name, reason in {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.items():
            assert world.bind(raw, name) == reason
        for name in answer["NodeNames"][:1]:
            assert world.bind(raw, name) == ""


# malformed bodies


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"{}",
    b"\xff",
    b"[" * 100_000,
    b'{"Pod": 1}',
    b'{"Pod": {"metadata": 1}}',
    b'{"Pod": {"metadata": {}}, "NodeNames": "a"}',
    b'{"Pod": {"metadata": {}}, "NodeNames": [1]}',
    b'{"Pod": {"metadata": {}}, "Nodes": 1}',
    b'{"Pod": {"metadata": {}}, "Nodes": {"items": 1}}',
    b'{"Pod": {"metadata": {}}, "Nodes": {"items": [1]}}',
    b'{"Pod": {"metadata": {}}, "Nodes": {"items": [{"metadata": {"name": 1}}]}}',
]
ORDERS = [
    b"{}",
    b'{"PodName": "p", "PodNamespace": "n", "PodUID": "u"}',
    b'{"PodName": "p/../q", "PodNamespace": "n", "PodUID": "u", "Node": "a"}',
    b'{"PodName": 1, "PodNamespace": "n", "PodUID": "u", "Node": "a"}',
]
MALFORMED = [("prioritize", b""), ("dryrun", b"{"), *(("filter", body) for body in BODIES)]


@pytest.mark.parametrize(("verb", "body"), [*MALFORMED, *(("bind", order) for order in ORDERS)])
def test_a_malformed_body_is_400_with_a_reason(running: Stepped, verb: str, body: bytes) -> None:
    answer = running.client.post(f"/{verb}", data=body)

    assert answer.status_code == 400
    assert answer.text.startswith("malformed body: ")


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {}},
        {"metadata": {"uid": 1, "annotations": []}, "spec": [], "status": 3},
        {
            "metadata": {"annotations": {"bursar.dev/devices": 7}},
            "spec": {"containers": [1, {"resources": 1}]},
        },
        {"metadata": {}, "spec": {"containers": [{"resources": {"limits": {"bursar.dev/gpu-percent": []}}}]}},
        {"metadata": {}, "spec": {"priority": "x", "terminationGracePeriodSeconds": "y", "containers": None}},
    ],
)
def test_an_odd_pod_is_never_a_500(world: Stepped, pod: dict[str, object]) -> None:
    for verb in ("filter", "prioritize"):
        assert world.client.post(f"/{verb}", json={"Pod": pod, "NodeNames": ["a"]}).status_code == 200


def test_other_routes_and_methods_are_problems(running: Stepped) -> None:
    assert running.client.get("/filter").status_code == 405
    answer = running.client.get("/v1/nothing")

    assert (answer.status_code, answer.content_type) == (404, "application/problem+json")
    assert answer.get_json()["detail"] == "there is no route /v1/nothing"


# before the books are complete, and after


def refuses_to_answer(client: Client) -> bool:
    """True where every verb answers as one whose cache is not complete."""
    sentence = "the extender's cache is not complete yet"
    body = {"Pod": percent(10), "NodeNames": ["a"]}
    order = {"PodName": "p", "PodNamespace": "team-a", "PodUID": "uid-p", "Node": "a"}
    filtered = client.post("/filter", json=body)
    assert filtered.status_code == 200
    return (
        filtered.get_json()
        == {"NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": sentence}
        and client.post("/prioritize", json=body).get_json() == [{"Host": "a", "Score": 0}]
        and client.post("/bind", json=order).get_json() == {"Error": sentence}
        and client.get("/readyz").status_code == 503
    )


def test_nothing_is_answered_before_both_lists_are_in(start: Start, api: Store) -> None:
    api.put("nodes", node("a"))
    api.faults += [Fault("list", status=500) for _ in range(6)]
    world = start(wait=False)

    assert refuses_to_answer(world.client)
    assert world.client.get("/livez").status_code == 200
    assert api.made("bind") == []
    for _ in range(6):
        world.catches_up()
    world.begins()
    assert world.client.get("/readyz").status_code == 200
    assert world.filter(percent(10), "a")["NodeNames"] == ["a"]


def test_everything_is_read_from_the_objects_at_the_start(start: Start, api: Store) -> None:
    api.put("nodes", node("a", card(0), card(1)))
    api.put("pods", on(percent(70, "x"), "a", "a-GPU-1"))
    api.put("pods", percent(20, "waiting"))

    world = start()

    assert world.free("a") == [1000, 300]
    assert "complete nodes=1 pods=2 waiting=1" in world.lines


def test_a_watch_that_expired_is_begun_anew_and_what_went_meanwhile_counts(world: Stepped) -> None:
    world.api.watching = False
    world.api.delete("pods", "user", "team-a")
    world.api.put("pods", on(percent(30, "new"), "b", "b-GPU-0"))
    world.api.watching = True
    world.api.compact()

    world.catches_up()
    assert world.free("b") == [700]
    assert world.free("a") == [500]
    allocation = world.extender.cache.snapshot.allocation("uid-user")
    assert allocation is not None
    assert allocation.state == "orphaned"


def test_a_thread_that_dies_takes_the_process_with_it() -> None:
    class Broken(Api):
        def stream(self, path: str, silence_s: float) -> NoReturn:
            raise RuntimeError("a fault of our own")

    died: list[int] = []
    api = Broken("http://127.0.0.1:1", tcp, dict)
    extender = Extender(settings.read([], {}), api, lambda event, **fields: None, died.append)
    extender.start()

    eventually(lambda: died == [1, 1, 1, 1])  # pods, nodes, namespaces and PodDisruptionBudgets
    assert not extender.cache.complete
    extender.stop()


def test_the_snapshot_is_kept_while_the_api_server_is_away(world: Stepped) -> None:
    world.api.end()
    world.catches_up()

    assert any(line.startswith("unheard") for line in world.lines)
    assert world.filter(percent(60), "a", "b")["NodeNames"] == ["b"]
    assert world.client.get("/readyz").status_code == 200


# seeing


def test_the_metrics_show_what_is_known_and_what_was_answered(world: Stepped) -> None:
    world.put_node(node("closed"))
    world.put_pod(bound(percent(10, "other"), "closed", None))
    world.filter(percent(60, "waiter"), "a")
    world.client.post("/bind", data=b"{")

    text = world.client.get("/metrics").text

    for line in (
        'bursar_extender_verbs_total{result="none",verb="filter"} 1.0',
        'bursar_extender_verbs_total{result="malformed",verb="bind"} 1.0',
        'bursar_extender_verb_seconds_count{verb="filter"} 1.0',
        'bursar_extender_nodes_closed{reason="unplaced"} 1.0',
        'bursar_extender_nodes_closed{reason="two-families"} 0.0',
        "bursar_extender_nodes 3.0",
        "bursar_extender_cards 2.0",
        "bursar_extender_cards_untouched 1.0",
        "bursar_extender_free_gpus 1.5",
        'bursar_extender_pods_unsure{held="assumed"} 0.0',
    ):
        assert line in text.splitlines()
    assert 'bursar_extender_api_silent_seconds{kind="pods"}' in text


def test_each_decision_is_one_line_without_the_pods_contents(world: Stepped) -> None:
    raw = percent(60)
    raw["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    world.filter(raw, "a")

    (line,) = [line for line in world.lines if line.startswith("filter")]

    assert line.startswith(
        "filter result=none pod=team-a/p uid=uid-p nodes=1 reason=no card has 60 percent free ms="
    )
    assert "hunter2" not in json.dumps(world.lines)
