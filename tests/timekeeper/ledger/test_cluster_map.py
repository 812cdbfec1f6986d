"""The live map: what the extender posted last is what is answered, whole or of one namespace."""

import json
from dataclasses import replace

from tests.support.routed import client_of
from tests.timekeeper.worlds import MINUTE, T0, Json, Town, gpu_pod, token, user_status
from tests.timekeeper.worlds import node as real_node
from timekeeper.api.create_app import app_of
from timekeeper.store.engine.schema import MAP_NODES

BOTH_DATABASES = "pages of the map are SQL"
READER = token("reader")


def pod(name: str, namespace: str = "team-a", share: int = 500) -> Json:
    return {
        "namespace": namespace,
        "name": name,
        "uid": f"uid-{name}",
        "share_milli": share,
        "memory_mib": 8_000,
        "held": "bound",
    }


def card(at: int, *pods: Json, model: str = "A100", **fields: object) -> Json:
    return {
        "uuid": f"GPU-{at}",
        "index": at,
        "model": model,
        "memory_mib": 16_000,
        "healthy": True,
        "cordoned": False,
        "used_share_milli": sum(each["share_milli"] for each in pods),
        "used_memory_mib": sum(each["memory_mib"] for each in pods),
        "pods": list(pods),
        "more_pods": 0,
    } | fields


def on_map(name: str, *cards: Json, closed: str = "") -> Json:
    return {"name": name, "closed": closed, "cards": list(cards)}


def waits(name: str, namespace: str = "team-a", **fields: object) -> Json:
    return {
        "namespace": namespace,
        "name": name,
        "uid": f"uid-{name}",
        "state": "refused",
        "standing": "IN_BUDGET",
        "priority": 0,
        "age_ms": MINUTE,
        "reason": "no card has 9000 MiB free (2 of 2 nodes)",
    } | fields


def post(
    town: Town, *nodes: Json, gone: tuple[str, ...] = (), waiting: Json | None = None, **fields: object
) -> int:
    body = {"version": 1, "nodes": list(nodes), "gone": list(gone), "waiting": waiting, "term": "a-1"}
    return int(town.post("/v1/cluster", body | fields).status_code)


def names(town: Town, query: str = "") -> list[str]:
    return [each["name"] for each in town.get(f"/v1/cluster?{query}").get_json()["nodes"]]


def test_the_last_post_of_each_node_counts_until_it_is_gone_or_forgotten(town: Town) -> None:
    assert town.get("/v1/cluster").get_json()["posted"] is None
    full = on_map("n2", card(0, pod("a"), pod("b")), card(1, pod("c", share=1000)))
    assert post(town, on_map("n1", card(0)), full, on_map("n3", card(0, pod("d")), closed="draining")) == 200

    first = town.get("/v1/cluster").get_json()
    assert (first["posted"], [each["name"] for each in first["nodes"]]) == (T0, ["n2", "n3", "n1"])
    assert first["nodes"][0] == full | {"posted": T0}

    town.clock.turn(10 * MINUTE)
    assert post(town, on_map("n2", card(0, healthy=False)), gone=("n3",)) == 200
    assert names(town) == ["n1", "n2"]
    town.clock.turn(6 * MINUTE)
    assert post(town) == 200
    assert names(town) == ["n2"]


def test_what_the_timekeeper_takes_where_the_cluster_decides_is_said(town: Town) -> None:
    town.serve()
    town.client = client_of(app_of(replace(town._served[-1], families=("IPv4",))), ())

    said = town.get("/v1/cluster").get_json()["timekeeper"]

    assert said == {"families": ["IPv4"], "targetSessionAttrs": None}


def test_what_the_extender_finds_is_listed_after_the_timekeepers_with_its_age(town: Town) -> None:
    def answer() -> Json:
        found: Json = town.get("/v1/findings").get_json()
        return found

    assert answer()["roles"] == [{"role": "timekeeper", "ageMs": 0, "more": {}}]
    row = {"code": "closed-node", "level": "warning", "about": "nodes", "figures": {"node": "n", "at": 1}}
    row |= {"sentence": "n is closed: x"}
    assert post(town, findings={"findings": [row, row], "more": {"closed-node": 3}}) == 200
    assert post(town, findings={"findings": [row], "more": {"closed-node": 3}}) == 200
    town.clock.turn(MINUTE)
    assert post(town) == 200

    assert answer()["roles"][1:] == [{"role": "extender", "ageMs": MINUTE, "more": {"closed-node": 3}}]
    assert answer()["findings"][-1] == {"role": "extender", **row}
    assert {each["role"] for each in answer()["findings"][:-1]} <= {"timekeeper"}
    bad = {"findings": {"level": "bad"}, "more": {}}
    assert post(town, findings=bad) == 400
    for wrong in ({"level": "bad"}, {"figures": {"node": "\x1b"}}, {"figures": {"n": None}}, {"code": ""}):
        assert post(town, findings={"findings": [row | wrong], "more": {}}) == 400
    assert post(town, findings={"findings": [row] * 101, "more": {}}) == 400


def test_pages_lead_from_the_fullest_node_to_the_emptiest(town: Town) -> None:
    shares = {"n1": 0, "n2": 400, "n3": 400, "n4": 1000, "n5": 350}
    post(town, *(on_map(name, card(0, pod("p", share=share))) for name, share in shares.items()))

    seen: list[str] = []
    after = ""
    while True:
        page = town.get(f"/v1/cluster?limit=2{after}").get_json()
        seen += [each["name"] for each in page["nodes"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"

    assert seen == ["n4", "n2", "n3", "n5", "n1"]
    assert names(town, "node=n5") == ["n5"]


def test_a_reader_of_one_namespace_sees_its_nodes_without_the_names_of_others(town: Town) -> None:
    town.reviews.tokens[READER] = user_status("reader")
    town.reviews.denied.add(("reader", "get", "sessions", ""))
    town.begin(("nodes", real_node()), ("pods", gpu_pod("mine", started_ms=T0)))
    other = waits("theirs", "team-b")
    mine = card(0, pod("mine"), pod("secret", "team-b"))
    post(
        town,
        on_map("n1", mine),
        on_map("n2", card(0)),
        waiting={"total": 7, "pods": [waits("w"), other], "more": {}},
    )

    assert town.get("/v1/cluster", READER).status_code == 403
    assert town.get("/v1/waiting", READER).status_code == 403
    answer = town.get("/v1/cluster?namespace=team-a", READER)
    assert "secret" not in answer.text
    (node,) = answer.get_json()["nodes"]
    assert [each["name"] for each in node["cards"][0]["pods"]] == ["mine", ""]
    waiting = town.get("/v1/waiting?namespace=team-a", READER)
    assert waiting.get_json() == {
        "version": 1,
        "placement": "on",
        "posted": T0,
        "total": None,
        "pods": [waits("w") | {"created": T0 - MINUTE}],
    }
    assert town.get("/v1/waiting").get_json()["total"] == 7


def test_the_number_of_waiting_pods_is_that_of_the_requested_namespace(town: Town) -> None:
    listed = [waits("a"), waits("b", "team-b")]

    def totals(total: int, more: Json) -> list[int | None]:
        assert post(town, waiting={"total": total, "pods": listed, "more": more}) == 200
        asked = ("?namespace=team-a", "?namespace=team-b", "?namespace=team-c", "")
        return [town.get(f"/v1/waiting{each}").get_json()["total"] for each in asked]

    assert totals(2, {}) == [1, 1, 0, 2]
    assert totals(9, {"team-a": 4, "team-c": 3}) == [5, 1, 3, 9]
    assert totals(9, {"team-a": 4}) == [5, None, None, 9]  # three of unnamed namespaces


def test_a_node_without_an_inventory_is_on_the_map_with_what_it_offers(town: Town) -> None:
    assert post(town, on_map("plugin") | {"undescribed": "nvidia.com/gpu 8"}) == 200

    (there,) = town.get("/v1/cluster").get_json()["nodes"]

    assert (there["cards"], there["undescribed"]) == ([], "nvidia.com/gpu 8")


def test_cards_that_only_the_plugin_could_name_count_as_used(town: Town) -> None:
    assert (
        post(town, on_map("plugin", card(0), card(1)) | {"unnamed": 2}, on_map("half", card(0, pod("a"))))
        == 200
    )

    answer = town.get("/v1/cluster").get_json()

    assert [each["name"] for each in answer["nodes"]] == ["plugin", "half"]
    assert answer["nodes"][0]["unnamed"] == 2


def test_an_old_leaders_post_is_refused_also_after_a_restart(town: Town) -> None:
    assert post(town, on_map("n1", card(0)), term="a-1") == 200
    assert post(town, on_map("n2", card(0)), term="b-1") == 200
    assert post(town, on_map("n2", card(0)), term="b-1") == 200
    assert post(town, gone=("n1",), term="a-1") == 409
    town.serve()
    assert post(town, gone=("n2",), term="a-1") == 409
    assert post(town, on_map("n3", card(0)), term="a-2") == 200  # it leads again
    assert post(town, gone=("n3",), term="b-1") == 409

    assert names(town) == ["n1", "n2", "n3"]


def test_of_a_post_of_another_release_the_fields_of_this_one_are_shown(town: Town) -> None:
    """The others name namespaces, which not everybody may read."""
    shown = on_map("n1", card(0))
    posted = {**shown, "stranded": {"team-b": 500}}
    assert post(town, posted) == 200
    assert town.get("/v1/cluster").get_json()["nodes"] == [shown | {"posted": T0}]

    with town.store.writing() as connection:  # as a timekeeper of the release before takes it
        connection.execute(MAP_NODES.update().values(body=json.dumps(posted)))

    assert town.get("/v1/cluster").get_json()["nodes"] == [shown | {"posted": T0}]


def test_names_of_pods_and_of_fields_are_not_confused(town: Town) -> None:
    """Nobody keeps a node from being posted by the name of a pod."""
    named = pod("nodes", "waiting") | {"uid": "gone"}

    assert post(town, on_map("n", card(0, named, model="term", uuid="version"))) == 200
    body = {"version": 1, "nodes": [], "gone": [], "waiting": None, "term": 7}
    assert town.post("/v1/cluster", body).get_json()["field"] == "term"
