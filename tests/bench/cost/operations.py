"""What is counted: a review, a filter, a bind, a heartbeat, a settler's tick, and how standings, budgets and
usage are written and read, through the functions that the roles' workers call, without sockets, threads or
processes.

Each operation is imported and built when it is called for, so that one that a tree does not have takes no
other with it. Worlds are seeded: the same calls do the same work. Each call comes upon something that has
changed since the last one, as in life: another pod, a card taken, a beat sent.
"""

import gc
import importlib
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]

# The next call, ready to be made: what it takes to get it ready is not counted.
Prepare = Callable[[], Callable[[], object]]

CARDS, A_NODE = 8, 2  # cards of a node, and bound pods
WAITING = 1_000  # pods to bind
ROUND = 8  # calls, each with another shape of pod
LIVE_PODS, NAMESPACES = 200, 20
TABLE = 200  # namespaces with an entry of the standings
BEAT_MS, TICK_MS = 5_000, 250


def stop_clocks() -> None:
    """Elapsed time decides nothing: work that is due after a second, or is cut off after one, never is."""
    for name, value in (("monotonic", 1_000.0), ("perf_counter", 1_000.0), ("monotonic_ns", 10**12)):
        setattr(time, name, lambda value=value: value)


def mutate(_: Path) -> Prepare:
    """/mutate of a new half-card pod of 10 KB."""
    call, bodies = _webhook()

    def prepare() -> Callable[[], object]:
        body = orjson.dumps(next(bodies))
        return lambda: call("/mutate", body)

    return prepare


def mutate_claims(_: Path) -> Prepare:
    """/mutate of the same pod, with a claim in place of its half card."""
    call, bodies = _webhook()

    def prepare() -> Callable[[], object]:
        review = next(bodies)
        spec = review["request"]["object"]["spec"]
        for container in spec["containers"]:
            given = container.get("resources", {})
            for amounts in (given.get("limits", {}), given.get("requests", {})):
                for name in [each for each in amounts if each.startswith("bursar.dev/")]:
                    del amounts[name]
                    given["claims"] = [{"name": "gpu"}]
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        body = orjson.dumps(review)
        return lambda: call("/mutate", body)

    return prepare


def validate(_: Path) -> Prepare:
    """/validate of the same pod, once it is governed."""
    import jsonpatch

    from tests.webhook.worlds import patch_of

    call, bodies = _webhook()

    def prepare() -> Callable[[], object]:
        review = next(bodies)
        answer = orjson.loads(call("/mutate", orjson.dumps(review)).body)
        request = review["request"]
        request["object"] = jsonpatch.apply_patch(request["object"], patch_of(answer["response"]))
        body = orjson.dumps(review)
        return lambda: call("/validate", body)

    return prepare


def _webhook() -> tuple[Callable[[str, bytes], Any], Any]:
    """A worker's calls, and the reviews of ever new pods of a namespace that has a budget."""
    from tests.bench import pods
    from tests.support.simulated_timekeeper import entry, standings
    from tests.webhook.process_metrics import of_this_process
    from tests.webhook.worlds import POLICY
    from timekeeper.core.request.claims import KnownClaims, read_requests
    from timekeeper.core.request.device_classes import DeviceClass
    from timekeeper.edge.log import line
    from webhook.server.app import create_calls
    from webhook.server.reviewer import Reviewer
    from webhook.standings import decode

    table = decode(orjson.dumps(standings(bench=entry(), team_a=entry("OVER_BUDGET"))), "1", 0)
    one = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    known = KnownClaims(
        {"gpu": DeviceClass("gpu", "gpu.nvidia.com")}, {}, {("bench", "one"): read_requests(one)}
    )
    reviewer = Reviewer(replace(POLICY, claims=known), lambda: table, lambda: "ca", lambda: 0, 30_000)

    def log(event: str, *, level: str = "info", **fields: object) -> None:
        line(level, event, fields)

    calls = create_calls(reviewer, of_this_process(), log)
    written = orjson.loads(pods.review(pods.written(*pods.SIZES["10 KB"])))

    def bodies() -> Any:
        number = 0
        while True:
            number += 1
            review = json.loads(json.dumps(written))
            review["request"]["uid"] = f"review-{number:06}"
            review["request"]["object"]["metadata"]["labels"]["run"] = f"number-{number:06}"
            yield review

    def call(path: str, body: bytes) -> Any:
        answer = calls[path](body)
        if answer.status != 200 or b'"allowed":true' not in answer.body:
            raise SystemExit(f"{path} answered {answer.status}: {answer.body!r}")
        return answer

    return call, bodies()


def filter_over(nodes: int) -> Callable[[Path], Prepare]:
    """/filter over so many nodes, after one more pod was bound."""

    def build(folder: Path) -> Prepare:
        from tests.bench.extender import SIZES, pod

        world = ExtenderWorld(folder, nodes)
        number = 0

        def prepare() -> Callable[[], object]:
            nonlocal number
            number += 1
            world.book()
            asked = {"Pod": pod(f"p-{number}", SIZES[number % len(SIZES)]), "NodeNames": world.names}
            body = orjson.dumps(asked)
            return lambda: world.call("/filter", body)

        return prepare

    return build


def prioritize(folder: Path) -> Prepare:
    """/prioritize over 500 nodes, after filter."""
    from tests.bench.extender import SIZES, pod

    world = ExtenderWorld(folder, 500)
    number = 0

    def prepare() -> Callable[[], object]:
        nonlocal number
        number += 1
        world.book()
        asked = {"Pod": pod(f"p-{number}", SIZES[number % len(SIZES)]), "NodeNames": world.names}
        fits = orjson.loads(world.call("/filter", orjson.dumps(asked)))["NodeNames"]
        body = orjson.dumps(asked | {"NodeNames": fits})
        return lambda: world.call("/prioritize", body)

    return prepare


def bind(folder: Path, nodes: int = 50) -> Prepare:
    """/bind of a tenth of a card. The API server's answer comes at once, from memory."""
    from scheduler_ext.model.pod import read_any
    from tests.bench.extender import pod

    world = ExtenderWorld(folder, nodes)
    world.lead()  # no pod waits yet, so there is none to fence
    for number in range(WAITING):
        world.cache.pod_updated(read_any(pod(f"w-{number}", {"bursar.dev/gpu-percent": "10", "cpu": "1"})))
    number = -1

    def prepare() -> Callable[[], object]:
        nonlocal number
        number += 1
        order = {"PodName": f"w-{number}", "PodNamespace": "team-a", "PodUID": f"uid-w-{number}"}
        body = orjson.dumps(order | {"Node": world.names[number % len(world.names)]})

        def call() -> None:
            answer = world.call("/bind", body)
            if orjson.loads(answer)["Error"]:
                raise SystemExit(f"a bind was answered with {answer!r}")

        return call

    return prepare


def gang_plan(folder: Path) -> Prepare:
    """Cards for the 8 pods of a gang on 40 nodes, after one more pod was bound."""
    from scheduler_ext.gangs.capacity import PlanInput
    from scheduler_ext.gangs.plan import plan
    from scheduler_ext.model.pod import Pod, read_any
    from scheduler_ext.model.standing import UNHEARD
    from scheduler_ext.scoring.policy import BINPACK
    from tests.bench.extender import pod

    world = ExtenderWorld(folder, 40)
    amounts = {"bursar.dev/gpu-percent": "50", "cpu": "1"}
    read = [read_any(pod(f"member-{number}", amounts)) for number in range(8)]
    members = [member for member in read if isinstance(member, Pod)]

    def prepare() -> Callable[[], object]:
        world.book()
        snapshot = world.cache.snapshot

        def call() -> None:
            found = plan(members, PlanInput(snapshot, UNHEARD, lambda _: BINPACK))
            if found.left or len(found.members) != len(read):
                raise SystemExit(f"the plan leaves {len(found.left)} pods")

        return call

    return prepare


def gang_step(_folder: Path) -> Prepare:
    """A look at 100 gangs of four that lack cards, after one has gone and another has come."""
    from tests.scheduler_ext.gang_worlds import GangWorld, member

    world, numbers = GangWorld({"n": 1}), itertools.count()

    def come() -> None:
        gang = f"g{next(numbers)}"
        world.put(*(member(f"{gang}-{at}", 4, gang=gang) for at in range(4)))

    for _ in range(100):
        come()
    world.step()

    def prepare() -> Callable[[], object]:
        world.delete(*list(world.pods)[:4])
        come()
        return lambda: world.step(0.5)

    return prepare


class ExtenderWorld:
    """An extender whose cache is complete: nodes of 8 cards, and so many bound pods a node at random."""

    def __init__(self, folder: Path, nodes: int, a_node: int = A_NODE) -> None:
        from scheduler_ext import settings
        from scheduler_ext.assembly.extender import Extender
        from scheduler_ext.model.node import read_node
        from scheduler_ext.model.pod import read_any
        from tests.bench.extender import bound_pods, node
        from timekeeper.edge.log import line
        from timekeeper.runtime.api_server import Api

        def log(event: str, *, level: str = "info", **fields: object) -> None:
            line(level, event, fields)

        api = Api("http://api.example", _Pool(), dict)  # type: ignore[arg-type]
        api._client = _Pool()  # type: ignore[assignment] # a former tree calls what it is given
        self.extender = Extender(settings.read([], {}), api, log)
        self._read, self.cache = read_any, self.extender.cache
        self.names = [f"node-{at}" for at in range(nodes)]
        self.more = bound_pods(nodes, CARDS, (a_node + A_NODE) * nodes, random.Random(1))
        self.cache.pods_listed(map(read_any, itertools.islice(self.more, a_node * nodes)))
        self.cache.nodes_listed(read_node(node(name, CARDS)) for name in self.names)

    def book(self) -> None:
        """One more pod is bound."""
        self.cache.pod_updated(self._read(next(self.more)))

    def lead(self) -> None:
        """This replica has taken over."""
        while not self.extender.leadership.leads():
            self.extender.leadership.step()

    def call(self, path: str, body: bytes) -> bytes:
        """A verb's answer."""
        answer = self.extender.calls[path](body)
        if answer.status != 200 or not isinstance(answer.body, bytes):
            raise SystemExit(f"{path} answered {answer.status}: {answer.body!r}")
        return answer.body


class _Pool:
    """Connections to an API server that creates, and patches, whatever it is sent."""

    def __init__(self) -> None:
        self.status = 201
        self.headers: Json = {}
        self.data = self.body = b'{"kind":"Status","status":"Success"}'

    def request(self, method: str, url: str, *more: object, **sent: object) -> "_Pool":
        """At once."""
        return self

    call = request


def beat(folder: Path) -> Prepare:
    """POST /v1/heartbeats of a pod's sidecar with a card's figures, into the ledger on SQLite: from the
    request to its answer, with a transaction of its own."""
    from http import HTTPStatus

    from tests.timekeeper.worlds import CA, Reviews, pod_status, token
    from timekeeper.api.create_app import create_services
    from timekeeper.api.resources.heartbeats import HeartbeatHandler
    from timekeeper.runtime.auth.gate import Gate
    from timekeeper.runtime.http.framing import RequestReader
    from timekeeper.runtime.http.service import HttpRequest
    from timekeeper.serving.gunicorn_app import heartbeat_route

    ledger = LedgerWorld(folder)
    gate = Gate(Reviews(tokens := {}).post, "bursar", ledger.clock)
    services = create_services(ledger.store, gate, ledger.clock, lambda: CA, BEAT_MS)
    writer = services.beating
    # The writer's thread is left out, so that a beat is counted from its first instruction to its last.
    writer.submit = lambda post, callback: callback(writer._outcomes([post])[0])  # type: ignore[method-assign]
    route = heartbeat_route(HeartbeatHandler(services))
    figures = [{"uuid": "GPU-0", "utilisation": 37, "memory_mib": 8_000, "scope": "exclusive"}]
    number = -1

    def prepare() -> Callable[[], object]:
        nonlocal number
        number += 1
        ledger.now += BEAT_MS // LIVE_PODS  # each pod's sidecar posts once in an interval
        at, sequence = number % LIVE_PODS, number // LIVE_PODS
        raw = ledger.cluster.raw(at, running=True)
        mine = token(f"pod-{at}")
        tokens[mine] = pod_status(orjson.loads(raw))
        gate.pod(f"Bearer {mine}")  # it is known from an earlier beat
        beats = [{"age_ms": 0, "devices": figures}]
        body = orjson.dumps({"version": 1, "boot": "b", "sequence": sequence, "beats": beats})
        head = f"POST /v1/heartbeats HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {mine}\r\n"
        reader = RequestReader(1 << 20)
        reader.buffer += f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        parsed = reader.next()
        assert parsed is not None
        answers: list[Any] = []
        request = HttpRequest(*parsed, ("127.0.0.1", 1), ("127.0.0.1", 2), answers.append)

        def call() -> None:
            refused = route.handler(request)
            if refused is not None or answers[0].status != HTTPStatus.OK:
                raise SystemExit(f"a heartbeat was answered with {refused or answers[0]}")

        return call

    return prepare


def beat_body(_: Path) -> Prepare:
    """The body of a heartbeat with a card's figures, from bytes to what is written."""
    from timekeeper.api.resources.heartbeats import _post
    from timekeeper.runtime.auth.gate import BoundPod

    pod = BoundPod("team-a", "p", "uid-p")
    figures = [{"uuid": "GPU-0", "utilisation": 37, "memory_mib": 8_000, "scope": "exclusive"}]
    sequence = 0

    def prepare() -> Callable[[], object]:
        nonlocal sequence
        sequence += 1
        beats = [{"age_ms": sequence % 1_000, "devices": figures}]
        body = orjson.dumps({"version": 1, "boot": "b", "sequence": sequence, "beats": beats})
        return lambda: _post(pod, body, 0)

    return prepare


def standings_read(module: str, namespaces: int = TABLE) -> Callable[[Path], Prepare]:
    """A role's reading of the table of standings."""

    def build(_: Path) -> Prepare:
        from tests.support.simulated_timekeeper import entry, standings

        decode = importlib.import_module(module).decode
        revision = 0

        def prepare() -> Callable[[], object]:
            nonlocal revision
            revision += 1
            words = ("IN_BUDGET", "OVER_BUDGET", "UNLIMITED")
            entries = {f"team_{at}": entry(words[(at + revision) % 3]) for at in range(namespaces)}
            body = orjson.dumps(standings(revision=str(revision), **entries))

            def call() -> None:
                if len(decode(body, str(revision), 0).namespaces) != namespaces:
                    raise SystemExit("an entry of the standings is missing")

            return call

        return prepare

    return build


def answer_of(path: str, world: Callable[[Path], "LedgerWorld"] | None = None) -> Callable[[Path], Prepare]:
    """GET of this path by an administrator, after the nodes were heard and the settler has ticked: from the
    WSGI environment to the bytes of the answer."""

    def build(folder: Path) -> Prepare:
        from werkzeug.test import create_environ, run_wsgi_app

        from tests.timekeeper.worlds import ADMIN, CA, Reviews, user_status
        from timekeeper.api.create_app import app_of, create_services
        from timekeeper.runtime.auth.gate import Gate

        ledger = (world or LedgerWorld)(folder)
        gate = Gate(Reviews({ADMIN: user_status("admin")}).post, "bursar", ledger.clock)
        app = app_of(create_services(ledger.store, gate, ledger.clock, lambda: CA, BEAT_MS))

        def prepare() -> Callable[[], object]:
            ledger.now += TICK_MS
            for update in ledger.leases():
                ledger.settler.apply(update)
            ledger.settler.tick()
            environ = create_environ(path, headers={"Authorization": f"Bearer {ADMIN}"})

            def call() -> None:
                parts, status, _ = run_wsgi_app(app.wsgi_app, environ)
                body = b"".join(parts)
                if status != "200 OK":
                    raise SystemExit(f"{path} answered {status} {body!r}")

            return call

        return prepare

    return build


def tick(folder: Path, world: Callable[[Path], "LedgerWorld"] | None = None) -> Prepare:
    """The settler's tick after a pod has ended and each node was heard: 200 pods of 20 namespaces."""
    ledger = (world or LedgerWorld)(folder)
    ended = -1

    def prepare() -> Callable[[], object]:
        nonlocal ended
        ended += 1
        if ended == ledger.cluster.pods:
            raise SystemExit("more ticks than pods that can end")
        ledger.now += TICK_MS
        updates = [*ledger.leases(), ledger.end_of(ended)]

        def call() -> None:
            for each in updates:
                ledger.settler.apply(each)
            if not ledger.settler.tick():
                raise SystemExit("the database is away")

        return call

    return prepare


class LedgerWorld:
    """A settler whose ledger, on SQLite, has a session of each running pod. ``nodes``, 0: as many as the pods
    need."""

    def __init__(
        self, folder: Path, pods: int = LIVE_PODS, namespaces: int = NAMESPACES, nodes: int = 0
    ) -> None:
        from tests.bench.live_pods import Cluster
        from tests.timekeeper.worlds import T0
        from timekeeper.settler.settler import Settler
        from timekeeper.store.engine.engine import open_store
        from timekeeper.store.engine.upgrade import upgrade

        self.now = T0 + 3_600_000
        self.store = open_store(f"sqlite:///{folder}/ledger.db")
        upgrade(self.store)
        self.cluster = Cluster(pods, namespaces)
        self.cluster.nodes = nodes or self.cluster.nodes
        self.settler = Settler(self.store, self.clock, lambda _: None)
        for update in self.cluster.lists(self.now, pods=True):
            self.settler.apply(update)
        self.settler.tick()

    def clock(self) -> int:
        """It goes on only between two calls."""
        return self.now

    def leases(self) -> list[Any]:
        """Each node's kubelet is heard, and the watch of pods is alive."""
        from tests.timekeeper.worlds import READ, lease
        from timekeeper.settler.cluster.cluster_state import WatchUpdate

        raws = (lease(self.now - 1, f"node-{at:05d}") for at in range(self.cluster.nodes))
        read = (item for item in map(READ["leases"], raws) if item is not None)
        updates = [
            WatchUpdate("leases", self.now, _event("ItemChanged", "ObjectChanged")(item, deleted=False))
            for item in read
        ]
        return [*updates, WatchUpdate("pods", self.now, _event("StreamAlive", "WatchProgress")())]

    def end_of(self, at: int) -> Any:
        """One running pod ends."""
        from tests.timekeeper.clocks import iso
        from tests.timekeeper.worlds import READ, T0
        from timekeeper.settler.cluster.cluster_state import WatchUpdate

        raw = orjson.loads(self.cluster.raw(at, running=True))
        raw["status"]["phase"] = "Succeeded"
        state = {"terminated": {"startedAt": iso(T0 + 1_000), "finishedAt": iso(self.now - 100)}}
        raw["status"]["containerStatuses"][0]["state"] = state
        item = READ["pods"](raw)
        assert item is not None
        return WatchUpdate("pods", self.now, _event("ItemChanged", "ObjectChanged")(item, deleted=False))


def _event(former: str, name: str) -> Any:
    """An event of a watch, which a former tree has elsewhere."""
    from timekeeper.settler.cluster import cluster_state

    try:
        from timekeeper.edge import reflector
    except ImportError:
        from timekeeper.core.kube import reflector  # type: ignore[attr-defined,no-redef]

    return getattr(cluster_state, former, None) or getattr(reflector, name)


OPERATIONS: dict[str, Callable[[Path], Prepare]] = {
    "mutate": mutate,
    "mutate, a claim": mutate_claims,
    "validate": validate,
    "filter, 500 nodes": filter_over(500),
    "filter, 2,000 nodes": filter_over(2_000),
    "prioritize": prioritize,
    "bind": bind,
    "gang plan": gang_plan,
    "gangs wait": gang_step,
    "beat": beat,
    "beat's body": beat_body,
    "standings, webhook": standings_read("webhook.standings"),
    "standings, extender": standings_read("scheduler_ext.model.standing_table"),
    "GET standings": answer_of("/v1/standings"),
    "GET budgets": answer_of("/v1/budgets"),
    "GET usage": answer_of("/v1/usage?group=namespace,pod"),
    "tick": tick,
}


def built(name: str, folder: Path) -> Prepare:
    """The operation, warm: what is made once is made, and counts for no call. Raises what the tree lacks."""
    place = folder / "".join(filter(str.isalnum, name))
    place.mkdir()
    prepare = OPERATIONS[name](place)
    for _ in range(3 * ROUND):
        prepare()()
    gc.collect()
    gc.freeze()
    return prepare
