"""What a small API server for tests holds, and the rules by which it takes a change."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from tests.support.api_server import Json, StoredObjects, status

LISTS = {  # their verbs
    "namespaces": "list namespaces",
    "poddisruptionbudgets": "list budgets",
    "resourceslices": "list devices",
}


@dataclass
class Fault:
    """What happens to the next call of this verb ("bind", "get", "patch", "list", "lease",
    "event"): it is obeyed or
    not, and then answered with this status, or not at all: ``reset`` cuts the connection, ``silent`` says
    nothing until the server ends."""

    verb: str
    obeyed: bool = False
    status: int = 0
    how: str = ""
    said: str = ""

    @property
    def answer(self) -> tuple[int, Json]:
        """Its answer, where it has one."""
        return self.status, {"kind": "Status", "message": self.said or f"fault {self.status}"}


@dataclass
class Store(StoredObjects):
    """What the server holds. ``calls``: the verbs it was asked, in order, with what was sent. ``protected``:
    the names of pods that a PodDisruptionBudget keeps; ``vetoed``: those of a webhook, with its code."""

    objects: dict[str, dict[str, Json]] = field(
        default_factory=lambda: {
            "pods": {},
            "nodes": {},
            "poddisruptionbudgets": {},
            "namespaces": {},
            "resourceslices": {},
        }
    )
    faults: list[Fault] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    protected: set[str] = field(default_factory=set)
    vetoed: dict[str, int] = field(default_factory=dict)
    serves_claims: bool = False  # resource.k8s.io/v1
    users: dict[str, str] = field(default_factory=dict)  # token -> username
    # (username, verb, resource, namespace) of what is allowed; namespace "": in all
    rights: set[tuple[str, str, str, str]] = field(default_factory=set)
    leaves_at: str = "2026-11-20T04:32:53Z"  # the deletionTimestamp of those who are asked to leave

    def pod(self, name: str, namespace: str = "team-a") -> Json:
        """The pod as it is now."""
        with self.changed:
            return copy.deepcopy(self.objects["pods"][f"{namespace}/{name}"])

    def pods(self) -> list[Json]:
        """Every pod as it is now."""
        with self.changed:
            return copy.deepcopy(list(self.objects["pods"].values()))

    def nodes(self) -> list[Json]:
        """Every node as it is now."""
        with self.changed:
            return copy.deepcopy(list(self.objects["nodes"].values()))

    def made(self, verb: str) -> list[Any]:
        """What was sent in the calls of this verb."""
        with self.changed:
            return [sent for each, sent in self.calls if each == verb]

    def get(self, namespace: str, name: str) -> tuple[int, Json]:
        """A GET of a pod."""
        with self.changed:
            raw = self.objects["pods"].get(f"{namespace}/{name}")
            return (200, copy.deepcopy(raw)) if raw else status(404, f'pods "{name}" not found')

    def review(self, spec: Json) -> Json:
        """The status of a TokenReview or SubjectAccessReview."""
        if "token" in spec:
            username = self.users.get(spec["token"])
            known = {"authenticated": True, "user": {"username": username}, "audiences": spec["audiences"]}
            return known if username else {"authenticated": False}
        if "nonResourceAttributes" in spec:
            path = spec["nonResourceAttributes"]
            return {"allowed": (spec["user"], path["verb"], path["path"], "") in self.rights}
        asked = spec["resourceAttributes"]
        wanted = (spec["user"], asked["verb"], asked["resource"])
        return {"allowed": any((*wanted, each) in self.rights for each in (asked["namespace"], ""))}

    def bind(self, namespace: str, name: str, body: Json) -> tuple[int, Json]:
        """A POST of a Binding."""
        with self.changed:
            raw = self.objects["pods"].get(f"{namespace}/{name}")
            if raw is None:
                return status(404, f'pods "{name}" not found')
            wanted, there = body["metadata"], raw["metadata"]
            for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                if wanted.get(key) and wanted[key] != there[key]:
                    said = f"{word} in precondition: {wanted[key]}, {word} in object meta: {there[key]}"
                    return status(409, f"Operation cannot be fulfilled: Precondition failed: {said}")
            if there.get("deletionTimestamp"):
                return status(409, f"pod {name} is being deleted, cannot be assigned to a host")
            if raw["spec"].get("nodeName"):
                return status(409, f'pod {name} is already assigned to node "{raw["spec"]["nodeName"]}"')
            if raw["spec"].get("schedulingGates"):
                return status(409, f"pod {name} has non-empty .spec.schedulingGates")
            raw = copy.deepcopy(raw)
            raw["spec"]["nodeName"] = body["target"]["name"]
            raw["metadata"].setdefault("annotations", {}).update(wanted.get("annotations") or {})
            if wanted.get("labels"):
                raw["metadata"].setdefault("labels", {}).update(wanted["labels"])
            self.put("pods", raw)
            return 201, {"kind": "Status", "status": "Success"}

    def patch(self, namespace: str, name: str, body: Json) -> tuple[int, Json]:
        """A strategic merge PATCH of a pod's status with conditions, its labels, annotations and gates."""
        with self.changed:
            raw = self.objects["pods"].get(f"{namespace}/{name}")
            if raw is None:
                return status(404, f'pods "{name}" not found')
            uid = raw["metadata"]["uid"]
            if body.get("metadata", {}).get("uid", uid) != uid:
                return status(409, "Precondition failed: UID in precondition")
            there = raw["metadata"]["resourceVersion"]
            if body.get("metadata", {}).get("resourceVersion", there) != there:
                return status(409, "the object has been modified; apply your changes to the latest")
            raw = copy.deepcopy(raw)
            sent = body.get("status", {})
            labels = {**raw["metadata"].get("labels", {}), **body.get("metadata", {}).get("labels", {})}
            if labels:
                raw["metadata"]["labels"] = {key: text for key, text in labels.items() if text is not None}
            if written := body.get("metadata", {}).get("annotations"):
                raw["metadata"]["annotations"] = {**raw["metadata"].get("annotations", {}), **written}
            if gone := [each["name"] for each in body.get("spec", {}).get("schedulingGates", ())]:
                gates = raw["spec"].get("schedulingGates", ())
                raw["spec"]["schedulingGates"] = [each for each in gates if each["name"] not in gone]
            if "nominatedNodeName" in sent:
                raw["status"]["nominatedNodeName"] = sent["nominatedNodeName"]
            if "message" in sent:
                raw["status"]["message"] = sent["message"]
            conditions = {each["type"]: each for each in raw["status"].get("conditions", [])}
            for each in sent.get("conditions", []):
                merged = {**conditions.get(each["type"], {}), **each}
                conditions[each["type"]] = {key: value for key, value in merged.items() if value is not None}
            if conditions:
                raw["status"]["conditions"] = list(conditions.values())
            if raw == self.objects["pods"][f"{namespace}/{name}"]:
                return 200, raw  # a patch without a change keeps the version
            return 200, self.put("pods", raw)

    def leave(self, namespace: str, name: str, options: Json, evicted: bool) -> tuple[int, Json]:
        """An Eviction or a DELETE of a pod: it is to end by its grace period, which the test lets pass."""
        with self.changed:
            raw = self.objects["pods"].get(f"{namespace}/{name}")
            if raw is None:
                return status(404, f'pods "{name}" not found')
            if options["preconditions"]["uid"] != raw["metadata"]["uid"]:
                return status(409, "Precondition failed: UID in precondition")
            if evicted and name in self.vetoed:
                return status(
                    self.vetoed[name], 'admission webhook "e.example.com" denied the request: not now'
                )
            if evicted and name in self.protected:
                causes = [{"reason": "DisruptionBudget", "message": "The disruption budget keeps it"}]
                body = status(429, "Cannot evict pod as it would violate the pod's disruption budget.")[1]
                return 429, body | {"reason": "TooManyRequests", "details": {"causes": causes}}
            if "dryRun" not in options:
                raw = copy.deepcopy(raw)
                raw["metadata"]["deletionTimestamp"] = self.leaves_at
                if "gracePeriodSeconds" in options:
                    raw["metadata"]["deletionGracePeriodSeconds"] = options["gracePeriodSeconds"]
                self.put("pods", raw)
            return 201 if evicted else 200, {"kind": "Status", "status": "Success"}

    def route(self, method: str, url: str, body: Json) -> tuple[str, Any, Callable[[], tuple[int, Json]]]:
        """The verb of a call other than a watch, what is remembered of it, and what answers it."""
        path, _, query = url.partition("?")
        parts = path.split("/")
        last = parts[-1]
        if "leases" in parts:
            sent = path if method == "GET" else body
            return "lease", sent, lambda: self.lease(method, path, body)
        if method == "GET" and last in self.objects:
            return LISTS.get(last, "list"), dict(parse_qsl(query)), lambda: (200, self.listed(last))
        if path == "/apis/resource.k8s.io/v1":
            return "claims", path, lambda: (200, {}) if self.serves_claims else status(404, "not found")
        if method == "POST" and last == "events":
            return "event", body, lambda: (201, body)
        if last in ("tokenreviews", "subjectaccessreviews"):
            return "review", body, lambda: (201, {"status": self.review(body["spec"])})
        namespace, name = parts[4], parts[6]
        if last == "eviction":
            options = body["deleteOptions"]
            verb = "probe" if "dryRun" in options else "evict"
            return verb, body, lambda: self.leave(namespace, name, options, evicted=True)
        if method == "DELETE":
            return "delete", name, lambda: self.leave(namespace, name, body, evicted=False)
        if method == "PATCH":
            return "patch", body, lambda: self.patch(namespace, name, body)
        if method == "POST":
            return "bind", body, lambda: self.bind(namespace, name, body)
        return "get", path, lambda: self.get(namespace, name)

    def begin(self, verb: str, sent: Any, do: Callable[[], object]) -> Fault | None:
        """Remembers a call. The fault on order for its verb, after it was obeyed where it is to be."""
        with self.changed:
            self.calls.append((verb, sent))
        fault = self.take_fault(verb)
        if fault is not None and fault.obeyed:
            do()
        return fault

    def take_fault(self, verb: str) -> Fault | None:
        """The next fault on order for this verb."""
        with self.changed:
            for fault in self.faults:
                if fault.verb == verb:
                    self.faults.remove(fault)
                    return fault
        return None
