"""Gangs of the real JobSet and LeaderWorkerSet controllers, built from their Go modules, on the real control
plane: by `gangs: auto` alone their pods start together, and their manifests may be applied again and again.
Their webhooks default the objects, and label the pods, as where they are installed. Kinds of Kubeflow and Ray
have no controllers here."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from deploy.local.build import binaries, module_file
from deploy.local.launcher import Launcher
from deploy.local.ports import free_port
from deploy.local.stack import Stack
from deploy.local.tools import JOBSET, JOBSET_TOOLS, LWS, LWS_TOOLS, GoModule, Tool
from tests.story.cluster.test_gangs import CARDS, Place
from tests.story.cluster.test_metering import set_budget
from tests.support.control_plane import answer, apply, kubectl
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
    text = f"it can never start here: it needs {count} cards on nodes with of={place.name}, which have"
    yield "one to say why", lambda: text in str([*map(place.told, place.names())])
    yield place.stays()
    place.node(f"{place.name}-more", 1)
    yield place.number_bound(count)


@scene
def test_the_jobs_of_a_jobset_start_together(stack: Stack, reader: str) -> Scene:
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
    yield from is_told_and_explained(place, created, reader)
    yield from starts_whole(place, 3)


def without_cards(place: Place) -> Json:
    """Pods without GPUs there."""
    of = template(place)
    (container,) = of["spec"]["containers"]
    bare = {**container, "resources": {"requests": {"cpu": "10m"}}}
    return {**of, "spec": {**of["spec"], "containers": [bare]}}


def first_of(place: Place, name: str) -> Json:
    """The pod whose name begins so."""
    return next(each for each in place.pods() if each["metadata"]["name"].startswith(name))


def waits_and_starts(place: Place, name: str) -> Scene:
    """The pod without GPUs whose name begins so waits with two workers for a card, and starts with them."""
    yield "all to wait", lambda: len(place.gated()) == 3
    yield place.stays()
    first = first_of(place, name)
    assert first["spec"]["schedulingGates"] == [CARDS]
    assert "bursar.dev/governed" not in first["metadata"].get("labels", {})
    place.node(f"{place.name}-more", 1)
    yield place.number_bound(3)


def is_made_again(place: Place, name: str) -> Scene:
    """One in its place starts at once."""
    before = first_of(place, name)["metadata"]["name"]
    place.stack.cp.api.call("DELETE", f"{place.path}/{before}", {"gracePeriodSeconds": 0})
    yield "another in its place", lambda: before not in place.names() and len(place.bound()) == 3


@scene
def test_the_driver_of_a_jobset_waits_for_its_workers(stack: Stack) -> Scene:
    set_budget(stack, "driven", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "driven", 1)
    jobs = [
        {"name": name, "template": {"spec": {"parallelism": n, "completions": n, "template": of}}}
        for name, n, of in (("driver", 1, without_cards(place)), ("worker", 2, template(place)))
    ]
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/driven/jobsets"
    owner = owner_of(path, "JobSet", {"replicatedJobs": jobs})
    yield is_known(stack, path, owner)
    stack.cp.api.call("POST", path, owner)

    yield from waits_and_starts(place, "train-driver-")
    yield from is_made_again(place, "train-driver-")


@scene
def test_a_groups_leader_without_gpus_waits_for_its_workers(stack: Stack) -> Scene:
    set_budget(stack, "leads", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "leads", 1)
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/leads/leaderworkersets"
    group = {"size": 3, "leaderTemplate": without_cards(place), "workerTemplate": template(place)}
    owner = owner_of(path, "LeaderWorkerSet", {"replicas": 1, "leaderWorkerTemplate": group})
    yield is_known(stack, path, owner)
    stack.cp.api.call("POST", path, owner)

    yield from waits_and_starts(place, "train-0")


@scene
def test_the_launcher_of_an_mpijob_waits_for_its_workers(stack: Stack) -> Scene:
    """Its pods are made as mpi-operator v0.6.0 makes them: the workers, then a Job of the launcher."""
    set_budget(stack, "launched", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "launched", 1)
    made = definition("kubeflow.org", "MPIJob", "v2beta1")
    apply(stack.cp, made)
    yield "MPIJobs to be served", partial(is_served, stack, made["metadata"]["name"])
    path = "/apis/kubeflow.org/v2beta1/namespaces/launched/mpijobs"
    replicas = {
        "Launcher": {"replicas": 1, "template": without_cards(place)},
        "Worker": {"replicas": 2, "template": template(place)},
    }
    owner = owner_of(path, "MPIJob", {"mpiReplicaSpecs": replicas})
    yield is_known(stack, path, owner)
    created = stack.cp.api.call("POST", path, owner)

    by = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "train", "controller": True}
    metadata = {"ownerReferences": [{**by, "uid": created["metadata"]["uid"]}]}
    launcher, worker = (
        {**of, "metadata": {**of["metadata"], "labels": {"training.kubeflow.org/job-name": "train"}}}
        for of in (each["template"] for each in created["spec"]["mpiReplicaSpecs"].values())
    )
    for at in range(2):
        pod = {**worker, "metadata": {**worker["metadata"], **metadata, "name": f"train-worker-{at}"}}
        stack.cp.api.call("POST", place.path, pod)
    launcher["spec"]["restartPolicy"] = "OnFailure"
    job = owner_of("/apis/batch/v1", "Job", {"template": launcher})
    named = {"metadata": {**metadata, "name": "train-launcher"}}
    stack.cp.api.call("POST", "/apis/batch/v1/namespaces/launched/jobs", {**job, **named})

    yield from waits_and_starts(place, "train-launcher-")
    yield from is_made_again(place, "train-launcher-")


@scene
def test_who_writes_an_owner_whose_launcher_does_not_wait_is_warned(stack: Stack) -> Scene:
    set_budget(stack, "warned", "gpuHours: 100\n")
    place = Place(stack, "warned")
    jobs = [
        {"name": name, "template": {"spec": {"template": of}}}
        for name, of in (("driver", without_cards(place)), ("worker", template(place)))
    ]
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/warned/jobsets"
    owner = owner_of(path, "JobSet", {"replicatedJobs": jobs})
    warning = (
        "spec.replicatedJobs[0].template.spec.template: its pods start at once, and do not wait for those"
        ' with GPUs; with dependsOn: [{name: "worker", status: Ready}], listed after it, they do.'
    )

    yield "the warning", lambda: warning in answer(stack.cp, "POST", f"{path}?dryRun=All", owner).warnings
    driver, worker = jobs
    depends = {**driver, "dependsOn": [{"name": "worker", "status": "Ready"}]}
    helped = owner_of(path, "JobSet", {"replicatedJobs": [worker, depends]})
    said = answer(stack.cp, "POST", f"{path}?dryRun=All", helped)
    assert (said.refusal, [each for each in said.warnings if "GPUs" in each]) == ("", [])


def is_told_and_explained(place: Place, owner: Json, reader: str) -> Scene:
    """The owner has an Event with its UID, and is explained by its gang, that waits for a card."""
    kind, uid = owner["kind"], owner["metadata"]["uid"]
    events = f"/apis/events.k8s.io/v1/namespaces/{place.name}/events?fieldSelector=regarding.uid={uid}"

    def notes() -> list[str]:
        found = place.stack.cp.api.call("GET", events)["items"]
        return [event["note"].rstrip(".") for event in found if "it can never start here" in event["note"]]

    yield f"an Event of {kind}", notes

    def explained() -> bool:
        told = place.stack.get(f"/v1/explain/{place.name}/{kind}/train", reader)
        return bool({*notes()} & {*told["waitsFor"]})

    yield f"{kind} to be explained", explained


@scene
def test_each_group_of_a_leader_worker_set_starts_together(stack: Stack, reader: str) -> Scene:
    set_budget(stack, "groups", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "groups", 2)
    group = {"size": 3, "workerTemplate": template(place)}
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/groups/leaderworkersets"
    owner = owner_of(path, "LeaderWorkerSet", {"replicas": 1, "leaderWorkerTemplate": group})
    yield is_known(stack, path, owner)
    created = stack.cp.api.call("POST", path, owner)

    of_workers = created["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert of_workers["metadata"]["annotations"]["bursar.dev/gang-size"] == "3"
    yield from is_told_and_explained(place, created, reader)
    yield from starts_whole(place, 3)
    place.node("groups-second", 2)  # of the second group's three cards
    stack.cp.api.call("PATCH", f"{path}/train", {"spec": {"replicas": 2}}, "application/merge-patch+json")
    yield "the second group to wait", lambda: len(place.gated()) == 3
    assert len(place.bound()) == 3
    place.node("groups-third", 1)
    yield place.number_bound(6)


@scene
def test_workers_that_come_once_their_leader_runs_join_it_one_by_one(stack: Stack) -> Scene:
    set_budget(stack, "led", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "led", 2)
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/led/leaderworkersets"
    group = {"size": 3, "workerTemplate": template(place)}
    spec = {"replicas": 1, "leaderWorkerTemplate": group, "startupPolicy": "LeaderReady"}
    owner = owner_of(path, "LeaderWorkerSet", spec)
    yield is_known(stack, path, owner)
    stack.cp.api.call("POST", path, owner)

    yield place.number_bound(2)
    yield place.says("train-0", "runs: 2 of 3 members have a node; 0 of 1 members fit; 1 cards missing")
    place.node("led-more", 1)
    yield place.are_bound("train-0", "train-0-1", "train-0-2")


@scene
def test_a_resized_leader_worker_set_gets_groups_of_the_new_size(stack: Stack) -> Scene:
    set_budget(stack, "resized", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "resized", 4, 4)
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/resized/leaderworkersets"
    group = {"size": 3, "workerTemplate": template(place)}
    owner = owner_of(path, "LeaderWorkerSet", {"replicas": 1, "leaderWorkerTemplate": group})
    yield is_known(stack, path, owner)
    stack.cp.api.call("POST", path, owner)
    yield place.number_bound(3)

    resized = {"spec": {"leaderWorkerTemplate": {"size": 4}}}
    stack.cp.api.call("PATCH", f"{path}/train", resized, "application/merge-patch+json")

    yield "a group of four to run", lambda: says_size(place, "4") == place.bound() and len(place.bound()) == 4


def says_size(place: Place, size: str) -> list[str]:
    """Names of the pods with this annotation."""
    found = (each["metadata"] for each in place.pods())
    return sorted(each["name"] for each in found if each["annotations"]["bursar.dev/gang-size"] == size)


@scene
def test_a_jobs_pods_may_be_more_while_it_is_suspended_and_also_later(stack: Stack) -> Scene:
    set_budget(stack, "grown", "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, "grown", 4)
    path = "/apis/batch/v1/namespaces/grown/jobs"
    spec = {"parallelism": 3, "suspend": True, "template": never_restarted(place)}
    owner = owner_of(path, "Job", spec)
    yield is_known(stack, path, owner)
    stack.cp.api.call("POST", path, owner)

    def changed(**spec: object) -> str:
        job = stack.cp.api.call("PATCH", f"{path}/train", {"spec": spec}, "application/merge-patch+json")
        return str(job["spec"]["template"]["metadata"]["annotations"]["bursar.dev/gang-size"])

    assert changed(parallelism=4) == "4"
    assert changed(suspend=False) == "4"
    yield place.number_bound(4)
    assert changed(parallelism=5) == "4"  # the API server takes no other template now
    yield "its fifth pod", lambda: len(says_size(place, "4")) == 5


class RealJob:
    """A Job of three indexes, of which each gives up its place once its pod fails."""

    def __init__(self, stack: Stack, name: str, *cards: int) -> None:
        set_budget(stack, name, "gpuHours: 100\ngangs: auto\n")
        self.stack, self.place = stack, Place(stack, name, *cards)
        self.path = f"/apis/batch/v1/namespaces/{name}/jobs"
        indexed = {"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 0}
        spec = {**indexed, "parallelism": 3, "template": never_restarted(self.place)}
        self.owner = owner_of(self.path, "Job", spec)

    def begin(self) -> Scene:
        """It is created once the webhook knows that it is counted."""
        yield is_known(self.stack, self.path, self.owner)
        self.stack.cp.api.call("POST", self.path, self.owner)

    def change(self, **spec: object) -> None:
        self.stack.cp.api.call("PATCH", f"{self.path}/train", {"spec": spec}, "application/merge-patch+json")

    def lose(self, index: int, phase: str) -> Scene:
        """The pod of this index ends, is counted, and its object goes, as with its node."""
        found = self.place.pods()
        marked = "batch.kubernetes.io/job-completion-index"
        pod = next(each for each in found if each["metadata"]["annotations"][marked] == str(index))
        path = f"{self.place.path}/{pod['metadata']['name']}"
        self.stack.cp.api.call(
            "PATCH", f"{path}/status", {"status": {"phase": phase}}, "application/merge-patch+json"
        )
        field = "completedIndexes" if phase == "Succeeded" else "failedIndexes"
        yield f"{field} to be {index}", lambda: self.status().get(field) == str(index)
        self.stack.cp.api.call("DELETE", path, {"gracePeriodSeconds": 0})

    def status(self) -> Json:
        found: Json = self.stack.cp.api.call("GET", f"{self.path}/train")["status"]
        return found

    def restart(self) -> Scene:
        """It is suspended, and resumed."""
        self.change(suspend=True)
        yield "none of its pods to be there", lambda: not self.place.names()
        self.change(suspend=False)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@scene
def test_a_job_is_resumed_without_the_index_whose_pod_is_gone(stack: Stack, phase: str) -> Scene:
    job = RealJob(stack, f"resumed-{phase.lower()}", 3)
    yield from job.begin()
    yield job.place.number_bound(3)
    yield from job.lose(1, phase)

    yield from job.restart()

    yield job.place.number_bound(2)


@scene
def test_a_job_that_is_made_smaller_while_it_waits_starts_with_fewer(stack: Stack) -> Scene:
    job = RealJob(stack, "smaller", 2)
    yield from job.begin()
    yield "all to wait", lambda: len(job.place.gated()) == 3

    job.change(parallelism=2)

    yield job.place.number_bound(2)


def definition(group: str, kind: str, served: str = "v1") -> Json:
    """Of a kind whose controller is not here: any fields, lists without keys as those of KubeRay."""
    plural = f"{kind.lower()}s"
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": free}}
    version = {"name": served, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    api = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**api, "metadata": {"name": f"{plural}.{group}"}, "spec": spec}


def manifests(place: Place) -> dict[str, Json]:
    """One of each kind, of three pods, and two Jobs whose users say what the webhook would, by path."""
    of = template(place)
    job = {"parallelism": 3, "completions": 3, "template": never_restarted(place)}
    fails = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}
    # JobSet's own webhook writes these at creation alone: without the mode a second apply is refused anyway
    indexed = {"name": "a", "template": {"metadata": {}, "spec": {**job, "completionMode": "Indexed"}}}
    replicas = {"Master": {"replicas": 1, "template": of}, "Worker": {"replicas": 2, "template": of}}
    workers = {"groupName": "w", "replicas": 1, "minReplicas": 2, "maxReplicas": 4, "template": of}
    specs: list[tuple[str, str, Json]] = [
        ("batch/v1", "Job", job),
        ("batch/v1", "Job", {**job, "podFailurePolicy": fails}),
        ("batch/v1", "Job", {**job, "podReplacementPolicy": "TerminatingOrFailed"}),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [indexed]}),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"size": 3, "workerTemplate": of}},
        ),
        ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas}),
        ("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": of}, "workerGroupSpecs": [workers]}),
    ]
    owners: dict[str, Json] = {}
    for at, (version, kind, spec) in enumerate(specs):
        path = f"/apis/{version}/namespaces/{place.name}/{kind.lower()}s"
        owner = owner_of(path, kind, spec) | {"metadata": {"name": f"train-{at}", "namespace": place.name}}
        owners[f"{path}/train-{at}"] = owner
    return owners


def never_restarted(place: Place) -> Json:
    """The template for a Job."""
    of = template(place)
    return {**of, "spec": {**of["spec"], "restartPolicy": "Never"}}


@pytest.mark.parametrize("how", ["client", "server"])
@scene
def test_a_manifest_that_is_applied_again_changes_nothing(stack: Stack, how: str) -> Scene:
    set_budget(stack, how, "gpuHours: 100\ngangs: auto\n")
    place = Place(stack, how)
    for made in (definition("kubeflow.org", "PyTorchJob"), definition("ray.io", "RayCluster")):
        apply(stack.cp, made)
        name = made["metadata"]["name"]
        yield f"{name} to be served", partial(is_served, stack, name)
    owners = manifests(place)
    text = yaml.safe_dump_all(owners.values())
    path, *_ = owners
    yield is_known(stack, path.rpartition("/")[0], owners[path])

    versions = []
    for _ in range(2):
        kubectl(stack.cp, "apply", f"--server-side={how == 'server'}".lower(), "-f", "-", input=text)
        versions.append([seen(stack, path) for path in owners])

    first, second = versions
    for owner in first:
        sizes = re.findall('gang-size": "([0-9]+)"', json.dumps(owner["spec"]))
        assert sizes in (["3"], ["3"] * 2), owner
        assert owner["metadata"]["annotations"]["bursar.dev/counted"] == "true"
    assert second == first


def seen(stack: Stack, path: str) -> Json:
    """What is stored, but for what controllers write."""
    found = stack.cp.api.call("GET", path)
    metadata = {name: found["metadata"].get(name) for name in ("annotations", "generation")}
    return {"metadata": metadata, "spec": found["spec"]}


def owner_of(path: str, kind: str, spec: Json) -> Json:
    """The object `train` that is created at this path."""
    version = "/".join(path.split("/")[2:4])
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def is_known(stack: Stack, path: str, owner: Json) -> Awaited:
    """The webhook's workers know of the entry of the owner's namespace."""

    def is_found() -> bool:
        return "gang-size" in str(stack.cp.api.call("POST", f"{path}?dryRun=All", owner))

    return "both workers to know the entry", lambda: all(at_once(is_found))
