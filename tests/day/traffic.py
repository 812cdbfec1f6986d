"""A day's pods and nodes on a real control plane: pods that are created at an even rate, run for seconds and
are deleted once they have ended, and nodes that are drained, deleted and replaced by others.

What each pod owes is computed from its own object by the oracle of the ledger, which imports nothing of ours.
"""

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, PriorityQueue
from typing import Any

from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from tests.support.control_plane import create_namespace
from tests.support.waiting import eventually
from tests.timekeeper.oracle import Terms, bound_at, kubelet_says, rate
from timekeeper.edge.list_watch import watch
from timekeeper.edge.reflector import OPENED, ExpiredError, UnreachableError
from timekeeper.runtime.api_server import Answered
from timekeeper.runtime.connect import connect

Json = dict[str, Any]

NAMESPACES = tuple(f"day-{at}" for at in range(10))
LIMITS = (
    {"bursar.dev/gpu-percent": "10"},
    {"bursar.dev/gpu-percent": "25"},
    {"bursar.dev/gpu-memory": "20480"},  # the API server writes 20000 as 20k
    {"bursar.dev/gpu-percent": "200", "bursar.dev/gpu-count": "2"},
)
LIVES_S = (5, 10, 20, 40)
DELETED_EACH = 20  # of so many pods one is deleted while it runs
STAYS_S = 15.0  # how long an ended pod stays, as under a Job's ttlSecondsAfterFinished
BINDS_WITHIN_S = 5.0  # a pod may be on its way to a node that is closed just now
CREATORS = 4
DELETERS = 4  # one alone falls behind where a call takes longer than pods are apart
CARDS = 8
PODS = "/api/v1/pods"


@dataclass
class Traffic:
    """``owed``: the charge of each ended pod by namespace and UID; ``created``: when, and how long the call
    took in milliseconds; ``failures``: calls that were made again, by reason; ``bound_again``: pods whose
    condition PodScheduled was written once more after their binding.

    ``quiet``: while it is set, pods and nodes are deleted. A ledger that is away does not see the end of a
    pod whose object goes meanwhile; what it then charges is another test's subject.
    """

    cp: ControlPlane
    nodes: int
    seed: int = 1
    owed: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in NAMESPACES})
    created: list[tuple[float, float]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    bound_again: int = 0
    quiet: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0

    def __post_init__(self) -> None:
        self._api = connect(self.cp.admin_kubeconfig, connections=2 * CREATORS + 4)
        self._cards: dict[str, Json] = {}
        self._there: dict[str, str] = {}  # UID -> node, of pods whose objects exist
        self._bound: dict[str, int] = {}  # by UID, as the binding wrote it
        self._doomed: set[str] = set()  # pods that are deleted while they run
        self._due: PriorityQueue[tuple[float, str]] = PriorityQueue()
        self._ended = threading.Event()
        self._numbers = itertools.count()
        self._random = random.Random(self.seed)
        self._names: list[str] = []  # of nodes that are open
        self._choosing = threading.Lock()
        self.errors: list[str] = []

    @contextmanager
    def flowing(self) -> Iterator["Traffic"]:
        """Nodes and namespaces are made; objects are followed, and deleted when they are due."""
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda _: self._new_node(), range(self.nodes)))
        for name in NAMESPACES:
            create_namespace(self.cp, name)
        listed = self._must("GET", f"{PODS}?limit=1")
        self.began = time.monotonic()
        self.quiet.set()
        work: tuple[Callable[[], None], ...] = (
            lambda: self._follow(listed["metadata"]["resourceVersion"]),
            *[self._delete] * DELETERS,
        )
        threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]
        for each in threads:
            each.start()
        try:
            yield self
        finally:
            self._ended.set()
            for each in threads:
                each.join(timeout=120)
            self._api.close()

    @property
    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def give_up(self) -> None:
        """Nothing more is created or deleted."""
        self._ended.set()

    def ended(self) -> int:
        """How many pods have ended."""
        return sum(map(len, self.owed.values()))

    def run(self, pods: int, length_s: float, nodes: int) -> None:
        """Create so many pods, evenly over the time, and replace so many nodes beside them."""
        stop = threading.Event()

        def churn(at: int) -> None:
            while self.now < at * length_s / nodes and not stop.wait(0.2):
                pass
            if not stop.is_set():
                self._guarded(lambda: self._replace_a_node(stop))

        with ThreadPoolExecutor(CREATORS) as churners:
            churning = [churners.submit(churn, at) for at in range(nodes)]
            with ThreadPoolExecutor(CREATORS) as creators:
                list(creators.map(lambda at: self._create_at(at, at * length_s / pods), range(pods)))
            stop.set()
            for each in churning:
                each.result()

    def drain(self) -> None:
        """Until every pod has ended and is gone."""
        eventually(lambda: not self._there or self.errors, lambda: f"{len(self._there)} pods to go")

    # -- pods

    def _create_at(self, number: int, due_s: float) -> None:
        self._ended.wait(max(0.0, due_s - self.now))
        namespace = NAMESPACES[number % len(NAMESPACES)]
        is_deleted = number % DELETED_EACH == 0
        lives = 3600 if is_deleted else LIVES_S[number % len(LIVES_S)]
        body = {
            "metadata": {
                "name": f"p{number}",
                "annotations": {"local.bursar.dev/run-for": f"{lives}s"},
                "labels": {"ends": "deleted" if is_deleted else "completes"},
            },
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": "example/app:1",
                        "resources": {"limits": LIMITS[number // 4 % len(LIMITS)]},
                    }
                ],
            },
        }
        while not self._ended.is_set():
            begun = time.monotonic()
            reply = self._api.call("POST", f"/api/v1/namespaces/{namespace}/pods", body, timeout_s=LONGEST_S)
            if isinstance(reply, Answered) and reply.status in (201, 409):
                self.created.append((self.now, 1000 * (time.monotonic() - begun)))
                return
            status = reply.status if isinstance(reply, Answered) else 0
            self.failures[f"{status} {reply.message[:160]}"] += 1
            time.sleep(0.2)

    def _follow(self, version: str) -> None:
        while not self._ended.is_set():
            try:
                for event in watch(self._api, PODS, version, for_s=60):
                    if event["type"] == OPENED:
                        continue
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        self._see(event["object"], event["type"] == "DELETED")
                    if self._ended.is_set():
                        return
            except UnreachableError:
                time.sleep(0.2)
            except ExpiredError:
                listed = self._must("GET", PODS)
                version = listed["metadata"]["resourceVersion"]
                for pod in listed["items"]:
                    self._see(pod, False)

    def _see(self, pod: Json, is_gone: bool) -> None:
        metadata = pod["metadata"]
        namespace, uid = metadata["namespace"], metadata["uid"]
        if namespace not in self.owed:
            return
        path = f"/api/v1/namespaces/{namespace}/pods/{metadata['name']}"
        if is_gone:
            self._there.pop(uid, None)
        else:
            self._there[uid] = pod["spec"].get("nodeName", "")
        if pod["spec"].get("nodeName"):
            # kube-scheduler writes the condition again, with a later time, where the answer to a bind is lost
            self._bound.setdefault(uid, bound_at(pod))
        phase = pod["status"].get("phase")
        if uid not in self.owed[namespace] and phase in ("Succeeded", "Failed"):
            _, end = kubelet_says(pod)
            if not pod["spec"].get("nodeName") or not end:
                self.errors.append(f"{path}: it ended without a time: {pod['status']}")
                return
            cards = self._cards[pod["spec"]["nodeName"]]
            self.owed[namespace][uid] = rate(pod, cards, Terms()) * max(0, end - self._bound[uid])
            if bound_at(pod) != self._bound[uid]:
                self.bound_again += 1
            if not is_gone and "deletionTimestamp" not in metadata:
                self._due.put((self.now + STAYS_S, path))
        elif phase == "Running" and metadata["labels"]["ends"] == "deleted" and uid not in self._doomed:
            self._doomed.add(uid)
            self._due.put((self.now + 2 * STAYS_S, path))
        if is_gone and uid not in self.owed[namespace] and pod["spec"].get("nodeName"):
            self.errors.append(f"{path}: it went before it had ended")

    def _delete(self) -> None:
        while not self._ended.is_set():
            try:
                due, path = self._due.get(timeout=0.5)
            except Empty:
                continue
            while self.now < due and not self._ended.wait(0.1):
                pass
            while not self.quiet.wait(0.5) and not self._ended.is_set():
                pass
            reply = self._api.call("DELETE", path, timeout_s=LONGEST_S)
            if not isinstance(reply, Answered) or reply.status not in (200, 202, 404):
                self._due.put((self.now + 1, path))

    # -- nodes

    def _new_node(self) -> None:
        name = f"day-{next(self._numbers):05d}"
        node = kwok_node(name, cards=CARDS)
        cards = json.loads(node["metadata"]["annotations"]["bursar.dev/inventory"])["cards"]
        self._cards[name] = {card["uuid"]: card for card in cards}
        self._must("POST", "/api/v1/nodes", node)
        self._names.append(name)

    def _replace_a_node(self, stop: threading.Event) -> None:
        """It is drained, as an autoscaler does it, and deleted; another one comes."""
        with self._choosing:
            name = self._random.choice(self._names)
            self._names.remove(name)
        closed = {"spec": {"unschedulable": True}}
        path = f"/api/v1/nodes/{name}"
        kind = "application/merge-patch+json"
        reply = self._api.call("PATCH", path, closed, content_type=kind, timeout_s=LONGEST_S)
        assert isinstance(reply, Answered), reply
        assert reply.status == 200, reply
        stop.wait(BINDS_WITHIN_S)
        while name in list(self._there.values()) or not self.quiet.is_set():
            if stop.wait(0.5):
                return
        self._must("DELETE", path)
        self._new_node()
        self.replaced += 1

    def _must(self, method: str, path: str, body: Json | None = None) -> Json:
        reply = self._api.call(method, path, body, timeout_s=LONGEST_S)
        if not isinstance(reply, Answered) or reply.status >= 300:
            raise RuntimeError(f"{method} {path}: {reply}")
        return dict(reply.body)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Errors of a thread end the day."""
        try:
            work()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            raise
