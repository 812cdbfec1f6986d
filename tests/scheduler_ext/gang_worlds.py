"""Gangs before an API server of a few lines, with a clock that is turned by hand: what the extender's starts
call, and what comes of it."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.memory import StartSettings
from scheduler_ext.gangs.starts import GangStarts, StartWiring
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pod import Pod, read_any
from scheduler_ext.model.standing import UNHEARD, NamespaceStandings
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.gang_table import Gangs
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.waiting.order import ANYWHERE, queue_key
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import node, percent
from tests.worlds import Json, card
from timekeeper.core.object_names import timestamp
from timekeeper.core.request.cards import encode_placement
from timekeeper.runtime.api_server import Answered, Lost, Reply

START_MS = 1_800_000_000_000
BUDGET, CARDS = "bursar.dev/budget", "bursar.dev/gang"
STARTED = "bursar.dev/gang-started"


def member(
    name: str,
    size: int = 2,
    *,
    gang: str = "g",
    share: int = 100,
    gates: Sequence[str] = (CARDS,),
    created_s: int = -60,
    marks: Mapping[str, str] | None = None,
    **fields: Any,
) -> Json:
    """A paid member of a gang, whose owner has the gang's name. ``created_s``: seconds after the world's
    beginning; ``marks``: further annotations."""
    written = {"bursar.dev/held": "turn", CARDS: gang, "bursar.dev/gang-size": str(size)}
    written |= {"bursar.dev/gang-key": f"bursar/{gang}", **(marks or {})}
    raw = percent(share, name, annotations=written, **fields)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": gang, "uid": f"uid-{gang}", "controller": True}
    raw["metadata"] |= {"creationTimestamp": stamp(START_MS + 1000 * created_s), "ownerReferences": [owner]}
    if gates:
        raw["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    return raw


def members(names: str, **fields: Any) -> list[Json]:
    """Members with these letters as names, which are the whole gang unless ``size`` says more."""
    return [member(name, **{"size": len(names), **fields}) for name in names]


def owned_by(raw: Json, uid: str, version: str = "batch/v1", kind: str = "Job") -> Json:
    """The pod of another owner; "": a bare pod."""
    owner = {**raw["metadata"]["ownerReferences"][0], "uid": uid, "apiVersion": version, "kind": kind}
    return {**raw, "metadata": {**raw["metadata"], "ownerReferences": [owner] if uid else []}}


def named_node(name: str, cards: int) -> Json:
    """A node with so many cards, and the label that each node has."""
    raw = node(name, *map(card, range(cards)))
    return {**raw, "metadata": {**raw["metadata"], "labels": {"kubernetes.io/hostname": name}}}


def near(raw: Json, label: str = "rack") -> Json:
    """The member of a gang whose nodes have one value of this label."""
    raw["metadata"]["annotations"]["bursar.dev/gang-topology"] = label
    return raw


def silent(*_: object, **__: object) -> None:
    """Nothing is done."""


def starts_of(
    api: Any, cache: ClusterCache, given: Callable[[Snapshot], PlanInput], turns: DrainTurns, **wiring: Any
) -> GangStarts:
    """What starts gangs before this API server, which has the time, too."""
    others = {
        "group": silent,
        "order": lambda pod: queue_key(pod, ANYWHERE, UNHEARD),
        "leads": lambda: True,
        "tell": silent,
        "started": silent,
    }
    wired = StartWiring(
        cache=cache,
        given=lambda snapshot, _pod: given(snapshot),
        policies=lambda _: BINPACK,
        calls=GangCalls(api, lambda: int(api.now_ms), at_once=1),
        drains=GangDrains(cache, given, turns, silent),
        steady_ms=lambda: int(api.now_ms),
        now_ms=lambda: int(api.now_ms),
        log=silent,
        **{**others, **wiring},
    )
    return GangStarts(wired)


class GangWorld:
    """``nodes``: how many cards each has. ``calls``: the verb, the pod's name and the body of each call;
    ``answers``: by a pod's name the status that its calls get; 0: no answer comes; ``follows``: whether the
    watch shows what is written; ``told``: reason and text; ``started``: sizes and seconds."""

    def __init__(
        self,
        nodes: Mapping[str, int],
        raws: Iterable[Json] = (),
        drains: tuple[int, int] = (0, 0),
        **settings: Any,
    ) -> None:
        self.now_ms, self.version, self.follows, self.leads = START_MS, 10, True, True
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.calls: list[tuple[str, str, Json]] = []
        self.answers: dict[str, int] = {}
        self.told: list[tuple[str, str]] = []
        self.started: list[tuple[int, int]] = []
        self.standings, self.ahead = NamespaceStandings(), list[str]()
        self.owner: Json = {}  # the one that there is
        self.groups: dict[str, int] = {}  # PodGroups by namespace and name, and their minimums
        self.reads: list[float] = []  # the seconds at which an owner was read
        self.read_paths: list[str] = []
        self.before_plan: Callable[[], object] = lambda: None
        self.lengths, self.settings = drains, StartSettings(**settings)
        for name, cards in nodes.items():
            self.nodes[name] = named_node(name, cards)
        self.put(*raws)
        self.begin()

    def begin(self) -> None:
        """The extender starts, as after it was killed."""
        self.cache, self.gangs = ClusterCache(lambda: self.now_ms, lambda _: None), Gangs()
        self.cache.nodes_listed(map(read_node, self.nodes.values()))
        self.cache.pods_listed([read_any(raw) for raw in self.pods.values()])
        self.starts = starts_of(
            self,
            self.cache,
            self._given,
            DrainTurns(*self.lengths),
            gangs=self.gangs,
            group=self.groups.get,
            order=lambda pod: queue_key(pod, ANYWHERE, self.standings),
            leads=lambda: self.leads,
            tell=lambda _it, _pods, reason, text: self.told.append((reason, text)),
            started=lambda size, seconds: self.started.append((size, seconds)),
            settings=self.settings,
        )

    def _given(self, snapshot: Snapshot) -> PlanInput:
        self.before_plan()
        ahead = (snapshot.pods.get(f"uid-{name}") for name in self.ahead)
        first = tuple(pod for pod in ahead if pod is not None and pod.waits)
        return PlanInput(snapshot, self.standings, lambda _: BINPACK, ahead=first)

    # the API server

    def put(self, *raws: Json) -> None:
        """These pods are created, or change."""
        for raw in raws:
            self.version += 1
            raw = copy.deepcopy(raw)
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.pods[raw["metadata"]["name"]] = raw
            if self.follows and hasattr(self, "cache"):
                self.cache.pod_updated(read_any(raw))

    def change(self, name: str, status: Json | None = None, **metadata: Any) -> None:
        """The pod with these fields of its metadata and status."""
        raw = self.pods[name]
        both = {"metadata": {**raw["metadata"], **metadata}, "status": {**raw["status"], **(status or {})}}
        self.put({**raw, **both})

    def end(self, name: str, phase: str = "Succeeded") -> None:
        self.change(name, {"phase": phase})

    def leave(self, name: str) -> None:
        """The pod is being deleted."""
        self.change(name, deletionTimestamp=stamp(self.now_ms + 30_000))

    def delete(self, *pods: str) -> None:
        """Their objects go, after their containers have ended."""
        for name in pods:
            if "nodeName" in self.pods[name]["spec"]:
                self.end(name, "Failed")
            self.cache.pod_deleted(read_any(self.pods.pop(name)))

    def put_node(self, name: str, cards: int, spec: Json | None = None, **allocatable: str) -> None:
        """The node comes, or changes. ``allocatable``: resources of Bursar, by their last word."""
        raw = named_node(name, cards)
        there = {f"bursar.dev/gpu-{key}": value for key, value in allocatable.items()}
        raw["status"]["allocatable"] = {**raw["status"]["allocatable"], **there}
        self.nodes[name] = {**raw, "spec": spec or {}}
        self.cache.node_updated(read_node(self.nodes[name]))

    def call(self, method: str, path: str, body: Json | None = None, **_more: object) -> Reply:
        """A call of the extender."""
        parts = path.split("/")
        if body is None:
            self.reads.append((self.now_ms - START_MS) / 1000)
            self.read_paths.append(path)
            return Answered(200 if self.owner else 404, self.owner)
        name, what = parts[6], "evict" if parts[-1] == "eviction" else method.lower()
        self.calls.append((what, name, body))
        raw, status = self.pods.get(name), self.answers.get(name, 200)
        if raw is None:
            return Answered(404, {"message": "not found"})
        if status != 200:
            return Answered(status, {"message": "refused"}) if status else Lost("no answer")
        if what == "evict":
            self.leave(name)
        elif "status" not in body:
            gone = [each["name"] for each in body.get("spec", {}).get("schedulingGates", ())]
            gates = [each for each in raw["spec"].get("schedulingGates", ()) if each["name"] not in gone]
            written = {**raw["metadata"]["annotations"], **body["metadata"].get("annotations", {})}
            metadata = {**raw["metadata"], "annotations": written}
            self.put({**raw, "metadata": metadata, "spec": {**raw["spec"], "schedulingGates": gates}})
        return Answered(200, self.pods[name])

    # time, and kube-scheduler

    def step(self, after_s: float = 0) -> "GangWorld":
        """One step, so much later."""
        self.now_ms += round(1000 * after_s)
        self.cache.expire()
        self.starts.step()
        return self

    def steps(self, seconds: float, each_s: float = 1) -> None:
        """Steps for so long."""
        for _ in range(round(seconds / each_s)):
            self.step(each_s)

    def try_(self, pods: str) -> None:
        """kube-scheduler tries these pods, and they get no node."""
        for name in pods:
            self.starts.tried(f"uid-{name}")

    def bind(self, pods: Iterable[str], phase: str = "Running") -> list[str]:
        """These pods are bound where cards are kept for them; the marks of their Bindings."""
        marks = []
        for name in pods:
            pod, where = self.pod(name), self.planned[name]
            self.starts.tried(pod.uid)
            there = self.cache.snapshot.node(where)
            assert pod.request is not None
            placement = fit(pod.request, as_found_by(pod.uid, there), BINPACK)
            assert not isinstance(placement, Refusal)
            assert self.cache.assume(pod, there, placement) is True
            marks.append(self.starts.mark_of(pod))
            raw = self.pods[name]
            written = {"bursar.dev/devices": encode_placement(placement)}
            written |= {STARTED: marks[-1]} if marks[-1] else {}
            metadata = {**raw["metadata"], "annotations": {**raw["metadata"]["annotations"], **written}}
            status = {**raw["status"], "phase": phase, "startTime": stamp(self.now_ms)}
            spec = {**raw["spec"], "nodeName": where}
            self.put({**raw, "metadata": metadata, "spec": spec, "status": status})
            self.starts.bound(pod)
        return marks

    def start(self, pods: str) -> None:
        """These members get their nodes, and the gang has started."""
        self.step()
        self.bind(pods)
        self.step()

    # what there is

    def pod(self, name: str) -> Pod:
        found = self.cache.snapshot.pods.get(f"uid-{name}")
        assert found is not None
        return found

    @property
    def planned(self) -> dict[str, str]:
        """The nodes where cards are kept, by the name of the member."""
        snapshot = self.cache.snapshot
        found = {}
        for name in sorted(self.pods):
            allocation = snapshot.allocation(f"uid-{name}")
            if allocation is not None and allocation.state == "planned":
                found[name] = snapshot.allocated_on.get(f"uid-{name}") or ""
        return found

    @property
    def open(self) -> str:
        """The members without a gate."""
        return "".join(name for name in sorted(self.pods) if not self.gates(name))

    def gates(self, name: str) -> list[str]:
        return [each["name"] for each in self.pods[name]["spec"].get("schedulingGates", ())]

    @property
    def evicted(self) -> str:
        """Who was asked to leave, in order."""
        return "".join(name for what, name, _ in self.calls if what == "evict")

    def marks(self, pods: str) -> str:
        """Which of these bear the mark."""
        return "".join(name for name in pods if STARTED in self.pods[name]["metadata"]["annotations"])

    @property
    def now(self) -> str:
        """The time, as a mark has it."""
        return timestamp(self.now_ms)

    def says(self, name: str) -> str:
        """What the member's gang waits for."""
        return self.starts.lack(self.pod(name))
