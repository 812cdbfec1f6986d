"""Kueue's real controller, built from its Go module, beside all of Bursar on the real control plane: its
LocalQueues follow the budget of their namespace (`kueue: hold`)."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import rendered
from deploy.local.stack import Stack
from deploy.local.tools import JOBSET, JOBSET_TOOLS
from tests.deploy.reading import ROOT, loaded
from tests.docs.shell import console, run
from tests.story.cluster.test_gang_controllers import controller
from tests.story.cluster.test_gangs import Place
from tests.story.cluster.test_metering import set_budget
from tests.support.control_plane import apply, kubectl
from tests.support.kueue import kueue
from tests.support.scenes import Part, Scene, scene
from tests.worlds import Json

OURS = "bursar-timekeeper-queues"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
HOLD = "onExhausted: hold\nkueue: hold\n"
CARD, LOOKAHEAD_MS = 1_000, 600_000
SPENT, MUCH = f"gpuHours: 0.2\n{HOLD}", f"gpuHours: 50\n{HOLD}"  # two cards reserve a third of an hour


@pytest.fixture(scope="module", autouse=True)
def controllers(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kueue, JobSet's controller, and the rights that the chart gives with `kueue: true`."""
    roles = loaded(rendered.rendered(rendered.helm(), "--set=kueue=true")["rbac.yaml"])
    wanted = (role for role in roles if (role["kind"], role["metadata"]["name"]) == RIGHTS)
    apply(stack.cp, *wanted)
    with (
        controller(stack, tmp_path_factory.mktemp("jobset"), JOBSET, JOBSET_TOOLS),
        kueue(stack, tmp_path_factory.mktemp("kueue")),
    ):
        make(stack, f"{GROUP}/resourceflavors", "ResourceFlavor", {"metadata": {"name": "any"}})
        names = ("bursar.dev/gpu-percent", "cpu", "memory")
        quotas = [{"name": name, "nominalQuota": "1000000"} for name in names]
        group = {"coveredResources": [*names], "flavors": [{"name": "any", "resources": quotas}]}
        spec = {"namespaceSelector": {}, "resourceGroups": [group]}
        named = {"metadata": {"name": "gpus"}, "spec": spec}
        make(stack, f"{GROUP}/clusterqueues", "ClusterQueue", named)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In which commands are typed."""
    return tmp_path_factory.mktemp("typed")


def make(stack: Stack, path: str, kind: str, body: Json) -> None:
    """Create a custom resource."""
    version = "/".join(path.split("/")[2:4])
    stack.cp.api.call("POST", path, {"apiVersion": version, "kind": kind, **body})


RIGHTS = "ClusterRole", "bursar-timekeeper"


class Queued:
    """A namespace with a queue `gpus` and four cards on nodes of its own."""

    def __init__(self, stack: Stack, name: str, budget: str = SPENT) -> None:
        self.stack, self.name = stack, name
        set_budget(stack, name, budget)
        self.place = Place(stack, name, 4)
        self.path = f"{GROUP}/namespaces/{name}/localqueues"
        self.queue("gpus")

    def queue(self, name: str, **spec: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"clusterQueue": "gpus", **spec}}
        make(self.stack, self.path, "LocalQueue", body)

    def budget(self, entry: str) -> None:
        set_budget(self.stack, self.name, entry)

    def policies(self) -> dict[str, str]:
        found = self.stack.cp.api.call("GET", self.path)["items"]
        return {queue["metadata"]["name"]: queue["spec"]["stopPolicy"] for queue in found}

    def hold(self, name: str = "gpus") -> list[Json]:
        """What the object says of our field manager."""
        managed = self.stack.cp.api.call("GET", f"{self.path}/{name}")["metadata"]["managedFields"]
        return [entry for entry in managed if entry["manager"] == OURS]

    def pod(self) -> Json:
        """A template with a card, on the nodes of the place."""
        container: Json = {"name": "main", "image": "example/app:1"}
        container |= {"resources": {"limits": {"bursar.dev/gpu-percent": "100"}}}
        spec = {"containers": [container], "restartPolicy": "Never", "nodeSelector": {"of": self.name}}
        return {"metadata": {"annotations": {"local.bursar.dev/run-for": "600s"}}, "spec": spec}

    def create(self, *names: str, kind: str = "Job", **spec: Any) -> None:
        for name in names:
            metadata: Json = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
            if kind == "Pod":
                body = self.pod()
                body["metadata"] |= metadata
                self.stack.cp.api.call("POST", self.place.path, body)
                continue
            path, job = f"/apis/batch/v1/namespaces/{self.name}/jobs", {"template": self.pod(), **spec}
            if kind == "JobSet":
                path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{self.name}/jobsets"
                job = {"replicatedJobs": [{"name": "a", "template": {"spec": job}}]}
            make(self.stack, path, kind, {"metadata": metadata, "spec": job})

    def workloads(self) -> dict[str, bool]:
        """By the beginning of its name, whether each Workload is admitted."""
        found = self.stack.cp.api.call("GET", f"{GROUP}/namespaces/{self.name}/workloads")["items"]
        return {item["metadata"]["name"].rpartition("-")[0]: _is_admitted(item) for item in found}

    def spend(self) -> Part:
        """Two pods of one card each run, and reserve more than there is."""
        self.create("first", parallelism=2, completions=2)
        yield "two pods to run", lambda: len(self.place.bound()) == 2
        yield "the hold", lambda: self.policies()["gpus"] == "Hold"


def _is_admitted(workload: Json) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any((said["type"], said["status"]) == ("Admitted", "True") for said in conditions)


@scene
def test_nothing_new_is_admitted_while_the_budget_is_spent_and_goes_on_with_a_grant(
    stack: Stack, reader: str, folder: Path
) -> Scene:
    queued = Queued(stack, "spent")
    yield from queued.spend()
    said = "Kueue's queue gpus is held by the budget of spent: 0 of 0.2 GPU-hours left until"

    queued.create("second")
    queued.create("third", kind="JobSet")
    queued.create("fourth", kind="Pod")
    waiting = ("job-second", "jobset-third", "pod-fourth")
    yield "their Workloads", lambda: {*waiting} <= queued.workloads().keys()
    events = "/apis/events.k8s.io/v1/namespaces/spent/events?fieldSelector=reason=QueueHeld"
    yield "an Event on the queue", lambda: said in str(stack.cp.api.call("GET", events)["items"])
    (held,) = queued.hold()
    assert held["fieldsV1"] == {"f:spec": {"f:stopPolicy": {}}}
    admitted = queued.workloads()
    assert {name: admitted[name] for name in waiting} == dict.fromkeys(waiting, False)
    assert len(queued.place.bound()) == 2
    # two run and reserve; what Kueue keeps reserves nothing beside them
    yield "the pods' charge", lambda: stack.get("/v1/balances/spent", reader)["pending"] > 0
    assert stack.get("/v1/balances/spent", reader)["reserved"] <= 2 * CARD * LOOKAHEAD_MS

    flags = f"--server {stack.timekeeper_url} --ca-file {stack.ca_file} --token-file token"
    (folder / "token").write_text(reader)
    for subject in ("job/second", "fourth", "workload/" + _workload(stack, "job-second")):
        assert said in " ".join(
            run(stack.cp, f"kubectl bursar explain -n spent {subject} {flags}", folder).split()
        ), subject
    assert said in str(stack.get("/v1/budgets/spent", reader)["warnings"])
    yield "the waiting pod to say so", lambda: said in str(stack.get("/v1/waiting?namespace=spent", reader))

    queued.budget(MUCH)
    yield "it to be let go", lambda: queued.policies()["gpus"] == "None"
    yield "all to be admitted", lambda: all(queued.workloads().values())
    assert queued.hold() == []


def _workload(stack: Stack, beginning: str) -> str:
    found = stack.cp.api.call("GET", f"{GROUP}/namespaces/spent/workloads")["items"]
    names = (str(item["metadata"]["name"]) for item in found)
    return next(name for name in names if name.startswith(beginning))


@scene
def test_a_persons_own_hold_is_kept_and_a_finding_says_so(stack: Stack, reader: str) -> Scene:
    queued = Queued(stack, "persons")
    queued.queue("held", stopPolicy="Hold")
    queued.queue("drained", stopPolicy="HoldAndDrain")

    yield from queued.spend()

    assert queued.policies() == {"gpus": "Hold", "held": "Hold", "drained": "HoldAndDrain"}
    stands = "its stopPolicy HoldAndDrain is of"
    yield "the finding", lambda: stands in str(stack.get("/v1/findings", reader)["findings"])
    queued.budget(MUCH)
    yield "ours to be let go", lambda: queued.policies()["gpus"] == "None"
    assert queued.policies() == {"gpus": "None", "held": "Hold", "drained": "HoldAndDrain"}


FORMS = {
    "create": ("create",),
    "apply": ("apply",),
    "server": ("apply", "--server-side"),
    # as Argo CD applies: with its manager's name, and by force
    "argo": ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"),
}


@scene
def test_a_queue_is_held_and_let_go_however_it_was_made_and_another_apply_changes_nothing(
    stack: Stack,
) -> Scene:
    queued = Queued(stack, "forms")
    manifests = {}
    for form in FORMS:
        metadata = {"name": f"by-{form}", "namespace": "forms"}
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": metadata}
        manifests[form] = yaml.safe_dump({**body, "spec": {"clusterQueue": "gpus"}})

    def apply_all(*forms: str) -> None:
        for form in forms:
            kubectl(stack.cp, *FORMS[form], "-f", "-", input=manifests[form])

    apply_all(*FORMS)
    again = tuple(form for form in FORMS if form != "create")
    yield from queued.spend()
    yield "all to be held", lambda: {*queued.policies().values()} == {"Hold"}
    before = {form: queued.hold(f"by-{form}") for form in FORMS}

    apply_all(*again, *again)
    assert {*queued.policies().values()} == {"Hold"}
    assert {form: queued.hold(f"by-{form}") for form in FORMS} == before

    queued.budget(MUCH)
    yield "all to be let go", lambda: {*queued.policies().values()} == {"None"}
    apply_all(*again, *again)
    assert {*queued.policies().values()} == {"None"}
    assert not any(queued.hold(f"by-{form}") for form in FORMS)


@scene
def test_in_observe_nothing_is_held_and_would_names_the_queue(stack: Stack, reader: str) -> Scene:
    queued = Queued(stack, "watched", f"gpuHours: 0.001\n{HOLD}mode: observe\n")
    queued.create("first", parallelism=2, completions=2)

    said = "Kueue's queue gpus would be held by the budget of watched: 0 of 0.001 GPU-hours left until"
    yield "would to say so", lambda: said in str(stack.get("/v1/would?namespace=watched", reader)["notes"])
    assert queued.policies() == {"gpus": "None"}


@scene
def test_uninstalling_by_observe_lets_all_queues_go(stack: Stack) -> Scene:
    queued = Queued(stack, "leaves")
    yield from queued.spend()

    queued.budget(f"{SPENT}mode: observe\n")

    yield "it to be let go", lambda: queued.policies() == {"gpus": "None"}
    assert queued.hold() == []


def test_a_settler_that_is_killed_holds_on_and_lets_go_by_what_the_objects_say(
    stack: Stack, reader: str
) -> None:
    queued = Queued(stack, "killed")
    queued.create("first", parallelism=2, completions=2)
    stack.wait("the hold", lambda: queued.policies()["gpus"] == "Hold", "timekeeper")
    queued.create("second")
    stack.wait("its Workload", lambda: "job-second" in queued.workloads())
    held = queued.hold()

    stack.stop("timekeeper", signal.SIGKILL)
    stack.start("timekeeper")
    stack.wait("it to be back", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")
    followed = "/v1/budgets/killed"
    stack.wait("its settler", lambda: stack.get(followed, reader)["silentSince"] is None, "timekeeper")
    assert queued.hold() == held
    assert not queued.workloads()["job-second"]

    stack.stop("timekeeper", signal.SIGKILL)
    queued.budget(MUCH)
    assert queued.hold() == held
    stack.start("timekeeper")
    stack.wait("it to be let go", lambda: queued.hold() == [], "timekeeper")
    stack.wait("the Job to go on", lambda: len(queued.place.bound()) == 3)
    stack.wait("it to be back", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")


def test_the_pages_command_lets_go_what_a_timekeeper_that_is_gone_has_held(
    stack: Stack, tmp_path: Path
) -> None:
    queued = Queued(stack, "orphaned")
    queued.queue("own", stopPolicy="Hold")
    queued.create("first", parallelism=2, completions=2)
    stack.wait("the hold", lambda: queued.policies()["gpus"] == "Hold", "timekeeper")
    stack.stop("timekeeper")

    (command,) = console((ROOT / "docs" / "coming-from" / "kueue.md").read_text())
    run(stack.cp, command, tmp_path)

    assert queued.policies() == {"gpus": "None", "own": "Hold"}
    queued.budget(MUCH)
    stack.start("timekeeper")
    stack.wait("it to be back", lambda: stack.is_ready(stack.timekeeper_url), "timekeeper")
