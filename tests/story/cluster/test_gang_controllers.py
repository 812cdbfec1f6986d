"""Gangs of the real JobSet and LeaderWorkerSet controllers, built from their Go modules, on the real control
plane: by `gangs: auto` alone their pods start together. Their webhooks default the objects, and label the
pods, as where they are installed."""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.build import binaries, module_file
from deploy.local.cluster import ControlPlane
from deploy.local.launcher import Launcher
from deploy.local.ports import free_port
from deploy.local.stack import Stack
from deploy.local.tools import JOBSET, JOBSET_TOOLS, LWS, LWS_TOOLS, GoModule, Tool
from tests.story.cluster.test_gangs import Place, stays_unbound
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import kubectl
from tests.support.go_programs import CRDS, WEBHOOKS

Json = dict[str, Any]


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    with Stack(control_plane) as started:
        yield started


@contextmanager
def controller(stack: Stack, folder: Path, source: GoModule, tools: tuple[Tool, ...]) -> Iterator[Path]:
    """It runs, as the administrator, with its webhooks registered; the path of its log."""
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
            yield log


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


def starts_whole(place: Place, count: int) -> None:
    """On a card too few its pods wait, all of them; with that card all start."""
    stack = place.stack
    stack.wait("all to wait", lambda: len(place.gated()) == count)
    said = f"{count - 1} of {count} members fit; 1 cards missing"
    stack.wait(
        "one to say why", lambda: any(said in each for name in place.names() for each in place.told(name))
    )
    stays_unbound(place, 3)
    place.node(f"{place.name}-more", 1)
    stack.wait("all to be bound", lambda: len(place.bound()) == count)


def test_the_jobs_of_a_jobset_start_together(stack: Stack, tmp_path: Path) -> None:
    with controller(stack, tmp_path, JOBSET, JOBSET_TOOLS):
        set_budgets(stack, sets="gpuHours: 100\ngangs: auto\n")
        place = Place(stack, "sets", 2)
        jobs = [
            {
                "name": name,
                "template": {"spec": {"parallelism": n, "completions": n, "template": template(place)}},
            }
            for name, n in (("driver", 1), ("worker", 2))
        ]
        path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/sets/jobsets"
        created = written(stack, path, "JobSet", {"replicatedJobs": jobs})

        for each in created["spec"]["replicatedJobs"]:
            annotations = each["template"]["spec"]["template"]["metadata"]["annotations"]
            assert annotations["bursar.dev/gang-size"] == "3"
        starts_whole(place, 3)


def test_each_group_of_a_leader_worker_set_starts_together(stack: Stack, tmp_path: Path) -> None:
    with controller(stack, tmp_path, LWS, LWS_TOOLS):
        set_budgets(stack, groups="gpuHours: 100\ngangs: auto\n")
        place = Place(stack, "groups", 2)
        group = {"size": 3, "workerTemplate": template(place)}
        path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/groups/leaderworkersets"
        spec = {"replicas": 1, "leaderWorkerTemplate": group}
        created = written(stack, path, "LeaderWorkerSet", spec)

        of_workers = created["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        assert of_workers["metadata"]["annotations"]["bursar.dev/gang-size"] == "3"
        starts_whole(place, 3)
        place.node("groups-second", 2)  # of the second group's three cards
        stack.cp.api.call("PATCH", f"{path}/train", {"spec": {"replicas": 2}}, "application/merge-patch+json")
        stack.wait("the second group to wait", lambda: len(place.gated()) == 3)
        assert len(place.bound()) == 3
        place.node("groups-third", 1)
        stack.wait("it to be bound", lambda: len(place.bound()) == 6)
        starts_with_its_workers(stack)


def starts_with_its_workers(stack: Stack) -> None:
    """A leader waits until its workers, which have its template and come later, have cards too."""
    set_budgets(stack, led="gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "led", 2)
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/led/leaderworkersets"
    group = {"size": 3, "workerTemplate": template(place)}
    spec = {"replicas": 1, "leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}
    written(stack, path, "LeaderWorkerSet", spec)

    said = "1 of 1 members exist, and 2 come later; 2 of 3 members fit; 1 cards missing"
    stack.wait("the leader to say why it waits", lambda: any(said in each for each in place.told("train-0")))
    stays_unbound(place, 3)
    assert place.names() == ["train-0"]
    place.node("led-more", 1)
    place.wait_bound("train-0", "train-0-1", "train-0-2")


def written(stack: Stack, path: str, kind: str, spec: Json) -> Json:
    """The owner `train`, once the webhook knows of the namespace's entry."""
    version = "/".join(path.split("/")[2:4])
    owner = {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}

    def is_found() -> bool:
        return "gang-size" in str(stack.cp.api.call("POST", f"{path}?dryRun=All", owner))

    stack.wait("the webhook to know the entry", is_found)
    return dict(stack.cp.api.call("POST", path, owner))
