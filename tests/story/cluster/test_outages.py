"""Each part is killed and stays away for a while, in any order; pods end, are deleted and removed meanwhile.
After each outage every hold whose end was proved is charged to the unit, and no card is ever overcommitted.

The ledger is in PostgreSQL. Two extenders elect their leader, and both report the ends that they saw. What is
true is computed from the objects' states by a watch of this test.
"""

import http.client
import json
import os
import random
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy

from deploy.local.api import ApiError
from deploy.local.cluster import ControlPlane
from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.scheduler import GPU_PROFILE
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack, Tuning
from tests.postgresql import fresh_postgresql
from tests.scheduler_ext.readback import holds, inventory, overcommitted, taken
from tests.scheduler_ext.replicas import HOME, Replica, Service
from tests.story.cluster.test_metering import gpu_pod, set_budgets
from tests.support import profile
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually, pause_s
from tests.timekeeper.cluster.test_metering import Lived, bound_ms
from tests.timekeeper.oracle import Terms, kubelet_says, moment, rate
from tests.timekeeper.processes import children
from tests.worlds import Json

pytestmark = [pytest.mark.timeout(1_140), pytest.mark.soak]

API_SERVER, SCHEDULER = "kube-apiserver", "gpu-scheduler"
PARTS = ("timekeeper", "settler", "leader", "extenders", "webhook", "sidecars", SCHEDULER, API_SERVER)
ROUNDS = 2
AWAY_S = 5.0  # at least
GRACE_MS = 2_000
SLACK_MS = 30_000  # a removal is dated to the second, and a sidecar beats until it learns of it
FACTS = (
    "SELECT * FROM sessions WHERE uid = %s",
    "SELECT * FROM postings WHERE session_uid = %s",
    "SELECT * FROM ends WHERE uid = %s",
    "SELECT * FROM heartbeats WHERE session_uid = %s",
)
CARDS, MEMORY_MIB, NODES = 4, 16_000, ("outage-1", "outage-2")


class Recorder:
    """All states of a namespace's pods by a watch that outlives the API server. ``lost``: pods whose last
    state no watch showed."""

    def __init__(self, cp: ControlPlane, path: str) -> None:
        self.pods: dict[str, Lived] = {}
        self.lost: set[str] = set()
        self._cp, self._path, self._stop = cp, path, threading.Event()
        self._tls = ssl.create_default_context(cafile=str(cp.ca_file))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def there(self) -> list[Lived]:
        """The pods whose objects are there."""
        return [each for each in list(self.pods.values()) if not each.gone]

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            with suppress(ApiError, OSError, http.client.HTTPException):  # it is away
                self._follow()

    def _follow(self) -> None:
        listed = self._cp.api.call("GET", self._path)
        there = {each["metadata"]["uid"]: each for each in listed["items"]}
        for uid, raw in there.items():
            self.pods.setdefault(uid, Lived()).states.append(raw)
        for uid in [uid for uid, each in self.pods.items() if not each.gone and uid not in there]:
            self.pods[uid].gone = True
            self.lost.add(uid)
        version = listed["metadata"]["resourceVersion"]
        while version and not self._stop.is_set():
            version = self._watch(version)

    def _watch(self, version: str) -> str:
        """For some seconds; until which version. "": the API server does not have all since."""
        target = urlsplit(self._cp.api.url)
        connection = http.client.HTTPSConnection(
            target.hostname or "", target.port, context=self._tls, timeout=LONGEST_S
        )
        try:
            query = f"{self._path}?watch=1&timeoutSeconds=10&resourceVersion={version}"
            connection.request("GET", query, headers={"Authorization": f"Bearer {self._cp.admin_token}"})
            for line in connection.getresponse():
                event = json.loads(line)
                if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                    return ""
                lived = self.pods.setdefault(event["object"]["metadata"]["uid"], Lived())
                lived.states.append(event["object"])
                lived.gone = event["type"] == "DELETED"
                version = event["object"]["metadata"]["resourceVersion"]
        finally:
            connection.close()
        return version


class Parts:
    """What is killed, and comes back."""

    def __init__(self, stack: Stack, replicas: list[Replica]) -> None:
        self._stack, self._replicas, self.sidecars = stack, replicas, Sidecars(stack)
        self.killed = Counter[str]()  # processes, by part
        self._running = ExitStack()

    def __enter__(self) -> "Parts":
        self._running.enter_context(self.sidecars)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @contextmanager
    def away(self, part: str) -> Iterator[None]:
        """SIGKILL, seen from outside; nothing of the part runs until the block ends. Then all is ready."""
        back = {
            "timekeeper": self._timekeeper,
            "settler": self._settler,
            "leader": lambda: self._extenders([self._leader()]),
            "extenders": lambda: self._extenders(self._replicas),
            "webhook": self._webhook,
            "sidecars": self._sidecars,
        }.get(part, lambda: self._of_the_plane(part))()
        before = self.killed.total()
        is_away = next(back)
        assert self.killed.total() > before
        yield
        assert is_away(), f"{part} ran during its outage"
        for _ in back:
            pass
        eventually(self.is_whole, f"all to be back after {part}")

    def is_whole(self) -> bool:
        """Whether each part says that it is ready, and one extender leads."""
        stack = self._stack
        stack.check()
        urls = (stack.timekeeper_url, stack.webhook_url)
        alive = all(each.extender.alive for each in self._replicas)
        return alive and all(map(stack.is_ready, urls)) and any(each.leads() for each in self._replicas)

    def _timekeeper(self) -> Iterator[Callable[[], bool]]:
        process = self._stack.processes.pop("timekeeper")
        os.killpg(process.pid, signal.SIGKILL)
        self.killed["timekeeper"] += process.wait() == -signal.SIGKILL
        yield lambda: not self._stack.is_ready(self._stack.timekeeper_url)
        self._stack.start("timekeeper")

    def _settler(self) -> Iterator[Callable[[], bool]]:
        """Its supervisor is stopped meanwhile, so that it starts no other; the API's process runs on."""
        supervisor = self._stack.processes["timekeeper"].pid
        (settler,) = children(supervisor)["settle"]
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(settler, signal.SIGKILL)
        eventually(lambda: "settle" not in children(supervisor))
        self.killed["settler"] += 1
        yield lambda: "settle" not in children(supervisor)
        os.kill(supervisor, signal.SIGCONT)
        eventually(lambda: children(supervisor).get("settle", [settler]) != [settler], "another settler")

    def _leader(self) -> Replica:
        return eventually(lambda: next((each for each in self._replicas if each.leads()), None), "a leader")

    def _extenders(self, which: list[Replica]) -> Iterator[Callable[[], bool]]:
        for each in which:
            each.extender.signal(signal.SIGKILL)
            eventually(lambda each=each: not each.extender.alive)  # type: ignore[misc]
            self.killed["leader" if len(which) == 1 else "extenders"] += 1
        yield lambda: not any(each.extender.alive for each in which)
        others = [each for each in self._replicas if each not in which]
        if others:
            eventually(lambda: any(each.leads() for each in others), "the other extender to lead")
        for each in which:
            each.end()
            each.start()

    def _webhook(self) -> Iterator[Callable[[], bool]]:
        self.killed["webhook"] += self._stack.stop("webhook", signal.SIGKILL) == -signal.SIGKILL
        yield lambda: not self._stack.is_ready(self._stack.webhook_url)
        self._stack.start("webhook")

    def _sidecars(self) -> Iterator[Callable[[], bool]]:
        """All that run now, and no other starts."""
        processes = list(self.sidecars.running.values())
        for process in processes:
            process.kill()
        self._running.close()
        self.killed["sidecars"] += sum(process.wait() == -signal.SIGKILL for process in processes)
        yield lambda: all(process.poll() is not None for process in processes)
        folder = self._stack.folder / "sidecars"
        folder.rename(folder.with_name(f"sidecars-{time.monotonic_ns()}"))
        self.sidecars = Sidecars(self._stack)
        self._running.enter_context(self.sidecars)

    def _of_the_plane(self, part: str) -> Iterator[Callable[[], bool]]:
        plane = self._stack.cp
        process = plane.processes[part]
        plane.stop_process(part)
        self.killed[part] += process.wait(LONGEST_S) == -signal.SIGKILL
        yield lambda: part not in plane.processes and process.poll() is not None
        plane.restart_process(part)
        eventually(lambda: plane.api.answers("/readyz"), f"{part} to be back")


class Play:
    """Pods come and go, at random; ``did``: what happened in outages."""

    def __init__(self, stack: Stack, seen: Recorder, parts: Parts, url: str, chance: random.Random) -> None:
        self._stack, self._seen, self._parts, self._chance = stack, seen, parts, chance
        self._path = "/api/v1/namespaces/outages/pods"
        self._engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        self._number, self.checks, self.did = 0, 0, Counter[str]()
        self._cards: Json = {}
        self._memory: dict[str, int] = {}
        for name in NODES:
            node = kwok_node(name, cards=CARDS, memory_mib=MEMORY_MIB, model="T4")
            made = stack.cp.api.call("POST", "/api/v1/nodes", node)
            self._memory |= inventory(made)
            listed = json.loads(made["metadata"]["annotations"]["bursar.dev/inventory"])["cards"]
            self._cards |= {each["uuid"]: each for each in listed}

    def outage(self, part: str) -> None:
        """The part is away until a pod has ended and one has been removed, and for `AWAY_S` at least; an API
        server shows and removes nothing while it is away."""
        for run_for in ("4s", "8s", "14s", "22s", "1h", "1h"):
            self._create(run_for)
        eventually(lambda: all(map(_has_started, self._seen.there())), "all to run")
        before = self.did.copy()
        with self._parts.away(part):
            begun = time.monotonic()
            while time.monotonic() < begun + AWAY_S or not self._has_happened(part, before):
                assert time.monotonic() < begun + LONGEST_S, f"nothing ended while {part} was away"
                self._step(part)
                time.sleep(pause_s(begun))
        self.did[f"outages of {part}"] += 1
        eventually(lambda: not self.violations(), lambda: f"{part}: {self.violations()}")
        for lived in self._seen.there():
            self._remove(lived)
        eventually(lambda: not self._seen.there(), "all to be gone")

    def _has_happened(self, part: str, before: Counter[str]) -> bool:
        new = self.did - before
        return part == API_SERVER or bool(new["removed after its end"] and new["removed while it ran"])

    def _step(self, part: str) -> None:
        """Some come and go, if the API server is there; all cards are looked at."""
        self.look()
        if part == API_SERVER:
            return
        here = self._seen.there()
        for lived in here:
            if kubelet_says(lived.raw)[1] and self._chance.random() < 0.3:
                self._remove(lived)
                self.did["removed after its end"] += 1
        endless = [each for each in here if _is_running(each) and _runs_for(each) == "1h"]
        if endless and self._chance.random() < 0.1:
            self._remove(self._chance.choice(endless))
            self.did["removed while it ran"] += 1
        if part != "webhook" and self._chance.random() < 0.05:
            self._create(self._chance.choice(("1s", "2s", "5s")))
            self.did["created"] += 1

    def look(self) -> None:
        """No card has more on it than it has."""
        held = taken(each.raw for each in self._seen.there() if holds(each.raw))
        assert overcommitted(held, self._memory) == {}
        self.checks += 1

    def _create(self, run_for: str) -> None:
        self._number += 1
        body = gpu_pod(f"p{self._number}", self._chance.randint(5, 60), run_for)
        body["spec"]["terminationGracePeriodSeconds"] = GRACE_MS // 1000
        self._stack.cp.api.call("POST", self._path, body)

    def _remove(self, lived: Lived) -> None:
        """Its object, at once."""
        try:
            name = f"{self._path}/{lived.raw['metadata']['name']}"
            self._stack.cp.api.call("DELETE", name, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise
        eventually(lambda: lived.gone, "its removal to be seen")

    def violations(self) -> list[str]:
        """What contradicts the law, charged is what was held, with all that the ledger knows of it."""
        self.look()
        rows = self._posted()
        said = {uid: self.verdict(uid, lived, rows.get(uid)) for uid, lived in [*self._seen.pods.items()]}
        wrong = {uid: word for uid, word in said.items() if word not in ("proof", "grace", "lost", "")}
        return [f"{uid}: {word}; {self._known(uid)}" for uid, word in wrong.items()]

    def _known(self, uid: str) -> list[Json]:
        with self._engine.connect() as connection:
            found = [
                dict(row) for query in FACTS for row in connection.exec_driver_sql(query, (uid,)).mappings()
            ]
        return [{name: each[name] for name in each if each[name]} for each in found]

    def verdict(self, uid: str, lived: Lived, row: tuple[int, int | None, int] | None) -> str:
        """ "proof": to the unit, by the kubelet's times; "grace": without an end, from the second of its
        removal for its grace period; "lost": nobody saw its removal; "": it runs, or never held a card."""
        starts = [at for raw in lived.states if (at := bound_ms(raw)) is not None]
        start, end = min(starts, default=None), kubelet_says(lived.raw)[1]
        if start is None:
            return "" if row is None or row[0] == 0 else f"charged without a binding: {row}"
        if end == 0 or (end is None and not lived.gone):
            return ""
        if row is None or row[1] is None:
            return "not settled"
        amount, _, charged_rate = row
        if charged_rate != rate(lived.raw, self._cards, Terms()):
            return f"its rate is {charged_rate}"
        if end is not None:
            surplus = amount - charged_rate * (end - start)
            return "proof" if surplus == 0 else f"{surplus / charged_rate} ms too much by its proof"
        if uid in self._seen.lost:
            return "lost"
        until = (moment(lived.raw["metadata"]["deletionTimestamp"]) or 0) + GRACE_MS
        surplus = amount - charged_rate * (until - start)
        if 0 <= surplus <= charged_rate * SLACK_MS:
            return "grace"
        return f"{surplus / charged_rate} ms too much by its grace period until {until}"

    def verdicts(self) -> Counter[str]:
        """How many of each."""
        rows = self._posted()
        return Counter(self.verdict(uid, lived, rows.get(uid)) for uid, lived in self._seen.pods.items())

    def reported(self) -> int:
        """How many pods' ends extenders have reported."""
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT COUNT(*) FROM ends").scalar_one())

    def _posted(self) -> dict[str, tuple[int, int | None, int]]:
        """(amount, when settled, rate) of each session."""
        with self._engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT uid, CAST(COALESCE(SUM(amount), 0) AS BIGINT), settled_ms, sessions.rate_milli"
                " FROM sessions LEFT JOIN postings ON session_uid = uid GROUP BY uid"
            )
            return {uid: (amount, settled, each) for uid, amount, settled, each in found}


def _has_started(lived: Lived) -> bool:
    return kubelet_says(lived.raw)[0] is not None


def _is_running(lived: Lived) -> bool:
    return _has_started(lived) and kubelet_says(lived.raw)[1] is None


def _runs_for(lived: Lived) -> str:
    return str(lived.raw["metadata"]["annotations"].get("local.bursar.dev/run-for", ""))


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A PostgreSQL database's URL."""
    with fresh_postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane, database: str) -> Iterator[Stack]:
    """Every role as a process, ready, with the ledger in PostgreSQL."""
    flags = (f"--database={database}", "--pod-uid=the-replica")
    tuning = Tuning(heartbeat_interval="200ms", flags=(("timekeeper", flags),))
    with Stack(control_plane, tuning) as running:
        yield running


@pytest.fixture
def replicas(stack: Stack, tmp_path: Path) -> Iterator[list[Replica]]:
    """Two extenders behind a Service, in place of the stack's one."""
    stack.stop("extender")
    lease = ("role", "extender", "--verb=get,create,update", "--resource=leases.coordination.k8s.io")
    to = ("--role=extender", f"--serviceaccount={HOME}:bursar-scheduler")
    for words in (lease, ("rolebinding", "extender", *to)):
        kubectl(stack.cp, "create", *words, "-n", HOME)
    flags = [
        f"--kubeconfig={stack.cp.kubeconfig(stack.token(HOME, 'bursar-scheduler'), 'extenders')}",
        *("--leader-election=lease", "--lease-duration=2s"),
        *(f"--timekeeper-url={stack.timekeeper_url}", f"--timekeeper-ca={stack.ca_file}"),
        f"--token-file={stack.folder / 'extender.token'}",
    ]
    made = [Replica(stack.cp, tmp_path, f"extender-{at}", flags) for at in range(2)]
    for each in made:
        each.start()
    service = Service(made)
    stack.cp.stop_scheduler(SCHEDULER)
    stack.cp.start_scheduler(
        SCHEDULER, profiles=(GPU_PROFILE,), extender_url=f"http://127.0.0.1:{service.port}"
    )
    yield made
    stack.cp.stop_scheduler(SCHEDULER)
    service.end()
    for each in made:
        each.end()


def test_through_outages_of_each_part_charged_is_what_was_held(
    stack: Stack, replicas: list[Replica], database: str
) -> None:
    seed = profile.seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    set_budgets(stack, _settings="settleAfter: 2s\nmaxGracePeriod: 60s\n")
    path = create_namespace(stack.cp, "outages")
    parts = Parts(stack, replicas)
    with Recorder(stack.cp, path) as seen, parts:
        play = Play(stack, seen, parts, database, chance)
        eventually(parts.is_whole, "all parts")
        order = [part for _ in range(ROUNDS) for part in chance.sample(PARTS, len(PARTS))]
        for part in order:
            play.outage(part)
            print(f"{part}: {dict(play.verdicts())}", flush=True)
        verdicts, reported = play.verdicts(), play.reported()

    print(f"killed {dict(parts.killed)}; {dict(play.did)}; {play.checks} looks at cards; {dict(verdicts)}")
    assert all(play.did[f"outages of {part}"] == ROUNDS and parts.killed[part] >= ROUNDS for part in PARTS)
    assert verdicts["proof"] >= 3 * len(order)
    assert reported >= len(order)
    assert verdicts["grace"] >= len(order)
    assert verdicts["lost"] <= ROUNDS  # while the API server came back
