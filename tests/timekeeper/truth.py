"""Pods as they really are, whether or not that was observed, and their objects in the API server."""

import json
from copy import deepcopy
from dataclasses import dataclass, field

from tests.timekeeper.clocks import iso
from tests.worlds import Json

NEVER = "1970-01-01T00:00:00Z"  # the kubelet's startedAt of a container that it could not start

MODELS = (("NVIDIA A100-SXM4-80GB", 81_920), ("NVIDIA H100 80GB HBM3", 81_559), ("Tesla T4", 15_109))


@dataclass(frozen=True)
class Part:
    """One container's request on each of its cards: a share in percent, memory in MiB, or both."""

    name: str
    cards: tuple[int, ...]
    percent: int = 0
    memory: int = 0
    init: bool = False

    def raw(self) -> Json:
        """The container in a pod's spec."""
        asked = {"gpu-percent": self.percent, "gpu-memory": self.memory}
        limits = {f"bursar.dev/{name}": str(n * len(self.cards)) for name, n in asked.items() if n}
        if len(self.cards) > 1:
            limits["bursar.dev/gpu-count"] = str(len(self.cards))
        return {"name": self.name, "image": "registry.example/app:1", "resources": {"limits": limits}}

    def placed(self) -> list[Json]:
        """Its part of the annotation ``bursar.dev/devices``."""
        share = 10 * self.percent
        return [
            {
                "uuid": f"GPU-{card}",
                "index": card,
                "share_milli": share,
                "memory_mib": self.memory or MODELS[card % len(MODELS)][1] * share // 1000,
            }
            for card in self.cards
        ]


def cards(count: int) -> Json:
    """A node's inventory by UUID, with alternating models."""
    return {
        f"GPU-{index}": {
            "uuid": f"GPU-{index}",
            "index": index,
            "model": MODELS[index % len(MODELS)][0],
            "memory_mib": MODELS[index % len(MODELS)][1],
            "healthy": True,
        }
        for index in range(count)
    }


def node(name: str, count: int) -> Json:
    """A Node object with these cards."""
    listed = json.dumps({"version": 1, "cards": list(cards(count).values())})
    return {"metadata": {"name": name, "annotations": {"bursar.dev/inventory": listed}}}


@dataclass
class Life:
    """One container: its present and last state, as in a status."""

    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return "running" in self.state


@dataclass
class Pod:
    """A pod."""

    uid: str
    name: str
    namespace: str
    node: str
    parts: tuple[Part, ...]
    bound: int
    grace_s: int
    scheduler: str = "bursar-scheduler"  # another one writes no placement
    phase: str = "Pending"
    first: int | None = None  # when its cards were first used
    end: int | None = None  # when its cards were released
    gone: int | None = None  # when its object was deleted
    leaves: int | None = None  # the deadline of a requested deletion
    slack: int = 0  # how much too late its evidence may be dated, because a clock was wrong
    seen: int = 0  # when its node or its sidecar last reported it
    ahead: int = 0  # by how much the clock of its node is ahead, which writes its statuses
    began: int | None = None  # its startTime; None: it is not written
    changes: list[int] = field(default_factory=list)  # when its containers started and ended
    finishes: list[int] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lives = {part.name: Life() for part in self.parts}

    @property
    def there(self) -> bool:
        return self.gone is None

    @property
    def running(self) -> list[str]:
        return [name for name, life in self.lives.items() if life.runs]

    @property
    def waiting(self) -> list[str]:
        """The containers that the kubelet would start next: init containers first."""
        first = [part.name for part in self.parts if part.init and not self._is_through(part.name)]
        return first or [part.name for part in self.parts if not part.init and not self.lives[part.name].runs]

    def _is_through(self, name: str) -> bool:
        return "terminated" in self.lives[name].state

    def changed(self) -> int:
        """The time of the last change in its status."""
        return max(self.changes, default=self.bound)

    def finished(self) -> int:
        """The last end of a container; 0 without one."""
        return max(self.finishes, default=0)

    def _writes(self, at: int) -> str:
        """The time by its node's clock."""
        self.changes.append(at)
        return iso(at + self.ahead)

    def starts(self, at: int) -> None:
        """The waiting containers start. An init container ends when the next ones start."""
        for name in [part.name for part in self.parts if part.init and self.lives[part.name].runs]:
            self._stop(name, at)
        for name in self.waiting:
            self.lives[name].state = {"running": {"startedAt": self._writes(at)}}
        self.phase = (
            "Running" if any(not p.init and self.lives[p.name].runs for p in self.parts) else self.phase
        )
        self.first = at if self.first is None else self.first

    def fails_to_start(self, at: int) -> None:
        """The runtime cannot start the waiting containers; the kubelet backs off."""
        for name in self.waiting:
            self.finishes.append(at)
            run = {
                "startedAt": NEVER,
                "finishedAt": self._writes(at),
                "reason": "StartError",
                "exitCode": 128,
            }
            self.lives[name] = Life({"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": run})

    def crashes(self, at: int) -> None:
        """The running containers end and are restarted later: the kubelet backs off."""
        for name in self.running:
            self._stop(name, at)
            life = self.lives[name]
            self.lives[name] = Life({"waiting": {"reason": "CrashLoopBackOff"}}, life.state)

    def ends(self, at: int) -> None:
        """The pod ends for good."""
        for name in self.running:
            self._stop(name, at)
        self.phase, self.end = "Succeeded" if at % 2 else "Failed", at

    def _stop(self, name: str, at: int) -> None:
        life = self.lives[name]
        started = life.state["running"]["startedAt"]
        self.finishes.append(at)
        ended = self._writes(at)
        life.state = {"terminated": {"startedAt": started, "finishedAt": ended, "exitCode": at % 2}}

    def raw(self) -> Json:
        """Its object in the API server."""
        placed = {part.name: part.placed() for part in self.parts}
        metadata: Json = {
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "creationTimestamp": iso(self.bound),
            "annotations": {
                "bursar.dev/standing": "IN_BUDGET",
                "bursar.dev/devices": json.dumps({"version": 1, "containers": placed}),
            },
        }
        if self.scheduler != "bursar-scheduler":
            del metadata["annotations"]["bursar.dev/devices"]
        if self.leaves is not None:
            metadata |= {"deletionTimestamp": iso(self.leaves), "deletionGracePeriodSeconds": self.grace_s}
        if self.gone is not None:
            metadata |= {"deletionTimestamp": iso(self.gone), "deletionGracePeriodSeconds": 0}
        return {
            "metadata": metadata,
            "spec": {
                "nodeName": self.node,
                "schedulerName": self.scheduler,
                "terminationGracePeriodSeconds": self.grace_s,
                "initContainers": [part.raw() for part in self.parts if part.init],
                "containers": [part.raw() for part in self.parts if not part.init],
            },
            "status": self._status(),
        }

    def _status(self) -> Json:
        def told(is_init: bool) -> list[Json]:
            return [
                {"name": name, "state": deepcopy(life.state), "lastState": deepcopy(life.last)}
                for name, life in self.lives.items()
                if any(part.name == name and part.init == is_init for part in self.parts)
            ]

        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": iso(self.bound)}
        return {
            **({} if self.began is None else {"startTime": iso(self.began)}),
            "phase": self.phase,
            "conditions": [bound],
            "initContainerStatuses": told(True),
            "containerStatuses": told(False),
        }


SHAPES = 8


def parts(shape: int, percent: int, card: int) -> tuple[Part, ...]:
    """Containers of one of the shapes that requests have."""
    memory, other = 64 + 97 * percent, card + 1
    return (
        (Part("main", (card,), percent),),
        (Part("main", (card,), 0, memory),),
        (Part("main", (card,), percent, memory),),
        (Part("main", (card, other), percent),),
        (Part("main", (card,), 100), Part("more", (other,), percent)),
        (Part("main", (card,), percent // 2 + 1), Part("more", (card,), 0, memory)),
        (Part("first", (card,), 100 - percent, init=True), Part("main", (card,), percent)),
        (
            Part("first", (card,), 0, memory, init=True),
            Part("main", (card,), percent),
            Part("more", (card, other), 3, 2 * memory),
        ),
    )[shape]
