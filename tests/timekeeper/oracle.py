"""The charge of each pod, computed a second time by another method. Imports nothing of ours.

The oracle receives the events that reached the timekeeper. For each pod it returns the charged interval and
the rate. Times are milliseconds since 1970, rates thousandths of a card.
"""

import json
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, inf

from tests.worlds import Json

SOON = 15_000  # within which a kubelet that hears of it ends a pod that was deleted by force
ENDS_FORCED = 31  # Kubernetes 1.31 and newer do


@dataclass(frozen=True, kw_only=True)
class Word:
    """One report about a node: its boot ("": unknown), and the UIDs that its agent lists; None: no agent
    reports its present boot. ``knows``: a pod that is not listed is not there."""

    at: int
    boot: str
    there: frozenset[str] | None
    knows: bool = True
    is_ready: bool = True  # its condition Ready is not Unknown
    minor: int = 0  # its kubelet is of Kubernetes 1.minor; 0: of none


@dataclass(frozen=True)
class Terms:
    """The charging part of ``_settings``."""

    charge_by: str = "dominant"
    weights: tuple[tuple[str, Fraction], ...] = ()  # (word that names a model, weight)
    most_grace: int = 600_000
    settle_after: int = 3_600_000
    zone: str = "UTC"
    governs: bool = True  # False: nothing that Bursar wrote on a pod counts


@dataclass
class Seen:
    """One pod, as far as events reached the timekeeper."""

    raw: Json
    terms: Terms | None = None  # fixed when its session was opened
    rate: int = 0  # fixed when its session was opened
    bound: int = 0
    start: int | None = None
    end: int | None = None
    left: int | None = None  # when its removal was seen
    deadline: int = 0  # its deletionTimestamp
    grace: int = 0  # the longest grace period of its versions
    deletion_grace: int = 0  # the longest of its requested deletions, as written
    asked: int = 0  # how long a kubelet that was asked to delete it goes on with that
    quick: int | None = None  # within which a kubelet that hears of its removal ends it
    renewals: tuple[int, int] | None = None  # the first and the last of such a kubelet since then
    lost: bool = False  # a list did not contain it
    mark_then: int = 0  # its node's watermark when it vanished
    removed: int | None = None  # when its object was removed, as far as is known
    last: int | None = None  # the end of a session without proof, by what is known now
    follows: bool = False  # the reports about its node are followed
    listed: bool = False  # its node lists it
    listed_at: int = 0  # the last time that it was listed
    boot: str = ""  # its node's boot when it vanished
    gone_at: int | None = None  # when its node reported it gone
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

    ``modes``: the mode that a namespace's entry or label names; without one it has the cluster's, in
    ``terms``. ``marks``: each node's watermark as written; ``words``: the reports about each node, the first
    ``old`` of them from before the last write.
    """

    pods: dict[str, Seen] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    heard: int = 0
    terms: Terms = Terms()
    words: dict[str, Word] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    leaseless: str = ""  # a node that never has a Lease: it lives while its condition Ready is not Unknown
    unready: dict[str, int] = field(default_factory=dict)  # nodes of which it is, and since when

    def copy(self) -> "Known":
        """An independent copy."""
        pods = {uid: replace(pod) for uid, pod in self.pods.items()}
        leases, marks, words = self.leases.copy(), self.marks.copy(), self.words.copy()
        modes, unready = self.modes.copy(), self.unready.copy()
        return Known(pods, leases, marks, self.heard, self.terms, words, modes, self.leaseless, unready)

    def terms_of(self, namespace: str) -> Terms:
        """The terms of a session that opens now."""
        mode = self.modes.get(namespace)
        return replace(self.terms, governs=mode == "enforce") if mode else self.terms

    def says(self, node: str, word: Word) -> None:
        """A watch reports a node."""
        self._hears_ready(node, word)
        known = self.words.get(node)
        word = replace(word, boot=word.boot or (known.boot if known else ""))
        self.words[node] = word
        for uid, pod in self.pods.items():
            if pod.follows and pod.node == node:
                _follow(uid, pod, word, word.at)

    def nodes_listed(self, words: dict[str, Word], now: int) -> None:
        """The complete list of nodes: it repeats what each said before, which proves nothing after the last
        evidence of the node."""
        for node in self.words.keys() - words.keys():
            self.says(node, Word(at=now, boot="", there=None))
        for node, word in words.items():
            self._hears_ready(node, word)
            self.says(node, replace(word, at=self.mark(node) or word.at))

    def _hears_ready(self, node: str, word: Word) -> None:
        """Of one that is first heard as Unknown nothing says since when."""
        if word.is_ready:
            self.unready.pop(node, None)
        else:
            self.unready.setdefault(node, word.at if node in self.words else 0)

    def renews(self, node: str, at: int) -> None:
        """A kubelet renewed its Lease."""
        self.leases[node] = at
        if node not in self.words or self.words[node].minor < ENDS_FORCED:
            return
        for pod in self.pods.values():
            since = pod.left if pod.removed is None else pod.removed
            if pod.node == node and since is not None and since < at:
                first, last = pod.renewals or (at, at)
                pod.renewals = first, max(last, at)

    def mark(self, node: str) -> int:
        """The node's watermark."""
        if node == self.leaseless and node in self.words:
            until = self.heard // 10_000 * 10_000
            return min(until, self.unready.get(node, until))
        return min(self.leases.get(node, 0), self.heard)

    def sees(self, raw: Json, now: int) -> None:
        """The watch reports a bound pod."""
        self._learn(raw, now)
        self.heard = max(self.heard, now)

    def goes(self, raw: Json, now: int) -> None:
        """The watch reports a deletion. It contains its own time; a repetition adds nothing."""
        pod = self._learn(raw, now)
        if pod.left is None and pod.last is None:
            pod.deadline = moment(raw["metadata"]["deletionTimestamp"]) or now
            self._vanishes(raw["metadata"]["uid"], pod, now)
        self.heard = max(self.heard, now)

    def lists(self, raws: list[Json], asked: int) -> None:
        """The complete list of pods: a missing one was deleted while no watch was running."""
        there = {raw["metadata"]["uid"] for raw in raws}
        for uid, pod in self.pods.items():
            if uid not in there and not pod.over and pod.left is None:
                pod.lost = True
                self._vanishes(uid, pod, asked)
        for raw in raws:
            self._learn(raw)
        self.heard = max(self.heard, asked)

    def _learn(self, raw: Json, now: int = 0) -> Seen:
        pod = self.pods.setdefault(raw["metadata"]["uid"], Seen(raw))
        start, end = kubelet_says(raw)
        requested = 1000 * int(raw["metadata"].get("deletionGracePeriodSeconds", 0))
        in_spec = 1000 * int(raw["spec"]["terminationGracePeriodSeconds"])
        if pod.removed is None:  # else it is only told again
            pod.grace = max(pod.grace, requested, in_spec, 2_000)  # a kubelet gives 2 s at least
            pod.asked = max(pod.asked, requested + 2_000 if requested else 0)
        if start is not None and (pod.start is None or start < pod.start):
            pod.start, pod.settled = start, None
        if end is not None and pod.end is None:
            pod.mark_at_end = self.mark(pod.node)
            if end == 0:
                pod.mark_at_end = max(pod.mark_at_end, now, *last_times(raw))
        if end is not None and end != pod.end:
            pod.end, pod.settled = end, None
        return pod

    def _vanishes(self, uid: str, pod: Seen, at: int) -> None:
        pod.left, pod.mark_then, pod.follows = at, self.mark(pod.node), True
        if pod.node in self.words:
            _follow(uid, pod, self.words[pod.node], at)

    def tick(self, now: int, beats: dict[str, int], cards: Json) -> None:
        """What is known is written: opened sessions, final ends, watermarks."""
        for uid, pod in self.pods.items():
            if pod.terms is None:
                pod.terms, pod.bound = self.terms_of(pod.namespace), bound_at(pod.raw)
                pod.rate = rate(pod.raw, cards[pod.node], pod.terms)
            if not pod.over and pod.left is not None:
                self._close(pod, beats.get(uid, 0))
            self._goes_on(uid, pod)
            if pod.end is not None and not pod.at_rest:
                pod.at_rest = max(
                    self.marks.get(pod.node, 0), min(pod.mark_at_end, now) if not pod.end else pod.mark_at_end
                )
        for node in {pod.node for pod in self.pods.values() if not pod.over}:
            self.marks[node] = max(self.marks.get(node, 0), self.mark(node))
        for uid, pod in self.pods.items():
            start, end = self.counts(uid, now, beats)
            is_silent = start == end or now - end >= self.terms.settle_after
            is_closed = pod.end is not None or (pod.last is not None and now >= pod.last and not pod.listed)
            if pod.end or (is_closed and is_silent):
                pod.settled = start, end

    def _close(self, pod: Seen, beat: int) -> None:
        """Its object is gone: since when, and for how long the kubelet may run it."""
        assert pod.left is not None
        evidence = max(pod.bound, pod.start or 0, beat, self.marks.get(pod.node, 0))
        if pod.lost:
            pod.removed, pod.grace = min(pod.left, max(evidence, pod.mark_then)), self.terms.most_grace
        else:
            pod.removed = min(pod.left, max(pod.deadline, evidence))
            pod.grace = min(pod.grace, self.terms.most_grace)
            pod.quick = max(SOON, pod.asked)
        pod.last = pod.removed + pod.grace

    def _goes_on(self, uid: str, pod: Seen) -> None:
        """It holds its cards while its node lists it, and until it is reported gone."""
        if pod.removed is None or pod.last is None or pod.settled is not None:
            return
        if not pod.follows:
            pod.follows = True
            if pod.node in self.words:  # the report may be older than this process
                _follow(uid, pod, self.words[pod.node], self.mark(pod.node) or pod.removed)
        if pod.listed:
            pod.listed_at = max(pod.listed_at, self.mark(pod.node))
        pod.last = max(pod.removed + int(min(pod.grace, _quickly(pod))), pod.listed_at)
        if pod.gone_at is not None:
            pod.last = max(pod.removed, pod.gone_at)

    def restarts(self) -> None:
        """The settler is killed: observations are lost, what is written stays."""
        for uid in [uid for uid, pod in self.pods.items() if pod.terms is None]:
            del self.pods[uid]
        for pod in self.pods.values():
            pod.mark_at_end = 0
            if pod.removed is not None and pod.last is not None:
                pod.grace = pod.last - pod.removed
            pod.follows, pod.listed, pod.listed_at, pod.boot, pod.gone_at = False, False, 0, "", None
            pod.quick = pod.renewals = None
        for heard in (self.leases, self.words, self.unready):
            heard.clear()
        self.heard = 0

    def counts(self, uid: str, now: int, beats: dict[str, int]) -> tuple[int, int]:
        """The pod's charged interval at this moment; start and end are equal if it is empty."""
        pod = self.pods[uid]
        if pod.terms is None:
            return 0, 0
        if pod.settled is not None:
            return pod.settled
        if pod.end is not None:
            end = pod.end or max(pod.bound, pod.start or 0, pod.at_rest, beats.get(uid, 0))
        elif pod.last is not None:
            end = min(now, pod.last)
        else:
            end = min(now, max(beats.get(uid, 0), self.marks.get(pod.node, 0)))
        return pod.bound, max(pod.bound, end)

    def owed(self, uid: str, now: int, beats: dict[str, int], since: int = 0, until: int = 2**62) -> int:
        """The pod's charge for the time between two moments."""
        start, end = self.counts(uid, now, beats)
        return self.pods[uid].rate * max(0, min(end, until) - max(start, since))


def _quickly(pod: Seen) -> float:
    """How long it ran on after its removal, on a kubelet that heard of it and renewed its Lease since. One
    that did not renew it within ten seconds was away, and heard of it then."""
    if pod.quick is None or pod.renewals is None or pod.removed is None:
        return inf
    first, last = pod.renewals
    runs_on = max(0, first - 10_000 - pod.removed) + pod.quick
    return runs_on if last >= pod.removed + runs_on else inf


def _follow(uid: str, pod: Seen, word: Word, at: int) -> None:
    """What a report says of a pod whose object is gone."""
    if pod.gone_at is not None:
        return
    pod.boot = pod.boot or word.boot
    if word.there is None or not word.is_ready:  # of a silent node no report is fresh
        pod.listed = False
    elif uid in word.there:
        pod.listed, pod.listed_at = True, max(pod.listed_at, at)
    elif word.knows and (pod.listed or (word.boot and pod.boot != word.boot)):
        pod.listed, pod.gone_at = False, at


def _told(raw: Json) -> list[Json]:
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return [each for kind in kinds for each in raw["status"].get(kind, [])]


def last_times(raw: Json) -> list[int]:
    """Every time in its statuses, and 0."""
    runs = [
        run for each in _told(raw) for when in ("state", "lastState") for run in each.get(when, {}).values()
    ]
    return [0, *(moment(run.get(key)) or 0 for run in runs for key in ("startedAt", "finishedAt"))]


def kubelet_says(raw: Json) -> tuple[int | None, int | None]:
    """The first start of the pod's GPU containers, and the last end of all containers; an end of 0: it is
    over, and a container that ran has no time of its end, or none ran."""
    wanted = {each["name"] for each in gpu_containers(raw)}
    told = _told(raw)
    runs = [
        run
        for each in told
        if each["name"] in wanted
        for when in ("state", "lastState")
        for run in each.get(when, {}).values()
    ]
    starts = [at for run in runs if (at := moment(run.get("startedAt"))) is not None]
    is_running = any("running" in each["state"] for each in told)
    if raw["status"]["phase"] not in ("Succeeded", "Failed") or is_running:
        return min(starts, default=None), None
    ends = [moment(each["state"].get("terminated", {}).get("finishedAt")) for each in told]
    ran = ["terminated" in each["state"] or "terminated" in each.get("lastState", {}) for each in told]
    if any(has_run and at is None for at, has_run in zip(ends, ran, strict=True)):
        return min(starts, default=None), 0
    return min(starts, default=None), max((at for at in ends if at is not None), default=0)


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
    if not terms.governs or raw["spec"].get("schedulerName", "bursar-scheduler") != "bursar-scheduler":
        return _metered(raw, cards, terms)
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


def _metered(raw: Json, cards: Json, terms: Terms) -> int:
    """The rate by the limits alone: each container on the node's cards that would cost most, as often as it
    wants cards. One that runs before the others counts only as far as it costs more than they do."""
    costs: dict[bool, list[int]] = {True: [0], False: []}
    for each in gpu_containers(raw):
        limits = {name.split("/")[1]: int(n) for name, n in each["resources"]["limits"].items()}
        count = limits.get("gpu-count", max(1, limits.get("gpu-percent", 0) // 100))
        share = 10 * limits.get("gpu-percent", 0) // count
        dearest = 0
        for card in cards.values():
            whole = int(card["memory_mib"])
            memory = limits.get("gpu-memory", 0) // count or whole * share // 1000
            part = _part(share, memory, whole, terms.charge_by)
            dearest = max(dearest, ceil(part * _weight(card["model"], terms.weights)))
        costs[each["init"]].append(count * dearest)
    return max(sum(costs[False]), *costs[True])


def _part(share: int, memory: int, whole: int, charge_by: str) -> int:
    of_memory = ceil(Fraction(1000 * memory, whole))
    if charge_by == "compute":
        return share or of_memory
    if charge_by == "memory":
        return of_memory
    return ceil(Fraction(share + of_memory, 2)) if charge_by == "mean" else max(share, of_memory)


def _weight(model: str, weights: tuple[tuple[str, Fraction], ...]) -> Fraction:
    """The weight of the longest name whose words occur side by side in the model's."""
    said = f" {model.lower().replace('-', ' ')} "
    named = [(len(name), value) for name, value in weights if f" {name.lower().replace('-', ' ')} " in said]
    return max(named)[1] if named else Fraction(1)
