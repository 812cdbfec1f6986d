"""Pods that leave so that a gang starts: a real API server, kube-scheduler and controllers, kwok nodes, and
every role of Bursar. Others hold 3 of 4 cards."""

import signal

from deploy.local.stack import Stack
from tests.story.cluster.test_gangs import Place, member
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import create_namespace
from tests.worlds import Json

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGET, SPENT = "gpuHours: 100\nonExhausted: reclaim\n", "gpuHours: 0.00000001\nonExhausted: reclaim\n"


class Crowded:
    """Two nodes of two cards: three pods of one namespace have cards, and a gang of another wants two."""

    def __init__(self, stack: Stack, name: str, priority: str = "") -> None:
        self.stack, self.place = stack, Place(stack, name, 2, 2)
        self.others = create_namespace(stack.cp, f"{name}-others")
        for at in range(3):
            self._create(self.others, f"other-{at}", "", priority)
        stack.wait("three pods to run", lambda: len(self.staying()) == 3)

    def _create(self, path: str, name: str, gang: str, priority: str = "") -> None:
        raw = member(name, gang, 2, where=self.place.name)
        if not gang:
            raw["metadata"]["annotations"] = {"local.bursar.dev/run-for": "600s"}
        if priority:
            raw["spec"]["priorityClassName"] = priority
        self.stack.cp.api.call("POST", path, raw)

    def want(self, priority: str = "") -> None:
        """The gang comes."""
        for name in ("a", "b"):
            self._create(self.place.path, name, "train", priority)

    def staying(self) -> list[Json]:
        """The others that run and stay."""
        pods = self.stack.cp.api.call("GET", self.others)["items"]
        return [
            pod
            for pod in pods
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]

    def starts(self) -> None:
        """The gang does, and of the others one alone left for it, which reads why."""
        self.stack.wait("the gang to start", lambda: sorted(self.place.running()) == ["a", "b"])
        assert len(self.staying()) == 2
        for pod in self.place.pods():
            conditions = {one["type"]: one for one in pod["status"]["conditions"]}
            assert '"free"' in conditions["bursar.dev/CardsHeld"]["message"]
        events = f"/apis/events.k8s.io/v1/namespaces/{self.place.name}-others/events"
        notes = [one["note"] for one in self.stack.cp.api.call("GET", events)["items"]]
        assert sum("its GPUs go to a gang of another namespace" in note for note in notes) == 1


def test_who_spends_more_than_its_budget_gives_cards_to_a_gang_in_budget(stack: Stack) -> None:
    both = {"crowded": BUDGET, "crowded-others": BUDGET}
    set_budgets(stack, **both)
    crowded = Crowded(stack, "crowded")
    set_budgets(stack, **both | {"crowded-others": SPENT})

    crowded.want()

    crowded.starts()


def test_pods_of_a_lower_class_give_cards_to_a_gang_although_the_extender_is_killed(stack: Stack) -> None:
    for name, value in (("modest-class", -3), ("urgent-class", 100)):
        stack.cp.api.call("POST", CLASSES, {"metadata": {"name": name}, "value": value})
    crowded = Crowded(stack, "ranked", "modest-class")

    crowded.want("urgent-class")
    stack.wait(
        "cards to be reserved", lambda: any("CardsHeld" in str(pod["status"]) for pod in crowded.place.pods())
    )
    stack.stop("extender", signal.SIGKILL)
    stack.start("extender")

    crowded.starts()
