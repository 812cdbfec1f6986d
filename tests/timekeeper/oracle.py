"""The charge of each pod, computed a second time by another method. Imports nothing of ours.

The oracle receives the events that reached the timekeeper. For each pod it returns the charged interval and
the rate. Times are milliseconds since 1970, rates thousandths of a card.
"""

import json
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any

from tests.timekeeper.oracle_presence import Word, seen_gone

Json = dict[str, Any]

SILENT_MS = 60_000


@dataclass(frozen=True)
class Terms:
    """The charging part of ``_settings``."""

    charge_by: str = "dominant"
    charge_from: str = "running"
    weights: tuple[tuple[str, Fraction], ...] = ()  # (word that names a model, weight)
    start_grace: int = 600_000
    most_grace: int = 600_000
    settle_after: int = 3_600_000
    zone: str = "UTC"


@dataclass
class Seen:
    """One pod, as far as events reached the timekeeper."""

    raw: Json
    terms: Terms | None = None  # fixed when its session was opened
    rate: int = 0  # fixed when its session was opened
    bound: int = 0
    start: int | None = None
    end: int | None = None
    left: tuple[int, int] | None = None  # when it was seen to vanish, and its grace period
    lost: bool = False  # a list did not contain it
    lease_then: int | None = None  # its node's Lease when it vanished
    mark_then: int = 0  # its node's watermark when it vanished
    last: int | None = None  # the final end of a session without proof
    graced: bool = False  # ``last`` is the end of its grace period, which its node's agent may shorten
    mark_at_end: int = 0  # its node's watermark when its end was observed
    at_rest: int = 0  # the same, once it is written
    settled: tuple[int, int] | None = None  # the interval that was posted at last

    @property
    def over(self) -> bool:
        """No further evidence can come."""
        return self.end is not None or self.last is not None

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def node(self) -> str:
        return str(self.raw["spec"]["nodeName"])


@dataclass
class Known:
    """What the settler knows: pods by UID, nodes, and when its watch of pods was last alive.

    ``marks``: each node's watermark as written; ``words``: the reports about each node, the first ``old`` of
    them from before the last write.
    """

    pods: dict[str, Seen] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    heard: int = 0
    terms: Terms = Terms()
    words: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    old: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "Known":
        """An independent copy."""
        pods = {uid: replace(pod) for uid, pod in self.pods.items()}
        leases, marks, words, old = self.leases.copy(), self.marks.copy(), self.words.copy(), self.old.copy()
        return Known(pods, leases, marks, self.heard, self.terms, words, old)

    def says(self, node: str, word: Word) -> None:
        """A watch reports a node."""
        self.words[node] = (*self.words.get(node, ()), word)

    def nodes_listed(self, words: dict[str, Word], now: int) -> None:
        """The complete list of nodes."""
        for node in self.words.keys() - words.keys():
            self.says(node, Word(now, "", None))
        for node, word in words.items():
            self.says(node, word)

    def mark(self, node: str) -> int:
        """The node's watermark."""
        return min(self.leases.get(node, 0), self.heard)

    def sees(self, raw: Json, now: int) -> None:
        """The watch reports a bound pod."""
        self._learn(raw)
        self.heard = max(self.heard, now)

    def goes(self, raw: Json, now: int) -> None:
        """The watch reports a deletion. It contains its own time; a repetition adds nothing."""
        pod = self._learn(raw)
        if pod.left is None and not pod.lost and pod.last is None:
            self._note(pod)
            grace = 1000 * int(raw["spec"]["terminationGracePeriodSeconds"])
            pod.left = (min(now, moment(raw["metadata"]["deletionTimestamp"]) or now), grace)
        self.heard = max(self.heard, now)

    def lists(self, raws: list[Json], asked: int) -> None:
        """The complete list of pods: a missing one was deleted while no watch was running."""
        there = {raw["metadata"]["uid"] for raw in raws}
        for uid, pod in self.pods.items():
            if uid not in there and not pod.over and pod.left is None and not pod.lost:
                self._note(pod)
                pod.lost = True
        for raw in raws:
            self._learn(raw)
        self.heard = max(self.heard, asked)

    def _learn(self, raw: Json) -> Seen:
        pod = self.pods.setdefault(raw["metadata"]["uid"], Seen(raw))
        start, end = kubelet_says(raw)
        if start is not None and (pod.start is None or start < pod.start):
            pod.start, pod.settled = start, None
        if end is not None and pod.end is None:
            pod.mark_at_end = self.mark(pod.node)
        if end is not None and end != pod.end:
            pod.end, pod.settled = end, None
        return pod

    def _note(self, pod: Seen) -> None:
        pod.lease_then, pod.mark_then = self.leases.get(pod.node), self.mark(pod.node)

    def tick(self, now: int, beats: dict[str, int], cards: Json) -> None:
        """What is known is written: opened sessions, final ends, watermarks."""
        for uid in [uid for uid, pod in self.pods.items() if pod.terms is None and pod.end == 0]:
            del self.pods[uid]
        for uid, pod in self.pods.items():
            if pod.terms is None:
                pod.terms, pod.bound = self.terms, bound_at(pod.raw)
                pod.rate = rate(pod.raw, cards[pod.node], self.terms)
            if not pod.over and (pod.left or pod.lost):
                self._close(pod, beats.get(uid, 0))
            self._let_go(uid, pod)
            if pod.end is not None and not pod.at_rest:
                pod.at_rest = max(self.marks.get(pod.node, 0), pod.mark_at_end)
        for node in {pod.node for pod in self.pods.values() if not pod.over}:
            self.marks[node] = max(self.marks.get(node, 0), self.mark(node))
        for uid, pod in self.pods.items():
            start, end = self.counts(uid, now, beats)
            is_silent = start == end or now - end >= self.terms.settle_after
            if pod.end is not None or (pod.last is not None and now >= pod.last and is_silent):
                pod.settled = start, end
        self.old = {node: len(words) for node, words in self.words.items()}

    def _let_go(self, uid: str, pod: Seen) -> None:
        if not pod.graced or pod.left is None or pod.last is None or pod.settled is not None:
            return
        vanished, words = pod.left[0], self.words.get(pod.node, ())
        gone = seen_gone(uid, vanished, words, self.old.get(pod.node, 0))
        if gone is not None and vanished <= gone < pod.last:
            pod.last = gone

    def _close(self, pod: Seen, beat: int) -> None:
        is_heard = pod.left and pod.lease_then is not None and pod.left[0] - pod.lease_then <= SILENT_MS
        if pod.left and is_heard:
            pod.last, pod.graced = pod.left[0] + min(pod.left[1], self.terms.most_grace), True
        else:
            marks = (pod.mark_then, self.marks.get(pod.node, 0))
            pod.last = max(pod.bound, pod.start or 0, beat, *marks)

    def restarts(self) -> None:
        """The settler is killed: observations are lost, what is written stays."""
        for uid in [uid for uid, pod in self.pods.items() if pod.terms is None]:
            del self.pods[uid]
        for pod in self.pods.values():
            pod.mark_at_end = 0
        for heard in (self.leases, self.words, self.old):
            heard.clear()
        self.heard = 0

    def counts(self, uid: str, now: int, beats: dict[str, int]) -> tuple[int, int]:
        """The pod's charged interval at this moment; start and end are equal if it is empty."""
        pod = self.pods[uid]
        if pod.terms is None:
            return 0, 0
        if pod.settled is not None:
            return pod.settled
        start = self._begins(pod, pod.terms, now)
        if start is None:
            return 0, 0
        if pod.end is not None:
            end = pod.end or max(pod.bound, pod.start or 0, pod.at_rest, beats.get(uid, 0))
        elif pod.last is not None:
            end = min(now, pod.last)
        else:
            end = min(now, max(beats.get(uid, 0), self.marks.get(pod.node, 0)))
        return start, max(start, end)

    def _begins(self, pod: Seen, terms: Terms, now: int) -> int | None:
        if terms.charge_from == "bound":
            return pod.bound
        latest = pod.bound + terms.start_grace
        if pod.start is not None:
            return min(pod.start, latest)
        return latest if latest <= now else None

    def owed(self, uid: str, now: int, beats: dict[str, int], since: int = 0, until: int = 2**62) -> int:
        """The pod's charge for the time between two moments."""
        start, end = self.counts(uid, now, beats)
        return self.pods[uid].rate * max(0, min(end, until) - max(start, since))


def kubelet_says(raw: Json) -> tuple[int | None, int | None]:
    """The first start and the last end of the pod's GPU containers; an end of 0: it never ran and never
    will."""
    wanted = {each["name"] for each in gpu_containers(raw)}
    status = raw["status"]
    told = [
        each
        for each in status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        if each["name"] in wanted
    ]
    runs = [run for each in told for when in ("state", "lastState") for run in each.get(when, {}).values()]
    starts = [at for run in runs if (at := moment(run.get("startedAt"))) is not None]
    ends = [at for run in runs if (at := moment(run.get("finishedAt"))) is not None]
    is_running = any("running" in each["state"] for each in told)
    is_over = status["phase"] in ("Succeeded", "Failed") and not is_running
    return min(starts, default=None), (max(ends, default=0) if is_over else None)


def moment(text: str | None) -> int | None:
    """A timestamp of the API server; None for 1970, which means that a container could not be started."""
    if text is None or text.startswith("1970"):
        return None
    day, clock = text.removesuffix("Z").split("T")
    hours, minutes, seconds = clock.split(":")
    past = 1000 * (60 * (60 * int(hours) + int(minutes)) + Fraction(seconds))
    return 86_400_000 * _days(*map(int, day.split("-"))) + int(past)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01, by Howard Hinnant's days_from_civil."""
    year -= month <= 2
    era, month = year // 400, (month + 9) % 12
    in_era = year % 400
    return 146_097 * era + 365 * in_era + in_era // 4 - in_era // 100 + (153 * month + 2) // 5 + day - 719_469


def bound_at(raw: Json) -> int:
    """When the pod was bound."""
    (bound,) = [each for each in raw["status"]["conditions"] if each["type"] == "PodScheduled"]
    return moment(bound["lastTransitionTime"]) or 0


def gpu_containers(raw: Json) -> list[Json]:
    """The containers that request cards, each with ``init``: whether it ends before the others start."""
    spec = raw["spec"]
    listed = [(each, True) for each in spec.get("initContainers", [])]
    listed += [(each, False) for each in spec["containers"]]
    return [{**each, "init": init} for each, init in listed if "bursar.dev" in str(each.get("resources", {}))]


def rate(raw: Json, cards: Json, terms: Terms) -> int:
    """The pod's rate: for each of its cards, its part times the card's weight, rounded up.

    ``cards``: the node's, by UUID. Containers that run together add up; one that runs before the others
    counts only as far as it takes more than they do.
    """
    given = json.loads(raw["metadata"]["annotations"]["bursar.dev/devices"])["containers"]
    taken: dict[str, dict[bool, list[tuple[int, int]]]] = {}
    for each in gpu_containers(raw):
        limits, uuids = each["resources"]["limits"], [one["uuid"] for one in given[each["name"]]]
        for uuid in uuids:
            share = 10 * int(limits.get("bursar.dev/gpu-percent", 0)) // len(uuids)
            whole = int(cards[uuid]["memory_mib"])
            memory = int(limits.get("bursar.dev/gpu-memory", 0)) // len(uuids) or whole * share // 1000
            taken.setdefault(uuid, {True: [], False: []})[each["init"]].append((share, memory))
    total = 0
    for uuid, by_phase in taken.items():
        most = [
            max(sum(use[i] for use in by_phase[False]), *(u[i] for u in by_phase[True]), 0) for i in (0, 1)
        ]
        part = _part(most[0], most[1], int(cards[uuid]["memory_mib"]), terms.charge_by)
        total += ceil(part * _weight(cards[uuid]["model"], terms.weights))
    return total


def _part(share: int, memory: int, whole: int, charge_by: str) -> int:
    of_memory = ceil(Fraction(1000 * memory, whole))
    if charge_by == "compute":
        return share
    if charge_by == "memory":
        return of_memory
    return ceil(Fraction(share + of_memory, 2)) if charge_by == "mean" else max(share, of_memory)


def _weight(model: str, weights: tuple[tuple[str, Fraction], ...]) -> Fraction:
    """The weight of the longest name whose words occur side by side in the model's."""
    said = f" {model.lower().replace('-', ' ')} "
    named = [(len(name), value) for name, value in weights if f" {name.lower().replace('-', ' ')} " in said]
    return max(named)[1] if named else Fraction(1)
