"""Gangs for which others leave, before an API server of a few lines: the extender's starts, its preemptor and
what has others leave for gangs, with a clock that is turned by hand."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.gangs.displacer import DisplacerWiring, GangDisplacer
from scheduler_ext.model.pdb import NONE
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.scoring.policy import BINPACK
from tests.scheduler_ext.gang_worlds import GangWorld, member, silent
from tests.scheduler_ext.preempting import DEBTOR, IN_BUDGET
from tests.scheduler_ext.worlds import on, percent
from tests.worlds import Json
from timekeeper.runtime.api_server import Answered, Lost, Reply

SCHEDULER = "bursar-scheduler"
LIMITS = PreemptionLimits(180_000, 600_000, 8, SCHEDULER, False)


def mine(name: str, size: int = 2, **fields: Any) -> Json:
    """A paid member of a gang of team-a, for Bursar's scheduler."""
    raw = member(name, size, schedulerName=SCHEDULER, **fields)
    raw["metadata"]["namespace"] = "team-a"
    return raw


def theirs(
    name: str,
    where: str,
    place: int,
    namespace: str = "team-b",
    share: int = 100,
    **fields: Any,
) -> Json:
    """A pod that has a card of the node, of a namespace that is over budget if nothing else is said."""
    raw = percent(share, name, terminationGracePeriodSeconds=30, **fields)
    raw = on(raw, where, f"{where}-GPU-{place}")
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"job-{name}",
        "uid": f"uid-job-{name}",
        "controller": True,
    }
    raw["metadata"] |= {"namespace": namespace, "ownerReferences": [owner]}
    return raw


class DisplacingWorld(GangWorld):
    """``kept``: names of pods that a PodDisruptionBudget keeps; ``pdbs``: what the extender knows of them."""

    def __init__(self, nodes: Mapping[str, int], raws: Iterable[Json] = (), **settings: Any) -> None:
        self.pdbs, self.kept = NONE, set[str]()
        self.lost: set[str] = set()  # names of members of which a condition is not written
        super().__init__(nodes, raws, **settings)
        self.standings = NamespaceStandings({"team-a": IN_BUDGET, "team-b": DEBTOR, "team-c": IN_BUDGET})

    def begin(self) -> None:
        """The extender starts, as after it was killed."""
        super().begin()
        api: Any = self
        self.preemptor = Preemptor(api, self._preemptor_wiring(), LIMITS)
        wiring = DisplacerWiring(
            due=self.starts.due,
            state=self.starts.state,
            given=self.starts.given,
            failed=self.starts.given_back,
            calls=GangCalls(api, lambda: self.now_ms, at_once=1),
            deadline_ms=60_000,
        )
        self.displacer = GangDisplacer(self.preemptor, wiring, LIMITS)

    def _preemptor_wiring(self) -> PreemptorWiring:
        return PreemptorWiring(
            cache=self.cache,
            waiting_pods=list,
            policy=lambda _: BINPACK,
            standings=lambda: self.standings,
            pdbs=lambda: self.pdbs,
            leads=lambda: self.leads,
            freed=silent,
            tell=lambda pod, reason, text, *_: self.told.append((reason, f"{pod.name}: {text}")),
            log=silent,
            now_ms=lambda: self.now_ms,
            seconds=lambda: self.now_ms / 1000,
            breathe=silent,
            gangs=self.gangs,
            displace=lambda *moment: self.displacer.step(*moment),
        )

    def call(self, method: str, path: str, body: Json | None = None, **more: object) -> Reply:
        parts = path.split("/")
        name = parts[6] if len(parts) > 6 else ""
        raw = self.pods.get(name)
        if body is None or raw is None:
            return super().call(method, path, body, **more)
        if method == "DELETE":
            self.calls.append(("delete", name, body))
            self.leave(name)
            return Answered(200, self.pods[name])
        if parts[-1] == "eviction" and name in self.kept:
            causes = {"details": {"causes": [{"reason": "DisruptionBudget"}]}, "message": "kept"}
            return Answered(429, causes)
        if parts[-1] == "eviction" and body["deleteOptions"].get("dryRun"):
            return Answered(201, {})
        if "status" not in body:
            return super().call(method, path, body, **more)
        self.calls.append(("status", name, body))
        if name in self.lost:
            return Lost("no answer")
        wanted = body["metadata"].get("resourceVersion", raw["metadata"]["resourceVersion"])
        if body["metadata"]["uid"] != raw["metadata"]["uid"] or wanted != raw["metadata"]["resourceVersion"]:
            return Answered(409, {"message": "it has changed"})
        after = copy.deepcopy(raw)
        new = body["status"].get("conditions", [])
        kinds = {condition["type"] for condition in new}
        old = [each for each in after["status"].get("conditions", []) if each["type"] not in kinds]
        after["status"] = {**after["status"], **body["status"], "conditions": [*old, *new]}
        self.put(after)
        return Answered(200, self.pods[name])

    def step(self, after_s: float = 0) -> "DisplacingWorld":
        """One step of each thread, so much later."""
        self.now_ms += round(1000 * after_s)
        self.cache.expire()
        self.preemptor.step()
        self.starts.step()
        return self

    def condition(self, name: str) -> Json:
        """The member's condition CardsHeld; empty without one."""
        found = (
            each
            for each in self.pods[name]["status"].get("conditions", ())
            if each["type"] == "bursar.dev/CardsHeld"
        )
        return next(found, {})

    @property
    def held(self) -> str:
        """The waiting members for which cards are reserved."""
        waiting = (name for name in sorted(self.pods) if "nodeName" not in self.pods[name]["spec"])
        return "".join(name for name in waiting if self.condition(name).get("status") == "True")

    def flips(self, **standings: Any) -> None:
        """The standings are others now."""
        listed = {
            **self.standings.listed,
            **{name.replace("_", "-"): each for name, each in standings.items()},
        }
        self.standings = replace(self.standings, listed=listed)
