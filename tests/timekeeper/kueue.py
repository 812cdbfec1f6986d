"""LocalQueues as an API server holds them: server-side apply of `stopPolicy` with managed fields, versions
and defaults. Written from the documentation of server-side apply, beside the product."""

from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.timekeeper.clocks import iso
from timekeeper.runtime.api_server import Answered, Reply, Unsent

Json = dict[str, Any]
OURS = "bursar-timekeeper-queues"
FIELD: Json = {"f:spec": {"f:stopPolicy": {}}}


class LocalQueues:
    """By namespace and name. ``written``: what was applied, in order: (namespace/name, value or None)."""

    def __init__(self, clock: Any) -> None:
        self.clock, self.there = clock, dict[str, Json]()
        self.written: list[tuple[str, str | None]] = []
        self.answer: Reply | None = None  # of the next calls, in place of their effect
        self.calls = 0
        self._versions: Iterator[int] = count(1)

    def create(
        self, namespace: str, name: str, manager: str = "kubectl-create", policy: str = "None"
    ) -> None:
        """By default the CRD's value is the creator's."""
        uid = f"uid-{namespace}-{name}"
        entry = {"manager": manager, "operation": "Update", "time": self._now(), "fieldsV1": FIELD}
        self.there[f"{namespace}/{name}"] = {
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "managedFields": [entry]},
            "spec": {"clusterQueue": "gpus", "stopPolicy": policy},
        }
        self._change(f"{namespace}/{name}")

    def set(self, key: str, policy: str, manager: str = "kubectl-edit") -> None:
        """Another one writes the value, and owns it alone."""
        queue = self.there[key]
        queue["spec"]["stopPolicy"] = policy
        entry = {"manager": manager, "operation": "Update", "time": self._now(), "fieldsV1": FIELD}
        queue["metadata"]["managedFields"] = [entry]
        self._change(key)

    def policies(self) -> dict[str, str]:
        return {key: queue["spec"]["stopPolicy"] for key, queue in sorted(self.there.items())}

    def owners(self, key: str) -> list[str]:
        return [entry["manager"] for entry in self.there[key]["metadata"]["managedFields"]]

    def call(self, method: str, path: str, body: Json, *, content_type: str, timeout_s: float) -> Reply:
        """An apply of the product."""
        assert (method, content_type) == ("PATCH", "application/apply-patch+yaml")
        self.calls += 1
        if self.answer is not None:
            return self.answer
        address = urlsplit(path)
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        *_, namespace, kind, name = address.path.split("/")
        assert (kind, asked["fieldManager"]) == ("localqueues", OURS)
        queue, key = self.there.get(f"{namespace}/{name}"), f"{namespace}/{name}"
        metadata = body["metadata"]
        if queue is None or queue["metadata"]["uid"] != metadata["uid"]:
            return Answered(409, {"message": "uid mismatch"})
        if (
            metadata.get("resourceVersion", queue["metadata"]["resourceVersion"])
            != (queue["metadata"]["resourceVersion"])
        ):
            return Answered(409, {"message": "the object has been modified"})
        self._apply(queue, body.get("spec"), "force" in asked)
        self.written.append((key, body.get("spec", {}).get("stopPolicy")))
        self._change(key)
        return Answered(200, queue)

    def _apply(self, queue: Json, spec: Json | None, is_forced: bool) -> None:
        assert spec in (None, {"stopPolicy": "Hold"})
        managed = queue["metadata"]["managedFields"]
        others = [entry for entry in managed if entry["manager"] != OURS]
        if spec is None:
            if len(others) < len(managed) and not others:
                queue["spec"]["stopPolicy"] = "None"  # nobody has the field: the default
            queue["metadata"]["managedFields"] = others
            return
        assert is_forced
        if queue["spec"]["stopPolicy"] != "Hold":
            queue["spec"]["stopPolicy"], others = "Hold", []
        entry = {"manager": OURS, "operation": "Apply", "time": self._now(), "fieldsV1": FIELD}
        queue["metadata"]["managedFields"] = [*others, entry]

    def _now(self) -> str:
        return iso(self.clock() // 1000 * 1000)

    def _change(self, key: str) -> None:
        self.there[key]["metadata"]["resourceVersion"] = str(next(self._versions))


AWAY = Unsent("the API server cannot be reached")
