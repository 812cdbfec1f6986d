"""What the API server stores for a tenant, however odd, changes charges, places and answers of that tenant
alone: by list, by watch, and over a restart of all roles."""

import http.client
import random
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from deploy.local.kwok_nodes import kwok_node
from deploy.local.limits import LONGEST_S
from deploy.local.sidecars import Sidecars
from deploy.local.stack import Stack
from tests.story.cluster.test_metering import Json, gpu_pod, held_ms, set_budget
from tests.support.control_plane import create_namespace
from tests.support.profile import examples, seed
from tests.support.raw_values import VALUES, drawn, nested, text

pytestmark = pytest.mark.make_test("reads whatever a tenant stores")

HOME = "odd"
ROLES = ("timekeeper", "extender", "webhook")
SHARE = 50
RESOURCES = "/apis/resource.k8s.io/v1"
CORE = "/api/v1"


def fields(value: bytes) -> bytes:
    """Managed fields with this value."""
    entry = b'"manager":"m","operation":"Update","apiVersion":"v1","time":"9999-12-31T23:59:59Z"'
    return b'"managedFields":[{%b,"fieldsType":"FieldsV1","fieldsV1":%b}]' % (entry, value)


def metadata(name: bytes, value: bytes, chance: random.Random) -> bytes:
    """With the odd value where any is stored: a text as an annotation, all else in managed fields."""
    where = b'"annotations":{"example.com/odd":%b}' % value if value[:1] == b'"' else fields(value)
    deep = fields(nested(chance.randrange(900, 9_900), b'{"f:a":', b"}", b"{}"))
    return b'{"name":"%b",%b}' % (name, chance.choice((where, deep)))


def container(chance: random.Random) -> bytes:
    """Ordinary, or with an argument of 1.4 MB of six bytes a letter in JSON."""
    large = chance.random() < 0.02
    return b'{"name":"main","image":"example/app:1","args":["%b"]}' % (b"<" * (1_400_000 if large else 9))


def pod_spec(chance: random.Random) -> bytes:
    """Of a pod that no scheduler takes; with many parts now and then."""
    tolerations = b'"tolerations":[%b]' % b",".join(
        b'{"key":"k%d","operator":"Exists"}' % at for at in range(1_000 if chance.random() < 0.05 else 1)
    )
    volumes = b'"volumes":[%b]' % b",".join(
        b'{"name":"v%d","emptyDir":{}}' % at for at in range(1_000 if chance.random() < 0.05 else 1)
    )
    return b'{"schedulerName":"none","containers":[%b],%b,%b}' % (container(chance), tolerations, volumes)


def claim_spec(value: bytes) -> bytes:
    """With the value as parameters of a driver, which must be an object."""
    parameters = value if value[:1] == b"{" else b'{"a":%b}' % value
    opaque = b'{"opaque":{"driver":"gpu.example.com","parameters":%b}}' % parameters
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


def of_workload(_value: bytes, chance: random.Random) -> bytes:
    labels = b'"metadata":{"labels":{"a":"b"}}'
    template = b'{%b,"spec":%b}' % (labels, pod_spec(chance)[:-1] + b',"restartPolicy":"Never"}')
    return b'{"template":%b}' % template


TENANTS: dict[str, Body] = {
    in_namespace(CORE, "pods"): of_spec(lambda _value, chance: pod_spec(chance)),
    in_namespace(RESOURCES, "resourceclaims"): of_spec(lambda value, _chance: claim_spec(value)),
    in_namespace(RESOURCES, "resourceclaimtemplates"): of_spec(
        lambda value, _chance: b'{"spec":%b}' % claim_spec(value)
    ),
    in_namespace("/apis/policy/v1", "poddisruptionbudgets"): of_spec(
        lambda _value, _chance: b'{"maxUnavailable":1,"selector":{"matchLabels":{"no":"pod"}}}'
    ),
    in_namespace("/apis/batch/v1", "jobs"): of_spec(
        lambda value, chance: of_workload(value, chance)[:-1] + b',"suspend":true}'
    ),
    in_namespace(CORE, "replicationcontrollers"): of_spec(
        lambda _value, _chance: (
            b'{"replicas":0,"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},'
            b'"spec":{"containers":[{"name":"main","image":"x"}]}}}'
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

    def begin(self, name: str, run_for: str) -> None:
        pod = gpu_pod(name, SHARE, run_for)
        pod["spec"]["nodeSelector"] = {"of": "raw"}
        self.stack.cp.api.call("POST", self.pods, pod)
        self.stack.wait(f"{name} to run", lambda: self.read(name)["status"]["phase"] == "Running", "extender")

    def read(self, name: str) -> Json:
        return dict(self.stack.cp.api.call("GET", f"{self.pods}/{name}"))

    def rows(self) -> dict[str, Json]:
        found = self.stack.get("/v1/usage?namespace=even&group=pod", self.reader)["rows"]
        return {row["pod"]: row for row in found}

    def live(self, name: str) -> None:
        """A pod from its creation to its end, which is charged exactly for what it held."""
        self.begin(name, "1s")
        self.stack.wait(
            f"{name} to be posted",
            lambda: name in self.rows() and not self.rows()[name]["pending"],
            "timekeeper",
        )
        assert self.rows()[name]["posted"] == 10 * SHARE * held_ms(self.read(name))


def written(stack: Stack, client: RawClient, count: int) -> Counter[str]:
    """So many odd objects; every third is deleted at once. How many were stored, by resource; those of the
    administrator are stored too."""
    chance = random.Random(seed())
    stored: Counter[str] = Counter()
    for at in range(count):
        path, body = chance.choice([*TENANTS.items()])
        value = chance.choice([*VALUES.values()]) if at < 4 * len(VALUES) else drawn(chance)
        status, answer = client.call("POST", path, body(b"odd-%d" % at, value, chance))
        is_too_large = b"status code 413" in answer  # as a review, so the tenant alone is refused
        assert status < 500 or is_too_large, (path, value[:200], answer[:500])
        stored[path.rpartition("/")[2]] += status == 201
        if status == 201 and at % 3 == 0:
            client.call("DELETE", f"{path}/odd-{at}?gracePeriodSeconds=0")
        if status == 201 and path.endswith("/pods") and at % 3 == 1:
            conditions = b'{"type":"PodScheduled","status":"?","lastTransitionTime":"%b"}' % chance.choice(
                (b"0000-01-01T00:00:00Z", b"9999-12-31T23:59:59Z")
            )
            merge = "application/merge-patch+json"
            body_of_status = b'{"status":{"phase":"Running","conditions":[%b]}}' % conditions
            assert client.call("PATCH", f"{path}/odd-{at}/status", body_of_status, merge)[0] < 500
    for path, body in ADMINISTRATORS.items():
        status, answer = client.call(
            "POST", path, body(b"odd-row", chance.choice([*VALUES.values()]), chance)
        )
        assert status < 500, (path, answer[:500])
        stored[path.rpartition("/")[2]] += status == 201
    return stored


@pytest.mark.parametrize(
    "count", [examples(150), pytest.param(2_000, marks=pytest.mark.make_all("it takes minutes"))]
)
def test_no_odd_object_changes_anything_for_a_neighbour(
    stack: Stack, sidecars: Sidecars, reader: str, raw: RawClient, count: int
) -> None:
    create_namespace(stack.cp, HOME)
    logged = {role: len(stack.log(role)) for role in ROLES}
    neighbour = Neighbour(stack, reader)
    neighbour.begin("stays", "1h")

    stored = written(stack, raw, count)
    print("stored:", dict(stored))
    assert {path.rpartition("/")[2] for path in (*TENANTS, *ADMINISTRATORS)} == (+stored).keys()
    neighbour.live("beside")
    for role in ROLES:
        stack.stop(role)
    for role, url in zip(ROLES, (stack.timekeeper_url, stack.extender_url, stack.webhook_url), strict=True):
        stack.start(role)
        stack.wait(f"{role} to be ready", lambda url=url: stack.is_ready(url), role)  # type: ignore[misc]
    neighbour.live("afterwards")

    assert neighbour.rows()["stays"]["pending"] > 0
    for role in ROLES:
        since = stack.log(role)[logged[role] :].splitlines()
        wrong = ("event=object-unread", "event=uncaught", "event=internal-error", "not JSON", "too long")
        assert [line for line in since if any(words in line for words in wrong)] == [], role
