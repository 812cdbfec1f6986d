"""kube-scheduler's own preemption of gangs: a real API server, kube-scheduler and controllers, kwok nodes,
and every role of Bursar. It counts single pods, and names none on other nodes; a gang is whole all the same,
or gone."""

import signal
from collections.abc import Callable

import pytest

from deploy.local.stack import Stack
from tests.story.cluster.test_gangs import Place, cards_of, member, standing_still
from tests.worlds import Json

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def modest(stack: Stack) -> str:
    """A priority class below the one of other pods in budget."""
    stack.cp.api.call("POST", CLASSES, {"metadata": {"name": "modest"}, "value": -3})
    return "modest"


class Preempted(Place):
    """A Job's gang of three whole cards on two nodes, which have no others."""

    def __init__(self, stack: Stack, name: str, priority: str) -> None:
        super().__init__(stack, name, 2, 1)
        self.jobs = f"/apis/batch/v1/namespaces/{name}/jobs"
        template = member("unused", "train", 3, where=name)
        del template["metadata"]["name"]
        template["spec"]["priorityClassName"] = priority
        spec = {"parallelism": 3, "completions": 3, "backoffLimit": 0, "template": template}
        stack.cp.api.call("POST", self.jobs, {"metadata": {"name": "train"}, "spec": spec})
        stack.wait("the gang to run", lambda: len(self.running()) == 3)
        self.first = {each["metadata"]["uid"] for each in self.pods()}

    def create_urgent(self) -> None:
        """A pod of more priority, which needs a card."""
        urgent = member("urgent", "", 0, where=self.name)
        urgent["metadata"]["annotations"] = {"local.bursar.dev/run-for": "600s"}
        self.stack.cp.api.call("POST", self.path, urgent)

    def has_preempted(self) -> bool:
        """Whether kube-scheduler has chosen a node, and all of the gang are asked to leave."""
        (urgent,) = [each for each in self.pods() if each["metadata"]["name"] == "urgent"]
        left = self.members(lambda pod: not pod["metadata"].get("deletionTimestamp"))
        return bool(urgent["status"].get("nominatedNodeName")) and not left

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for it; no card has two pods meanwhile."""

        def is_true() -> bool:
            cards = [card for each in self.pods() if holds_cards(each) for card in cards_of(each)]
            assert len({*cards}) == len(cards)
            return true()

        self.stack.wait(what, is_true)

    def reasons(self) -> set[str]:
        """Of all Events."""
        events = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        return {each["reason"] for each in self.stack.cp.api.call("GET", events)["items"]}

    def members(self, of: Callable[[Json], bool] = lambda _: True) -> list[str]:
        """The UIDs of the gang's pods of which that is true."""
        found = [each for each in self.pods() if each["metadata"]["name"] != "urgent"]
        return [each["metadata"]["uid"] for each in found if of(each)]


def holds_cards(pod: Json) -> bool:
    """A Job keeps the object of a pod that has ended until it has counted it."""
    return bool(pod["spec"].get("nodeName")) and pod["status"]["phase"] not in ("Failed", "Succeeded")


def test_of_a_gang_that_kube_scheduler_preempts_none_is_left_and_the_new_one_waits_behind(
    stack: Stack, modest: str
) -> None:
    """It takes the pods of one node. It stands still when these end, until the gang that their Job makes anew
    was looked for: this gets no card that was freed for the other pod, and starts once that is gone."""
    place, processes = Preempted(stack, "robbed", modest), stack.cp.processes

    def is_looked_for() -> bool:
        told = str([*map(place.told, place.gated())])
        return place.first.isdisjoint(place.members()) and "2 of 3 members fit; 1 cards missing" in told

    with standing_still(processes["kwok"]):
        place.create_urgent()
        place.until(place.has_preempted, "the gang to leave")
        processes["gpu-scheduler"].send_signal(signal.SIGSTOP)
    try:
        place.until(is_looked_for, "a new gang to lack a card")
    finally:
        processes["gpu-scheduler"].send_signal(signal.SIGCONT)
    place.until(lambda: "urgent" in place.running(), "the urgent pod to run")
    place.until(lambda: {"Preempted", "GangEviction"} <= place.reasons(), "the Events")
    assert place.members(holds_cards) == []
    assert not stack.cp.api.call("GET", f"{place.jobs}/train")["status"].get("conditions")

    stack.cp.api.call("DELETE", f"{place.path}/urgent?gracePeriodSeconds=0")
    place.until(lambda: len(place.members(holds_cards)) == 3, "the new gang to start")
