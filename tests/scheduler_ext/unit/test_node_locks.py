"""The lock of a node: when a bind takes it, waits for it, gives up, and gives it back."""

import datetime
import threading
import time
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from scheduler_ext.binding.node_locks import MAX_WAITING, NodeLocks
from scheduler_ext.binding.values import BindingArgs
from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.model.node import read_node
from tests.support.waiting import eventually
from tests.worlds import Json
from timekeeper.runtime.api_server import Answered, Lost, Reply

LOCK = "hami.io/mutex.lock"
NOW = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
MINE = "2030-01-02T03:04:05Z,default,mine"
ENDED = ("Succeeded", "Failed", "Running")
YOUNG = "node n is locked while its plugin hands out the devices of another pod"
OLD = (
    "node n has been locked for more than five minutes by pod default/other, which waits for devices: see the"
    " log of the node's GPU plugin, or delete this pod"
)
# by lock, what the node offers, and how its plugin describes the cards
OFFERS = {LOCK: "nvidia.com/gpu", "hamivgpu": "volcano.sh/vgpu-number", "gpu": "volcano.sh/gpu-number"}
DESCRIBES = {
    LOCK: {"hami.io/node-nvidia-register": "GPU-a,10,16000,100,T4,0,true:"},
    "hamivgpu": {"volcano.sh/node-vgpu-register": "GPU-a,10,16000,T4,true,:"},
}
ARGS = BindingArgs("default", "mine", "uid-mine", "n")


class Cluster:
    """One node and some pods, as an API server keeps them, and the extender's cache of the node."""

    def __init__(self, lock: str | None = None, named: str = LOCK, **pods: Json) -> None:
        self.lock, self.pods, self.version, self.conflicts = lock, pods, 7, 0
        self.named = named
        self.down = False
        self.calls: list[str] = []
        self.cache = ClusterCache(lambda: 0, lambda *_: None, 0)
        self.locks = NodeLocks(self.call, self.cache, lambda: NOW)
        self.show()

    def node(self) -> Json:
        """The Node object."""
        annotations = dict(DESCRIBES.get(self.named, {}))
        annotations |= {} if self.lock is None else {self.named: self.lock}
        amounts = {OFFERS[self.named]: "10"}
        return {
            "metadata": {"name": "n", "resourceVersion": str(self.version), "annotations": annotations},
            "status": {"capacity": amounts, "allocatable": amounts},
        }

    def show(self) -> None:
        """Let the extender see the node as it is."""
        self.cache.node_updated(read_node(self.node()))

    def unlock(self) -> None:
        """What the node plugin does."""
        self.lock = None
        self.show()

    def call(
        self, method: str, path: str, body: Any, _until: float, _type: str = "application/json"
    ) -> Reply:
        self.calls.append(method)
        if self.down:
            return Lost("no answer")
        if "/pods/" in path:
            pod = self.pods.get(path.rpartition("/")[2])
            return Answered(404, {}) if pod is None else Answered(200, pod)
        if method == "GET":
            return Answered(200, self.node())
        assert set(body["metadata"]) == {"annotations", "resourceVersion"}
        if self.conflicts or body["metadata"]["resourceVersion"] != str(self.version):
            self.conflicts -= 1
            self.version += 1
            return Answered(409, {"message": "changed"})
        self.lock = body["metadata"]["annotations"][self.named]
        self.version += 1
        return Answered(200, self.node())

    def take(self, within_s: float = 0.6) -> str:
        """What the bind of our pod is told."""
        return self.locks.take(read_node(self.node()), ARGS, time.monotonic() + within_s)


def pod(
    node: str = "n", phase: str = "Pending", bind_phase: str = "allocating", named: str = "hami.io/bind-phase"
) -> Json:
    """A pod that the plugin may look at."""
    return {
        "metadata": {"annotations": {named: bind_phase}},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("lock", "other"),
    [
        (None, pod()),
        ("2030-01-02T02:59:04Z", pod()),  # five minutes old
        ("2099-01-02T02:59:04Z", pod()),
        ("nonsense", pod()),
        ("2030-01-02T03:04:04Z,default", pod()),
        ("2030-01-02T03:04:04,default,other", pod()),
        ("2030-01-02T03:04:04Z,default,gone", pod()),
        ("2020-01-02T03:04:04Z,default,gone", pod()),
        ("2030-01-02T03:03:54Z,default,other", pod(node="")),  # eleven seconds old
        ("2030-01-02T03:04:04Z,default,other", pod(node="elsewhere")),
        *(("2030-01-02T03:04:04Z,default,other", pod(phase=phase)) for phase in ENDED),
        ("2020-01-02T03:04:04Z,default,other", pod(phase="Running")),
        ("2030-01-02T03:04:04Z,default,other", pod(bind_phase="success")),
        ("2030-01-02T03:04:04+00:00,default,other", pod(bind_phase="failed")),
    ],
)
def test_an_unused_lock_is_taken_even_if_the_node_changes_meanwhile(lock: str | None, other: Json) -> None:
    cluster = Cluster(lock, other=other)
    cluster.conflicts = 2

    assert cluster.take(LONGEST_S) == ""
    assert cluster.lock == MINE


@pytest.mark.parametrize(
    ("named", "waiting", "served"),
    [
        (
            "hamivgpu",
            pod(named="volcano.sh/bind-phase"),
            pod(named="volcano.sh/bind-phase", bind_phase="success"),
        ),
        (
            "gpu",
            pod(named="volcano.sh/gpu-assigned", bind_phase="false"),
            pod(named="volcano.sh/gpu-assigned"),
        ),
    ],
)
def test_the_locks_of_volcanos_plugins_stand_while_their_pods_wait_for_devices(
    named: str, waiting: Json, served: Json
) -> None:
    lock = "2020-01-02T03:04:04Z,default,other"

    assert "by pod default/other" in Cluster(lock, named, other=waiting).take()
    assert Cluster(lock, named, other=served).take(LONGEST_S) == ""


@pytest.mark.parametrize(
    ("lock", "why"),
    [
        ("2030-01-02T03:04:04Z,default,other", YOUNG),
        ("2030-01-02T02:59:06Z", YOUNG),
        ("2030-01-02T03:04:04+00:00", YOUNG),
        # its pod still waits: the next pod's lock would give it the next pod's devices
        ("2030-01-02T02:59:04Z,default,other", OLD),
        ("2029-12-02T02:59:04Z,default,other", OLD),
        ("2099-01-02T03:04:04Z,default,other", OLD),
    ],
)
def test_a_lock_that_is_needed_is_waited_for_and_not_taken(lock: str, why: str) -> None:
    cluster = Cluster(lock, other=pod())

    assert cluster.take() == why
    assert cluster.lock == lock
    unbound = Cluster("2030-01-02T03:04:04Z,default,other", other=pod(node=""))  # HAMi
    assert "locked" in unbound.take()

    waiting = threading.Thread(target=lambda: told.append(cluster.take(LONGEST_S)))
    told: list[str] = []
    waiting.start()
    eventually(lambda: cluster.locks.waiting)
    assert told == []
    cluster.unlock()
    waiting.join(LONGEST_S)
    assert told == [""]


def test_a_pods_own_lock_stays_and_only_its_own_is_given_back() -> None:
    cluster = Cluster("2030-01-02T03:00:00Z,default,mine")
    assert cluster.take(LONGEST_S) == ""
    assert cluster.lock == "2030-01-02T03:00:00Z,default,mine"

    for lock, left in (
        (MINE, None),
        ("2030-01-02T03:00:00Z,default,notmine", "2030-01-02T03:00:00Z,default,notmine"),
    ):
        cluster.lock = lock
        cluster.locks.release(read_node(cluster.node()), ARGS, time.monotonic() + LONGEST_S)
        assert cluster.lock == left


def test_without_an_answer_nothing_is_locked_and_no_other_node_is_read() -> None:
    cluster = Cluster()
    cluster.down = True
    assert "no answer" in cluster.take()

    cluster.calls.clear()
    whole = read_node({"metadata": {"name": "n"}, "status": {"capacity": {"nvidia.com/gpu": "1"}}})
    for node in (None, whole):
        assert cluster.locks.take(node, ARGS, time.monotonic() + LONGEST_S) == ""
        cluster.locks.release(node, ARGS, time.monotonic() + LONGEST_S)
    assert cluster.calls == []


def test_few_binds_wait_at_a_time_so_that_those_of_other_nodes_have_threads() -> None:
    cluster = Cluster("2030-01-02T03:04:04Z,default,other", other=pod())
    told: list[str] = []
    waiting = [
        threading.Thread(target=lambda: told.append(cluster.take(LONGEST_S))) for _ in range(MAX_WAITING)
    ]
    for each in waiting:
        each.start()
    eventually(lambda: cluster.locks.waiting == MAX_WAITING)

    assert "locked" in cluster.take(LONGEST_S)
    assert cluster.locks.waiting == MAX_WAITING  # it was refused while they go on waiting

    cluster.unlock()
    for each in waiting:
        each.join(LONGEST_S)
    assert told == [""] * MAX_WAITING
