"""Who evicts in a town: an API server that answers as it is told to, and what follows from its answers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.events import UnqueuedRecorder
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer
from tests.timekeeper.worlds import Json, Town, agent_status, token
from timekeeper.core.decisions import Decision
from timekeeper.edge.log import log
from timekeeper.runtime.api_server import Api, event_sender
from timekeeper.runtime.connect import connect
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.process import REPORTER

PDB_429 = {
    "kind": "Status",
    "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    "reason": "TooManyRequests",
    "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pods and has 1"}]},
}


class Leaving:
    """``decisions``: what was recorded by the rounds that `context` was given to."""

    def __init__(self, town: Town, api: FakeApiServer, url: str, folder: Path) -> None:
        self.town, self.api, self.url = town, api, url
        self.decisions: list[Decision] = []
        self._server = connect(kubeconfig(folder, url))
        self._sequence = 0

    def context(self, steady: Callable[[], int] | None = None, server: Api | None = None) -> EvictorContext:
        """Of a process that has just begun to settle. ``steady``: its monotonic clock, else the town's."""
        town, settler, called = self.town, self.town.settler, server or self._server
        events = UnqueuedRecorder(event_sender(called), REPORTER, settler.epoch.holder, town.clock, log)
        shared = town.store, settler.epoch, called, events, lambda: settler.view, town.clock
        return EvictorContext(*shared, steady or town.clock, self.decisions.append, settler.vetoes)

    def asked(self) -> list[str]:
        """The pods that were asked to leave."""
        return [eviction["metadata"]["name"] for eviction in self.api.evictions]

    def pod(self, name: str) -> Json:
        return next(pod for pod in self.town.objects["pods"].values() if pod["metadata"]["name"] == name)

    def report(self, pods: Sequence[Json], cards: Sequence[Json] = (), by: str = "n1") -> None:
        """The next report of a node's agent: what the pods and cards use now."""
        self._sequence += 1
        agent = token(f"agent-{by}")
        self.town.reviews.tokens[agent] = agent_status(by)
        use = {"age_ms": 0, "pods": pods, "cards": cards}
        body = {"version": 1, "boot": "run", "sequence": self._sequence, "uses": [use]}
        assert self.town.post("/v1/nodeusage", body, agent).status_code == 200

    def apply(self, patches: Sequence[tuple[str, Json]]) -> None:
        """The pods get what the patches say of their annotations, and the settler hears of it."""
        for path, body in (patch for patch in patches if "/pods/" in patch[0]):
            pod = self.pod(path.split("/")[-2])
            assert body["metadata"]["uid"] == pod["metadata"]["uid"]
            merged = pod["metadata"]["annotations"] | body["metadata"].get("annotations", {})
            pod["metadata"]["annotations"] = {key: text for key, text in merged.items() if text is not None}
            self.town.hear("pods", pod)
