"""What is done with a look beside the inventory: whose the processes are, what each pod uses, who is over its
share, and who really holds what."""

from __future__ import annotations

from pathlib import Path

from sidecar.log import log
from sidecar.node.holder_survey import HolderSurvey, SurveyPaths
from sidecar.node.host import cgroups
from sidecar.node.state import exporter, overuse, use
from sidecar.node.values import NvmlReading
from sidecar.value import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.heartbeat_client import Delivered, NotDelivered
    from sidecar.node.agent import Agent
    from sidecar.node.kube.events import EventPoster
    from sidecar.node.settings import AgentSettings
    from sidecar.node.state.api_objects import NodePods
    from sidecar.node.state.overuse import OveruseEpisode
    from sidecar.node.state.reports import UsageReports
    from sidecar.node.values import GPUProcess, NodeState, ProcessOwner

LATE_MS = 2_000  # beyond the time between two looks: so late NVML may be
SILENCE = NvmlReading((), (), (), (), (), (), (), "it does not answer")


class UsageTasks:
    """The state; used by the main thread alone. ``reports`` None: use is not reported."""

    def __init__(
        self,
        settings: AgentSettings,
        agent: Agent,
        reports: UsageReports | None,
        events: EventPoster,
        boot: str,
    ) -> None:
        self._settings, self._agent, self._reports = settings, agent, reports
        self.events = events
        self._whereabouts = HolderSurvey(_places(settings), boot, log, events.post)
        self._see_at = 0
        self._proc = Path(settings.proc)
        self._listed: NodePods | None = None
        self._is_fresh = False
        self._measured = use.NOTHING
        self._episodes: dict[str, OveruseEpisode] = {}
        self._said: set[str] = set()
        self._ended = False

    def looked(self, look: NvmlReading, now_ms: int) -> None:
        """NVML was read: measure, see who is over, and who is there."""
        if look.error:
            self._measured = use.NOTHING
            self._see(look, None, now_ms)
            return
        seats = self._seats(look.processes)
        self._see(look, seats, now_ms)
        if self._listed is None:
            return
        self._measured = use.measure(look.loads, look.processes, seats or {}, self._listed.pods)
        if self._reports:
            self._reports.look(self._measured)
        self._episodes, notices = overuse.watch(
            self._episodes, self._measured, self._listed.pods, self._given(), now_ms
        )
        for notice in notices:
            self.events.post(notice)

    def saw_node(self, node: NodeState | None) -> None:
        """The node as it stands now."""
        if node is not None:
            self._whereabouts.saw_node(node)

    def saw_pods(self, listed: NodePods) -> None:
        """The node's pods as they are now."""
        self._listed, self._is_fresh = listed, True

    def lost_pods(self) -> None:
        """Nobody tells of pods now, so that a process of one that is not listed may be a new pod's."""
        self._is_fresh = False

    def posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """A report came to its end."""
        if self._reports:
            self._reports.posted(outcome, now_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due; who is there is seen also while NVML hangs."""
        if now_ms >= self._see_at:
            self._see(SILENCE, None, now_ms)
        if self._reports:
            self._reports.tick(now_ms)

    def due_ms(self) -> int | None:
        """The next moment at which `tick` has something to do; None: none."""
        return self._reports.due_ms() if self._reports else None

    def end(self, now_ms: int) -> None:
        """The agent shall end: what is measured goes out, once."""
        self._ended = True
        if self._reports:
            self._reports.end(now_ms)

    def ended(self, now_ms: int) -> bool:
        """Whether the process may exit."""
        if not self._ended:
            return False
        if self._reports is None:
            return True
        if not self._reports.ended(now_ms):
            return False
        self._reports.lose()
        return True

    def page(self) -> str:
        """Their metrics."""
        pods = self._listed.pods if self._listed else ()
        return (
            exporter.of_cards(self._agent.cards, self._measured, self._settings.node_name)
            + exporter.of_pods(pods, self._measured, self._given(), self._episodes)
            + (exporter.of_reports(self._reports) if self._reports else "")
            + self._whereabouts.page()
        )

    def _see(self, look: NvmlReading, seats: dict[int, ProcessOwner | None] | None, now_ms: int) -> None:
        self._see_at = now_ms + self._settings.look_every_ms + LATE_MS
        cards = self._agent.cards
        if self._agent.node is None or not (cards or self._agent.nvml_answers):
            return  # of a node that never had a card nothing is said
        pods = self._listed.pods if self._listed else None
        uuids = frozenset(card.uuid for card in cards)
        judged = seats if self._is_fresh else None
        self._agent.holders = self._whereabouts.looked(look, judged, pods, uuids, now_ms)

    def _given(self) -> dict[str, dict[str, int]]:
        return {uid: dict(cards) for uid, cards in self._listed.shares} if self._listed else {}

    def _seats(self, processes: tuple[GPUProcess, ...]) -> dict[int, ProcessOwner | None] | None:
        """Whose each process is; None where that cannot be told."""
        try:
            return cgroups.seats(self._proc, [each.pid for each in processes])
        except OSError as error:
            self._log_once("processes-unknown", f"{self._proc}: {error.strerror}")
            return None

    def _log_once(self, event: str, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log(event, reason=reason)


def _places(settings: AgentSettings) -> SurveyPaths:
    return SurveyPaths(
        settings.proc,
        settings.cgroups,
        settings.pod_resources,
        settings.runtime_configs,
        settings.close_on_strangers,
        settings.trusted_namespaces,
    )
