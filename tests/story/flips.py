"""One namespace whose mode flips while pods are created in it, run and end; and what became of each pod, by
what the API server told a watch of the test's own. Imports nothing of the roles."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.local.api import ApiError
from deploy.local.kwok_nodes import kwok_node, nvidia_capacity, our_capacity
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import set_budgets
from tests.support.control_plane import MERGE, create_namespace
from tests.support.waiting import at_once, eventually
from tests.timekeeper.cluster.test_metering import Lived, Recorder
from tests.timekeeper.oracle import bound_at, kubelet_says, moment
from tests.worlds import Json

MIB = 81_920  # of a card
SETTINGS = "lookahead: 0s\nsettleAfter: 5s\nevictGrace: 1s\npdbGrace: 1s\nevictRate: 60\n"
WHOLE, HALF = {"nvidia.com/gpu": "1"}, {"bursar.dev/gpu-percent": "50"}
SPENT = ("hold", "evict", "deprioritize", "reclaim")
# all that enforcement gives a pod that is bound
TREATMENT = {"mark", "standing", "request", "class", "scheduler", "sidecar", "cards"}
# what it may have beside these, by its life
MORE = {"held", "evict-after", "delete-after", "reclaimable", "idle-until", "host"}
GRACE_MS = 2_000  # the least of the kubelet's


def treatment(raw: Json) -> set[str]:
    """What a pod's object has of an enforcing mode."""
    metadata, spec = raw["metadata"], raw["spec"]
    keys = [*metadata.get("labels", {}), *metadata.get("annotations", {})]
    names = {"governed": "mark", "devices": "cards"}
    ours = {key.partition("bursar.dev/")[2] for key in keys if key.startswith("bursar.dev/")}
    signs = {names.get(each, each) for each in ours}
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    has = {
        "class": spec.get("priorityClassName", "").startswith("gpu-"),
        "scheduler": spec["schedulerName"] == "bursar-scheduler",
        "sidecar": any(each["name"] == "bursar-sidecar" for each in containers),
        "gate": bool(spec.get("schedulingGates")),
        "variables": any("bursar" in str(each.get("env")) for each in containers) and "mark" not in signs,
    }
    return signs | {sign for sign, there in has.items() if there}


def is_bound(raw: Json) -> bool:
    return bool(raw["spec"].get("nodeName"))


@dataclass
class Flips:
    """``by_label``: the namespace has no entry, and its label names the mode. ``did`` counts what
    happened."""

    stack: Stack
    name: str
    by_label: bool
    rng: random.Random
    path: str = ""
    made: int = 0
    did: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """Two pools of nodes: for shares of cards, and for whole ones by NVIDIA's plugin."""
        for index in range(4):
            for pool, capacity in (("shares", our_capacity(8, MIB)), ("whole", nvidia_capacity(8))):
                node = kwok_node(f"{self.name}-{pool}-{index}", cards=8, capacity=capacity)
                self.stack.cp.api.call("POST", "/api/v1/nodes", node)
        self.path = create_namespace(self.stack.cp, self.name)
        create_namespace(self.stack.cp, f"{self.name}-rival")
        self.turn("meter")

    def turn(self, mode: str, spent: str = "") -> None:
        """Write the mode, and a budget that is spent or not."""
        budget = f"gpuHours: {0 if spent else 1000}\nonExhausted: {spent or 'deprioritize'}\n"
        key = "_defaults" if self.by_label else self.name
        own = "" if self.by_label else f"mode: {mode}\n"
        rival = {f"{self.name}-rival": "gpuHours: 1000\nonExhausted: deprioritize\nmode: enforce\n"}
        set_budgets(self.stack, _settings=SETTINGS, **rival, **{key: budget + own})
        if self.by_label:
            label = {"metadata": {"labels": {"bursar.dev/mode": mode}}}
            self.stack.cp.api.call("PATCH", f"/api/v1/namespaces/{self.name}", label, MERGE)
        self.did[mode] += 1
        self.did[f"{mode} {spent}".strip()] += bool(spent)

    def half_round(self, mode: str, spent: str, pods: int) -> None:
        """The mode turns; a pod is created while the roles learn of it, the others once they have. A step
        back to metering opens all gates, whatever the budget says."""
        self.turn(mode, spent)
        self.create()
        self.stack.wait(f"both workers to {mode}", lambda: all(at_once(lambda: self._is_so(mode, spent), 6)))
        for _ in range(pods - 1):
            self.create()
        if mode == "meter":
            self.stack.wait("all gates to be open", lambda: not self._gated(), "timekeeper")

    def _gated(self) -> list[str]:
        pods = self.stack.cp.api.call("GET", self.path)["items"]
        return [each["metadata"]["name"] for each in pods if each["spec"].get("schedulingGates")]

    def _is_so(self, mode: str, spent: str) -> bool:
        """Whether a new pod gets what the mode and the budget give."""
        try:
            signs = treatment(self._post(pod("dry", HALF, "1s"), f"{self.path}?dryRun=All"))
        except ApiError as error:
            self.refusals[str(error)[:160]] += 1
            return False
        if mode == "meter":
            return not signs
        return "mark" in signs and ("gate" in signs) == (spent in ("hold", "evict"))

    def create(self) -> None:
        """One pod; a call that is refused is made again, as a controller does."""
        limits = self.rng.choice((WHOLE, HALF))
        body = pod(f"p{self.made:03}", limits, f"{self.rng.choice((1, 2, 4, 8, 30))}s")

        def is_created() -> bool:
            try:
                self._post(body, self.path)
            except ApiError as error:
                self.refusals[str(error)[:160]] += 1
                return False
            return True

        eventually(is_created, lambda: self.refusals)
        self.made += 1

    def _post(self, body: Json, path: str) -> Json:
        made: Json = self.stack.cp.api.call("POST", path, body)
        return made

    def rival(self) -> Callable[[], None]:
        """A pod of another namespace that needs a whole node; call to delete it."""
        path = f"/api/v1/namespaces/{self.name}-rival/pods"
        self.stack.cp.api.call("POST", path, pod("large", {"nvidia.com/gpu": "8"}, ""))
        return lambda: self.stack.cp.api.call("DELETE", f"{path}/large", {"gracePeriodSeconds": 0})


def pod(name: str, limits: Json, run_for: str) -> Json:
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, "annotations": {"local.bursar.dev/run-for": run_for} if run_for else {}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def rate_milli(raw: Json) -> int:
    """Of a weight of 1."""
    (main,) = [each for each in raw["spec"]["containers"] if each["name"] == "main"]
    return 1000 if "nvidia.com/gpu" in main["resources"]["limits"] else 500


def has_ended(lived: Lived) -> bool:
    return lived.gone or kubelet_says(lived.raw)[1] is not None


def held_ms(lived: Lived) -> tuple[int, int]:
    """The least and the most that its cards were held: exact, but for one whose end nothing told."""
    bound = [raw for raw in lived.states if is_bound(raw)]
    if not bound:
        return 0, 0
    since = min(
        bound_at(raw)
        for raw in bound
        if any(
            each["type"] == "PodScheduled" and each["status"] == "True"
            for each in raw["status"]["conditions"]
        )
    )
    end = kubelet_says(lived.raw)[1]
    if end:
        return end - since, end - since
    removed = moment(lived.raw["metadata"]["deletionTimestamp"]) or 0
    return removed - since, removed - since + GRACE_MS + 1_000


def seen_in(recorder: Recorder) -> dict[str, Lived]:
    """By name."""
    return {each.raw["metadata"]["name"]: each for each in list(recorder.pods.values())}
