"""Extender, timekeeper and kube-scheduler are killed with SIGKILL while a gang starts: after its plan, after
a gate, after a Binding. What must hold is read from the pods, the whole time."""

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from deploy.local.api import ApiError
from deploy.local.limits import LONGEST_S
from deploy.local.stack import Stack
from tests.story.cluster.test_gangs import (
    CARDS,
    Place,
    cards_of,
    job_of,
    standing_still,
)
from tests.story.cluster.test_killed_parts import SCHEDULER
from tests.story.cluster.test_metering import set_budget
from tests.support.control_plane import MERGE
from tests.support.exposition import sample
from tests.worlds import Json
from timekeeper.core.budgets.policy import GPU_HOUR

pytestmark = pytest.mark.make_test("loses nothing in a crash; one settler writes")

SIZE = 12
LOOKAHEAD_MS = 600_000  # what is held for a pod
DEADLINE_S = 60  # the extender's default
PAYING = "wait for their budget or their turn"  # rightly said while a timekeeper that was killed pays late
GATED = (
    "its scheduling gate bursar.dev/budget keeps it from every scheduler: it is Bursar's, until the budget"
    " pays for it"
)
PARTS, ACTS = ("extender", "timekeeper", SCHEDULER), ("plan", "gate", "binding")
# the part, how many kills, and the seed: thirty of each part under `make soak`, in parts that fit its slices
KILLS = (
    *((part, 1, at) for at, part in enumerate(PARTS)),
    *(pytest.param(part, 10, 10 * at, marks=pytest.mark.soak) for part in PARTS for at in range(1, 4)),
)


class Law:
    """Looks at a place's one gang, again and again. ``broken``: what must not be."""

    def __init__(self, place: Place, reader: str) -> None:
        self.broken: list[str] = []
        self._place, self._since, self._evicted = place, 0.0, set[str]()
        self._has_all, self._ends = False, threading.Event()
        self._reader = reader
        self._before = self._reserved()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Looks until the end."""
        looking = threading.Thread(target=self._look_on)
        looking.start()
        try:
            yield
        finally:
            self._ends.set()
            looking.join()

    def begin_anew(self) -> None:
        """Another extender leads, with a deadline of its own."""
        self._since = 0.0

    def _look_on(self) -> None:
        while not self._ends.wait(0.2):
            self._look(self._place.pods())
            with suppress(OSError):  # the timekeeper is killed
                self._look_at_account()

    def _look_at_account(self) -> None:
        """It can pay: nothing waits for more. What is held is what the gang is to cost, once."""
        name = self._place.name
        reserved, most = self._reserved() - self._before, SIZE * 1_000 * LOOKAHEAD_MS
        if reserved > most:
            self.broken.append(f"{reserved} of the budget are held, and at most {most} should be")
        for path, rows in (("waiting", "pods"), ("held", "held")):
            said = json.dumps(self._place.stack.get(f"/v1/{path}?namespace={name}", self._reader)[rows])
            self.broken += [said] if says_budget(said) else []

    def _reserved(self) -> int:
        """What is held of the namespace's budget, in thousandths of a card x ms."""
        return int(self._place.stack.get(f"/v1/budgets/{self._place.name}", self._reader)["reserved"])

    def _look(self, pods: list[Json]) -> None:
        bound = sum("nodeName" in pod["spec"] for pod in pods if "deletionTimestamp" not in pod["metadata"])
        for pod in pods:
            name, conditions = pod["metadata"]["name"], pod["status"].get("conditions", ())
            if name not in self._evicted and any(each["type"] == "DisruptionTarget" for each in conditions):
                self._evicted.add(name)
                self.broken += [f"{name} was evicted while all {SIZE} had nodes"] if self._has_all else []
        self._has_all = bound >= SIZE
        if not 0 < bound < SIZE:
            self._since = 0.0
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() > self._since + DEADLINE_S + LONGEST_S:
            self.broken.append(f"{bound} of {SIZE} have had nodes for longer than the deadline")


def says_budget(text: str) -> bool:
    """Whether it says that a budget does not suffice. Which gate a pod has says nothing of that."""
    return "budget" in text.replace(PAYING, "").replace(GATED, "")


def sessions(place: Place, reader: str) -> list[Json]:
    """Of its pods, in the ledger."""
    found: list[Json] = place.stack.get(f"/v1/sessions?namespace={place.name}", reader)["sessions"]
    return found


def charged_twice(place: Place, reader: str) -> list[str]:
    """The pods of whose sessions one begins before the one before it has ended."""
    ends: dict[str, float] = {}
    found = []
    for row in sorted(sessions(place, reader), key=lambda row: row["bound"]):
        uid = row["uid"].partition(":")[0]
        found += [row["pod"]] if row["bound"] < ends.get(uid, 0) else []
        ends[uid] = row["ended"] or float("inf")
    return found


def planned(stack: Stack, reader: str) -> float:
    """For how many cards the extender has a plan."""
    return sample(stack.get("/metrics", reader, stack.read_url), "bursar_extender_planned_gpus")


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
HELD = {"kept-gates": "true"}  # label of a namespace in which the cards' gate stays


@pytest.fixture(scope="module")
def kept_gates(stack: Stack) -> None:
    """The API server lets nobody remove the cards' gate in a namespace with the label."""
    keeps = "has({0}.spec.schedulingGates) && {0}.spec.schedulingGates.exists(each, each.name == '{1}')"
    of_pod = f"!({keeps.format('oldObject', CARDS['name'])}) || ({keeps.format('object', CARDS['name'])})"
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]},
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"]},
    ]
    spec: Json = {
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": {"matchLabels": HELD}},
        "validations": [{"expression": f"request.resource.resource == 'pods' && ({of_pod})"}],
    }
    policies, name = f"{ADMISSION}/validatingadmissionpolicies", "kept-gates"
    stack.cp.api.call("POST", policies, {"metadata": {"name": name}, "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    stack.cp.api.call(
        "POST",
        f"{ADMISSION}/validatingadmissionpolicybindings",
        {"metadata": {"name": name}, "spec": binding},
    )


def keep_gates(place: Place) -> None:
    """From now on."""
    namespace = f"/api/v1/namespaces/{place.name}"
    place.stack.cp.api.call("PATCH", namespace, {"metadata": {"labels": HELD}}, MERGE)

    def is_active() -> bool:
        try:
            secret: Json = {"metadata": {"name": "probe"}}
            place.stack.cp.api.call("POST", f"{namespace}/secrets?dryRun=All", secret)
        except ApiError:
            return True
        return False

    place.stack.wait("the policy to be known", is_active)


def let_gates_go(place: Place) -> None:
    labels = dict.fromkeys(HELD)
    path = f"/api/v1/namespaces/{place.name}"
    place.stack.cp.api.call("PATCH", path, {"metadata": {"labels": labels}}, MERGE)


def kill(stack: Stack, part: str) -> None:
    """SIGKILL, seen from outside."""
    if part != SCHEDULER:
        assert stack.stop(part, signal.SIGKILL) == -signal.SIGKILL
        return
    killed = stack.cp.processes[part]
    stack.cp.stop_process(part)
    assert killed.wait(LONGEST_S) == -signal.SIGKILL


def kill_after(stack: Stack, reader: str, place: Place, part: str, act: str, delay_s: float) -> str:
    """Kill the part once the start of the gang has come to this act; how far it had come in fact."""
    if act == "plan":
        stack.wait("a plan", lambda: planned(stack, reader) == SIZE, "extender")
        time.sleep(delay_s)
        assert (len(place.gated()), place.bound()) == (SIZE, [])
        kill(stack, part)
        let_gates_go(place)
        return act
    scheduler = stack.cp.processes[SCHEDULER]
    with standing_still(scheduler):
        stack.wait("a gate to go", lambda: has_lost_a_gate(place), "extender")
        time.sleep(delay_s / 20)
        while act == "binding" and not place.bound():
            scheduler.send_signal(signal.SIGCONT)
            time.sleep(0.03)
            scheduler.send_signal(signal.SIGSTOP)
        bound = len(place.bound())
        kill(stack, part)
        if part == "timekeeper" and delay_s < 0.5:  # it is back before the others have nodes
            start_again(stack, part)
    return "whole" if bound == SIZE else "binding" if bound else "gate"


def start_again(stack: Stack, part: str) -> None:
    """It is ready."""
    if part == SCHEDULER:
        stack.cp.restart_process(part)
        return
    stack.start(part)
    url = {"extender": stack.extender_url, "timekeeper": stack.timekeeper_url}[part]
    stack.wait(f"{part} to be back", lambda: stack.is_ready(url), part)


def has_lost_a_gate(place: Place) -> bool:
    return len(place.gated()) < SIZE == len(place.names())


@pytest.mark.parametrize(("part", "kills", "seed"), KILLS)
def test_a_part_that_is_killed_while_a_gang_starts_leaves_no_part_of_it(
    stack: Stack, reader: str, kept_gates: None, part: str, kills: int, seed: int
) -> None:
    """Jobs that no pod may fail. No card has two pods. A thousand hours are free: no text says that they do
    not suffice, and no card is charged twice."""
    set_budget(stack, f"killed-{part}-{seed}", "gpuHours: 1000\nonExhausted: hold\n")
    budget = f"/v1/budgets/killed-{part}-{seed}"
    stack.wait("the grant", lambda: stack.get(budget, reader)["granted"] == 1_000 * GPU_HOUR)
    place, chance, seen = Place(stack, f"killed-{part}-{seed}", 4, 4, 4), random.Random(seed), Counter[str]()
    for number in range(kills):
        law, act = Law(place, reader), ACTS[(seed + number) % len(ACTS)]
        with law.kept():
            if act == "plan":
                keep_gates(place)
            spec = {"parallelism": SIZE, "completions": SIZE, "backoffLimit": 0}
            path = job_path(place, job_of(place, f"train-{number}", annotated=SIZE, **spec))
            seen[kill_after(stack, reader, place, part, act, chance.random())] += 1
            if part not in stack.processes:
                start_again(stack, part)
            if part == "extender":
                law.begin_anew()
            stack.wait("all to run", lambda: len(place.running()) == SIZE, "extender")
            stack.wait(
                "all to be charged", lambda: sum(not row["ended"] for row in sessions(place, reader)) >= SIZE
            )
        told = [note for name in (*place.names(), f"train-{number}") for note in place.told(name)]
        assert (law.broken, [note for note in told if says_budget(note)]) == ([], [])
        assert len({card for each in place.pods() for card in cards_of(each)}) == len(place.names()) == SIZE
        assert not stack.cp.api.call("GET", path)["status"].get("failed")
        stack.cp.api.call("DELETE", path, {"propagationPolicy": "Background"})
        stack.wait("its pods to be gone", lambda: place.names() == [])
    print(f"{part} was killed after: {dict(seen)}")
    assert charged_twice(place, reader) == []
    assert seen.total() == kills
    assert kills < len(ACTS) or {*ACTS} <= {*seen}


def job_path(place: Place, job: Json) -> str:
    return f"/apis/batch/v1/namespaces/{place.name}/jobs/{job['metadata']['name']}"
