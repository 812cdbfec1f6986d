"""A namespace moves from gpushare to Bursar while both place pods on the same node, as the page on dialects
says."""

from typing import Any

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.support.control_plane import MERGE, create_namespace
from tests.support.waiting import eventually
from tests.worlds import Json

MEMORY, COUNT, INDEX = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "ALIYUN_COM_GPU_MEM_IDX"
NODE = {MEMORY: "30", COUNT: "2"}  # two cards of 15 units
EXEMPT = {"metadata": {"labels": {"bursar.dev/exempt": "true"}}}
MOVED = {"metadata": {"labels": {"bursar.dev/exempt": None}}}


def shared(name: str, units: int, **spec: Any) -> Json:
    """A pod with so much memory of one card."""
    limits = {MEMORY: str(units)}
    containers = [{"name": "main", "image": "example/app:1", "resources": {"limits": limits}}]
    return {
        "metadata": {"name": name},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 1, **spec},
    }


def bind(stack: Stack, pods: str, name: str, card: int) -> None:
    """What gpushare's extender does: it names a card, and binds."""
    annotations = {INDEX: str(card), "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "shared"},
    }
    stack.cp.api.call("POST", f"{pods}/{name}/binding", body)


def card_of(stack: Stack, pods: str, name: str) -> str:
    """The index that the plugin would read; empty before the Binding."""
    pod = stack.cp.api.call("GET", f"{pods}/{name}")
    return str(pod["metadata"].get("annotations", {}).get(INDEX, "")) if pod["spec"].get("nodeName") else ""


def test_a_namespace_moves_while_both_schedulers_use_one_node(stack: Stack, reader: str) -> None:
    api = stack.cp.api
    api.call("POST", "/api/v1/nodes", kwok_node("shared", capacity=NODE))
    pods = {name: create_namespace(stack.cp, name) for name in ("stays", "moves")}
    for name in pods:
        api.call("PATCH", f"/api/v1/namespaces/{name}", EXEMPT, MERGE)
    theirs = {"schedulerName": "gpushare-scheduler"}
    for name, card in (("stays", 0), ("moves", 1)):
        eventually(lambda name=name: not refused(stack, pods[name], shared("old", 10, **theirs)))  # type: ignore[misc]
        bind(stack, pods[name], "old", card)

    api.call("PATCH", "/api/v1/namespaces/moves", MOVED, MERGE)
    governed = eventually(lambda: dry_run(stack, pods["moves"]).get("bursar.dev/governed"))
    assert governed == "true"
    api.call("POST", pods["moves"], shared("new", 10))
    waits = eventually(lambda: condition(stack, pods["moves"], "new"))
    assert "0/1 nodes are available" in waits  # each card has 5 units left
    assert "free" in waits
    assert card_of(stack, pods["moves"], "new") == ""

    api.call("DELETE", f"{pods['moves']}/old")
    assert eventually(lambda: card_of(stack, pods["moves"], "new")) == "1"
    small = shared("small", 5)
    api.call("POST", pods["moves"], small)
    assert eventually(lambda: card_of(stack, pods["moves"], "small")) in ("0", "1")
    eventually(lambda: sessions(stack, reader, "moves") == {"old": False, "new": True, "small": True})
    assert sessions(stack, reader, "stays") == {"old": False}

    # gpushare decides for a card at the same moment as Bursar did
    api.call("POST", pods["stays"], shared("late", 10, **theirs))
    bind(stack, pods["stays"], "late", 1)
    eventually(lambda: "two schedulers gave out one of its cards" in str(events(stack)))
    api.call("DELETE", f"{pods['stays']}/late")
    eventually(lambda: "CardsOpen" in str(events(stack)))


def sessions(stack: Stack, reader: str, namespace: str) -> dict[str, bool]:
    """The pods of the namespace that are charged, and whether by their placement."""
    listed = stack.get(f"/v1/sessions?namespace={namespace}", reader)["sessions"]
    return {each["pod"]: bool(each["cards"]) for each in listed}


def refused(stack: Stack, pods: str, body: Json) -> bool:
    """Whether the pod could not be created."""
    try:
        stack.cp.api.call("POST", pods, body)
    except Exception:
        return True
    return False


def dry_run(stack: Stack, pods: str) -> Json:
    """The labels that a new pod would get; none while workers know different modes (docs/limits.md)."""
    try:
        pod = stack.cp.api.call("POST", f"{pods}?dryRun=All", shared("tried", 1))
    except ApiError as error:
        if "for example creating the pod again" not in str(error):
            raise
        return {}
    labels: Json = pod["metadata"].get("labels", {})
    return labels


def condition(stack: Stack, pods: str, name: str) -> str:
    """kube-scheduler's words on a pod that waits."""
    found = stack.cp.api.call("GET", f"{pods}/{name}")["status"].get("conditions", [])
    return "".join(each.get("message", "") for each in found if each["type"] == "PodScheduled")


def events(stack: Stack) -> list[Json]:
    """The Events on the node."""
    listed = stack.cp.api.call("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [each for each in listed if each["regarding"].get("name") == "shared"]
