"""The unbound GPU pods of the live map: how many there are, and of some why they wait."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import orjson

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.reports.earliest import EarliestStarts
from scheduler_ext.reports.prospects import ProspectSearch
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecision, LastDecisions
from timekeeper.core.cluster_map import MAX_NAME, MAX_TEXT, MAX_WAITING, held_sentence, posted_text
from timekeeper.core.names import GANG_GATE, GATES
from timekeeper.core.texts import gate_sentence

Json = dict[str, Any]

MAX_BYTES = 200_000  # of pods in one post; the timekeeper takes 256 KiB
MAX_COUNTS_BYTES = 40_000
_MAX_AGE_MS = 30 * 86_400_000
_NO_CLAIMS = "it waits for its claims, which a ResourceQuota may refuse: kubectl describe pod has the reason"
_WITHOUT_CARDS = ("gated", "refused", "not-asked")
_ALL_NODES = re.compile(r"0/([0-9]+) nodes ")  # the beginning of kube-scheduler's message


class WaitingPods:
    """Called: of each namespace the pods that wait longest. ``gang_lack``: what the pod's gang lacked last,
    "" if nothing is known."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        decisions: LastDecisions,
        standings: Callable[[], NamespaceStandings],
        gang_lack: Callable[[Pod], str],
        now_ms: Callable[[], int],
    ) -> None:
        self._snapshot, self._decisions, self._standings = snapshot, decisions, standings
        self._gang_lack, self._now_ms = gang_lack, now_ms
        self._starts = EarliestStarts()

    def __call__(self) -> Json:
        """All that wait now, as a post has it."""
        snapshot, standings, now_ms = self._snapshot(), self._standings(), self._now_ms()
        unbound = (pod for pod in snapshot.pods.values() if not (pod.node or pod.terminal or pod.deleting))
        oldest = sorted(unbound, key=lambda pod: (pod.asked_ms, pod.namespace, pod.name))
        search, together = ProspectSearch(snapshot), Counter(map(_gang_of, oldest))
        self._starts.begin(snapshot, standings, now_ms)

        def row(pod: Pod) -> Json:
            made = self._row(pod, snapshot, standings, search, now_ms)
            usable = search.usable(pod) if made["state"] in _WITHOUT_CARDS else None
            names, mates = sorted(usable.names) if usable else (), together[_gang_of(pod)]
            when = self._starts.of(pod, names, mates) if names else ""
            return {**made, "when": when} if when else made

        rows = _fitting([row(pod) for pod in _in_turns(oldest)])
        more = Counter(pod.namespace for pod in oldest) - Counter(row["namespace"] for row in rows)
        longest_first = sorted(rows, key=lambda row: row["age_ms"], reverse=True)
        return {"total": len(oldest), "pods": longest_first, "more": _largest(more)}

    def _row(
        self,
        pod: Pod,
        snapshot: Snapshot,
        standings: NamespaceStandings,
        search: ProspectSearch,
        now_ms: int,
    ) -> Json:
        decision = self._decisions.of(pod.uid)
        state = _state(pod, snapshot, decision)
        obstacle = self._obstacle(pod, search) if state in _WITHOUT_CARDS else ""
        gang = pod.gang.name if pod.gang is not None and set(pod.gates) <= {GANG_GATE} else ""
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "state": state,
            "standing": standings.of(pod.namespace).status,
            "priority": pod.priority,
            "age_ms": min(max(0, now_ms - pod.asked_ms), _MAX_AGE_MS),
            "reason": posted_text(waiting_reason(pod, decision, obstacle), MAX_TEXT),
            **({"gang": posted_text(gang, MAX_NAME)} if gang else {}),
        }

    def _obstacle(self, pod: Pod, search: ProspectSearch) -> str:
        """Why no node can take it even when it is empty, or that no card is free that it may use; "" else."""
        lack = self._gang_lack(pod) if pod.gang is not None else ""
        usable = search.usable(pod)
        is_held = usable is not None and usable.cards and not usable.has_for(pod)
        held = held_sentence(usable.cards, len(usable.names)) if usable and is_held else ""
        return lack or search.of(pod).obstacle or held


def _gang_of(pod: Pod) -> object:
    return None if pod.gang is None else (pod.namespace, pod.gang.key)


def waiting_reason(pod: Pod, decision: LastDecision | None, obstacle: str) -> str:
    """Why it waits, what decides first: its mistake, another system's gate, what keeps it off every node, a
    gate of Bursar's, the error of its last bind, what kube-scheduler says where it refused nodes itself, else
    the first reason; "" if nothing is known."""
    gate = gate_sentence(pod.gates)
    if pod.malformed or (gate and not set(pod.gates) <= set(GATES)):
        return pod.malformed or gate
    if obstacle or gate:
        return obstacle or gate
    if decision is None:
        return pod.unschedulable_because or (_NO_CLAIMS if pod.waits_for_devices else "")
    if decision.bind_error:
        return decision.bind_error
    counted = _ALL_NODES.match(pod.unschedulable_because)
    if not decision.reasons or (counted and int(counted[1]) > decision.offered):
        return pod.unschedulable_because
    first = decision.reasons[0]
    return f"{first.refusal.sentence} ({first.nodes} of {decision.offered} nodes)"


def _state(pod: Pod, snapshot: Snapshot, decision: LastDecision | None) -> str:
    """A word of `timekeeper.core.cluster_map.WAITING_STATES`."""
    if pod.gated:
        return "gated"
    allocation = snapshot.allocation(pod.uid)
    if allocation is not None:
        return "reserved" if allocation.state == "reserved" else "assumed"
    return "refused" if decision is not None else "not-asked"


def _in_turns(oldest: Sequence[Pod]) -> list[Pod]:
    """The first pod of each namespace, then the second of each, as many as a post takes."""
    before = Counter[str]()  # of its namespace
    places: list[int] = []
    for pod in oldest:
        places.append(before[pod.namespace])
        before[pod.namespace] += 1
    return [oldest[at] for at in sorted(range(len(oldest)), key=places.__getitem__)[:MAX_WAITING]]


def _fitting(pods: list[Json]) -> list[Json]:
    """The first of them that fit into a post."""
    sizes = accumulate(len(orjson.dumps(pod)) + 1 for pod in pods)
    return [pod for pod, size in zip(pods, sizes, strict=True) if size <= MAX_BYTES]


def _largest(counts: Counter[str]) -> dict[str, int]:
    """The largest counts that fit into a post beside the pods."""
    listed = counts.most_common()
    sizes = accumulate(len(name) + len(str(count)) + 4 for name, count in listed)
    fitting = sum(size <= MAX_COUNTS_BYTES for size in sizes)
    return dict(listed[:fitting])
