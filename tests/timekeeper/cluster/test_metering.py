"""Pods of a real API server are metered while the settler is killed and paused and nodes go: at the end the
ledger says what the objects' own timestamps prove."""

import http.client
import json
import os
import random
import signal
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import card_uuid, kwok_node
from tests.local.worlds import NAMESPACES, NODES, get, namespace
from tests.support import profile
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.timekeeper.oracle import Terms, kubelet_says, moment, rate
from tests.timekeeper.processes import Process, children, prepared
from tests.worlds import Json

pytestmark = pytest.mark.make_test("meters exactly")

ROUNDS = 24
CARDS = 8
MEMORY_MIB = 81_920
NAMES = ("meter-1", "meter-2")
MAX_GRACE_S = 10
LEAST_GRACE_MS = 2_000  # of a pod that is deleted by force


@dataclass
class Lived:
    """All that the API server ever told of one pod: its states in order; ``gone``: the last of them is that
    of its removal."""

    states: list[Json] = field(default_factory=list)
    gone: bool = False

    @property
    def raw(self) -> Json:
        return self.states[-1]

    @property
    def was_removed_running(self) -> bool:
        """Nothing ever told of its end."""
        return self.gone and kubelet_says(self.raw)[1] is None


class Recorder:
    """Follows the pods of a namespace with a watch of its own, and forgets nothing."""

    def __init__(self, cp: ControlPlane, path: str) -> None:
        self.pods: dict[str, Lived] = {}
        self._cp, self._path = cp, path
        target = urlsplit(cp.api.url)
        tls = ssl.create_default_context(cafile=str(cp.ca_file))
        self._connection = http.client.HTTPSConnection(target.hostname or "", target.port, context=tls)
        self._thread = Thread(target=self._follow, daemon=True)
        self._is_over = Event()

    def __enter__(self) -> "Recorder":
        version = self._cp.api.call("GET", self._path)["metadata"]["resourceVersion"]
        query = f"{self._path}?watch=1&timeoutSeconds=600&resourceVersion={version}"
        self._connection.request("GET", query, headers={"Authorization": f"Bearer {self._cp.admin_token}"})
        self._answer = self._connection.getresponse()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join()
        self._answer.close()
        self._connection.close()

    def _follow(self) -> None:
        try:
            self._read()
        except http.client.IncompleteRead:  # it was left in the middle of a line
            if not self._is_over.is_set():
                raise

    def _read(self) -> None:
        for line in self._answer:
            event = json.loads(line)
            lived = self.pods.setdefault(event["object"]["metadata"]["uid"], Lived())
            lived.states.append(event["object"])
            lived.gone = event["type"] == "DELETED"

    def there(self) -> list[Lived]:
        """The pods whose objects are there."""
        return [lived for lived in list(self.pods.values()) if not lived.gone]


class Play:
    """What happens in a round, drawn at random; ``did`` counts it."""

    def __init__(
        self, cp: ControlPlane, path: str, seen: Recorder, timekeeper: Process, chance: random.Random
    ) -> None:
        self._cp, self._path, self._seen, self._timekeeper = cp, path, seen, timekeeper
        self._chance, self._number, self._removed = chance, 0, 0
        self._faults = ["killed", "paused", "node went", ""] * (ROUNDS // 4)
        chance.shuffle(self._faults)
        self.did = dict.fromkeys(("killed", "paused", "forced", "deleted", "node went"), 0)

    def round(self) -> None:
        """Pods come and go; the settler is fine, or killed, or paused meanwhile; or a node is away."""
        fault = self._faults.pop()
        node = self._chance.choice(NAMES)
        settler = self._settler()
        if fault == "killed":
            os.kill(settler, signal.SIGKILL)
        elif fault == "paused":
            os.kill(settler, signal.SIGSTOP)
        elif fault == "node went":
            self._cp.api.call("DELETE", f"{NODES}/{node}")
        self._pods_come_and_go()
        if fault == "paused":
            os.kill(settler, signal.SIGCONT)
        elif fault == "killed":
            self._timekeeper.wait("another settler", lambda: self._settler() not in (0, settler))
        elif fault == "node went":
            self._cp.api.call("POST", NODES, kwok_node(node, cards=CARDS, memory_mib=MEMORY_MIB))
        if fault:
            self.did[fault] += 1
        if self._chance.random() < 0.7:
            self._timekeeper.wait("the sessions of all that run", self._all_are_known)

    def _all_are_known(self) -> bool:
        known = _posted(self._timekeeper.database)
        return all(uid in known for uid, lived in list(self._seen.pods.items()) if not lived.gone)

    def _settler(self) -> int:
        assert self._timekeeper.running is not None
        return next(iter(children(self._timekeeper.running.pid).get("settle", [])), 0)

    def _pods_come_and_go(self) -> None:
        for _ in range(self._chance.randint(1, 3)):
            self._create()
        running = [lived for lived in self._seen.there() if "running" in json.dumps(lived.raw["status"])]
        if running and self._chance.random() < 0.8:
            self._remove(self._chance.choice(running))

    def _create(self) -> None:
        """A pod on a card, as the extender binds it: it ends by itself, is restarted for ever, or just
        runs."""
        self._number += 1
        node, card = self._chance.choice(NAMES), self._number % CARDS
        percent = self._chance.randint(1, 99)
        body, given = _pod(f"p{self._number}", percent, card_uuid(node, card), self._chance)
        made = self._cp.api.call("POST", self._path, body)
        binding = {
            "metadata": {
                "name": body["metadata"]["name"],
                "uid": made["metadata"]["uid"],
                "annotations": {"bursar.dev/devices": json.dumps(given)},
            },
            "target": {"kind": "Node", "name": node},
        }
        self._cp.api.call("POST", f"{self._path}/{body['metadata']['name']}/binding", binding)

    def _remove(self, lived: Lived) -> None:
        """By force or in peace; it may have gone by itself."""
        self._removed += 1
        forced = self._removed % 3 > 0
        path = f"{self._path}/{lived.raw['metadata']['name']}"
        try:
            self._cp.api.call("DELETE", path, {"gracePeriodSeconds": 0} if forced else None)
        except ApiError as error:
            if error.status != 404:
                raise
        self.did["forced" if forced else "deleted"] += 1
        if forced:  # who goes in peace waits for its node
            eventually(lambda: lived.gone)


def _pod(name: str, percent: int, uuid: str, chance: random.Random) -> tuple[Json, Json]:
    for_s = chance.choice((0, 1, 2, 4, 9))
    policy = chance.choice(("Never", "Never", "Always"))
    body = {
        "metadata": {
            "name": name,
            "annotations": {"local.bursar.dev/run-for": f"{for_s}s"} if for_s else {},
        },
        "spec": {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": chance.choice((0, 1, 3)),
            "schedulerName": "nobody",
            "containers": [
                {
                    "name": "main",
                    "image": "example",
                    "resources": {"limits": {"bursar.dev/gpu-percent": str(percent)}},
                }
            ],
        },
    }
    share = 10 * percent
    given = {"uuid": uuid, "index": 0, "share_milli": share, "memory_mib": MEMORY_MIB * share // 1000}
    return body, {"version": 1, "containers": {"main": [given]}}


@pytest.fixture(scope="module")
def cluster(lender: Lender) -> Iterator[ControlPlane]:
    """Two nodes of kwok's with short Leases."""
    with lender.lent() as running:
        running.restart_process("kwok", "--node-lease-duration-seconds=4")
        for name in NAMES:
            running.api.call("POST", NODES, kwok_node(name, cards=CARDS, memory_mib=MEMORY_MIB))
        running.api.call("POST", NAMESPACES, {"metadata": {"name": "bursar-system"}})
        # what has not been proved is posted soon, and so is often corrected
        config = {
            "metadata": {"name": "bursar-budgets"},
            "data": {"_settings": f"settleAfter: 2s\nmaxGracePeriod: {MAX_GRACE_S}s"},
        }
        running.api.call("POST", f"{NAMESPACES}/bursar-system/configmaps", config)
        yield running
        running.restart_process("kwok")


def test_killed_and_paused_at_random_the_ledger_says_what_the_objects_prove(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    seed = profile.seed()
    print(f"seed {seed}")
    with (
        namespace(cluster.api, "metered") as path,
        Recorder(cluster, path) as seen,
        prepared(tmp_path, cluster.admin_kubeconfig, traced=True) as timekeeper,
    ):
        timekeeper.start_ready()
        play = Play(cluster, path, seen, timekeeper, random.Random(seed))
        for _ in range(ROUNDS):
            play.round()
        _come_to_rest(cluster, path, seen)
        rows: dict[str, Posted] = {}

        def is_settled() -> bool:
            rows.update(_posted(timekeeper.database))
            ended = {uid for uid, lived in seen.pods.items() if not lived.gone}
            return ended <= rows.keys() and all(row.settled_ms for row in rows.values())

        timekeeper.wait("every session to be settled", is_settled)
        assert timekeeper.end() == 0
        assert seen.pods.keys() >= rows.keys()
        exact = [_check(lived, rows.get(uid)) for uid, lived in seen.pods.items()]

    print(f"{play.did}; {exact.count('proof')} pods by proof, {exact.count('grace')} by their grace")
    print(f"of {len(exact)}, {exact.count('evidence')} by the last evidence")
    assert all(play.did.values())
    assert exact.count("proof") >= ROUNDS // 2
    assert exact.count("grace") >= 1


def _come_to_rest(cluster: ControlPlane, path: str, seen: Recorder) -> None:
    """What still runs is ended by the kubelet, as if its work were done; all objects but those stay. The
    watch may not have told of the last round's pods yet."""
    made = {pod["metadata"]["uid"] for pod in cluster.api.call("GET", path)["items"]}
    eventually(lambda: made <= seen.pods.keys(), "the watch to tell of every pod")
    for lived in seen.there():
        if kubelet_says(lived.raw)[1] is None and lived.raw["spec"]["restartPolicy"] == "Always":
            cluster.api.call("DELETE", f"{path}/{lived.raw['metadata']['name']}")
    for lived in seen.there():
        if not lived.raw["metadata"]["annotations"].get("local.bursar.dev/run-for"):
            name = f"{path}/{lived.raw['metadata']['name']}"
            if get(cluster.api, name) is not None and kubelet_says(lived.raw)[1] is None:
                patch = {"metadata": {"annotations": {"local.bursar.dev/run-for": "1s"}}}
                cluster.api.call("PATCH", name, patch, "application/merge-patch+json")

    def that_run() -> list[Json]:
        return [lived.raw for lived in seen.there() if kubelet_says(lived.raw)[1] is None]

    eventually(lambda: not that_run(), lambda: f"the end of {that_run()}")


class Posted(NamedTuple):
    """A session, as the ledger has it. ``vanished_ms``: when its pod's object was gone."""

    amount: int
    settled_ms: int | None
    rate_milli: int
    vanished_ms: int | None


def _posted(database: Path) -> dict[str, Posted]:
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute(
            "SELECT uid, COALESCE(SUM(amount), 0), settled_ms, sessions.rate_milli, vanished_ms FROM sessions"
            " LEFT JOIN postings ON session_uid = uid GROUP BY uid"
        )
        return {uid: Posted(*row) for uid, *row in found}


def _check(lived: Lived, row: Posted | None) -> str:
    """How the charge, from the binding, is proved: to the millisecond by the kubelet's times; by the grace
    period, from the second of the removal on; or the settler was away, and no more than the longest grace
    period is charged."""
    starts = [at for raw in lived.states if (at := bound_ms(raw)) is not None]
    start, end = min(starts, default=None), kubelet_says(lived.raw)[1]
    if row is None:
        assert lived.gone or end == 0
        return "nothing"
    amount, charged_rate = row.amount, row.rate_milli
    cards = {
        card_uuid(node, index): {"memory_mib": MEMORY_MIB, "model": "H100"}
        for node in NAMES
        for index in range(CARDS)
    }
    assert charged_rate == rate(lived.raw, cards, Terms())
    if start is None:
        return "nothing" if amount == 0 else pytest.fail(f"charged without a binding: {lived.raw}")
    if end == 0:  # it ended without ever having run: its cards are held until that was reported
        assert amount >= 0
        return "nothing"
    if not lived.gone:
        assert amount == charged_rate * (end - start), lived.states  # type: ignore[operator]
        return "proof"
    removed = moment(lived.raw["metadata"]["deletionTimestamp"]) or 0
    grace_ms = max(LEAST_GRACE_MS, 1000 * lived.raw["spec"]["terminationGracePeriodSeconds"])
    until = removed + grace_ms if end is None else end
    if end is not None and amount == charged_rate * max(0, until - start):
        return "proof"
    # the removal is dated to the second; a Lease may prove that it was later in that second
    if end is None and 0 <= amount - charged_rate * (until - start) < charged_rate * 1000:
        return "grace"
    # removed while no settler watched: it may have had the longest grace period, from the first list on
    latest = max(until, (row.vanished_ms or removed) + 1000 * MAX_GRACE_S)
    assert 0 <= amount <= charged_rate * (latest - start), lived.states
    return "evidence"


def bound_ms(raw: Json) -> int | None:
    """When the pod was bound, by its condition."""
    conditions = {each["type"]: each for each in raw["status"].get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    return moment(scheduled["lastTransitionTime"]) if scheduled.get("status") == "True" else None
