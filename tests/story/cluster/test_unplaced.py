"""A namespace with `placement: off`, with nodes of its own: the cluster's kube-scheduler places its pods, as
NVIDIA's device plugin counts cards; budget, cap and eviction hold all the same."""

from deploy.local.kwok_nodes import kwok_node, nvidia_capacity
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import gated, pods, running
from tests.story.cluster.test_metering import held_ms, set_budgets
from tests.support.control_plane import create_namespace, refused
from tests.support.waiting import at_once
from tests.worlds import Json

LABELS = {
    **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "4"},
    **{"nvidia.com/gpu.memory": "40960", "team": "plain"},
}
SETTINGS = (
    "lookahead: 0s\nsettleAfter: 5s\nevictGrace: 1s\npdbGrace: 1s\nevictRate: 60\nweights: {A100: 2.5}\n"
)
ENTRY = "onExhausted: evict\nmaxGPUs: 2\nplacement: off\n"
RUN_FOR = "local.bursar.dev/run-for"


def pod(name: str, limits: Json) -> Json:
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name}, "spec": spec}


def whole(name: str) -> Json:
    return pod(name, {"nvidia.com/gpu": "1"})


def test_pods_on_the_clusters_own_scheduler_are_gated_charged_and_evicted(stack: Stack, reader: str) -> None:
    path = create_namespace(stack.cp, "plain")
    call = stack.cp.api.call
    call("POST", "/api/v1/nodes", kwok_node("plain-0", capacity=nvidia_capacity(4), labels=LABELS))
    set_budgets(stack, _settings=SETTINGS, plain=f"gpuHours: 100\n{ENTRY}")

    def refuses_a_share() -> bool:
        share = pod("share", {"bursar.dev/gpu-percent": "50"})
        said = refused(stack.cp, "POST", f"{path}?dryRun=All", share)
        return "or an administrator sets placement: on" in said

    stack.wait("both workers to refuse a share", lambda: all(at_once(refuses_a_share)))

    # classed, recorded and gated, and otherwise as its user wrote it
    for each in [call("POST", path, whole(name)) for name in "abc"]:
        spec, annotations = each["spec"], each["metadata"]["annotations"]
        assert each["metadata"]["labels"] == {"bursar.dev/governed": "true"}
        assert (annotations["bursar.dev/standing"], annotations["bursar.dev/held"]) == ("IN_BUDGET", "turn")
        assert (spec["schedulerName"], spec["priorityClassName"]) == (
            *("default-scheduler", "gpu-default-priority"),
        )
        assert spec["schedulingGates"] == [{"name": "bursar.dev/budget"}]
        assert "initContainers" not in spec
        assert "env" not in spec["containers"][0]

    # two within the cap; the third once one of them has ended by itself
    stack.wait("two to run", lambda: len(running(pods(stack, path))) == 2, "timekeeper")
    assert len(gated(pods(stack, path))) == 1
    first = str(running(pods(stack, path))[0]["metadata"]["name"])
    ends = {"metadata": {"annotations": {RUN_FOR: "1s"}}}
    call("PATCH", f"{path}/{first}", ends, "application/merge-patch+json")

    def phases() -> list[str]:
        return sorted(each["status"]["phase"] for each in pods(stack, path))

    stack.wait("the third to run", lambda: phases() == ["Running", "Running", "Succeeded"], "timekeeper")
    for each in pods(stack, path):
        assert each["spec"]["nodeName"] == "plain-0"
        assert "bursar.dev/devices" not in each["metadata"]["annotations"]

    # charged to the millisecond, at the weight of its card
    def charged() -> int:
        rows = stack.get("/v1/usage?namespace=plain&group=pod", reader)["rows"]
        return sum(int(row["amount"]) for row in rows if row["pod"] == first)

    owed = 2_500 * held_ms(call("GET", f"{path}/{first}"))
    stack.wait("the settlement", lambda: charged() == owed, "timekeeper")
    sessions = stack.get("/v1/sessions?namespace=plain", reader)["sessions"]
    assert {(each["rateMilli"], each["models"]) for each in sessions} == {(2_500, "NVIDIA-A100-SXM4-40GB")}

    # spent: new pods wait, and those that run leave
    set_budgets(stack, _settings=SETTINGS, plain=f"gpuHours: 0\n{ENTRY}")
    stack.wait("the evictions", lambda: not running(pods(stack, path)), "timekeeper")
    assert charged() == owed
    budget = stack.get("/v1/budgets/plain", reader)
    assert (budget["placement"], budget["standing"]) == ("off", "OVER_BUDGET")

    def is_held() -> bool:
        dry = call("POST", f"{path}?dryRun=All", whole("later"))
        return bool(dry["metadata"]["annotations"].get("bursar.dev/held") == "budget")

    stack.wait("both workers to hold new pods", lambda: all(at_once(is_held)))
