"""Gangs of the real JobSet and LeaderWorkerSet controllers, built from their Go modules, on the real control
plane: by `gangs: auto` alone their pods start together. Their webhooks default the objects, and label the
pods, as where they are installed."""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deploy.local.build import binaries, module_file
from deploy.local.launcher import Launcher
from deploy.local.ports import free_port
from deploy.local.stack import Stack
from deploy.local.tools import JOBSET, JOBSET_TOOLS, LWS, LWS_TOOLS, GoModule, Tool
from tests.story.cluster.test_gangs import Place
from tests.story.cluster.test_metering import set_budget
from tests.support.control_plane import kubectl
from tests.support.go_programs import CRDS, WEBHOOKS
from tests.support.scenes import Awaited, Scene, scene
from tests.support.waiting import at_once
from tests.worlds import Json


@pytest.fixture(scope="module", autouse=True)
def controllers(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Both of them."""
    with (
        controller(stack, tmp_path_factory.mktemp("jobset"), JOBSET, JOBSET_TOOLS),
        controller(stack, tmp_path_factory.mktemp("lws"), LWS, LWS_TOOLS),
    ):
        yield


@contextmanager
def controller(stack: Stack, folder: Path, source: GoModule, tools: tuple[Tool, ...]) -> Iterator[None]:
    """It runs, as the administrator, with its webhooks registered."""
    name, port = source.name, free_port()
    program = binaries(print, tools)[name]
    definition = module_file(source, CRDS[name], print)
    kubectl(stack.cp, "create", "-f", str(definition))
    kind = yaml.safe_load(definition.read_text())["metadata"]["name"]
    stack.wait(f"{kind} to be served", lambda: is_served(stack, kind))
    certificates = folder / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    for each in ("tls.crt", "tls.key"):
        shutil.copy(stack.tls / "webhook" / each, certificates / each)
    configuration = {
        "apiVersion": f"config.{name}.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": port} | ({"certDir": str(certificates)} if name == "lws" else {}),
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
    }
    (folder / "configuration.yaml").write_text(yaml.safe_dump(configuration))
    environment = {
        **stack.environment(),
        "KUBECONFIG": str(stack.cp.admin_kubeconfig),
        "TMPDIR": str(folder),
        "POD_NAMESPACE": "kube-system",
    }
    log = folder / "log"
    with Launcher() as launcher, log.open("wb") as output:
        launcher.start([str(program), f"--config={folder}/configuration.yaml"], output, environment)
        stack.wait(f"{name} to serve its webhooks", lambda: "Serving webhook server" in log.read_text())
        with registered(stack, source, port):
            yield


def is_served(stack: Stack, kind: str) -> bool:
    """Whether the API server has taken in the definition."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}"
    conditions = stack.cp.api.call("GET", path).get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@contextmanager
def registered(stack: Stack, source: GoModule, port: int) -> Iterator[None]:
    """Its webhooks, by their address."""
    paths = []
    ca = base64.b64encode(stack.ca_file.read_bytes()).decode()
    for document in yaml.safe_load_all(module_file(source, WEBHOOKS[source.name], print).read_text()):
        document["metadata"]["name"] = f"{source.name}-{document['metadata']['name']}"
        for each in document["webhooks"]:
            path = each["clientConfig"]["service"]["path"]
            each["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": ca}
        kind = f"{document['kind'].lower()}s"
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}"
        stack.cp.api.call("POST", path, document)
        paths.append(f"{path}/{document['metadata']['name']}")
    yield
    for path in paths:
        stack.cp.api.call("DELETE", path)


def template(place: Place) -> Json:
    """Pods with a card each on the nodes of the place."""
    limits = {"bursar.dev/gpu-percent": "100"}
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    return {
        "metadata": {"annotations": {"local.bursar.dev/run-for": "600s"}},
        "spec": {"containers": [container], "nodeSelector": {"of": place.name}},
    }


def starts_whole(place: Place, count: int) -> Scene:
    """On a card too few its pods wait, all of them; with that card all start."""
    yield "all to wait", lambda: len(place.gated()) == count
    text = f"{count - 1} of {count} members fit; 1 cards missing"
    yield "one to say why", lambda: text in str([*map(place.told, place.names())])
    yield place.stays()
    place.node(f"{place.name}-more", 1)
    yield place.number_bound(count)


@scene
def test_the_jobs_of_a_jobset_start_together(stack: Stack) -> Scene:
    set_budget(stack, "sets", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "sets", 2)
    jobs = [
        {
            "name": name,
            "template": {"spec": {"parallelism": n, "completions": n, "template": template(place)}},
        }
        for name, n in (("driver", 1), ("worker", 2))
    ]
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/sets/jobsets"
    owner = owner_of(path, "JobSet", {"replicatedJobs": jobs})
    yield is_known(stack, path, owner)
    created = stack.cp.api.call("POST", path, owner)

    for job in created["spec"]["replicatedJobs"]:
        annotations = job["template"]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["bursar.dev/gang-size"] == "3"
    yield from starts_whole(place, 3)


@scene
def test_each_group_of_a_leader_worker_set_starts_together(stack: Stack) -> Scene:
    set_budget(stack, "groups", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "groups", 2)
    group = {"size": 3, "workerTemplate": template(place)}
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/groups/leaderworkersets"
    owner = owner_of(path, "LeaderWorkerSet", {"replicas": 1, "leaderWorkerTemplate": group})
    yield is_known(stack, path, owner)
    created = stack.cp.api.call("POST", path, owner)

    of_workers = created["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert of_workers["metadata"]["annotations"]["bursar.dev/gang-size"] == "3"
    yield from starts_whole(place, 3)
    place.node("groups-second", 2)  # of the second group's three cards
    stack.cp.api.call("PATCH", f"{path}/train", {"spec": {"replicas": 2}}, "application/merge-patch+json")
    yield "the second group to wait", lambda: len(place.gated()) == 3
    assert len(place.bound()) == 3
    place.node("groups-third", 1)
    yield place.number_bound(6)


@scene
def test_a_leader_waits_until_its_workers_which_come_later_have_cards_too(stack: Stack) -> Scene:
    set_budget(stack, "led", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "led", 2)
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/led/leaderworkersets"
    group = {"size": 3, "workerTemplate": template(place)}
    spec = {"replicas": 1, "leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}
    owner = owner_of(path, "LeaderWorkerSet", spec)
    yield is_known(stack, path, owner)
    stack.cp.api.call("POST", path, owner)

    yield place.says("train-0", "1 of 1 members exist, and 2 come later; 2 of 3 members fit; 1 cards missing")
    yield place.stays()
    assert place.names() == ["train-0"]
    place.node("led-more", 1)
    yield place.are_bound("train-0", "train-0-1", "train-0-2")


def owner_of(path: str, kind: str, spec: Json) -> Json:
    """The object `train` that is created at this path."""
    version = "/".join(path.split("/")[2:4])
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def is_known(stack: Stack, path: str, owner: Json) -> Awaited:
    """The webhook's workers know of the entry of the owner's namespace."""

    def is_found() -> bool:
        return "gang-size" in str(stack.cp.api.call("POST", f"{path}?dryRun=All", owner))

    return "both workers to know the entry", lambda: all(at_once(is_found))
