"""What the extender decided about pods, as records that people read later: placements, undone binds,
evictions, and why a pod waits, also for a resource beside cards on a node that has the cards.

The reasons of waiting pods are put into words in a thread of their own, once a second, for pods whose reasons
changed; no verb waits for that.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from scheduler_ext.fit.caps import CapChecks
from scheduler_ext.fit.fit import fit
from scheduler_ext.fit.refusal import Refusal, RefusalKind
from scheduler_ext.model.other_resources import PODS
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.reports.prospects import ProspectSearch, UsableNodes
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.gang_table import GangState
from scheduler_ext.snapshot.host_left import CPU, host_lack
from scheduler_ext.snapshot.node_info import NodeInfo, without_pod
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecision
from scheduler_ext.waiting.order import ANYWHERE, WaitingPod, queue_key
from timekeeper.core.decisions import (
    BIND_UNDONE,
    CAPPED,
    EVICTED,
    GANG,
    GANG_KEY,
    MESSAGE,
    OTHER_NAMESPACE,
    OTHER_POD,
    PLACED,
    PREEMPTED,
    PREEMPTED_BY_SCHEDULER,
    RECLAIMED,
    WAITING,
    WAITS_FOR_DEVICES,
    Decision,
    Figure,
    Record,
)
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.values import GPURequest, Placement

MAX_LOOKS = 2_000  # at nodes, for all pods of one call
_WORDS = {CPU: "CPU", PODS: "a place for another pod"}
INTERVAL_S = 1.0
MAX_EACH = 500  # pods whose reasons are put into words in one go
MAX_NOTED = 10_000
MAX_REASONS = 5

_FIGURES = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class BesideCards:
    """A node that has the cards for a pod, and what the node lacks. Names alone: an amount would vary."""

    node: str
    lacks: str


class BesideCardsSearch:
    """Looks for one pod after another in one snapshot; pods alike are looked for once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = sorted(
            (node for node in snapshot.nodes.values() if node.cards and not node.closed),
            key=lambda node: node.name,
        )
        self._left = MAX_LOOKS
        self._known: dict[object, BesideCards | None] = {}

    def of(self, pod: Pod) -> BesideCards | None:
        """The first such node by name. None if there is none, or if the call has no looks left."""
        shape = pod.request, pod.cpu_milli, pod.others, pod.node_constraints
        if shape not in self._known:
            self._known[shape] = next(self._found(pod), None)
        return self._known[shape]

    def _found(self, pod: Pod) -> Iterator[BesideCards]:
        for node in self._nodes:
            if not self._left:
                return
            self._left -= 1
            lacks = host_lack(pod, node)
            if lacks and _has_cards(pod, without_pod(node, pod.uid)):
                words = sorted(_WORDS.get(resource, resource) for resource, _ in lacks)
                yield BesideCards(node.name, " and ".join(words))


def _has_cards(pod: Pod, node: NodeInfo) -> bool:
    if pod.request is None or node.node_object is None:
        return False
    admitted = pod.node_constraints.admit(node.name, node.node_object.node_labels)
    return admitted and not isinstance(fit(pod.request, node), Refusal)


@dataclass(frozen=True, slots=True)
class WaitingState:
    """What is known now of the pods that wait. ``refused``: the last refusal of a pod, None if the extender
    never refused it. ``caps``: compares the pods with the caps."""

    snapshot: Callable[[], Snapshot]
    waiting_pods: Callable[[], list[WaitingPod]]
    refused: Callable[[str], LastDecision | None]
    standings: Callable[[], NamespaceStandings]
    caps: CapChecks


class DecisionReports:
    """The methods but `run` may be called from any thread, and never wait. ``now_ms``: the clock of the
    posts."""

    def __init__(self, record: Record, state: WaitingState, now_ms: Callable[[], int]) -> None:
        self._record, self._state, self._now_ms = record, state, now_ms
        self._lock = threading.Lock()
        self._noted: dict[str, None] = {}  # UIDs of pods whose reasons changed, the oldest first
        self._messages: dict[str, str] = {}  # UID -> kube-scheduler's message without its figures
        self._preempted: dict[str, None] = {}  # UIDs of recorded victims of kube-scheduler, oldest first
        self.left_out = 0  # reasons that were lost because too many pods were noted

    def placed(self, pod: Pod, node: str, placement: Placement) -> None:
        """The pod was bound."""
        slices = [each for _, there in placement.containers for each in there]
        figures: dict[str, Figure] = {
            "node": node,
            "cards": ",".join(sorted({each.uuid for each in slices})),
            "cardIndexes": ",".join(map(str, sorted({each.index for each in slices}))),
            "memoryMib": sum(each.memory_mib for each in slices),
            "standing": self._state.standings().of(pod.namespace).status,
        }
        figures |= _needs(pod.request)
        figures["shareMilli"] = sum(each.share_milli for each in slices)
        self._record(_about(pod, self._now_ms(), PLACED, "Bound", figures))

    def undone(self, allocation: Allocation, node: str, owner: str) -> None:
        """A placement whose Binding did not happen; its cards are free again."""
        namespace, _, name = allocation.full_name.partition("/")
        figures: dict[str, Figure] = {"node": node}
        where = {"owner": owner, "name": name, "uid": allocation.uid}
        self._record(
            Decision(
                at_ms=self._now_ms(),
                kind=BIND_UNDONE,
                reason="BindTakenBack",
                namespace=namespace,
                figures=figures,
                **where,
            )
        )

    def evicted(self, victim: Pod, pod: Pod, kind: str, how: str, node: str) -> None:
        """The victim leaves for the pod. Both get a record, which names the other."""
        at_ms, standings = self._now_ms(), self._state.standings()
        figures: dict[str, Figure] = {
            "node": node,
            "how": how,
            "victimPriority": victim.priority,
            "podPriority": pod.priority,
            "victimStanding": standings.of(victim.namespace).status,
            "podStanding": standings.of(pod.namespace).status,
        }
        word = RECLAIMED if kind == "reclaim" else PREEMPTED
        reason = "Reclaimed" if kind == "reclaim" else "Preempted"
        decision = _about(victim, at_ms, word, reason, figures | _other(pod) | _needs(pod.request))
        group = standings.of(victim.namespace).deciding_group if word == RECLAIMED else ""
        self._record(replace(decision, budget=group))
        self._record(_about(pod, at_ms, WAITING, "VictimsEvicted", figures | _other(victim)))

    def gang(self, pod: Pod, it: GangState, reason: str, text: str) -> None:
        """What the pod's gang waits for, or why it leaves."""
        figures: dict[str, Figure] = {
            MESSAGE: text,
            GANG_KEY: it.gang.key,
            "size": it.gang.size,
            "exist": len(it.waiting) + len(it.bound),
            "bound": len(it.bound),
        }
        kind = GANG if reason == "GangWaits" else EVICTED
        self._record(_about(pod, self._now_ms(), kind, reason, figures))

    def waits(self, uid: str) -> None:
        """The reasons why this pod waits may have changed."""
        with self._lock:
            if len(self._noted) < MAX_NOTED:
                self._noted[uid] = None
            else:
                self.left_out += 1

    def seen(self, pod: Pod) -> None:
        """The watch showed the pod: kube-scheduler may refuse it without a call of the extender, as where no
        node has enough of a resource that it counts itself."""
        waits = not (pod.node or pod.deleting or pod.terminal or pod.gated)
        said = _FIGURES.sub("", pod.unschedulable_because) if waits else ""
        if not said:
            self._messages.pop(pod.uid, None)
        elif self._messages.get(pod.uid) != said and (
            pod.uid in self._messages or len(self._messages) < MAX_NOTED
        ):
            self._messages[pod.uid] = said
            self.waits(pod.uid)

    def preempted(self, pod: Pod) -> None:
        """The pod's condition says that kube-scheduler evicts it, as it does by itself where totals are
        short. A process records it once; the ledger has it once, whichever processes record it."""
        if pod.uid in self._preempted:
            return
        self._preempted[pod.uid] = None
        if len(self._preempted) > MAX_NOTED:
            del self._preempted[next(iter(self._preempted))]
        figures: dict[str, Figure] = {
            "node": pod.node,
            "how": "by kube-scheduler",
            "victimPriority": pod.priority,
            "victimStanding": self._state.standings().of(pod.namespace).status,
        }
        self._record(_about(pod, self._now_ms(), PREEMPTED, PREEMPTED_BY_SCHEDULER, figures))

    def run(self, stop: threading.Event) -> None:
        """Each second record the reasons of the pods that were noted, until ``stop``."""
        while not stop.wait(INTERVAL_S):
            self.step()

    def step(self) -> None:
        """Record the reasons of the pods noted longest ago."""
        with self._lock:
            uids = list(islice(self._noted, MAX_EACH))
            for uid in uids:
                del self._noted[uid]
        if not uids:
            return
        snapshot, standings, at_ms = self._state.snapshot(), self._state.standings(), self._now_ms()
        prospects, beside = ProspectSearch(snapshot), BesideCardsSearch(snapshot)
        ahead = self._ahead(set(uids), standings, prospects)
        for uid in uids:
            pod, refused = snapshot.pods.get(uid), self._state.refused(uid)
            if pod is None or pod.node or pod.deleting or pod.terminal or pod.gated:
                continue
            if refused is None and not pod.unschedulable_because:
                continue
            decision = _waits(pod, refused, prospects, ahead.get(uid), standings, at_ms)
            is_refused = pod.unschedulable_because and not pod.waits_for_devices
            figures = _beside(beside.of(pod)) if is_refused else {}
            decision = replace(decision, figures={**decision.figures, **figures}) if figures else decision
            if "cap" in _kinds(refused):
                cap, group = self._state.caps.tightest(pod, snapshot)
                figures = {**decision.figures, **cap}
                decision = replace(decision, kind=CAPPED, reason="AboveCap", figures=figures, budget=group)
            self._record(decision)

    def _ahead(
        self, uids: set[str], standings: NamespaceStandings, prospects: ProspectSearch
    ) -> dict[str, int]:
        """How many waiting pods go before each of these that may use one of the nodes that it may use."""
        pods = [each.pod for each in self._state.waiting_pods()]
        before = Counter[UsableNodes]()
        found: dict[str, int] = {}
        for pod in sorted(pods, key=lambda pod: queue_key(pod, ANYWHERE, standings)):
            usable = prospects.usable(pod)
            if usable is None:
                continue
            if pod.uid in uids:
                meet = (many for other, many in before.items() if other.names & usable.names)
                found[pod.uid] = sum(meet)
            before[usable] += 1
        return found


def _waits(
    pod: Pod,
    refused: LastDecision | None,
    search: ProspectSearch,
    ahead: int | None,
    standings: NamespaceStandings,
    at_ms: int,
) -> Decision:
    standing, prospects, usable = standings.of(pod.namespace), search.of(pod), search.usable(pod)
    figures: dict[str, Figure] = {
        "standing": standing.status,
        "onExhausted": standing.on_exhausted,
    }
    if not pod.waits_for_devices:
        figures |= _needs(pod.request)
    if refused is not None:
        told = (_reason(each.refusal.sentence, each.nodes) for each in refused.reasons[:MAX_REASONS])
        figures |= {"offeredNodes": refused.offered, "reasons": "; ".join(told)}
        if refused.bind_error:
            figures["bindError"] = refused.bind_error
    if pod.unschedulable_because:
        figures["scheduler"] = pod.unschedulable_because
    if prospects.obstacle:
        figures["obstacle"] = prospects.obstacle
    if ahead is not None:
        figures["podsAhead"] = ahead
    if usable is not None and usable.cards and not usable.has_for(pod):
        figures |= {"heldCards": usable.cards, "heldNodes": len(usable.names)}
    hole = prospects.hole
    if hole is not None:
        figures |= {
            "largestHoleNode": hole.node,
            "largestHoleMib": hole.memory_mib,
            "largestHoleMilli": hole.share_milli,
        }
    reason = WAITS_FOR_DEVICES if pod.waits_for_devices else _reason_for(refused)
    group = standing.deciding_group if reason == "GrantSpent" else ""
    return replace(_about(pod, at_ms, WAITING, reason, figures), budget=group)


def _beside(found: BesideCards | None) -> dict[str, Figure]:
    return {} if found is None else {"freeCardsNode": found.node, "lacksBesideCards": found.lacks}


def _kinds(refused: LastDecision | None) -> set[RefusalKind]:
    return set() if refused is None else {each.refusal.kind for each in refused.reasons}


def _reason_for(refused: LastDecision | None) -> str:
    """The word for all refusals of a pod. Without any by the extender its bind failed, or kube-scheduler
    refused it."""
    kinds = _kinds(refused)
    if not kinds:
        return "BindFailed" if refused is not None and refused.bind_error else "Unschedulable"
    if "budget" in kinds:
        return "GrantSpent"
    return "TooLittleFree" if kinds & {"full", "search"} else "NoNodeFits"


def _reason(sentence: str, nodes: int) -> str:
    return f"{nodes} node{'s' if nodes != 1 else ''}: {sentence}"


def _needs(request: GPURequest | None) -> dict[str, Figure]:
    """What the pod asks for: cards, and of each card, for its container that asks for most."""
    if request is None or not request.asks:
        return {}
    most = max((each.ask for each in request.asks), key=lambda ask: (ask.memory_mib, ask.share_milli))
    return {
        "cardsNeeded": cards_at_once(request.asks),
        "shareNeededMilli": most.share_milli,
        "memoryNeededMib": most.memory_mib,
    }


def _other(pod: Pod) -> dict[str, Figure]:
    return {OTHER_NAMESPACE: pod.namespace, OTHER_POD: pod.name}


def _about(pod: Pod, at_ms: int, kind: str, reason: str, figures: dict[str, Figure]) -> Decision:
    return Decision(
        at_ms=at_ms,
        kind=kind,
        reason=reason,
        namespace=pod.namespace,
        figures=figures,
        owner=pod.controller,
        name=pod.name,
        uid=pod.uid,
    )
