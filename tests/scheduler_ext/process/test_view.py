"""What people are shown of the cluster: cards, who sits where, figures, and what would fit."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import read_pod
from scheduler_ext.reports.headroom import MAX_ON_A_NODE, Counting, Headroom
from scheduler_ext.reports.query import cluster_query, size, typical_sizes, waiting_query
from scheduler_ext.reports.totals import Totals
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.policy import BINPACK, BUILT, CardOrder
from scheduler_ext.scoring.typical_pods import BUILT_IN, TypicalPod, TypicalPods
from scheduler_ext.snapshot.free import Free
from scheduler_ext.snapshot.snapshot import Snapshot, node_deleted, node_updated, pod_deleted, pod_updated
from scheduler_ext.verbs.protocol import MalformedArgsError
from tests.scheduler_ext.conftest import Running
from tests.scheduler_ext.reserving import held, stamp
from tests.scheduler_ext.worlds import Json, asking, bound, node, on, percent, place, rebuilt
from tests.support.waiting import eventually
from tests.worlds import card
from tests.worlds import limits_of as of_container

Start = Callable[..., Running]


def cluster(running: Running, **query: object) -> Json:
    """The page."""
    answer = running.client.get(f"/v1/cluster?{urlencode(query, doseq=True)}")
    assert answer.status_code == 200, answer.text
    body: Json = answer.get_json()
    return body


def waiting(running: Running, **query: object) -> Json:
    """The page."""
    answer = running.client.get(f"/v1/waiting?{urlencode(query, doseq=True)}")
    assert answer.status_code == 200, answer.text
    body: Json = answer.get_json()
    return body


@pytest.fixture
def world(running: Running) -> Running:
    """Node a with a half-used card, node b empty, and one that is closed."""
    running.put_node(node("a"))
    running.put_node(node("b"))
    running.put_pod(on(percent(50, "user"), "a", "a-GPU-0"))
    running.put_node(node("closed"))
    running.put_pod(bound(percent(10, "other"), "closed", None))
    return running


# the cluster


def test_the_cluster_page_shows_which_pod_holds_which_card(world: Running) -> None:
    view = cluster(world)

    assert view["version"] == 1
    assert [(each["name"], each["closed"], each["closed_by"]) for each in view["nodes"]] == [
        ("a", None, []),
        ("b", None, []),
        ("closed", "a GPU pod was bound to it without a placement", ["team-a/other"]),
    ]
    assert view["nodes"][0]["cards"] == [
        {
            "uuid": "a-GPU-0",
            "index": 0,
            "model": "A100",
            "memory_mib": 16000,
            "healthy": True,
            "cordoned": False,
            "used_share_milli": 500,
            "used_memory_mib": 8000,
            "pods": [
                {
                    "namespace": "team-a",
                    "name": "user",
                    "uid": "uid-user",
                    "share_milli": 500,
                    "memory_mib": 8000,
                    "held": "bound",
                }
            ],
        }
    ]
    assert view["next"] is None


def test_the_cluster_page_names_the_pods_whose_cards_only_the_plugin_could_name(world: Running) -> None:
    cards = [card(at) for at in range(8)]
    world.put_node(node("v", *cards, capacity={"nvidia.com/gpu": "8"}))
    pair = asking(of_container("main", nvidia_com__gpu="2"), name="pair")
    world.put_pod(bound(pair, "v", None))

    (there,) = cluster(world, node="v")["nodes"]

    assert {each["used_share_milli"] for each in there["cards"]} == {0}
    pod = {"namespace": "team-a", "name": "pair", "uid": "uid-pair", "cards": 2, "held": "bound"}
    assert there["unnamed"] == [pod]
    assert cluster(world, node="a")["nodes"][0]["unnamed"] == []


def test_the_cluster_page_shows_its_figures_and_a_closed_node_has_none(world: Running) -> None:
    world.filter(world.put_pod(percent(60, "waiter")), "a")

    view = cluster(world)

    assert {key: view[key] for key in ("nodes_with_cards", "nodes_closed", "waiting")} == {
        "nodes_with_cards": 3,
        "nodes_closed": 1,
        "waiting": 1,
    }
    wanted = {"cards": 2, "untouched": 1, "free_milli": 1500}
    assert {key: view["totals"][key] for key in wanted} == wanted
    assert view["nodes"][2]["figures"] is None
    parts = [each["figures"] for each in view["nodes"][:2]]
    assert {key: sum(each[key] for each in parts) for key in wanted} == wanted
    # no node of this world tells of any CPU: nobody could use its free cards
    assert view["totals"]["fragmented_milli"] == view["totals"]["stranded_milli"] == 1500


def test_advice_names_the_pods_to_move_and_only_where_it_is_asked_for(world: Running) -> None:
    owned = percent(60, "moved")
    owned["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "j", "controller": True}]
    world.put_pod(on(owned, "b", "b-GPU-0"))
    world.put_node(node("c"))
    world.put_pod(on(percent(40, "alone"), "c", "c-GPU-0"))

    assert cluster(world)["advice"] == []
    assert cluster(world, free=2)["advice"] == [
        {
            "cards": 1,
            "node": "b",
            "free_now": 0,
            "moves": [{"namespace": "team-a", "name": "moved", "uid": "uid-moved", "to": "c"}],
            "given_up": False,
        },
        {"cards": 2, "node": None, "free_now": 0, "moves": [], "given_up": False},
    ]
    assert cluster(world, free=1, node="a")["advice"][0]["node"] is None  # its pod has no controller


def test_a_large_cluster_comes_page_by_page(running: Running) -> None:
    for at in range(7):
        running.put_node(node(f"n{at}"))
    pages = [cluster(running, limit=3)]
    while pages[-1]["next"] is not None:
        pages.append(cluster(running, limit=3, after=pages[-1]["next"]))

    seen = [each["name"] for view in pages for each in view["nodes"]]
    assert [len(view["nodes"]) for view in pages] == [3, 3, 1]
    assert {view["totals"]["cards"] for view in pages} == {7}
    assert seen == [f"n{at}" for at in range(7)]


def test_one_node_alone_is_shown_and_counted(world: Running) -> None:
    view = cluster(world, node="b", request="gpu-percent:50")

    assert [each["name"] for each in view["nodes"]] == ["b"]
    assert view["fits"] == [{"request": "gpu-percent:50", "pods": 2, "nodes": 1, "uncounted": 0}]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("node=x", "404 node 'x' is not known"),
        ("limit=0", "limit: '0' is not a whole number from 1 to 500"),
        ("limit=501", "limit: '501' is not a whole number from 1 to 500"),
        ("limit=-1", "is not a whole number"),
        ("limit=%D9%A3", "is not a whole number"),
        ("limit=1&limit=2", "limit: at most one, not 2"),
        ("nodes=a", "'nodes' is not a parameter; there are node, after, limit, request, free"),
        ("free=17", "free: '17' is not a whole number from 1 to 16"),
        ("request=", "is not resource:amount"),
        ("request=50", "is not resource:amount"),
        ("request=percent:50", "is not resource:amount"),
        ("request=cpu:4", "requests no GPU"),
        ("request=gpu-percent:50,cpu:much", "'cpu:much' is not resource:amount"),
        ("request=gpu-percent:150", "allowed: 1 to 100"),
        ("request=gpu-percent:50,tencent.com/vcuda-core:50", "request 'gpu-percent:50,tencent"),
        ("&".join(["request=gpu-percent:50"] * 17), "at most 16 of them, not 17"),
    ],
)
def test_a_mistake_in_the_query_is_reported(world: Running, query: str, told: str) -> None:
    answer = world.client.get(f"/v1/cluster?{query}")

    assert answer.status_code in (400, 404)
    assert told in f"{answer.status_code} {answer.text}"


@pytest.mark.parametrize("query", ["limit=1001", "node=a", "name=a&name=b"])
def test_a_mistake_in_the_query_for_waiting_pods_is_reported(world: Running, query: str) -> None:
    assert world.client.get(f"/v1/waiting?{query}").status_code == 400


@given(st.text(), st.text())
def test_no_text_in_a_query_is_more_than_a_mistake(name: str, value: str) -> None:
    for read in (cluster_query, waiting_query):
        for key in (name, "request", "limit", "node"):
            with suppress(MalformedArgsError):
                read({key: [value]})


def test_before_the_cache_is_complete_nothing_is_reported(start: Start, running: Running) -> None:
    running.api.faults.clear()
    running.api.stop()
    late = start(wait=False)

    assert late.client.get("/v1/cluster").status_code == 503
    assert late.client.get("/v1/waiting").status_code == 503
    assert late.client.get("/metrics").status_code == 200


# what would fit


@pytest.mark.parametrize(
    ("asked", "pods", "nodes"),
    [
        ("gpu-percent:50", 3, 2),
        ("gpu-percent:100", 1, 1),
        ("gpu-percent:25", 6, 2),
        ("gpu-count:2", 0, 0),
        ("gpu-memory:5000", 4, 2),
        ("gpu-percent:10,gpu-memory:16000", 1, 1),
        ("bursar.dev/gpu-percent:50", 3, 2),
        ("gpu-percent:50,model:A100", 3, 2),
        ("gpu-percent:50,model:H100", 0, 0),
        ("gpu-percent:50,model:H100|A100", 3, 2),
        ("nvidia.com/gpu:1", 0, 0),
    ],
)
def test_how_many_more_pods_fit(world: Running, asked: str, pods: int, nodes: int) -> None:
    (found,) = cluster(world, request=asked)["fits"]

    assert found == {"request": asked, "pods": pods, "nodes": nodes, "uncounted": 0}


def test_cpu_and_what_kube_scheduler_counts_bound_what_fits() -> None:
    raw = node("n", *(card(at) for at in range(8)))
    raw["status"]["allocatable"] = raw["status"]["capacity"] = {
        "bursar.dev/gpu-percent": "500",
        "bursar.dev/gpu-memory": "128000",
        "cpu": "7",
    }
    nodes = list(rebuilt([raw], []).nodes.values())

    def count(text: str) -> int:
        return Counting(lambda _: BINPACK).count(size(text).pod, nodes).pods

    assert count("gpu-count:1") == 8
    assert count("gpu-percent:100") == 5
    assert count("gpu-percent:100,cpu:2") == 3
    assert count("gpu-percent:100,cpu:500m") == 5
    assert count("gpu-percent:100,cpu:8") == 0


SIZES = ["gpu-percent:30", "gpu-percent:100", "gpu-count:2", "gpu-count:2,gpu-percent:80", "gpu-memory:5000"]


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=4),
    st.sampled_from(
        ["gpu-percent:30", "gpu-percent:100", "gpu-count:2", "gpu-count:2,gpu-percent:80", "gpu-memory:5000"]
    ),
    st.sampled_from(["binpack", "spread"]),
)
def test_as_many_fit_as_can_then_be_placed_and_not_one_more(
    shares: list[int], asked: str, policy: str
) -> None:
    """Card by card: first pods that leave so much free, then one pod after another until none fits."""
    raws = [node("n", *(card(at) for at in range(len(shares))))]
    users = [(at, 100 - free) for at, free in enumerate(shares) if free < 100]
    snapshot = rebuilt(raws, [on(percent(share, f"u{at}"), "n", f"GPU-{at}") for at, share in users])

    found = Counting(lambda _: BUILT[policy]).count(size(asked).pod, [snapshot.node("n")])

    placed = 0
    while placed <= found.pods:
        raw = asking({"name": "main", "resources": {"limits": limits_of(asked)}}, name=f"more{placed}")
        there = place(snapshot, raw, "n", policy)
        if there is None:
            break
        value = read_pod(there)
        assert value is not None
        snapshot = pod_updated(snapshot, value)
        placed += 1
    assert found == Headroom(placed, int(placed > 0), 0)


def limits_of(asked: str) -> dict[str, str]:
    """A pod's limits for a request of the query."""
    return {f"bursar.dev/{name}": amount for name, _, amount in (p.partition(":") for p in asked.split(","))}


def test_the_work_of_one_call_is_bounded_and_the_next_ones_go_on() -> None:
    """Nodes that are all different, so that each must be counted."""
    raws = [node(f"n{at}", card(0, 10_000 + at)) for at in range(20)]
    nodes = sorted(rebuilt(raws, []).nodes.values(), key=lambda each: each.name)
    counting = Counting(lambda _: BINPACK)
    pod = size("gpu-memory:1000").pod

    first = counting.count(pod, nodes, most_fits=30)
    calls = [counting.count(pod, nodes, most_fits=30) for _ in range(20)]

    assert 0 < first.pods < 200
    assert first.uncounted > 0
    assert calls[-1] == Headroom(200, 20, 0)


def test_of_tiny_pods_no_more_are_counted_than_a_kubelet_could_take() -> None:
    (only,) = rebuilt([node("n", card(0, 81_920))], []).nodes.values()
    looks: list[int] = []

    def order(before: Free, after: Free, at: int) -> CardOrder:
        looks.append(at)
        return BINPACK.order(before, after, at)

    counting = Counting(lambda _: replace(BINPACK, order=order))

    assert counting.count(size("gpu-memory:64").pod, [only]).pods == MAX_ON_A_NODE
    assert len(looks) == MAX_ON_A_NODE


def test_without_a_request_typical_sizes_are_counted(world: Running) -> None:
    assert [each["request"] for each in cluster(world)["fits"]] == [
        each.text for each in typical_sizes(BUILT_IN)
    ]


def test_typical_sizes_are_written_as_they_are_requested() -> None:
    typical_pods = TypicalPods(
        (
            (TypicalPod(4_000), 50),
            (TypicalPod(6_500, 1, 500), 40),
            (TypicalPod(0, 1, 0, 8_000), 30),
            (TypicalPod(8_000, 2, 1_000, 0, ("H100", "A100")), 20),
            (TypicalPod(8_000, 2, 250, 1_000), 10),
            (TypicalPod(8_000, 1, 1_000, 0, (), ("T4",)), 5),
        )
    )

    sizes = typical_sizes(typical_pods)

    assert [each.text for each in sizes] == [
        "gpu-percent:50,cpu:6500m",
        "gpu-memory:8000",
        "gpu-count:2,cpu:8000m,model:H100|A100",
        "gpu-count:2,gpu-percent:50,gpu-memory:2000,cpu:8000m",
    ]
    asks = [each.pod.request.asks[0].ask for each in sizes if each.pod.request]
    assert [(ask.devices, ask.share_milli, ask.memory_mib) for ask in asks] == [
        (1, 500, 0),
        (1, 0, 8_000),
        (2, 1_000, 0),
        (2, 250, 1_000),
    ]


# figures


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["node", "small", "gone", "pod", "ended"]), st.integers(1, 100)
    ),
    max_size=30,
)


def after(snapshot: Snapshot, at: int, what: str, share: int) -> Snapshot:
    """The snapshot after one thing has happened to one of four nodes."""
    name = f"m{at}"
    raw = node(name, card(0), card(1))
    raw["status"]["allocatable"]["cpu"] = str(share)
    pod = read_pod(on(percent(share, f"p{at}"), name, f"{name}-GPU-{share % 2}"))
    assert pod is not None
    if what == "node":
        return node_updated(snapshot, read_node(raw))
    if what == "small":
        return node_updated(snapshot, read_node(node(name, card(0))))
    if what == "gone":
        return node_deleted(snapshot, name)
    return pod_updated(snapshot, pod) if what == "pod" else pod_deleted(snapshot, pod, 0)


@given(EVENTS, st.sets(st.integers(0, 30)))
def test_figures_kept_up_to_date_are_those_counted_anew(
    events: list[tuple[int, str, int]], looks: set[int]
) -> None:
    models = [
        FragmentationModel(BUILT_IN),
        FragmentationModel(TypicalPods(((TypicalPod(2_000, 1, 700), 3), (TypicalPod(1_000, 2, 1_000), 1)))),
    ]
    used = [models[0]]
    kept, snapshot = Totals(lambda: used[-1]), Snapshot()
    for at, (where, what, share) in enumerate(events):
        snapshot = after(snapshot, where, what, share)
        if at in looks:
            used.append(models[share % 2])
            assert kept.now(snapshot.nodes) == Totals(lambda: used[-1]).now(snapshot.nodes)


def test_what_is_held_for_a_waiting_pod_is_not_free_but_shown(running: Running) -> None:
    now_ms = 1000 * (time.time_ns() // 10**9)
    running.put_node(node("a", card(0), card(1)))
    raw = percent(60, "beneficiary")
    running.put_pod(held(raw, "a", "a-GPU-1", since_ms=now_ms, until_ms=now_ms + 60_000))

    totals = cluster(running)["totals"]

    assert (totals["free_milli"], totals["reserved_milli"], totals["untouched"]) == (1400, 600, 1)
    (pod,) = waiting(running)["pods"]
    assert (pod["state"], pod["reservation"]["node"]) == ("reserved", "a")
    assert pod["reservation"]["until"] == stamp(now_ms + 60_000).replace("Z", ".000Z")


# metrics


def test_the_metrics_show_what_waits_and_why(world: Running) -> None:
    world.filter(world.put_pod(percent(60, "waiter")), "a", "closed")
    eventually(lambda: world.api.made("event"))

    eventually(
        lambda: 'bursar_extender_events_total{result="posted"} 1.0' in world.client.get("/metrics").text
    )
    lines = world.client.get("/metrics").text.splitlines()

    for line in (
        'bursar_extender_nodes_refused_total{reason="room"} 1.0',
        'bursar_extender_nodes_refused_total{reason="closed"} 1.0',
        'bursar_extender_nodes_refused_total{reason="search"} 0.0',
        'bursar_extender_pods_waiting{standing="UNKNOWN"} 1.0',
        'bursar_extender_pods_waiting{standing="OVER_BUDGET"} 0.0',
        "bursar_extender_reservations 0.0",
        "bursar_extender_reserved_gpus 0.0",
        "bursar_extender_fragmented_gpus 1.5",
        "bursar_extender_stranded_gpus 1.5",
        'bursar_extender_events_total{result="dropped"} 0.0',
    ):
        assert line in lines
