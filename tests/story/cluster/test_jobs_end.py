"""Jobs of governed pods complete, with a sidecar and without; the sidecar, its token and the timekeeper
are real, kwok plays the kubelet."""

import datetime

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.support.control_plane import create_namespace
from tests.worlds import Json

CONFIG_MAPS = "/api/v1/namespaces/bursar-system/configmaps"
JOBS = "/apis/batch/v1/namespaces/ending/jobs"
PODS = "/api/v1/namespaces/ending/pods"
RATE = 500  # of half a T4, in milli-GPU


@pytest.fixture(scope="module", autouse=True)
def laid_out(stack: Stack, sidecars: Sidecars) -> None:
    """A node with cards, and a namespace for the Jobs."""
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("jobs", cards=4, memory_mib=16_000, model="T4"))
    create_namespace(stack.cp, "ending")


def inject(stack: Stack, how: str) -> None:
    """Set how the sidecar is injected, and wait until every webhook worker does it so."""
    body = {"metadata": {"name": "bursar-budgets"}, "data": {"_settings": f"sidecar: {how}\n"}}
    if stack.exists(f"{CONFIG_MAPS}/bursar-budgets"):
        stack.cp.api.call("PUT", f"{CONFIG_MAPS}/bursar-budgets", body)
    else:
        stack.cp.api.call("POST", CONFIG_MAPS, body)

    def seen() -> str:
        shown = stack.cp.api.call("POST", f"{PODS}?dryRun=All", {"metadata": {"name": "dry"}, "spec": spec()})
        return place_of(shown)

    wanted = {"on": "initContainers", "off": ""}[how]
    stack.wait(f"sidecar: {how}", lambda: [seen() for _ in range(6)] == 6 * [wanted])


def spec() -> Json:
    """A pod of half a card that ends."""
    limits = {"bursar.dev/gpu-percent": "50"}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    return {"restartPolicy": "Never", "containers": [container]}


def place_of(pod: Json) -> str:
    """The list of containers in which the sidecar stands; empty where there is none."""
    for field in ("initContainers", "containers"):
        if any(each["name"] == "bursar-sidecar" for each in pod["spec"].get(field, [])):
            return field
    return ""


def job(stack: Stack, name: str, run_for: str, code: str = "0") -> Json:
    """Run a Job of one pod to its end; that pod."""
    begin(stack, name, run_for, code)
    wanted = "Complete" if code == "0" else "Failed"
    stack.wait(f"Job {name}: {wanted}", lambda: has(stack, name, wanted))
    return pod_of(stack, name)


def begin(stack: Stack, name: str, run_for: str, code: str = "0") -> None:
    """Create a Job of one pod."""
    said = {"local.bursar.dev/run-for": run_for, "local.bursar.dev/exit-code": code}
    template = {"metadata": {"annotations": said}, "spec": spec()}
    body = {"metadata": {"name": name}, "spec": {"template": template, "backoffLimit": 0}}
    stack.cp.api.call("POST", JOBS, body)


def has(stack: Stack, name: str, condition: str) -> bool:
    """Whether the Job has the condition."""
    status = stack.cp.api.call("GET", f"{JOBS}/{name}")["status"]
    return any(each["type"] == condition for each in status.get("conditions", []))


def pod_of(stack: Stack, name: str) -> Json:
    """The Job's pod."""
    (pod,) = stack.cp.api.call("GET", f"{PODS}?labelSelector=job-name%3D{name}")["items"]
    found: Json = pod
    return found


def ends(pod: Json) -> dict[str, tuple[int, datetime.datetime]]:
    """Exit code and end of each container."""
    status = pod["status"]
    listed = [*status.get("initContainerStatuses", []), *status["containerStatuses"]]
    states = {each["name"]: each["state"]["terminated"] for each in listed}
    return {
        name: (state["exitCode"], datetime.datetime.fromisoformat(state["finishedAt"]))
        for name, state in states.items()
    }


def held_ms(pod: Json) -> int:
    """How long the pod held its card: from its binding to the last end of all its containers."""
    (scheduled,) = (each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
    bound = datetime.datetime.fromisoformat(scheduled["lastTransitionTime"])
    return int((max(end for _, end in ends(pod).values()) - bound).total_seconds() * 1000)


def posted(stack: Stack, reader: str, pod: Json) -> int | None:
    """What the pod was charged; None while it is not settled."""
    rows = stack.get("/v1/usage?namespace=ending&group=pod", reader)["rows"]
    settled = [row["posted"] for row in rows if row["pod"] == pod["metadata"]["name"] and not row["pending"]]
    return int(settled[0]) if settled else None


@pytest.mark.parametrize("how", ["on", "off"])
def test_a_job_completes_and_is_charged_for_the_hold_of_its_card(stack: Stack, reader: str, how: str) -> None:
    inject(stack, how)

    pod = job(stack, f"with-{how}", "2s")

    assert place_of(pod) == {"on": "initContainers", "off": ""}[how]
    assert pod["status"]["phase"] == "Succeeded"
    stack.wait("the charge", lambda: posted(stack, reader, pod) is not None)
    assert posted(stack, reader, pod) == held_ms(pod) * RATE
