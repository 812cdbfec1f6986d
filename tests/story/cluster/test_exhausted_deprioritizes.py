"""`onExhausted: deprioritize` from end to end: a real API server and kube-scheduler, and kwok nodes."""

from typing import Any

from deploy.local.kwok_nodes import kwok_node
from deploy.local.stack import Stack
from tests.story.cluster.test_held_pods import template
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.worlds import Json

IN_BUDGET, OVER_BUDGET = "gpu-default-priority", "gpu-lower-priority"


class Lab:
    """The namespace whose budget runs out, beside one that has budget, on a node of two cards."""

    def __init__(self, stack: Stack, reader: str, lab: str = "lab", paid: str = "paid") -> None:
        self.stack, self._reader, self._lab, self._paid = stack, reader, lab, paid
        self.paths = {name: create_namespace(stack.cp, name) for name in (lab, paid)}
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node(f"{lab}-0", cards=2))

    def budget(self, hours: str, created_as: str) -> None:
        """The lab's; and both workers of the webhook give its pods this class."""
        lab = f"gpuHours: {hours}\nonExhausted: deprioritize\n"
        set_budgets(self.stack, **{self._lab: lab, self._paid: "gpuHours: 100\n"})
        self.stack.wait(
            f"pods to be created as {created_as}",
            lambda: all(self._made("dry", "?dryRun=All") == created_as for _ in range(6)),
        )

    def _made(self, name: str, query: str) -> str:
        body = template(percent=100) | {"metadata": {"name": name}}
        made = self.stack.cp.api.call("POST", f"{self.paths[self._lab]}{query}", body)
        return str(made["spec"]["priorityClassName"])

    def create(self, pod: str, **spec: Any) -> None:
        """A pod that asks for a whole card, as ``namespace/name``."""
        namespace, name = pod.split("/")
        body = template(percent=100, terminationGracePeriodSeconds=1, **spec) | {"metadata": {"name": name}}
        self.stack.cp.api.call("POST", self.paths[namespace], body)

    def open_gate(self, pod: str) -> None:
        """Its tenant removes the gate of its own."""
        namespace, name = pod.split("/")
        body = [{"op": "remove", "path": "/spec/schedulingGates"}]
        self.stack.cp.api.call(
            "PATCH", f"{self.paths[namespace]}/{name}", body, "application/json-patch+json"
        )

    def delete(self, pod: str) -> None:
        namespace, name = pod.split("/")
        self.stack.cp.api.call("DELETE", f"{self.paths[namespace]}/{name}")
        self.stack.wait(f"{pod} to be gone", lambda: not self.stack.exists(f"{self.paths[namespace]}/{name}"))

    def pod(self, pod: str) -> Json:
        namespace, name = pod.split("/")
        found: Json = self.stack.cp.api.call("GET", f"{self.paths[namespace]}/{name}")
        return found

    def runs(self, pod: str) -> str:
        """Its UID once it runs, else empty."""
        found = self.pod(pod)
        if found["status"].get("phase") != "Running" or "deletionTimestamp" in found["metadata"]:
            return ""
        return str(found["metadata"]["uid"])

    def wait_until_runs(self, pod: str) -> str:
        self.stack.wait(f"{pod} to run", lambda: bool(self.runs(pod)))
        return self.runs(pod)

    def explained(self, pod: str) -> Json:
        found: Json = self.stack.get(f"/v1/explain/{pod}", self._reader)
        return found

    def decided(self, pod: str) -> list[tuple[str, str]]:
        return [(each["kind"], each["reason"]) for each in self.explained(pod)["steps"]]

    def events(self, pod: str) -> set[str]:
        namespace, name = pod.split("/")
        listed = self.stack.cp.api.call("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        return {each["reason"] for each in listed["items"] if each["regarding"].get("name") == name}


def test_a_spent_budget_lowers_new_pods_until_a_refill_and_no_running_one_leaves_for_its_standing(
    stack: Stack, reader: str
) -> None:
    lab = Lab(stack, reader)
    lab.budget("100", created_as=IN_BUDGET)
    lab.create("lab/before")
    before = lab.wait_until_runs("lab/before")

    # spent: the running pod stays, and a new one has the lower class and takes the idle card
    lab.budget("0.00000001", created_as=OVER_BUDGET)
    lab.create("lab/after")
    lab.wait_until_runs("lab/after")
    assert lab.pod("lab/after")["spec"]["priorityClassName"] == OVER_BUDGET
    stack.wait("the Event", lambda: "Demoted" in lab.events("lab/after"))
    stack.wait("the decision", lambda: ("demoted", "OverBudget") in lab.decided("lab/after"))
    assert lab.runs("lab/before") == before

    # a pod in budget preempts the one with the lower class, by priority
    lab.create("paid/first")
    lab.wait_until_runs("paid/first")
    assert lab.runs("lab/before") == before
    assert not stack.exists(f"{lab.paths['lab']}/after")
    stack.wait("the eviction", lambda: lab.decided("lab/after")[-1][0] == "preempted")

    # a further one waits: nothing of lower priority runs, and standings evict nothing
    lab.create("paid/second")
    stack.wait("why it waits", lambda: bool(lab.explained("paid/second")["waitsFor"]))
    assert lab.runs("lab/before") == before
    kinds = {kind for kind, _ in lab.decided("lab/before")}
    assert not kinds & {"preempted", "reclaimed", "evicted", "warned"}

    # a refill ends it
    lab.delete("paid/second")
    lab.delete("paid/first")
    lab.budget("100", created_as=IN_BUDGET)
    lab.create("lab/again")
    lab.wait_until_runs("lab/again")
    assert lab.pod("lab/again")["spec"]["priorityClassName"] == IN_BUDGET
    assert lab.runs("lab/before") == before
    stack.wait("its placement", lambda: ("placed", "Bound") in lab.decided("lab/again"))
    assert ("demoted", "OverBudget") not in lab.decided("lab/again")
    sentences = [each["sentence"] for each in lab.explained("lab/after")["steps"]]
    assert any("over" in each and OVER_BUDGET in each for each in sentences), sentences


def test_a_class_that_was_saved_up_behind_a_gate_counts_for_nothing_over_budget(
    stack: Stack, reader: str
) -> None:
    lab = Lab(stack, reader, "hoard", "payer")
    lab.budget("100", created_as=IN_BUDGET)
    lab.create("hoard/before")
    before = lab.wait_until_runs("hoard/before")
    pods = [f"hoard/saved-{number}" for number in range(20)]
    for pod in pods:
        lab.create(pod, schedulingGates=[{"name": "example.com/mine"}])
    lab.budget("0.00000001", created_as=OVER_BUDGET)

    def gets_cards_over_budget(pod: str) -> bool:
        lab.open_gate(pod)
        lab.wait_until_runs(pod)
        recorded = str(lab.pod(pod)["metadata"]["annotations"]["bursar.dev/standing"])
        if not recorded.endswith(" OVER_BUDGET"):
            lab.delete(pod)
        return recorded.endswith(" OVER_BUDGET")

    # the idle card is given to it, and it has the class of pods in budget; the extender may be a second late
    saved = next(pod for pod in pods if gets_cards_over_budget(pod))
    assert lab.pod(saved)["spec"]["priorityClassName"] == IN_BUDGET

    # it leaves for a pod in budget all the same, and the one that ran in budget does not
    lab.create("payer/first")
    lab.wait_until_runs("payer/first")
    assert not stack.exists(f"{lab.paths['hoard']}/{saved.partition('/')[2]}")
    assert lab.runs("hoard/before") == before
    stack.wait("the eviction", lambda: lab.decided(saved)[-1][0] == "reclaimed")
