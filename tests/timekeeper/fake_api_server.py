"""A small API server: list and watch with bookmarks, TokenReview, SubjectAccessReview, Events, evictions,
deletions and patches of status that it answers and does not carry out, and the Lease of the settlers. Plain
HTTP.

It keeps what it is given and tells all watchers; it knows nothing of what the objects mean.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from tests.support.api_server import Json, ObjectsHandler, StoredObjects
from tests.support.http_server import Served

PATHS = {
    "/api/v1/pods": "pods",
    "/api/v1/nodes": "nodes",
    "/api/v1/namespaces": "namespaces",
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": "leases",
    "/api/v1/namespaces/bursar-system/configmaps": "configmaps",
    "/apis/scheduling.k8s.io/v1/priorityclasses": "priorityclasses",
}


LEASES = "/apis/coordination.k8s.io/v1/namespaces/bursar-system/leases"
LEASE = f"{LEASES}/bursar-timekeeper-settler"


class FakeApiServer(StoredObjects):
    """``tokens``: token -> TokenReview status; ``allowed``: (username, verb, resource, namespace) that
    may."""

    def __init__(self) -> None:
        super().__init__({name: {} for name in PATHS.values()})
        self.tokens: dict[str, Json] = {}
        self.allowed: set[tuple[str, str, str, str]] = set()
        self.reviews: list[Json] = []
        self.events: list[Json] = []
        self.takes_events = True
        self.evictions: list[Json] = []
        self.trials: Counter[str] = Counter()  # evictions without effect, by the pod's name
        self.patches: list[tuple[str, Json]] = []  # (path, body) of pods' status
        self.patch_answer = 200
        self.deletions: list[Json] = []
        self.budgets: list[Json] = []  # PodDisruptionBudgets, of every namespace
        # what is found by its name: pods, and the namespace whose UID is the cluster's
        self.named: dict[str, Json] = {"kube-system": {"metadata": {"name": "kube-system", "uid": "here"}}}
        self.refusals: dict[str, tuple[int, Json]] = {}  # the pod's name -> how its eviction is refused
        # other calls: method, path and body -> status and answer; None: the call is not answered so
        self.others: Callable[[str, str, Json], tuple[int, Json] | None] = lambda _method, _path, _body: None
        self.bearers: set[str | None] = set()
        self.expired = False
        self.forbidden: set[str] = set()  # kinds that may not be listed or watched
        self.ahead_s = 0  # its clock is ahead of this machine's
        self.holders: list[str] = []  # who wrote himself into it, each once in a row
        self.cut: set[str] = set()  # URLs under which the Lease cannot be reached

    def bookmark(self) -> None:
        """Tell all watchers that nothing happened."""
        for kind in PATHS.values():
            self.tell(kind, "BOOKMARK", {"metadata": {}})

    def review(self, path: str, body: Json) -> Json | None:
        """The answer to a review; None for a path that is none."""
        spec = body.get("spec", {})
        if path.endswith("/tokenreviews"):
            self.reviews.append(body)
            return {"status": self.tokens.get(spec["token"], {"authenticated": False})}
        if path.endswith("/subjectaccessreviews"):
            self.reviews.append(body)
            if "nonResourceAttributes" in spec:
                at = spec["nonResourceAttributes"]
                return {"status": {"allowed": (spec["user"], at["verb"], at["path"], "") in self.allowed}}
            wanted = spec["resourceAttributes"]
            who = (spec["user"], wanted["verb"], wanted["resource"], wanted["namespace"])
            return {"status": {"allowed": who in self.allowed}}
        if path.endswith("/eviction"):
            if body["deleteOptions"].get("dryRun"):
                self.trials[body["metadata"]["name"]] += 1
            else:
                self.evictions.append(body)
            return {"kind": "Status", "status": "Success"}
        if path.endswith("/events") and self.takes_events:
            self.events.append(body)
            return body
        return None

    def lease(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        """As of any Lease; who has written himself into it is remembered."""
        status, answer = super().lease(method, path, body)
        if method != "GET" and status < 300:
            holder = body["spec"].get("holderIdentity", "")
            if self.holders[-1:] != [holder]:
                self.holders.append(holder)
        return status, answer


@contextmanager
def serving(api: FakeApiServer) -> Iterator[str]:
    """Serve it on loopback; gives the URL."""

    class Handler(ObjectsHandler):
        held = api

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((timestamp or time.time()) + api.ahead_s)

        def do_GET(self) -> None:
            api.bearers.add(self.headers["Authorization"])
            address = urlsplit(self.path)
            source = PATHS.get(address.path)
            asked = {name: values[0] for name, values in parse_qs(address.query).items()}
            other = None if asked.get("watch") else api.others("GET", self.path, {})
            if other is not None:
                self.answer(*other)
            elif address.path == LEASE and server.url in api.cut:
                self.answer(503, {"message": "cut off"})
            elif address.path == LEASE:
                self.answer(*api.lease("GET", LEASE, {}))
            elif address.path.endswith("/poddisruptionbudgets"):
                self.answer(200, {"items": api.budgets})
            elif (name := asked.get("fieldSelector", "").removeprefix("metadata.name=")) in api.named:
                self.answer(200, {"items": [api.named[name]]})
            elif source is None:
                self.answer(404, {"message": "not found"})
            elif source in api.forbidden:
                self.answer(403, {"message": f"{source} is forbidden"})
            elif asked.get("watch") == "true" and api.expired:
                self.answer(410, {"message": "too old"})
            elif "sendInitialEvents" in asked:
                self.initial_events(api.listed(source))
            elif asked.get("watch") == "true":
                self.watch(source, int(asked["resourceVersion"]), float(asked["timeoutSeconds"]))
            else:
                self.answer(200, api.listed(source))

        def do_POST(self) -> None:
            body = self.body()
            path = urlsplit(self.path).path
            if (other := api.others("POST", path, body)) is not None:
                return self.answer(*other)
            if path == LEASES:
                return self.answer(*api.lease("POST", path, body))
            answer = api.review(path, body)
            if path.endswith("/eviction") and path.split("/")[-2] in api.refusals:
                self.answer(*api.refusals[path.split("/")[-2]])
            else:
                self.answer(404 if answer is None else 201, answer or {})

        def do_PATCH(self) -> None:
            body = self.body()
            api.patches.append((self.path, body))
            self.answer(api.patch_answer, body)

        def do_DELETE(self) -> None:
            if (other := api.others("DELETE", self.path, {})) is not None:
                return self.answer(*other)
            body = self.body()
            api.deletions.append(body | {"path": self.path})
            self.answer(200, body)

        def do_PUT(self) -> None:
            self.answer(*api.lease("PUT", self.path, self.body()))

    with Served(Handler) as server:
        yield server.url
