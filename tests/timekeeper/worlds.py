"""A small cluster and its ledger: objects as dicts, a real database, the real Flask app, a manual clock."""

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from werkzeug.test import Client, TestResponse

from tests import worlds
from tests.support.clock import Clock
from tests.support.routed import client_of
from tests.support.shared_routes import SharingFlask
from tests.timekeeper.clocks import iso
from tests.timekeeper.statements import open_shared
from timekeeper.api.create_app import app_of, create_services
from timekeeper.api.http.services import Services
from timekeeper.api.resources.health import probes
from timekeeper.api.resources.heartbeats import HeartbeatHandler
from timekeeper.core.decisions import Decision
from timekeeper.core.ledger.metering import Interval
from timekeeper.edge.reflector import ObjectChanged, ObjectsListed, WatchProgress
from timekeeper.runtime.auth.gate import Gate
from timekeeper.serving.gunicorn_app import heartbeat_route
from timekeeper.settler.budget_entries import BudgetNotice
from timekeeper.settler.cards.writer import FreeWriter
from timekeeper.settler.claim_notices import ClaimNotice
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.settler.cluster.watches import read_any_pod, sources
from timekeeper.settler.pod_notices import PodNotice
from timekeeper.settler.settler import Settler
from timekeeper.store import ledger as reading
from timekeeper.store.engine.engine import open_store
from timekeeper.store.engine.upgrade import upgrade

Json = dict[str, Any]

T0 = 1_795_168_800_000  # 2026-11-20T10:00:00Z
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
GPU = 1_000  # milli-GPU

_FEW = ("namespaces", "resourceclaims", "resourceslices")
READ = {source.name: source.read for source in sources("bursar-system")}


def gpu_pod(
    name: str = "p",
    *,
    namespace: str = "team-a",
    node: str = "n1",
    percent: int = 100,
    bound_ms: int | None = -1,
    started_ms: int | None = None,
    ended_ms: int | None = None,
    phase: str = "",
    created_ms: int = T0,
    card: int = 0,
    standing: str = "IN_BUDGET",
    grace_s: int = 30,
    annotations: Json | None = None,
    labels: Json | None = None,
) -> Json:
    """A pod with one GPU container ``main`` on card ``card`` of its node; the times define its progress.
    Without ``bound_ms`` it is bound when it starts, else at T0."""
    if bound_ms == -1:
        bound_ms = T0 if started_ms is None else started_ms
    spec: Json = {"terminationGracePeriodSeconds": grace_s}
    noted: Json = {"bursar.dev/standing": standing}
    if node and bound_ms is not None:
        spec["nodeName"] = node
        noted["bursar.dev/devices"] = placement(percent, card)
    body = worlds.pod(
        worlds.container("main", gpu_percent=str(percent)), annotations=noted | (annotations or {}), **spec
    )
    body["metadata"] |= {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "creationTimestamp": iso(created_ms),
    }
    if labels:
        body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **labels}
    body["status"] = _status(bound_ms if node else None, started_ms, ended_ms, phase)
    return body


def _status(bound_ms: int | None, started_ms: int | None, ended_ms: int | None, phase: str) -> Json:
    status: Json = {"phase": "Pending"}
    if started_ms is not None and ended_ms is not None:
        status = worlds.status("Succeeded", main=worlds.terminated(iso(started_ms), iso(ended_ms)))
    elif started_ms is not None:
        status = worlds.status("Running", main=worlds.running(iso(started_ms)))
    if bound_ms is not None:
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(bound_ms)}
        status["conditions"] = [condition]
    return status | ({"phase": phase} if phase else {})


def placement(percent: int = 100, card: int = 0, memory_mib: int = 16_000) -> str:
    """The annotation bursar.dev/devices for ``main`` on one card of `node`."""
    given = {
        "uuid": f"GPU-{card}",
        "index": card,
        "share_milli": 10 * percent,
        "memory_mib": memory_mib * percent // 100,
    }
    return json.dumps({"version": 1, "containers": {"main": [given]}})


def node(name: str = "n1", cards: int = 2, model: str = "A100") -> Json:
    """A node with cards GPU-0, GPU-1, ... of 16000 MiB."""
    listed = [worlds.card(index, model=model) for index in range(cards)]
    return {"metadata": {"name": name, "annotations": {"bursar.dev/inventory": worlds.inventory(*listed)}}}


def lease(renewed_ms: int, name: str = "n1", noted_ms: int | None = None) -> Json:
    """A kubelet's Lease with its own time; ``noted_ms``: the API server's, None: it is not there."""
    managed = [] if noted_ms is None else [{"time": iso(noted_ms - HOUR)}, {"time": iso(noted_ms)}]
    return {"metadata": {"name": name, "managedFields": managed}, "spec": {"renewTime": iso(renewed_ms)}}


def budgets(name: str = "bursar-budgets", **entries: str) -> Json:
    """A ConfigMap of budgets; ``team_a="gpuHours: 1"`` for the key team-a, leading ``_`` kept."""
    data = {key[0] + key[1:].replace("_", "-"): text for key, text in entries.items()}
    labels = {"bursar.dev/budgets": "true"}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}, "data": data}


def token(name: str, expiry_ms: int = T0 + 365 * DAY, audience: str = "bursar", issuer: str = "test") -> str:
    """An unsigned token with the same claims as ours; ``name`` makes it unique."""
    claims = {"iss": issuer, "aud": [audience], "exp": expiry_ms // 1000, "sub": name}
    parts = ({"alg": "RS256"}, claims, {"signature": name})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return ".".join(part.decode() for part in encoded)


def pod_status(pod: Json) -> Json:
    """TokenReview's status for a token bound to this pod."""
    metadata = pod["metadata"]
    extra = {
        "authentication.kubernetes.io/pod-name": [metadata["name"]],
        "authentication.kubernetes.io/pod-uid": [metadata["uid"]],
    }
    user = {"username": f"system:serviceaccount:{metadata['namespace']}:default", "extra": extra}
    return {"authenticated": True, "audiences": ["bursar"], "user": user}


def agent_status(node: str = "n1") -> Json:
    """TokenReview's status for the token of the agent's pod on a node."""
    status = pod_status(gpu_pod(f"agent-{node}", namespace="bursar-node"))
    status["user"]["username"] = "system:serviceaccount:bursar-node:bursar-node"
    status["user"]["extra"]["authentication.kubernetes.io/node-name"] = [node]
    return status


def user_status(username: str) -> Json:
    """TokenReview's status for a user's token."""
    return {"authenticated": True, "audiences": ["bursar"], "user": {"username": username}}


@dataclass
class Reviews:
    """The API server's part of authentication: known tokens and denied actions; ``asked`` counts requests."""

    tokens: dict[str, Json] = field(default_factory=dict)
    denied: set[tuple[str, str, str, str]] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    readers: frozenset[str] = frozenset()  # groups; where there are any, a user needs to be in one

    def post(self, path: str, body: Any) -> Json:
        """The answer to a review: every known user may do everything that is not in ``denied``."""
        self.asked.append(body["kind"])
        spec = body["spec"]
        if body["kind"] != "TokenReview" and self.readers and not self.readers & set(spec["groups"]):
            return {"status": {"allowed": False}}
        if body["kind"] == "TokenReview":
            return {"status": self.tokens.get(spec["token"], {"authenticated": False})}
        if "nonResourceAttributes" in spec:
            asked = spec["nonResourceAttributes"]
            return {
                "status": {"allowed": (spec["user"], asked["verb"], asked["path"], "") not in self.denied}
            }
        wanted = spec["resourceAttributes"]
        where = wanted["namespace"] or wanted.get("name", "")
        who = (spec["user"], wanted["verb"], wanted["resource"], where)
        return {"status": {"allowed": who not in self.denied}}


ADMIN = token("admin")
CA = "-----BEGIN CERTIFICATE-----\n"


@cache
def new_ledger() -> bytes:
    """An SQLite file with this release's schema and no rows: migrations run once, not in each test."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        store = open_store(f"sqlite:///{file}")
        upgrade(store)
        store.close()
        return file.read_bytes()


def with_schema(url: str) -> str:
    """The same database; an SQLite file that is not there yet is made as `new_ledger` is."""
    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not file.exists():
        file.write_bytes(new_ledger())
    return url


class Town:
    """A cluster of dicts with settler, database and REST API. All updates arrive at the clock's time.

    ``where``: the database's URL, or a folder for an SQLite file.
    """

    def __init__(self, where: str | Path, clock: Clock | None = None) -> None:
        self.clock = clock or Clock(T0)
        self.url = with_schema(where if isinstance(where, str) else f"sqlite:///{where}/ledger.db")
        self.store = open_shared(self.url)
        self.reviews = Reviews({ADMIN: user_status("admin")})
        self.notices: list[BudgetNotice] = []
        self.objects: dict[str, dict[str, Json]] = {name: {} for name in READ}
        self.pod_notices: list[PodNotice] = []
        self.claim_notices: list[ClaimNotice] = []
        self.recorded: list[Decision] = []
        self._served: list[Services] = []
        self.only_meter = False  # of the settler and the API that are started next
        self.start_anew()

    @cached_property
    def client(self) -> Client:
        """Of the REST API, which is made when a test first asks it."""
        return self.serve()

    def serve(self, damage: Callable[[], str] = lambda: "") -> Client:
        """A new process of the REST API, with empty caches."""
        gate = Gate(self.reviews.post, "bursar", self.clock)
        self._served.append(
            create_services(
                self.store, gate, self.clock, lambda: CA, 5_000, damage, only_meter=self.only_meter
            )
        )
        route = heartbeat_route(HeartbeatHandler(self._served[-1]))
        self.client = client_of(
            app_of(self._served[-1], SharingFlask), (route, *probes(self._served[-1].readiness))
        )
        return self.client

    @property
    def served(self) -> Services:
        """What the newest process of the REST API uses."""
        return self._served[-1]

    def close(self) -> None:
        """Nothing of it stays: a thread that waits for heartbeats would hold the store and its caches."""
        for services in self._served:
            services.beating.close()
        self.store.close()

    def list_all(self) -> None:
        """The settler receives lists of everything, as after its start or an expired watch."""
        for source, there in self.objects.items():
            if source not in _FEW or there:  # most tests are about none
                self.hear_all(source)

    def hear_all(self, source: str) -> None:
        """The settler receives the list of one source."""
        read = tuple(item for item in map(self._read(source), self.objects[source].values()) if item)
        self.settler.apply(WatchUpdate(source, self.clock(), ObjectsListed(read)))

    def _read(self, source: str) -> Any:
        if source == "pods":
            return partial(read_any_pod, is_charged=self.settler.view.is_known)
        return READ[source]

    def begin(self, *items: tuple[str, Json]) -> None:
        """List these objects, and tick."""
        for source, raw in items:
            self.objects[source][_key(raw)] = raw
        self.list_all()
        self.tick()

    def hear(self, source: str, raw: Json, deleted: bool = False, unheard: bool = False) -> None:
        """An object changed or was deleted; ``unheard``: the settler does not receive it."""
        if deleted:
            self.objects[source].pop(_key(raw), None)
        else:
            self.objects[source][_key(raw)] = raw
        if not unheard:
            item = self._read(source)(raw)
            what = WatchProgress() if item is None else ObjectChanged(item, deleted)
            self.settler.apply(WatchUpdate(source, self.clock(), what))

    def quiet(self, source: str = "pods") -> None:
        """A bookmark."""
        self.settler.apply(WatchUpdate(source, self.clock(), WatchProgress()))

    def node_heard(self, name: str = "n1") -> None:
        """The node's Lease is renewed, and the watch of pods is alive."""
        self.hear("leases", lease(self.clock(), name))
        self.quiet()

    def tick(self) -> bool:
        return self.settler.tick()

    def advance(self, ms: int = 0, heard: bool = True) -> None:
        """Time passes, the node is heard or not, and a tick follows."""
        self.clock.turn(ms)
        if heard:
            self.node_heard()
        self.tick()

    def change(self, source: str, raw: Json, deleted: bool = False, unheard: bool = False) -> None:
        """As `hear`, and a tick follows."""
        self.hear(source, raw, deleted, unheard)
        self.tick()

    def resume(self) -> None:
        """As `restart`, and a tick follows."""
        self.restart()
        self.tick()

    def _settler(self) -> Settler:
        return Settler(
            self.store,
            self.clock,
            self.notices.append,
            seconds=lambda: 0.0,
            notify_pod=self.pod_notices.append,
            record=self.recorded.append,
            only_meter=self.only_meter,
            notify_claim=self.claim_notices.append,
        )

    def start_anew(self) -> None:
        """The settler is killed and started again: it has only the database, and no list has arrived yet."""
        self.settler = self._settler()
        self.writer = FreeWriter(self.store, self.settler, self.clock)  # its thread that looks at cards

    def restart(self) -> None:
        """The settler is killed and started again, and receives all lists."""
        self.start_anew()
        self.list_all()

    def look(self) -> None:
        """The process of the REST API looks whether it can serve."""
        self.services.readiness.look()

    @property
    def services(self) -> Services:
        """Of the newest process of the REST API."""
        self.client  # noqa: B018 -- it is made now
        return self._served[-1]

    def get(self, path: str, bearer: str = ADMIN, **headers: str) -> TestResponse:
        if path == "/readyz":
            self.look()
        return self.client.get(path, headers={"Authorization": f"Bearer {bearer}", **headers})

    def post(self, path: str, body: object, bearer: str = ADMIN, **headers: str) -> TestResponse:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, data=sent, headers={"Authorization": f"Bearer {bearer}", **headers})

    def budget(self, namespace: str = "team-a") -> Json:
        """GET /v1/budgets/<namespace>, once what time alone changed is written."""
        ledger, cache = self.settler.ledger, self.settler.ledger.statement_cache
        if cache is not None:
            ledger.accounts_left = {*cache.statements.namespaces, *cache.statements.groups}
            ledger.accounts = {}  # as after a start
        self.tick()
        answer: Json = self.get(f"/v1/budgets/{namespace}").get_json()
        return answer

    def standing(self, namespace: str = "team-a") -> str:
        """The namespace's standing as a webhook reads it."""
        document = self.get("/v1/standings").get_json()
        return str(document["namespaces"].get(namespace, document["default"])["standing"])

    def beat(self, pod: Json, sequence: int, *ages_ms: int, boot: str = "run-1") -> TestResponse:
        """The pod's sidecar posts heartbeats with its own token."""
        mine = token(pod["metadata"]["uid"])
        self.reviews.tokens[mine] = pod_status(pod)
        beats = [{"age_ms": age, "devices": []} for age in ages_ms or (0,)]
        body = {"version": 1, "boot": boot, "sequence": sequence, "beats": beats}
        return self.post("/v1/heartbeats", body, mine)

    def postings(self, uid: str = "uid-p") -> list[tuple[int, int, int, str]]:
        """(from, to, rate, kind) of a pod's postings, in the order of writing."""
        with self.store.reading() as connection:
            posted = reading.sessions_of(connection, [uid]).posted.get(uid, ())
        return [(each.from_ms, each.to_ms, each.rate_milli, each.kind) for each in posted]

    def charged(self, namespace: str = "team-a", span: Interval | None = None) -> int:
        """Posted plus pending, over all time or a span."""
        whole = span or Interval(0, self.clock() + DAY)
        answer = self.get(f"/v1/usage?from={whole.start_ms}&to={whole.end_ms}&namespace={namespace}")
        return int(answer.get_json()["total"]["amount"])


def _key(raw: Json) -> str:
    metadata = raw["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}/{metadata.get('uid', '')}"
