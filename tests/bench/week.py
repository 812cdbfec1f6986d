"""A simulated week: what training jobs and single pods wait for, where the extender's own code decides.

``python -m tests.bench.week [--seeds N] [--jobs N] --json FILE`` simulates so many weeks;
``python -m tests.bench.week --compare BEFORE NOW`` sets two such files side by side. For another version
copy this file into its work tree.

The extender's cache, fit, scores, gangs' starts and drains, preemptor and displacer are the real ones. The
rest are models. *Nodes* and single pods are drawn from the published trace (`openb/README.md`), cards alone
and all alike. *Load*: owners come at random, with 0.8 of the cards' time in all, three tenths of it gangs of
whole cards. *Budgets*: each of eight namespaces has GPU time for a week of its own, half of them half of what
they ask for. Over budget, pods get the lower class, and may be reclaimed. *Owners* make a pod that left
again, and it starts from zero. Of a gang that runs all leave. *kube-scheduler* tries pods in the extender's
order, and leaves preemption to it.

The clock goes from event to event: the extender takes steps of 0.5 s until some in succession change
nothing, and sleeps until the next event, while pods wait for at most five minutes.
"""

import argparse
import csv
import heapq
import json
import lzma
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from scheduler_ext.cache.cluster_cache import ClusterCache
from scheduler_ext.clients.gang_calls import GangCalls
from scheduler_ext.controllers.preemptor import Preemptor, PreemptorWiring
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal
from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.displacer import DisplacerWiring, GangDisplacer
from scheduler_ext.gangs.drain_turns import DrainTurns
from scheduler_ext.gangs.drains import GangDrains
from scheduler_ext.gangs.starts import GangStarts, StartWiring
from scheduler_ext.model.node import read_node
from scheduler_ext.model.pdb import NONE
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.standing import NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.plan import PreemptionLimits
from scheduler_ext.scoring.policy import BINPACK
from scheduler_ext.snapshot.gang_table import Gangs
from scheduler_ext.snapshot.reservations import as_found_by
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.drained import DrainedFits, beside_drained
from scheduler_ext.verbs.fit_cache import FitCache, fit_key
from scheduler_ext.waiting.order import ANYWHERE, WaitingPod, queue_key, waiting_pod
from tests.scheduler_ext.gang_worlds import silent
from tests.scheduler_ext.reserving import stamp
from tests.scheduler_ext.worlds import asking, node
from tests.worlds import Json, card, container
from timekeeper.core.request.cards import encode_placement
from timekeeper.runtime.api_server import Answered, Reply

DATA = Path(__file__).parent / "openb"
START_MS, SECOND, HOUR = 1_800_000_000_000, 1_000, 3_600_000
DAYS, NODES, LOAD, GANGS = 7.0, 12, 0.8, 0.3
SIZES = {2: 34, 4: 32, 8: 22, 16: 12}  # of gangs, and how many of a hundred
HOURS, MOST_HOURS = 10.0, 48.0  # how long an owner's pods take: the mean of a log-normal, and at most
TEAMS, GRACE_MS, STEP_MS, LONGEST_MS = 8, 10 * SECOND, 500, 300 * SECOND
SCHEDULER = "bursar-scheduler"
LIMITS = PreemptionLimits(180_000, 600_000, 8, SCHEDULER, False)
LOOK_S = 1.0  # of the processor, as the extender gives a choice of victims
AHEAD, MOST_QUIET = 64, 2
ONLY = "uid", "resourceVersion"
IN_BUDGET, OVER = NamespaceStanding("IN_BUDGET", "reclaim"), NamespaceStanding("OVER_BUDGET", "reclaim")


@dataclass
class Owner:
    """A Job of one pod, or of a gang. ``milli``: of a card, of each of its ``cards``, which each pod asks;
    ``over``: the standing that admission saw; ``whole_ms``: since when all of its pods have a node;
    ``displaced``: when others had it leave."""

    name: str
    team: int
    size: int
    cards: int
    milli: int
    length_ms: int
    came_ms: int
    over: bool = False
    whole_ms: int | None = None
    waited_ms: int | None = None
    turned_ms: int | None = None  # when its namespace ran out of budget before its first start
    displaced: list[int] = field(default_factory=list)
    for_gangs: list[int] = field(default_factory=list)  # of these those for gangs
    run: int = 0

    @property
    def rate(self) -> float:
        return self.size * self.cards * self.milli / 1_000


@dataclass
class Team:
    """``budget``, ``spent``: card-hours, of its week; ``paid``: of all weeks."""

    budget: float
    turn_ms: int  # when its week begins anew
    spent: float = 0.0
    paid: float = 0.0
    held: float = 0.0  # cards now
    at_ms: int = START_MS

    def pay(self, now_ms: int) -> None:
        if now_ms >= self.turn_ms:
            self._until(self.turn_ms)
            self.spent, self.turn_ms = 0.0, self.turn_ms + 7 * 24 * HOUR
        self._until(now_ms)

    def _until(self, now_ms: int) -> None:
        hours, self.at_ms = self.held * (now_ms - self.at_ms) / HOUR, now_ms
        self.spent, self.paid = self.spent + hours, self.paid + hours


class Week:
    """``useful``, ``lost``: card-hours of pods that ended by themselves, and of those that were evicted."""

    def __init__(self, seed: int, days: float = DAYS, nodes: int = NODES, load: float = LOAD) -> None:
        self.random, self.now_ms, self.version = random.Random(seed), START_MS, 0
        self.end_ms = START_MS + round(days * 24 * HOUR)
        sizes = [int(row["gpu"]) for row in _rows("openb_node_list_gpu_node.csv.xz")]
        raws = [
            node(f"n{at:03}", *map(card, range(count)))
            for at, count in enumerate(self.random.sample(sizes, nodes))
        ]
        self.names = [raw["metadata"]["name"] for raw in raws]
        self.cache = ClusterCache(lambda: self.now_ms, silent)
        self.cache.nodes_listed(map(read_node, raws))
        self.cache.pods_listed(())
        self.cards = sum(1 for _ in self.cache.snapshot.cards())
        self.pods: dict[str, Json] = {}  # by name
        self.waiting: dict[str, str] = {}  # by name the UIDs of those without a node
        self.owners: dict[str, Owner] = {}
        self.held: dict[str, tuple[float, int]] = {}  # by name of a pod with a node: cards, since when
        self.useful = self.lost = self.asked = 0.0
        self.done = self.failed_starts = self.steps = 0
        self.events: list[tuple[int, int, Callable[[], object]]] = []
        self._refused: list[WaitingPod] = []
        self._scheduled = -1
        self._standings = NamespaceStandings()
        self._fits, self._drained = FitCache(), DrainedFits()
        self._wire()
        self._come(load, nodes)

    # who comes

    def _come(self, load: float, nodes: int) -> None:
        pods = [row for row in _rows("openb_pod_list_default.csv.xz") if int(row["num_gpu"])]
        shapes = [(int(row["num_gpu"]), int(row["gpu_milli"])) for row in pods]
        of_one = statistics.fmean(cards * milli / 1_000 for cards, milli in shapes)
        of_gang = sum(size * many for size, many in SIZES.items()) / sum(SIZES.values())
        wanted = load * self.cards  # card-hours an hour
        self.teams = []
        for at in range(TEAMS):
            phase, part = self.random.random(), 0.5 if at % 2 else 2.0
            asked = wanted / TEAMS * 7 * 24
            turn_ms = START_MS + round((1 - phase) * 7 * 24 * HOUR)
            self.teams.append(Team(part * asked, turn_ms, spent=min(1.0, phase) * asked))
        singles, gangs = (1 - GANGS) * wanted / (of_one * HOURS), GANGS * wanted / (of_gang * HOURS)
        for at_ms in self._moments(singles):
            cards, milli = self.random.choice(shapes)
            self._later(at_ms, 1, cards, milli)
        for at_ms in self._moments(gangs):
            size = self.random.choices(list(SIZES), list(SIZES.values()))[0]
            self._later(at_ms, size, 1, 1_000)

    def _moments(self, an_hour: float) -> Iterator[int]:
        at_ms = float(START_MS)
        while (at_ms := at_ms + self.random.expovariate(an_hour) * HOUR) < self.end_ms:
            yield round(at_ms)

    def _later(self, at_ms: int, size: int, cards: int, milli: int) -> None:
        hours = min(MOST_HOURS, self.random.lognormvariate(math.log(HOURS) - 0.5, 1.0))
        name = f"j{len(self.owners):05}"
        owner = Owner(name, self.random.randrange(TEAMS), size, cards, milli, round(hours * HOUR), at_ms)
        self.owners[name] = owner
        self.asked += owner.rate * owner.length_ms / HOUR
        self._at(at_ms, lambda: self._arrive(owner))

    def _at(self, at_ms: int, do: Callable[[], object]) -> None:
        self.version += 1
        heapq.heappush(self.events, (at_ms, self.version, do))

    def _arrive(self, owner: Owner) -> None:
        owner.over = self.standings().of(f"team-{owner.team}").over
        for at in range(owner.size):
            self._create(owner, at)

    # the API server and controllers

    def _create(self, owner: Owner, at: int) -> None:
        """As admission leaves it."""
        name, team = f"{owner.name}-{at}", f"team-{owner.team}"
        is_whole = owner.milli == 1_000
        asks = (
            container(gpu_count=str(owner.cards))
            if is_whole
            else container(gpu_percent=str(owner.milli // 10))
        )
        is_over = self.standings().of(team).over
        policy: Json = {"priority": -5, "preemptionPolicy": "Never"} if is_over else {"priority": 0}
        written = {}
        if owner.size > 1:
            written = {"bursar.dev/gang": owner.name, "bursar.dev/gang-size": str(owner.size)}
            written |= {"bursar.dev/held": "turn"}
            written |= {"bursar.dev/gang-key": f"job/{owner.name}/uid-{owner.name}"}
        raw = asking(asks, name=name, annotations=written, schedulerName=SCHEDULER, **policy)
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.name, "uid": f"uid-{owner.name}"}
        raw["metadata"] |= {
            "namespace": team,
            "uid": f"uid-{name}-{self.version}",
            "creationTimestamp": stamp(self.now_ms // 1000 * 1000),
            "ownerReferences": [{**job, "controller": True}],
        }
        raw["spec"]["terminationGracePeriodSeconds"] = GRACE_MS // 1000
        if owner.size > 1:
            raw["spec"]["schedulingGates"] = [{"name": "bursar.dev/gang"}]
        raw["status"] = {"phase": "Pending"}
        self.write(raw)

    def write(self, raw: Json) -> None:
        self.version += 1
        raw["metadata"] = {**raw["metadata"], "resourceVersion": str(self.version)}
        self.pods[raw["metadata"]["name"]] = raw
        if "nodeName" in raw["spec"]:
            self.waiting.pop(raw["metadata"]["name"], None)
        else:
            self.waiting[raw["metadata"]["name"]] = raw["metadata"]["uid"]
        self.cache.pod_updated(self._read(raw))

    def _read(self, raw: Json) -> Pod:
        pod = read_pod(raw)
        assert pod is not None
        return structs.replace(pod, amounts=())  # so that no preemption is kube-scheduler's

    def _remove(self, raw: Json, phase: str) -> None:
        raw = {**raw, "status": {**raw["status"], "phase": phase}}
        self.write(raw)
        self.cache.pod_deleted(self._read(raw))
        name = raw["metadata"]["name"]
        del self.pods[name]
        self.waiting.pop(name, None)
        if name in self.held:
            cards, since_ms = self.held.pop(name)
            spent = cards * (self.now_ms - since_ms) / HOUR
            team = self.teams[self._owner(raw).team]
            team.pay(self.now_ms)
            team.held -= cards
            if phase == "Succeeded":
                self.useful += spent
            else:
                self.lost += spent

    def _owner(self, raw: Json) -> Owner:
        return self.owners[raw["metadata"]["ownerReferences"][0]["name"]]

    def call(self, method: str, path: str, body: Any = None, **_more: object) -> Reply:
        """A call of the extender."""
        parts = path.split("/")
        if method == "GET":
            owner = self.owners[parts[-1]]
            spec = {"parallelism": owner.size, "completions": owner.size}
            return Answered(200, {"metadata": {"name": owner.name, "uid": f"uid-{owner.name}"}, "spec": spec})
        raw = self.pods.get(parts[6])
        only = body.get("metadata", {}) or body.get("deleteOptions", body).get("preconditions", {})
        if raw is None:
            return Answered(404, {"message": "not found"})
        if any(only.get(each, raw["metadata"][each]) != raw["metadata"][each] for each in ONLY):
            return Answered(409, {"message": "it has changed, or is another pod"})
        if method == "DELETE" or parts[-1] == "eviction":
            if not body.get("deleteOptions", {}).get("dryRun"):
                self._evict(raw)
            return Answered(201, {})
        after = {**raw, "metadata": {**raw["metadata"]}, "spec": {**raw["spec"]}, "status": {**raw["status"]}}
        after["metadata"]["annotations"] = {
            **raw["metadata"].get("annotations", {}),
            **body["metadata"].get("annotations", {}),
        }
        gone = [each["name"] for each in body.get("spec", {}).get("schedulingGates", ())]
        if gone:
            gates = [each for each in raw["spec"].get("schedulingGates", ()) if each["name"] not in gone]
            after["spec"]["schedulingGates"] = gates
        status = body.get("status", {})
        kinds = {each["type"] for each in status.get("conditions", ())}
        old = [each for each in raw["status"].get("conditions", ()) if each["type"] not in kinds]
        after["status"]["conditions"] = [*old, *status.get("conditions", ())]
        if "nominatedNodeName" in status:
            after["status"]["nominatedNodeName"] = status["nominatedNodeName"] or ""
        self.write(after)
        return Answered(200, after)

    def _evict(self, raw: Json) -> None:
        """Of a gang that runs all leave, by the timekeeper."""
        if "deletionTimestamp" in raw["metadata"]:
            return
        owner = self._owner(raw)
        if owner.whole_ms is not None:
            owner.displaced.append(self.now_ms)
            owner.whole_ms, owner.run = None, owner.run + 1
            mates = [each for each in self.pods.values() if self._owner(each) is owner]
        else:
            self.failed_starts += 1
            mates = [raw]
        for each in mates:
            going = stamp(self.now_ms + GRACE_MS)
            self.write({**each, "metadata": {**each["metadata"], "deletionTimestamp": going}})
            self._at(self.now_ms + GRACE_MS, partial(self._leave, each["metadata"]["name"]))

    def _leave(self, name: str) -> None:
        raw = self.pods[name]
        self._remove(raw, "Failed")
        self._create(self._owner(raw), int(name.rpartition("-")[2]))

    def _end(self, owner: Owner, run: int) -> None:
        if owner.run == run:
            for at in range(owner.size):
                self._remove(self.pods[f"{owner.name}-{at}"], "Succeeded")
            self.done += 1
            owner.whole_ms, owner.run = None, -1

    # the timekeeper

    def standings(self) -> NamespaceStandings:
        for team in self.teams:
            team.pay(self.now_ms)
        now = {f"team-{at}": OVER if team.spent >= team.budget else IN_BUDGET
               for at, team in enumerate(self.teams)}  # fmt: skip
        if self._standings.listed != now:
            self.version += 1
            self._standings = NamespaceStandings(now)
            for owner in self.owners.values():
                if owner.came_ms <= self.now_ms and owner.waited_ms is None and owner.turned_ms is None:
                    owner.turned_ms = self.now_ms if now[f"team-{owner.team}"].over else None
        return self._standings

    # the extender

    def _wire(self) -> None:
        api, now = cast(Any, self), lambda: self.now_ms
        calls = GangCalls(api, now, at_once=1)
        gangs = Gangs()
        drains = GangDrains(self.cache, self._plan_input, DrainTurns(120 * SECOND, 900 * SECOND), silent)
        wired = StartWiring(
            cache=self.cache,
            gangs=gangs,
            group=silent,
            given=lambda snapshot, pod: replace(self._plan_input(snapshot), ahead=self._ahead(pod)),
            policies=lambda _: BINPACK,
            order=self._order,
            calls=calls,
            drains=drains,
            leads=lambda: True,
            tell=silent,
            started=silent,
            steady_ms=now,
            now_ms=now,
            log=silent,
        )
        self.starts = GangStarts(wired)
        wiring = PreemptorWiring(
            cache=self.cache,
            waiting_pods=lambda: self._refused,
            policy=lambda _: BINPACK,
            standings=self.standings,
            pdbs=lambda: NONE,
            leads=lambda: True,
            freed=silent,
            tell=silent,
            log=silent,
            now_ms=now,
            seconds=lambda: self.now_ms / 1000,
            breathe=silent,
            evicted=self._count,
            gangs=gangs,
            displace=lambda *moment: self.displacer.step(*moment),
        )
        self.preemptor = Preemptor(api, wiring, LIMITS)

        def given(snapshot: Snapshot, gang: Any) -> PlanInput:
            until_s = time.thread_time() + LOOK_S
            return replace(self.starts.given(snapshot, gang), is_late=lambda: time.thread_time() > until_s)

        wiring_of_gangs = DisplacerWiring(
            due=self.starts.due,
            state=self.starts.state,
            given=given,
            failed=self.starts.given_back,
            calls=calls,
            deadline_ms=60_000,
        )
        self.displacer = GangDisplacer(self.preemptor, wiring_of_gangs, LIMITS)

    def _count(self, victim: Pod, pod: Pod, *_: object) -> None:
        owner = self.owners[victim.name.rpartition("-")[0]]
        if pod.gang is not None and owner.displaced[-1:] != owner.for_gangs[-1:]:
            owner.for_gangs.append(owner.displaced[-1])

    def _order(self, pod: Pod) -> Any:
        return queue_key(pod, ANYWHERE, self._standings)

    def _plan_input(self, snapshot: Snapshot) -> PlanInput:
        return PlanInput(snapshot, self._standings, lambda _: BINPACK)

    def _ahead(self, pod: Pod) -> tuple[Pod, ...]:
        """As the requeuer's, of those that were refused."""
        key, pods = self._order(pod), self.cache.snapshot.pods
        there = [now for each in self._refused if (now := pods.get(each.pod.uid)) and now.waits]
        return tuple(sorted((each for each in there if self._order(each) < key), key=self._order)[:AHEAD])

    # kube-scheduler

    def _schedule(self) -> None:
        """It tries each pod without a gate once."""
        self._refused, nowhere = [], set[object]()
        there = (self.cache.snapshot.pods.get(uid) for uid in self.waiting.values())
        waiting = [pod for pod in there if pod is not None and pod.waits and not pod.gated]
        for pod in sorted(waiting, key=self._order):
            if pod.gang is None:
                self._try(pod, nowhere)
            else:
                self.starts.tried(pod.uid)
                allocation = self.cache.snapshot.allocation(pod.uid)
                if allocation is not None and allocation.state == "planned":
                    self._bind(pod, self.cache.snapshot.allocated_on.get(pod.uid) or "")

    def _try(self, pod: Pod, nowhere: set[object]) -> None:
        assert pod.request is not None
        key, snapshot = fit_key(pod.request, BINPACK, pod.amounts), self.cache.snapshot
        if pod.reserved is not None and self._bind(pod, pod.reserved.node):
            return
        if key not in nowhere:
            found = self._fits.partition(key, snapshot.nodes, self.names)
            if not found.fits and snapshot.drain is not None:
                found = beside_drained(found, pod, key, snapshot, self.now_ms, self._drained)
            if found.fits:
                scores = self._fits.scored(key, snapshot.nodes, found.fits)[0]
                if self._bind(pod, found.fits[int(scores.argmax())]):
                    return
            nowhere.add(key)
        if not pod.unschedulable:
            raw = self.pods[pod.name]
            no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
            self.write({**raw, "status": {**raw["status"], "conditions": [no]}})
            pod = self.cache.snapshot.pods.get(pod.uid) or pod
        self._refused.append(waiting_pod(pod, BINPACK, self.names))

    def _bind(self, pod: Pod, name: str) -> bool:
        there = self.cache.snapshot.node(name)
        assert pod.request is not None
        placement = fit(pod.request, as_found_by(pod.uid, there), BINPACK)
        if isinstance(placement, Refusal) or self.cache.assume(pod, there, placement) is not True:
            return False
        raw, mark = self.pods[pod.name], self.starts.mark_of(pod) if pod.gang is not None else ""
        written = {"bursar.dev/devices": encode_placement(placement)}
        written |= {"bursar.dev/gang-started": mark} if mark else {}
        metadata = {**raw["metadata"], "annotations": {**raw["metadata"]["annotations"], **written}}
        status = {**raw["status"], "phase": "Running", "startTime": stamp(self.now_ms)}
        self.write({**raw, "metadata": metadata, "spec": {**raw["spec"], "nodeName": name}, "status": status})
        if pod.gang is not None:
            self.starts.bound(pod)
        owner = self._owner(raw)
        team, cards = self.teams[owner.team], owner.rate / owner.size
        team.pay(self.now_ms)
        team.held += cards
        self.held[pod.name] = cards, self.now_ms
        if all(f"{owner.name}-{at}" in self.held for at in range(owner.size)):
            owner.whole_ms, run = self.now_ms, owner.run
            owner.waited_ms = self.now_ms - owner.came_ms if owner.waited_ms is None else owner.waited_ms
            self._at(self.now_ms + owner.length_ms, lambda: self._end(owner, run))
        return True

    # time

    def run(self) -> Json:
        """To the end of the week."""
        while self.now_ms < self.end_ms:
            self._settle()
            wakes_ms = self.events[0][0] if self.events else self.end_ms
            latest_ms = self.now_ms + LONGEST_MS if self.waiting else self.end_ms
            self.now_ms = min(self.end_ms, max(self.now_ms + STEP_MS, min(wakes_ms, latest_ms)))
        self.standings()
        return self.told()

    def _settle(self) -> None:
        """Steps until some in succession change nothing. In each, one gang that waits has its plan;
        others have theirs after the next event."""
        quiet = 0
        while quiet <= min(MOST_QUIET, 1 + self.starts.waiting) and self.now_ms < self.end_ms:
            before = self.version
            while self.events and self.events[0][0] <= self.now_ms:
                heapq.heappop(self.events)[2]()
            self.standings()
            self.cache.expire()
            self.starts.step()
            if quiet == 0:
                self.preemptor.step()
            if self.version != self._scheduled:
                self._schedule()
                self._scheduled = self.version
            self.steps += 1
            self.now_ms += STEP_MS
            quiet = quiet + 1 if self.version == before else 0

    def told(self) -> Json:
        """What came of it. Who waits still has waited until now."""
        waits: dict[str, list[float]] = defaultdict(list)
        for owner in self.owners.values():
            if owner.came_ms >= self.end_ms:
                continue
            waited_ms = self.end_ms - owner.came_ms if owner.waited_ms is None else owner.waited_ms
            if not owner.over and owner.turned_ms is not None:
                waited_ms = min(waited_ms, owner.turned_ms - owner.came_ms)
            waits[f"{'over' if owner.over else 'in'} {owner.size}"].append(round(waited_ms / 60_000, 2))
        running = sum(cards * (self.now_ms - since_ms) for cards, since_ms in self.held.values()) / HOUR
        hours = (self.end_ms - START_MS) / HOUR
        there = self.owners.values()
        displaced = [owner.displaced for owner in there if owner.displaced]
        for_gangs = [owner.for_gangs for owner in there if owner.for_gangs]
        return {
            "cards": self.cards,
            "load": self.asked / hours / self.cards,
            "use": (self.useful + self.lost + running) / hours / self.cards,
            "useful": self.useful,
            "lost": self.lost,
            "done": self.done,
            "displaced": sum(map(len, displaced)),
            "for gangs": sum(map(len, for_gangs)),
            "failed starts": self.failed_starts,
            "often": sum(most_a_day(each) > 2 for each in displaced),
            "often for gangs": sum(most_a_day(each) > 2 for each in for_gangs),
            "most a day": max(map(most_a_day, displaced), default=0),
            "most a day for gangs": max(map(most_a_day, for_gangs), default=0),
            "steps": self.steps,
            "waits": waits,
        }


def most_a_day(times: Sequence[int]) -> int:
    """The most of these moments within a day."""
    return max(sum(first <= at < first + 24 * HOUR for at in times) for first in times)


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with lzma.open(DATA / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


def simulated(seed: int) -> Json:
    """The week of this seed; in a process of its own."""
    began_s = time.process_time()
    found = Week(seed).run()
    found |= {"seed": seed, "cpu_s": round(time.process_time() - began_s, 1)}
    print({key: value for key, value in found.items() if key != "waits"}, file=sys.stderr, flush=True)
    return found


# two versions side by side


def at_95(key: str, seeds: Sequence[Json]) -> float:
    """The 95th of a hundred waits, in minutes."""
    waits = sorted(wait for seed in seeds for wait in seed["waits"].get(key, ()))
    return float(waits[math.ceil(0.95 * len(waits)) - 1]) if waits else 0.0


def mean(key: str, seeds: Sequence[Json]) -> float:
    """Of the seeds."""
    return statistics.fmean(seed[key] for seed in seeds)


def bound(before: Sequence[Json], now: Sequence[Json], of: Callable[[Sequence[Json]], float]) -> list[float]:
    """Of the difference the range in which 95 of a hundred draws of the seeds are."""
    chance, drawn = random.Random(0), []
    for _ in range(1_000):
        seeds = chance.choices(range(len(now)), k=len(now))
        drawn.append(of([now[at] for at in seeds]) - of([before[at] for at in seeds]))
    drawn.sort()
    return [drawn[25], drawn[974]]


def compared(before: Sequence[Json], now: Sequence[Json]) -> Iterator[str]:
    """Lines for people, of the seeds that both have."""
    before, now = before[: len(now)], now[: len(before)]
    kinds = {key for seed in (*before, *now) for key in seed["waits"]}
    for key in sorted(kinds, key=lambda key: (key.split()[0], int(key.split()[1]))):
        count = sum(len(seed["waits"].get(key, ())) for seed in now)
        yield _line(f"{key} ({count}), 95th in minutes", before, now, partial(at_95, key))
    for key in (key for key in now[0] if key not in ("waits", "seed", "steps", "cpu_s")):
        yield _line(key, before, now, partial(mean, key))
        if key.startswith("most"):
            yield f"{key}, at most: {max(seed[key] for seed in before)} -> {max(seed[key] for seed in now)}"


def _line(
    name: str, before: Sequence[Json], now: Sequence[Json], of: Callable[[Sequence[Json]], float]
) -> str:
    (low, high), then, since = bound(before, now, of), of(before), of(now)
    ratio = f" ({since / then:.3f})" if then else ""
    return f"{name}: {then:.3f} -> {since:.3f}{ratio}, difference {low:.3f} to {high:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many weeks")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="the former's, and this one's")
    given = parser.parse_args(arguments)
    if given.compare:
        before, now = (json.loads(file.read_text()) for file in given.compare)
        print("\n".join(compared(before, now)))
        return 0
    with ProcessPoolExecutor(given.jobs) as pool:
        found = list(pool.map(simulated, range(given.seeds)))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
