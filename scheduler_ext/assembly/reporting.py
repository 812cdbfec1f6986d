"""What the extender reports: Events on pods, and to the timekeeper bound and removed pods, decisions and
the live map."""

from collections.abc import Mapping, Sequence

from scheduler_ext.background import Work
from scheduler_ext.clients import binding_reports, end_reports
from scheduler_ext.clients.binding_reports import BindingReports
from scheduler_ext.clients.end_reports import EndReports
from scheduler_ext.clients.timekeeper import client
from scheduler_ext.log import EventReason, Log
from scheduler_ext.model.pod import Pod
from scheduler_ext.reports import cluster_posts
from scheduler_ext.reports.cluster_posts import ClusterPosts, MapSources
from scheduler_ext.reports.decision_reports import DecisionReports, WaitingState
from scheduler_ext.settings import Timekeeper
from scheduler_ext.snapshot.allocation import Allocation
from scheduler_ext.snapshot.gang_table import GangState
from timekeeper.core.decisions import record_nothing
from timekeeper.core.values import Placement
from timekeeper.edge.clock import monotonic_ms
from timekeeper.edge.events import EventRecorder, EventType
from timekeeper.runtime.recording import decision_posts
from timekeeper.runtime.recording.decision_posts import DecisionPosts

MAX_TOLD = 16  # members of a gang that get an Event


class Reporting:
    """Its methods never wait. ``wanted`` without URL: there is no timekeeper, and only Events are posted."""

    def __init__(
        self,
        wanted: Timekeeper,
        events: EventRecorder[EventReason],
        state: WaitingState,
        sources: MapSources,
        log: Log,
    ) -> None:
        self.events = events
        self.binding_reports: BindingReports | None = None
        self.end_reports: EndReports | None = None
        self._posts: DecisionPosts | None = None
        self._map: ClusterPosts | None = None
        if wanted.url:
            self.binding_reports = BindingReports(client(wanted, binding_reports.PATH), monotonic_ms, log)
            self.end_reports = EndReports(client(wanted, end_reports.PATH), monotonic_ms, log)
            self._posts = DecisionPosts(client(wanted, decision_posts.PATH), "extender", monotonic_ms, log)
            self._map = ClusterPosts(client(wanted, cluster_posts.PATH), sources, log)
        record = record_nothing if self._posts is None else self._posts.record
        self.decisions = DecisionReports(record, state, monotonic_ms)

    def work(self) -> dict[str, Work]:
        """The threads, by name."""
        work: dict[str, Work] = {"events": self.events.run}
        if self.binding_reports is not None:
            work["bindings"] = self.binding_reports.run
        if self.end_reports is not None:
            work["ends"] = self.end_reports.run
        if self._map is not None:
            work["map"] = self._map.run
        if self._posts is not None:
            work["decisions"] = self._posts.run
            work["reasons"] = self.decisions.run
        return work

    def tell(self, pod: Pod, reason: EventReason, text: str, event_type: EventType = "Normal", /) -> None:
        """Post an Event on the pod."""
        self.events.post(pod.namespace, pod.name, pod.uid, reason, text, event_type)

    def tell_gang(
        self, it: GangState, pods: Sequence[Pod], reason: EventReason, text: str, above: tuple[str, ...] = ()
    ) -> None:
        """Post an Event on some of these pods, on their controllers and on the object ``above`` these, and
        record it."""
        event_type: EventType = "Warning" if reason == "GangEviction" else "Normal"
        owners = dict.fromkeys(pod.reference for pod in pods if pod.reference)
        for regarding in (*owners, *([above] if above else [])):
            kind = dict(zip(("apiVersion", "kind", "name", "uid"), regarding, strict=True))
            self.events.post_on({**kind, "namespace": it.namespace}, reason, text)
        for pod in pods[:MAX_TOLD]:
            self.tell(pod, reason, text, event_type)
            self.decisions.gang(pod, it, reason, text)

    def bound(self, pod: Pod, node: str, placement: Placement) -> None:
        """The pod was bound."""
        self.decisions.placed(pod, node, placement)
        if self.binding_reports is not None:
            self.binding_reports.bound(pod, node, placement)

    def removed(self, pod: Pod) -> None:
        """The object of a bound pod is gone."""
        if self.end_reports is not None:
            self.end_reports.removed(pod)

    def left(self, uid: str, age_ms: int | None) -> None:
        """A vanished pod holds its cards no more."""
        if self.end_reports is not None:
            self.end_reports.left(uid, age_ms)

    def taken_back(self, allocation: Allocation, node: str, owner: str) -> None:
        """A binding that was assumed did not happen. ``owner``: the pod's controller."""
        namespace, _, name = allocation.full_name.partition("/")
        text = f"The binding to node {node} did not happen; the GPUs assumed for it there are free again."
        self.events.post(namespace, name, allocation.uid, "BindTakenBack", text, "Warning")
        self.decisions.undone(allocation, node, owner)

    def wrong(self) -> Mapping[str, int]:
        """By code, what was found wrong last; empty without a timekeeper."""
        return {} if self._map is None else self._map.wrong

    def bindings_reported(self) -> Mapping[str, int]:
        """Reports of bound pods, by result; empty without a timekeeper."""
        return {} if self.binding_reports is None else self.binding_reports.results

    def ends_reported(self) -> Mapping[str, int]:
        """Reports of removed pods, by result; empty without a timekeeper."""
        return {} if self.end_reports is None else self.end_reports.results

    def decisions_reported(self) -> Mapping[str, int]:
        """Reports of decisions, by result; empty without a timekeeper."""
        return {} if self._posts is None else self._posts.results
