"""``GET /v1/waiting``: unbound GPU pods with the last decision about each."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypedDict

from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.reports.prospects import ProspectSearch
from scheduler_ext.reports.query import WaitingQuery
from scheduler_ext.snapshot.snapshot import Snapshot
from scheduler_ext.verbs.last_decisions import LastDecision, LastDecisions
from timekeeper.core.object_names import timestamp


class ReasonView(TypedDict):
    """A reason, its kind, the number of nodes refused for it, and some of them."""

    reason: str
    kind: str
    nodes: int
    examples: list[str]


class DecisionView(TypedDict):
    """When every offered node refused the pod, first and last; how often; how many nodes the last time, and
    why; and the error of its last bind, "" if it did not fail."""

    first: str
    last: str
    times: int
    offered: int
    reasons: list[ReasonView]
    bind_error: str


class AskView(TypedDict):
    """A container's request for each of its cards."""

    container: str
    devices: int
    share_milli: int
    memory_mib: int


class ReservationView(TypedDict):
    """The node where cards are reserved for the pod, and until when."""

    node: str
    until: str


class WaitingView(TypedDict):
    """A pod. ``state``: ``gated``; ``assumed`` (its bind is in progress or its outcome unknown);
    ``reserved``; ``refused``; or ``not-asked``: kube-scheduler has not asked the extender, because its own
    checks left no node, or the pod belongs to another scheduler. ``scheduler_message``: why kube-scheduler
    refused it last; "" if it did not, or the extender has asked for another try since. ``obstacle``: why no
    node can take it even when it is empty; "" if cards that become free may be enough."""

    namespace: str
    name: str
    uid: str
    created: str
    scheduler: str
    priority: int
    standing: str
    state: str
    malformed: str
    scheduler_message: str
    obstacle: str
    asks: list[AskView]
    reservation: ReservationView | None
    decision: DecisionView | None


class WaitingPodsView(TypedDict):
    """The answer: ``pods`` by namespace and name, up to the page's limit; ``total``: their number in all; the
    next page begins after ``next``, null on the last one."""

    version: Literal[1]
    total: int
    pods: list[WaitingView]
    next: str | None


class WaitingPods:
    """Makes the answers. ``gang_lack``: what the pod's gang lacked last, "" if nothing is known."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        decisions: LastDecisions,
        standings: Callable[[], NamespaceStandings],
        gang_lack: Callable[[Pod], str] = lambda _: "",
    ) -> None:
        self._gang_lack = gang_lack
        self._snapshot, self._decisions, self._standings = snapshot, decisions, standings

    def answer(self, asked: WaitingQuery) -> WaitingPodsView:
        """One page."""
        snapshot, standings = self._snapshot(), self._standings()
        pods = sorted((p for p in snapshot.pods.values() if _is_wanted(p, asked)), key=lambda p: p.full_name)
        page = [pod for pod in pods if pod.full_name > asked.after][: asked.limit + 1]
        return WaitingPodsView(
            version=1,
            total=len(pods),
            pods=list(self._pods(page[: asked.limit], snapshot, standings)),
            next=page[asked.limit - 1].full_name if len(page) > asked.limit else None,
        )

    def all(self) -> Iterator[WaitingView]:
        """Every pod that is not bound, in no order."""
        snapshot, standings = self._snapshot(), self._standings()
        everything = WaitingQuery("", "", "", 0)
        yield from self._pods(
            (pod for pod in snapshot.pods.values() if _is_wanted(pod, everything)), snapshot, standings
        )

    def _pods(
        self, pods: Iterable[Pod], snapshot: Snapshot, standings: NamespaceStandings
    ) -> Iterator[WaitingView]:
        search = ProspectSearch(snapshot)
        for pod in pods:
            yield self._pod(pod, snapshot, standings, search)

    def _pod(
        self, pod: Pod, snapshot: Snapshot, standings: NamespaceStandings, search: ProspectSearch
    ) -> WaitingView:
        decision = self._decisions.of(pod.uid)
        held, state = pod.reserved, _state(pod, snapshot, decision)
        return WaitingView(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            created=_moment(pod.asked_ms),
            scheduler=pod.scheduler,
            priority=pod.priority,
            standing=standings.of(pod.namespace).status,
            state=state,
            malformed=pod.malformed,
            scheduler_message=pod.unschedulable_because,
            obstacle=self._obstacle(pod, search) if state in ("gated", "refused", "not-asked") else "",
            asks=_asks(pod),
            reservation=ReservationView(node=held.node, until=_moment(held.until_ms)) if held else None,
            decision=_decision(decision) if decision else None,
        )

    def _obstacle(self, pod: Pod, search: ProspectSearch) -> str:
        lack = self._gang_lack(pod) if pod.gang is not None else ""
        return lack or search.of(pod).obstacle


def _is_wanted(pod: Pod, asked: WaitingQuery) -> bool:
    if pod.node or pod.terminal or pod.deleting:
        return False
    return asked.namespace in ("", pod.namespace) and asked.name in ("", pod.name)


def _state(pod: Pod, snapshot: Snapshot, decision: LastDecision | None) -> str:
    if pod.gated:
        return "gated"
    allocation = snapshot.allocation(pod.uid)
    if allocation is not None:
        return "reserved" if allocation.state == "reserved" else "assumed"
    return "refused" if decision is not None else "not-asked"


def _asks(pod: Pod) -> list[AskView]:
    return [
        AskView(
            container=each.container,
            devices=each.ask.devices,
            share_milli=each.ask.share_milli,
            memory_mib=each.ask.memory_mib,
        )
        for each in (pod.request.asks if pod.request else ())
    ]


def _decision(decision: LastDecision) -> DecisionView:
    return DecisionView(
        first=_moment(decision.first_ms),
        last=_moment(decision.at_ms),
        times=decision.times,
        offered=decision.offered,
        reasons=[
            ReasonView(
                reason=each.refusal.sentence,
                kind=each.refusal.kind,
                nodes=each.nodes,
                examples=list(each.examples),
            )
            for each in decision.reasons
        ],
        bind_error=decision.bind_error,
    )


def _moment(ms: int) -> str:
    return timestamp(ms, "milliseconds")
