"""The pods of a simulated cluster, and an API server that holds them: it answers the calls that Bursar's
evictors, releaser and preemptor make.

A call may fail before or after it was done, by the simulation's choice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from msgspec import structs

from scheduler_ext.model import pod as extenders
from timekeeper.accounts import pods as ledgers
from timekeeper.core import names
from timekeeper.core.ledger import hold
from timekeeper.core.ledger.reservation import Reservation, read_reservation
from timekeeper.core.request.cards import encode_placement
from timekeeper.core.values import Placement
from timekeeper.runtime.api_server import Answered, Lost, Reply, Unsent

Json = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A controller that keeps so many pods. ``limits``: of each container; ``protects``: its
    PodDisruptionBudget allows no eviction; ``priority``: of the class that its pods name, 0: they name
    none."""

    name: str
    namespace: str
    limits: tuple[tuple[tuple[str, str], ...], ...]
    priority: int
    replicas: int
    protects: bool
    grace_s: int
    declares_s: int = 0  # its pods' activeDeadlineSeconds; 0: none
    overstays: bool = False  # their kubelet does not end them then
    idles: bool = False  # they do not always use their cards


@dataclass(frozen=True)
class Template:
    """A pod as the webhook has admitted it, and as ledger and extender read it."""

    raw: Json
    ledger: ledgers.LedgerPod
    extender: extenders.Pod


@dataclass(eq=False)
class SimPod:
    """One pod's object, without what its template has. Times in milliseconds since 1970."""

    uid: str
    name: str
    work: Workload
    template: Template
    created_ms: int
    gated: bool
    node: str = ""
    placement: Placement | None = None
    bound_ms: int | None = None
    ended_ms: int | None = None
    deletion_ms: int | None = None  # its deletionTimestamp
    ends_ms: int | None = None  # when the kubelet will have ended it
    evict_after_ms: int | None = None
    delete_after_ms: int | None = None
    reserved: Reservation | None = None
    let_go_ms: int | None = None
    idle_until_ms: int | None = None
    is_reclaimable: bool = False
    is_used: bool = True  # its cards, by its processes
    nominated: str = ""
    tried: bool = False
    version: int = 1
    # what the laws ask
    rate: int = 0  # weighted, since it is bound
    held_milli: int = 0
    first_notice_ms: int | None = None
    first_refusal_ms: int | None = None
    gone_ms: int | None = None
    tried_ms: int = 0  # the last call that asked it to leave
    unused_since_ms: int | None = None  # by the reports of its node; None: they show it in use, or nothing
    reported_ms: int = 0  # by the last of them
    is_noted_ms: int = 0  # when a notice that it is idle was last written

    @property
    def namespace(self) -> str:
        return self.work.namespace

    @property
    def priority(self) -> int:
        return self.template.ledger.priority

    @property
    def standing(self) -> str:
        """As the webhook recorded it, and for a pod that was held for its budget IN_BUDGET."""
        return self.template.ledger.standing

    @property
    def length_ms(self) -> int:
        """The time that it declared to reserve, and its grace; 0: none."""
        is_noted = "bursar.dev/declared" in self.template.raw["metadata"].get("annotations", {})
        return 1000 * (self.work.declares_s + self.work.grace_s) if is_noted else 0

    @property
    def waits(self) -> bool:
        """Whether a scheduler sees it without a node."""
        return not (self.node or self.gated or self.is_leaving or self.ended_ms is not None)

    @property
    def runs(self) -> bool:
        return self.bound_ms is not None and self.ended_ms is None

    @property
    def is_leaving(self) -> bool:
        return self.deletion_ms is not None

    def _hold(self) -> hold.PodHold:
        return replace(
            self.template.ledger.hold,
            bound_ms=self.bound_ms,
            over=self.ended_ms is not None,
            ended_ms=self.ended_ms,
            witnessed_ms=self.ended_ms or 0,
            deletion_ms=self.deletion_ms,
        )

    def for_ledger(self) -> ledgers.LedgerPod:
        """As the timekeeper reads it."""
        return replace(
            self.template.ledger,
            uid=self.uid,
            name=self.name,
            created_ms=self.created_ms,
            node=self.node,
            devices=encode_placement(self.placement) if self.placement else "",
            hold=self._hold(),
            is_gated=self.gated,
            is_untried=not (self.node or self.gated or self.tried),
            reserved=self.reserved if not self.node else None,
            let_go_ms=self.let_go_ms,
            evict_after_ms=self.evict_after_ms,
            delete_after_ms=self.delete_after_ms,
            idle_until_ms=self.idle_until_ms,
            is_reclaimable=self.is_reclaimable,
        )

    def for_extender(self) -> extenders.Pod:
        """As the extender reads it."""
        return structs.replace(
            self.template.extender,
            uid=self.uid,
            name=self.name,
            version=str(self.version),
            node=self.node,
            asked_ms=self.created_ms,
            placement=self.placement,
            hold=self._hold(),
            terminal=self.ended_ms is not None,
            gates=(names.BUDGET_GATE,) if self.gated else (),
            deleting=self.is_leaving,
            leaves_ms=self.deletion_ms or 0,
            reserved=self.reserved if not self.node and not self.is_leaving else None,
            started_ms=self.bound_ms or 0,
            nominated="" if self.node else self.nominated,
            unschedulable=self.tried and not self.node,
            is_idle=self.is_reclaimable,
        )


PROTECTED: Json = {
    "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    "details": {"causes": [{"reason": "DisruptionBudget"}]},
}


class Killed(Exception):
    """The caller is killed before it has the answer."""


@dataclass
class PodServer:
    """``changed`` is called with each pod that a call has changed. ``loses``: of a hundred calls, so many are
    not done, and so many are done without an answer. ``kills``: the next caller is killed."""

    now_ms: Callable[[], int]
    changed: Callable[[SimPod], None]
    random: Random
    pods: dict[str, SimPod] = field(default_factory=dict)  # by UID
    loses: int = 0
    kills: bool = False
    asked: list[tuple[SimPod, str]] = field(default_factory=list)  # who was made to leave, and how
    released: list[SimPod] = field(default_factory=list)  # whose gate was removed
    _by_name: dict[str, SimPod] = field(default_factory=dict)

    def add(self, pod: SimPod) -> None:
        """The pod is created."""
        self.pods[pod.uid] = self._by_name[f"{pod.namespace}/{pod.name}"] = pod

    def remove(self, pod: SimPod) -> None:
        """The pod's object is removed."""
        del self.pods[pod.uid], self._by_name[f"{pod.namespace}/{pod.name}"]

    def waiting(self) -> Iterator[SimPod]:
        return (each for each in self.pods.values() if each.waits)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 0.0,
    ) -> Reply:
        """One call, as `timekeeper.runtime.api_server.Api` makes it."""
        if method == "GET":  # of the owners of idle pods
            return Answered(403, {"message": "the timekeeper may not read it"})
        fate = self.random.randrange(100)
        self._note(method, path)
        if fate < self.loses:
            return Unsent("the API server is away")
        reply = self._answer(method, path, body)
        if self.kills:
            raise Killed
        return Lost("no answer came") if fate < 2 * self.loses else reply

    def _note(self, method: str, path: str) -> None:
        parts = path.split("/")
        pod = self._by_name.get(f"{parts[4]}/{parts[6]}")
        if pod is not None and method in ("POST", "DELETE"):
            pod.tried_ms = self.now_ms()

    def _answer(self, method: str, path: str, body: Any) -> Reply:
        parts = path.split("/")
        pod = self._by_name.get(f"{parts[4]}/{parts[6]}")
        action = parts[7] if len(parts) > 7 else ""
        if pod is None:
            return Answered(404, {"message": f'pods "{parts[6]}" not found'})
        if method == "POST" and action == "eviction":
            return self._evict(pod, body["deleteOptions"])
        if method == "DELETE":
            self._leave(pod, "deleted", body.get("gracePeriodSeconds"))
            return Answered(200, {})
        assert method == "PATCH", method
        return self._patch(pod, body)

    def _evict(self, pod: SimPod, options: Json) -> Reply:
        assert options["preconditions"]["uid"] == pod.uid
        if pod.work.protects and pod.runs:
            pod.first_refusal_ms = pod.first_refusal_ms or self.now_ms()
            return Answered(429, PROTECTED)
        if "dryRun" not in options:
            self._leave(pod, "evicted", None)
        return Answered(201, {})

    def _leave(self, pod: SimPod, how: str, grace_s: int | None) -> None:
        grace_s = pod.work.grace_s if grace_s is None else grace_s
        if not pod.is_leaving:
            self.asked.append((pod, how))
        pod.deletion_ms = self.now_ms() + 1000 * grace_s
        ends_ms = self.now_ms() + self.random.randint(0, 1000 * grace_s)
        pod.ends_ms = ends_ms if pod.ends_ms is None else min(pod.ends_ms, ends_ms)
        self._touch(pod)

    def _patch(self, pod: SimPod, body: Json) -> Reply:
        metadata = body["metadata"]
        assert metadata["uid"] == pod.uid
        if metadata.get("resourceVersion", str(pod.version)) != str(pod.version):
            return Answered(409, {"message": "the object has been modified"})
        for name, value in metadata.get("annotations", {}).items():
            self._annotate(pod, name, value)
        for condition in body.get("status", {}).get("conditions", ()):
            if condition["type"] == names.HELD_CONDITION:
                pod.reserved = read_reservation({"status": {"conditions": [condition]}})
                pod.let_go_ms = None if pod.reserved else hold.millis(condition["lastTransitionTime"])
        if "nominatedNodeName" in body.get("status", {}):
            pod.nominated = body["status"]["nominatedNodeName"] or ""
        if "schedulingGates" in body.get("spec", {}):
            pod.gated = False
            self.released.append(pod)
        self._touch(pod)
        return Answered(200, {})

    def _annotate(self, pod: SimPod, name: str, value: str | None) -> None:
        at_ms = hold.millis(value)
        if name == names.EVICT_AFTER:
            pod.evict_after_ms = at_ms
            pod.first_notice_ms = None if at_ms is None else pod.first_notice_ms or self.now_ms()
            pod.first_refusal_ms = None if at_ms is None else pod.first_refusal_ms
        elif name == names.DELETE_AFTER:
            pod.delete_after_ms = at_ms
        elif name == names.IDLE_UNTIL:
            pod.idle_until_ms, pod.is_noted_ms = at_ms, self.now_ms()
        elif name == names.RECLAIMABLE:
            pod.is_reclaimable, pod.is_noted_ms = value is not None, self.now_ms()

    def _touch(self, pod: SimPod) -> None:
        pod.version += 1
        self.changed(pod)
