"""Every route of the timekeeper that takes a body or a parameter, with the table of hostile values: each is
answered with a sentence, never with a fault of ours, and what is wrong in a manifest is named."""

from collections.abc import Iterator
from itertools import cycle, islice
from urllib.parse import quote

import pytest
from werkzeug.test import Client, TestResponse

from tests.support.hostile_json import WRONG, spoilt_in_turn
from tests.support.routed import client_of
from tests.timekeeper.books import Books
from tests.timekeeper.ledger.test_simulate_api import Planner, owner, planner
from tests.timekeeper.listed import write_accounts
from tests.timekeeper.unit.test_bodies import POSTS
from tests.timekeeper.worlds import ADMIN, Town, agent_status, gpu_pod, pod_status, token
from tests.worlds import Json, container
from timekeeper.api.create_app import ROUTES
from timekeeper.api.http.routes import ApiRoute
from timekeeper.api.resources.heartbeats import HeartbeatHandler
from timekeeper.serving.gunicorn_app import heartbeat_route

__all__ = ["planner"]  # its fixture

ONE_DATABASE = "what is refused reaches none; what is stored has tests of its own on both"

BODIES: dict[str, Json] = {
    "/v1/heartbeats": POSTS["heartbeats"],
    "/v1/nodeusage": POSTS["node usage"],
    "/v1/bindings": POSTS["bindings"],
    "/v1/ends": POSTS["ends"],
    "/v1/decisions": POSTS["decisions"],
    "/v1/cluster": POSTS["cluster"],
    "/v1/grants": POSTS["grant"],
    "/v1/corrections": {**POSTS["grant"], "kind": "correction"},
    "/v1/groups/{group}/grants": POSTS["passing on"],
    "/budget/{namespace}/report": {"devices": [{"uuid": "GPU-0"}]},
    "/budget/{namespace}/increase": {"minutes": 1, "reason": "ticket 7"},
}
PATH = {
    "month": "2026-10",
    "group": "lab",
    "namespace": "team-a",
    "node": "n1",
    "pod": "p",
    "kind": "Job",
    "name": "j",
}
JOBSET = "jobset.x-k8s.io/v1alpha2"
POSTED = [route for route in ROUTES if route.body and route.path != "/v1/simulate"]
ASKED = [route for route in ROUTES if route.parameters]
TEXTS = ("%00", "%ff", "%ed%a0%80", "%F0%9F%92%A9", "x" * 5_000, "1" * 400, *map(quote, WRONG[:36]))


POD, AGENT = token("uid-pod"), token("agent")
SENT_BY = {"/v1/heartbeats": POD, "/budget/{namespace}/report": POD, "/v1/nodeusage": AGENT}

TEMPLATE: Json = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"bursar.dev/duration": "1h"}},
    "spec": {
        "priority": 5,
        "activeDeadlineSeconds": 60,
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "gpus"}],
        "overhead": {"cpu": "1"},
        "containers": [container("main", gpu_percent="50", cpu="2")],
    },
}
DEVICES = {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}]}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpus"},
    "spec": {"spec": {"devices": DEVICES}},
}
OF_ONE: Json = {"replicas": 2, "template": TEMPLATE}
JOB: Json = {"parallelism": 2, "completions": 2, "template": TEMPLATE}
GROUP: Json = {"size": 2, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}
WORKERS: Json = {**OF_ONE, "minReplicas": 1, "maxReplicas": 2, "numOfHosts": 1}
CLUSTER: Json = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [WORKERS]}
ELASTIC: Json = {"elasticPolicy": {"minReplicas": 1}, "pytorchReplicaSpecs": {"Worker": OF_ONE}}
TRAINER: Json = {"numNodes": 1, "resourcesPerNode": {"limits": {"bursar.dev/gpu-percent": "100"}}}
MANIFESTS = [
    {"apiVersion": "v1", "kind": "Pod", **TEMPLATE},
    owner("Deployment", OF_ONE, "apps/v1"),
    owner("Job", JOB, "batch/v1"),
    owner("JobSet", {"replicatedJobs": [{"name": "a", "replicas": 2, "template": {"spec": JOB}}]}, JOBSET),
    owner("LeaderWorkerSet", {"replicas": 2, "leaderWorkerTemplate": GROUP}, "leaderworkerset.x-k8s.io/v1"),
    owner("PyTorchJob", ELASTIC, "kubeflow.org/v1"),
    owner("RayJob", {"rayClusterSpec": CLUSTER}, "ray.io/v1"),
    owner("TrainJob", {"runtimeRef": {"name": "t"}, "trainer": TRAINER}, "trainer.kubeflow.org/v1alpha1"),
]


@pytest.fixture
def client(town: Town) -> Iterator[Client]:
    books = Books(town.url)
    write_accounts(books.store, books.clock())
    books.reviews.tokens |= {POD: pod_status(gpu_pod("pod")), AGENT: agent_status()}
    yield client_of(books.app, (heartbeat_route(HeartbeatHandler(books.services)),))
    books.close()


def was_answered(answer: TestResponse, label: str) -> int:
    """The status. Fails for a fault of ours, and for a refusal without a sentence."""
    assert answer.status_code < 500, f"{label}: {answer.get_data(as_text=True)}"
    assert answer.status_code < 400 or answer.get_json()["detail"], label
    return answer.status_code


def path_of(route: ApiRoute, **changed: str) -> str:
    """The route's path, with these texts in it."""
    return route.path.format(**{**PATH, **changed})


def headers_of(route: ApiRoute) -> dict[str, str]:
    """Of a caller who may do it."""
    return {"Authorization": f"Bearer {SENT_BY.get(route.path, ADMIN)}", "Idempotency-Key": "k"}


@pytest.mark.parametrize("route", POSTED, ids=lambda route: str(route.path))
def test_a_hostile_body_is_answered_with_a_sentence(client: Client, route: ApiRoute) -> None:
    path, headers = path_of(route), headers_of(route)

    seen = {
        was_answered(client.post(path, data=body, headers=headers), label)
        for label, body in spoilt_in_turn(BODIES[route.path])
    }

    assert max(seen) >= 400


@pytest.mark.parametrize("route", ASKED, ids=lambda route: f"{route.method} {route.path}")
def test_a_hostile_parameter_is_answered_with_a_sentence(client: Client, route: ApiRoute) -> None:
    seen = set()
    for parameter, text in islice(zip(cycle(route.parameters), cycle(TEXTS), strict=False), 2 * len(TEXTS)):
        path, headers = path_of(route), headers_of(route)
        if parameter.place == "path":
            path = path_of(route, **{parameter.name: text})
        elif parameter.place == "query":
            path += f"?{parameter.name}={text}"
        else:
            headers[parameter.name] = text
        body = b"{}" if route.body else None
        answer = client.open(path, method=route.method, headers=headers, data=body)
        seen.add(was_answered(answer, f"{parameter.name}={text[:60]}"))

    assert max(seen) >= 400


@pytest.mark.parametrize("gangs", ["", "gangs: auto"], ids=["singly", "gangs"])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: str(manifest["kind"]))
def test_a_hostile_manifest_is_answered_with_a_sentence_that_names_its_field(
    planner: Planner, manifest: Json, gangs: str
) -> None:
    planner.budget_is(f"gpuHours: 100\nperiod: month\n{gangs}")
    good = {"version": 1, "namespace": "team-a", "manifest": manifest, "claims": [CLAIM]}
    headers = {"Authorization": f"Bearer {ADMIN}"}

    assert planner.client.post("/v1/simulate", json=good, headers=headers).status_code == 200
    for label, body in spoilt_in_turn(good):
        answer = planner.client.post("/v1/simulate", data=body, headers=headers)
        if was_answered(answer, label) != 200 and not label.startswith("()"):
            problem = answer.get_json()
            assert problem.get("field") or problem["detail"] == "the body is not JSON", label
