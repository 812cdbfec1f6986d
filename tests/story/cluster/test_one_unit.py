"""What pods take of cards in one unit, from the agent's capacity to the pods on the cards."""

from deploy.local.kwok_nodes import kwok_node, our_capacity
from deploy.local.stack import Stack
from tests.support.control_plane import create_namespace, refused
from tests.support.waiting import at_once
from tests.worlds import Json, container

UNIT = "cards.bursar.dev/millionths"


def pod(name: str, **limits: object) -> Json:
    asked: Json = {f"gpu_{resource}": str(amount) for resource, amount in limits.items()}
    main = container(**asked)
    return {"metadata": {"name": name}, "spec": {"containers": [main]}}


def requests(raw: Json) -> Json:
    found: Json = raw["spec"]["containers"][0]["resources"]["requests"]
    return found


def test_pods_also_request_the_unit_once_every_node_has_it_and_complement_each_other(stack: Stack) -> None:
    """The memory of one card is full, then. A quota counts what users name."""
    api, path = stack.cp.api, create_namespace(stack.cp, "units")
    own = our_capacity(1, 80_000)
    former = {name: own[name] for name in ("bursar.dev/gpu-percent", "bursar.dev/gpu-memory")}
    api.call("POST", "/api/v1/nodes", kwok_node("units-0", cards=1, memory_mib=80_000))
    api.call("POST", "/api/v1/nodes", kwok_node("units-1", cards=1, memory_mib=80_000, capacity=former))

    def stored(name: str, **limits: object) -> Json:
        made: Json = api.call("POST", f"{path}?dryRun=All", pod(name, **limits))
        return requests(made)

    def runs(name: str) -> bool:
        return bool(api.call("GET", f"{path}/{name}")["status"].get("phase") == "Running")

    asked = {"bursar.dev/gpu-count": "1"}
    stack.wait(
        "the pods to be governed",
        lambda: all(requests_now == asked for requests_now in at_once(lambda: stored("dry", count=1))),
    )
    api.call("DELETE", "/api/v1/nodes/units-1")
    stack.wait(
        "the unit",
        lambda: all(now == asked | {UNIT: "1M"} for now in at_once(lambda: stored("dry", count=1))),
    )

    api.call("POST", path, pod("memory", percent=10, memory=72_000))
    api.call("POST", path, pod("compute", percent=85, memory=8_000))
    stack.wait("both on one card", lambda: runs("memory") and runs("compute"))
    assert requests(api.call("GET", f"{path}/memory"))[UNIT] == "900k"
    api.call("POST", path, pod("third", percent=5))

    def because() -> str:
        conditions = api.call("GET", f"{path}/third")["status"].get("conditions", [])
        return str([condition.get("message") for condition in conditions])

    stack.wait("kube-scheduler's own word", lambda: f"Insufficient {UNIT}" in because())
    api.call("DELETE", f"{path}/memory")
    stack.wait("room", lambda: runs("third"))

    quota = {"metadata": {"name": "cards"}, "spec": {"hard": {"requests.bursar.dev/gpu-count": "1"}}}
    api.call("POST", path.replace("/pods", "/resourcequotas"), quota)
    stack.wait(
        "the quota to count",
        lambda: (
            "exceeded quota: cards" in refused(stack.cp, "POST", f"{path}?dryRun=All", pod("two", count=2))
        ),
    )
    assert stored("one", count=1)[UNIT] == "1M"
