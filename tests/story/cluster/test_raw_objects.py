"""What the API server stores for a tenant, however odd, changes charges, places and answers of that tenant
alone: by list, by watch, and over a restart of all roles."""

import http.client
import random
import sqlite3
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import orjson
import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import Json, gpu_pod, held_ms, set_budget
from tests.support.control_plane import create_namespace
from tests.support.profile import examples, seed
from tests.support.raw_values import VALUES, drawn, nested, text
from tests.webhook.cluster.test_audit import audited
from tests.webhook.cluster.test_claims import a_slice, by, device_class, exactly, of, pod

pytestmark = pytest.mark.make_test("reads whatever a tenant stores")

HOME = "odd"
ROLES = ("timekeeper", "extender", "webhook")
SHARE = 50
RESOURCES = "/apis/resource.k8s.io/v1"
CORE = "/api/v1"


def fields(value: bytes) -> bytes:
    """Managed fields with this value."""
    entry = b'"manager":"m","operation":"Update","apiVersion":"VERSION","time":"9999-12-31T23:59:59Z"'
    return b'"managedFields":[{%b,"fieldsType":"FieldsV1","fieldsV1":%b}]' % (entry, value)


def metadata(name: bytes, value: bytes, chance: random.Random) -> bytes:
    """With the odd value where any is stored: a text as an annotation, all else in managed fields."""
    where = b'"annotations":{"example.com/odd":%b}' % value if value[:1] == b'"' else fields(value)
    deep = fields(nested(chance.randrange(900, 9_900), b'{"f:a":', b"}", b"{}"))
    return b'{"name":"%b",%b}' % (name, chance.choice((where, deep)))


def containers(chance: random.Random, number: int = 1, limits: bytes = b"{}") -> bytes:
    """Ordinary ones, or with an argument of 1.4 MB of six bytes a letter in JSON."""
    argument = b"<" * (1_400_000 if number == 1 and chance.random() < 0.02 else 9)
    first = b'{"name":"c0","image":"example/app:1","args":["%b"],"resources":{"limits":%b}}' % (
        argument,
        limits,
    )
    return b",".join((first, *(b'{"name":"c%d","image":"x"}' % at for at in range(1, number))))


def pod_spec(chance: random.Random, part: bytes = b"", limits: bytes = b"{}") -> bytes:
    """Of a pod that no scheduler takes. ``part``: of which it has 1,000."""
    number = {part: 1_000}
    tolerations = (b'{"key":"k%d","operator":"Exists"}' % at for at in range(number.get(b"tolerations", 1)))
    volumes = (b'{"name":"v%d","emptyDir":{}}' % at for at in range(number.get(b"volumes", 1)))
    return b'{"schedulerName":"none","containers":[%b],"tolerations":[%b],"volumes":[%b]}' % (
        containers(chance, number.get(b"containers", 1), limits),
        b",".join(tolerations),
        b",".join(volumes),
    )


def gpu_spec(chance: random.Random, part: bytes = b"") -> bytes:
    """Of a pod that gets a card on the tenant's node."""
    spec = pod_spec(chance, part, b'{"bursar.dev/gpu-percent":"5"}')
    return spec[:-1].replace(b'"schedulerName":"none",', b"") + b',"nodeSelector":{"of":"odd"}}'


def as_object(value: bytes) -> bytes:
    """The value, or an object with it."""
    return value if value[:1] == b"{" else b'{"a":%b}' % value


def claim_spec(value: bytes) -> bytes:
    """With the value as parameters of a driver, which must be an object."""
    opaque = b'{"opaque":{"driver":"gpu.example.com","parameters":%b}}' % as_object(value)
    return b'{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}],"config":[%b]}}' % opaque


Body = Callable[[bytes, bytes, random.Random], bytes]


def in_namespace(api: str, resource: str) -> str:
    return f"{api}/namespaces/{HOME}/{resource}"


def of_spec(spec: Callable[[bytes, random.Random], bytes]) -> Body:
    return lambda name, value, chance: (
        b'{"metadata":%b,"spec":%b}'
        % (
            metadata(name, value, chance),
            spec(value, chance),
        )
    )


def template(chance: random.Random, restart: bytes = b"Always") -> bytes:
    """Of pods, whose metadata has what a selector needs."""
    spec = pod_spec(chance)[:-1] + b',"restartPolicy":"%b"}' % restart
    return b'{"metadata":{"labels":{"a":"b"}},"spec":%b}' % spec


def bare_template(chance: random.Random) -> bytes:
    """Of pods of a Job, which need no label: its metadata is absent, null or empty now and then."""
    metadata = chance.choice((b"", b'"metadata":null,', b'"metadata":{},', b'"metadata":{"labels":null},'))
    return b"{" + metadata + b'"spec":%b}' % (pod_spec(chance)[:-1] + b',"restartPolicy":"Never"}')


def job_spec(chance: random.Random) -> bytes:
    """Of a Job that makes no pod."""
    return b'{"suspend":true,"template":%b}' % bare_template(chance)


def of_pods(more: bytes = b'"replicas":0,') -> Body:
    """Of what makes pods from a template, but makes none."""
    spec = b'{%b"selector":{"matchLabels":{"a":"b"}},"template":%b}'
    return of_spec(lambda _value, chance: spec % (more, template(chance)))


TENANTS: dict[str, Body] = {
    in_namespace(CORE, "pods"): of_spec(
        lambda _value, chance: chance.choice((pod_spec, pod_spec, gpu_spec))(chance)
    ),
    in_namespace(RESOURCES, "resourceclaims"): of_spec(lambda value, _chance: claim_spec(value)),
    in_namespace(RESOURCES, "resourceclaimtemplates"): of_spec(
        lambda value, chance: (
            b'{%b"spec":%b}' % (chance.choice((b"", b'"metadata":null,')), claim_spec(value))
        )
    ),
    in_namespace("/apis/policy/v1", "poddisruptionbudgets"): of_spec(
        lambda _value, _chance: b'{"maxUnavailable":1,"selector":{"matchLabels":{"no":"pod"}}}'
    ),
    in_namespace("/apis/batch/v1", "jobs"): of_spec(lambda _value, chance: job_spec(chance)),
    in_namespace("/apis/batch/v1", "cronjobs"): of_spec(
        lambda _value, chance: (
            b'{"suspend":true,"schedule":"0 0 1 1 *","jobTemplate":{%b"spec":%b}}'
            % (chance.choice((b"", b'"metadata":null,')), job_spec(chance))
        )
    ),
    in_namespace("/apis/apps/v1", "deployments"): of_pods(),
    in_namespace("/apis/apps/v1", "replicasets"): of_pods(),
    in_namespace("/apis/apps/v1", "statefulsets"): of_pods(b'"replicas":0,"serviceName":"s",'),
    in_namespace("/apis/apps/v1", "daemonsets"): of_pods(b""),
    in_namespace(CORE, "replicationcontrollers"): of_spec(
        lambda _value, chance: b'{"replicas":0,"selector":{"a":"b"},"template":%b}' % template(chance)
    ),
    in_namespace("/apis/autoscaling/v2", "horizontalpodautoscalers"): of_spec(
        lambda _value, _chance: (
            b'{"maxReplicas":1,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}'
        )
    ),
    in_namespace(CORE, "configmaps"): lambda name, value, chance: (
        b'{"metadata":%b,"data":{"k":%b}}'
        % (
            metadata(name, value, chance),
            value if value[:1] == b'"' else text(rb"a\ud800"),
        )
    ),
    in_namespace(CORE, "events"): lambda name, value, chance: (
        b'{"metadata":%b,"involvedObject":{"namespace":"%b"}}'
        % (
            metadata(name, value, chance),
            HOME.encode(),
        )
    ),
}
# what is followed is drawn more often
WEIGHTS = {
    in_namespace(CORE, "pods"): 6,
    in_namespace(RESOURCES, "resourceclaims"): 6,
    in_namespace(RESOURCES, "resourceclaimtemplates"): 3,
    in_namespace("/apis/policy/v1", "poddisruptionbudgets"): 3,
}
# of pods: 1,000 of each part
LARGE: tuple[Body, ...] = tuple(
    of_spec(lambda _value, chance, spec=spec, part=part: spec(chance, part))  # type: ignore[misc]
    for spec in (pod_spec, gpu_spec)
    for part in (b"containers", b"volumes", b"tolerations")
)
TIMES = (b"0000-01-01T00:00:00Z", b"9999-12-31T23:59:59Z")
PUT, MERGE = ("PUT", "application/json"), ("PATCH", "application/merge-patch+json")


def pod_status(_pod: bytes, _value: bytes, chance: random.Random) -> bytes:
    """With the first and the last year, and words that no enum has."""
    at, word = chance.choice(TIMES), chance.choice((b"Odd", b"", b"\xff"))
    bound = b'{"type":"PodScheduled","status":"%b","reason":"%b","lastTransitionTime":"%b"}' % (
        word,
        word,
        at,
    )
    state = b'{"terminated":{"exitCode":-1,"reason":"%b","startedAt":"%b","finishedAt":"%b"}}' % (
        word,
        at,
        at,
    )
    container = b'{"name":"c0","state":%b,"image":"","imageID":"","ready":true,"restartCount":0}' % state
    return b'{"status":{"phase":"%b","startTime":"%b","conditions":[%b,%b],"containerStatuses":[%b]}}' % (
        chance.choice((b"Running", b"Odd", b"Failed")),
        at,
        bound,
        b'{"type":"Odd","status":"%b"}' % word,
        container,
    )


def claim_status(claim: bytes, value: bytes, chance: random.Random) -> bytes:
    """The claim with what a driver writes: the value as data, which must be an object, and a consumer that is
    no pod."""
    at = chance.choice(TIMES)
    device = b'"driver":"gpu.example.com","pool":"odd","device":"d"'
    allocation = b'{"allocationTimestamp":"%b","devices":{"results":[{"request":"r",%b}]}}' % (at, device)
    consumer = b'{"apiGroup":"example.com","resource":"odd","name":"o","uid":"u"}'
    condition = b'{"type":"Odd","status":"True","reason":"R","message":"","lastTransitionTime":"%b"}' % at
    devices = b'[{%b,"data":%b,"conditions":[%b]}]' % (device, as_object(value), condition)
    status = b'{"allocation":%b,"reservedFor":[%b],"devices":%b}' % (allocation, consumer, devices)
    return claim[:-1] + b',"status":%b}' % status


STATUSES: dict[str, tuple[tuple[str, str], Callable[[bytes, bytes, random.Random], bytes]]] = {
    in_namespace(CORE, "pods"): (MERGE, pod_status),
    in_namespace(RESOURCES, "resourceclaims"): (PUT, claim_status),
}
WORST = nested(1_100, b'{"f:a":', b"}", b"{}")  # managed fields that have such names are stored
# what only administrators write
ADMINISTRATORS: dict[str, Body] = {
    f"{CORE}/nodes": of_spec(lambda _value, _chance: b"{}"),
    f"{CORE}/namespaces": of_spec(lambda _value, _chance: b"{}"),
    "/apis/scheduling.k8s.io/v1/priorityclasses": lambda name, value, chance: (
        b'{"metadata":%b,"value":1}' % metadata(name, value, chance)
    ),
    f"{RESOURCES}/deviceclasses": of_spec(
        lambda value, _chance: b'{"config":%b}' % claim_spec(value).partition(b'"config":')[2][:-2]
    ),
    f"{RESOURCES}/resourceslices": of_spec(
        lambda _value, _chance: (
            b'{"driver":"gpu.example.com","nodeName":"odd-row","pool":{"name":"p",'
            b'"resourceSliceCount":1},"devices":[{"name":"d"}]}'
        )
    ),
    f"{CORE}/namespaces/bursar-system/configmaps": lambda name, value, chance: (
        b'{"metadata":%b}' % metadata(name, value, chance)
    ),
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": of_spec(
        lambda _value, _chance: b'{"renewTime":"9999-12-31T23:59:59.000000Z"}'
    ),
}


class RawClient:
    """Sends bytes to the API server as an administrator."""

    def __init__(self, stack: Stack) -> None:
        self._api = stack.cp.api
        target = urlsplit(self._api.url)
        tls = ssl.create_default_context(cafile=str(self._api.ca_file))
        self._connection = http.client.HTTPSConnection(
            target.hostname or "", target.port, context=tls, timeout=LONGEST_S
        )

    def call(
        self, method: str, path: str, body: bytes | None = None, content: str = "application/json"
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self._api.token}", "Content-Type": content}
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, OSError):  # it refuses some by an end of the connection
            self._connection.close()
            return 0, b""

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def raw(stack: Stack) -> Iterator[RawClient]:
    client = RawClient(stack)
    yield client
    client.close()


class Neighbour:
    """A tenant with ordinary pods."""

    def __init__(self, stack: Stack, reader: str) -> None:
        self.stack, self.reader = stack, reader
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("raw-0", cards=4, labels={"of": "raw"}))
        set_budget(stack, "even", "gpuHours: 100\n")
        self.pods = create_namespace(stack.cp, "even")
        stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("raw-claimed"))
        stack.cp.api.call("POST", f"{RESOURCES}/deviceclasses", device_class("raw", "gpu.nvidia.com"))
        devices = a_slice("raw-claimed", "gpu.nvidia.com")
        for device in devices["spec"]["devices"]:
            device["attributes"] = {"type": {"string": "gpu"}}
        stack.cp.api.call("POST", f"{RESOURCES}/resourceslices", devices)

    def begin(self, name: str, run_for: str) -> None:
        pod = gpu_pod(name, SHARE, run_for)
        pod["spec"]["nodeSelector"] = {"of": "raw"}
        self.stack.cp.api.call("POST", self.pods, pod)
        lived = "Running", "Succeeded"  # a second of life may pass between two looks
        self.stack.wait(f"{name} to run", lambda: self.read(name)["status"]["phase"] in lived, "extender")

    def read(self, name: str) -> Json:
        return dict(self.stack.cp.api.call("GET", f"{self.pods}/{name}"))

    def rows(self) -> dict[str, Json]:
        found = self.stack.get("/v1/usage?namespace=even&group=pod", self.reader)["rows"]
        return {row["pod"]: row for row in found}

    def claim(self, name: str) -> None:
        """A pod with a claim, which has a session."""
        claim = {"metadata": {"name": name}, "spec": of(exactly("raw"))}
        self.stack.cp.api.call("POST", f"{RESOURCES}/namespaces/even/resourceclaims", claim)
        self.stack.cp.api.call("POST", self.pods, pod(f"{name}-claims", by("claim", name)))
        self.stack.wait(f"the session of {name}", lambda: name in self.claims(), "timekeeper")

    def claims(self) -> dict[str, tuple[object, ...]]:
        """The sessions of its claims, by name: UID, rate, when each began and ended, and what is in doubt."""
        with closing(sqlite3.connect(self.stack.folder / "bursar.db")) as connection:
            rows = connection.execute(
                "SELECT name, uid, rate_milli, bound_ms, ended_ms, doubt FROM sessions"
                " WHERE namespace = 'even' AND kind = 'claim'"
            )
            return {name: tuple(row) for name, *row in rows}

    def live(self, name: str) -> None:
        """A claim that gets its session, and a pod from its creation to its end, which is charged exactly for
        what it held."""
        self.claim(name)
        self.begin(name, "1s")
        self.stack.wait(
            f"{name} to be posted",
            lambda: name in self.rows() and not self.rows()[name]["pending"],
            "timekeeper",
        )
        assert self.rows()[name]["posted"] == 10 * SHARE * held_ms(self.read(name))


def is_refused(answer: bytes) -> bool:
    """Whether a fast decoder cannot read it as it is."""
    try:
        orjson.loads(answer)
    except ValueError:
        return True
    return False


def versioned(path: str, whole: bytes) -> bytes:
    """With the version of the path's API in its managed fields: the API server drops those of another."""
    version = path.removeprefix("/apis/").removeprefix("/api/").partition("/namespaces/")[0]
    return whole.replace(b"VERSION", version.removesuffix(f"/{path.rpartition('/')[2]}").encode())


def written(client: RawClient, rows: Iterable[tuple[str, Body]]) -> Counter[str]:
    """An odd object for each path and body; every third is deleted at once, the status of others is written
    where one is odd too. How many were stored that a decoder refuses, by resource; any status counts."""
    chance = random.Random(seed())
    stored: Counter[str] = Counter()
    for at, (path, body) in enumerate(rows):
        resource = path.rpartition("/")[2]
        value = chance.choice([*VALUES.values()]) if at < 4 * len(VALUES) else drawn(chance)
        whole = versioned(path, body(b"odd-%d" % at, value, chance))
        status, answer = client.call("POST", path, whole)
        is_too_large = b"status code 413" in answer  # as a review, so the tenant alone is refused
        assert status < 500 or is_too_large, (path, value[:200], answer[:500])
        stored[resource] += status == 201 and is_refused(answer)
        if status == 201 and at % 3 == 0:
            client.call("DELETE", f"{path}/odd-{at}?gracePeriodSeconds=0")
        elif status == 201 and path in STATUSES:
            (method, content), with_status = STATUSES[path]
            whole = with_status(whole, value, chance)
            status, answer = client.call(method, f"{path}/odd-{at}/status", whole, content)
            assert status < 500, (path, value[:200], answer[:500])
            stored[f"{resource}/status"] += status == 200
    return stored


def unread(stack: Stack, logged: dict[str, int]) -> list[str]:
    """The lines of the roles' logs, after these lengths, which say that something could not be read."""
    wrong = ("event=object-unread", "event=uncaught", "event=internal-error", "not JSON", "too long")
    lines = (line for role, since in logged.items() for line in stack.log(role)[since:].splitlines())
    return [line for line in lines if any(words in line for words in wrong)]


@pytest.mark.parametrize(
    "count", [examples(150), pytest.param(2_000, marks=pytest.mark.make_all("it takes minutes"))]
)
def test_no_odd_object_changes_anything_for_a_neighbour(
    stack: Stack, sidecars: Sidecars, reader: str, raw: RawClient, count: int
) -> None:
    create_namespace(stack.cp, HOME)
    stack.cp.api.call("POST", "/api/v1/nodes", kwok_node("raw-odd", cards=4, labels={"of": "odd"}))
    logged = {role: len(stack.log(role)) for role in ROLES}
    neighbour = Neighbour(stack, reader)
    neighbour.begin("stays", "1h")
    neighbour.claim("stays")
    claims = neighbour.claims()

    many = [(in_namespace(CORE, "pods"), body) for body in LARGE]
    chance = random.Random(seed())
    drawn_kinds = chance.choices([*TENANTS], weights=[WEIGHTS.get(path, 1) for path in TENANTS], k=count)
    stored = written(raw, [*many, *TENANTS.items(), *((path, TENANTS[path]) for path in drawn_kinds)])
    for path, body in ADMINISTRATORS.items():
        status, answer = raw.call("POST", path, versioned(path, body(b"odd-row", WORST, chance)))
        assert status == 201, (path, answer[:500])
        assert is_refused(answer), path
    print("stored:", dict(stored))
    written_kinds = {path.rpartition("/")[2] for path in TENANTS}
    assert written_kinds | {f"{path.rpartition('/')[2]}/status" for path in STATUSES} == (+stored).keys()
    neighbour.live("beside")
    for role in ROLES:
        stack.stop(role)
    for role, url in zip(ROLES, (stack.timekeeper_url, stack.extender_url, stack.webhook_url), strict=True):
        stack.start(role)
        stack.wait(f"{role} to be ready", lambda url=url: stack.is_ready(url), role)  # type: ignore[misc]
    neighbour.live("afterwards")

    assert neighbour.rows()["stays"]["pending"] > 0
    assert neighbour.claims().items() > claims.items()
    assert unread(stack, logged) == []
    done = audited("--kubeconfig", str(stack.cp.admin_kubeconfig), "-n", HOME)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
