"""An API server that answers as it is told to, behind its client."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.timekeeper.worlds import Json
from timekeeper.edge.http_client import tcp
from timekeeper.runtime.api_server import Answered, Api, Reply

Answers = Mapping[str, Reply]  # by call, as `Played.calls` has them, or by its first word
EVENT = "post-event"


class Played(Api):
    """Answers as it is told to, else that it accepts. ``calls``: what was asked about which pod."""

    def __init__(self, answers: Answers, budgets: Sequence[Json] = ()) -> None:
        super().__init__("http://played", tcp, dict)
        self._answers, self._budgets = answers, budgets
        self.calls: list[str] = []
        self.bodies: dict[str, Mapping[str, Any]] = {}

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **_options: Any) -> Reply:
        if method == "GET":
            return self._answers.get("read", Answered(200, {"items": self._items(path)}))
        sent = body or {}
        if path.endswith("/events"):
            self.calls.append(EVENT)
            return Answered(201, sent)
        verb = {"PATCH": "condition", "DELETE": "delete"}.get(method, "evict")
        if sent.get("deleteOptions", {}).get("dryRun"):
            verb = "try"
        asked = f"{verb} {path.split('/')[6]}"
        self.calls.append(asked)
        self.bodies[asked] = sent
        return self._answers.get(asked, self._answers.get(verb, Answered(201, {})))

    def _items(self, path: str) -> Sequence[Json]:
        """The budgets, or the pod that is named, which they select."""
        if path.endswith("/poddisruptionbudgets"):
            return self._budgets
        name = path.rpartition("%3D")[2]
        return [{"metadata": {"uid": f"uid-{name}", "labels": {"app": "web"}}}]
