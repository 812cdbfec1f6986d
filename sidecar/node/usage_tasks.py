"""The work on a reading of NVML beside the inventory: owners of processes, use by pod, overuse, and
holders."""

from __future__ import annotations

from pathlib import Path

from sidecar.log import log
from sidecar.node.holder_survey import HolderSurvey, SurveyPaths
from sidecar.node.host import cgroups
from sidecar.node.state import exporter, overuse, use
from sidecar.node.values import DeviceReading
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.heartbeat_client import Delivered
    from sidecar.log_events import EventName
    from sidecar.node.agent import Agent
    from sidecar.node.kube.api import ApiAnswer
    from sidecar.node.settings import AgentSettings
    from sidecar.node.state.api_objects import NodePods
    from sidecar.node.state.overuse import AgentEvent, OveruseEpisode
    from sidecar.node.state.reports import UsageReports
    from sidecar.node.values import GPUProcess, NodeState, PodState, ProcessOwner, Vendor
    from timekeeper.edge.outbox import NotDelivered

LATE_MS = 2_000  # holders are surveyed without NVML if a reading is this much later than the interval
SILENCE = DeviceReading((), (), (), (), (), (), (), "it does not answer")


class UsageTasks:
    """The state. Only the main thread uses it. ``reports`` None: use is not reported."""

    def __init__(
        self,
        settings: AgentSettings,
        agent: Agent,
        reports: UsageReports | None,
        post: Callable[[AgentEvent], None],
        boot: str,
        slices: Callable[[], ApiAnswer] | None = None,
    ) -> None:
        """``slices``: as in `HolderSurvey`."""
        self._settings, self._agent, self._reports = settings, agent, reports
        self._post = post
        self._survey = HolderSurvey(_survey_paths(settings, agent.vendor), boot, log, post, slices)
        self._survey_at = 0  # the next survey without NVML
        self._proc = Path(settings.proc)
        self._pods: NodePods | None = None  # None until they were listed
        self._is_fresh = False  # the watch of the pods is up to date
        self._usage = use.NOTHING  # by the last reading
        self._by_container: tuple[use.ContainerLoad, ...] = ()
        self._episodes: dict[str, OveruseEpisode] = {}  # by pod UID
        self._logged: set[str] = set()
        self._ended = False

    def on_reading(self, reading: DeviceReading, now_ms: int) -> None:
        """NVML was read: survey the holders, measure use and detect overuse."""
        if reading.error:
            self._usage, self._by_container = use.NOTHING, ()
            self._look_for_holders(reading, None, now_ms)
            return
        owners = self._owners(reading.processes)
        self._look_for_holders(reading, owners, now_ms)
        if self._pods is None:
            return
        pods = self._placed()
        self._usage = use.measure(reading.loads, reading.processes, owners or {}, pods)
        self._by_container = use.by_container(reading.loads, reading.processes, owners or {}, pods)
        if self._reports:
            self._reports.add(self._usage)
        self._episodes, due = overuse.detect(
            self._episodes, self._usage, self._pods.pods, self._shares(pods), now_ms
        )
        for event in due:
            self._post(event)

    def on_node(self, node: NodeState | None) -> None:
        """The Node object was read."""
        if node is not None:
            self._survey.on_node(node)

    def on_pods(self, pods: NodePods) -> None:
        """The node's pods were read."""
        self._pods, self._is_fresh = pods, True

    def on_pods_unknown(self) -> None:
        """The watch of the pods broke: a process of an unknown pod may belong to a new one."""
        self._is_fresh = False

    def on_posted(self, outcome: Delivered | NotDelivered, now_ms: int) -> None:
        """A report's post ended."""
        if self._reports:
            self._reports.on_posted(outcome, now_ms)

    def tick(self, now_ms: int) -> None:
        """Do what is due. Holders are surveyed even while NVML hangs."""
        if now_ms >= self._survey_at:
            self._look_for_holders(SILENCE, None, now_ms)
        if self._reports:
            self._reports.tick(now_ms)

    def due_ms(self) -> int | None:
        """When `tick` has something to do next; None: nothing is due."""
        return self._reports.due_ms() if self._reports else None

    def end(self, now_ms: int) -> None:
        """The agent ends: send what is measured, once."""
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
        self._reports.log_rest()
        return True

    @property
    def runtime_open(self) -> str:
        """Why the default runtime gives all cards to each container; empty: it does not."""
        return self._survey.runtime_open

    def page(self) -> str:
        """The metrics of cards, pods, reports and holders."""
        pods = self._pods.pods if self._pods else ()
        return (
            exporter.of_cards(self._agent.cards, self._usage, self._settings.node_name)
            + exporter.of_pods(pods, self._usage, self._shares(self._placed()), self._episodes)
            + exporter.of_containers(pods, self._by_container)
            + (exporter.of_reports(self._reports) if self._reports else "")
            + self._survey.page()
        )

    def _look_for_holders(
        self, reading: DeviceReading, owners: dict[int, ProcessOwner | None] | None, now_ms: int
    ) -> None:
        self._survey_at = now_ms + self._settings.look_every_ms + LATE_MS
        cards = self._agent.cards
        if self._agent.node is None or not (cards or self._agent.nvml_answers):
            return  # the node never had a card
        pods = self._pods.pods if self._pods else None
        uuids = frozenset(card.uuid for card in cards)
        known = owners if self._is_fresh else None
        self._agent.holders = self._survey.survey(reading, known, pods, uuids, now_ms)
        self._agent.held = self._survey.holders

    def _placed(self) -> tuple[PodState, ...]:
        """The pods with a placement, with the cards that they are on."""
        placed = {pod.uid for pod in self._pods.pods if pod.cards} if self._pods else set()
        return tuple(pod for pod in self._agent.pods_on_cards or () if pod.uid in placed)

    def _shares(self, placed: tuple[PodState, ...]) -> dict[str, dict[str, int]]:
        """MiB by pod UID and card, of these pods. A plugin that picks the cards gives whole ones."""
        shares = {uid: dict(cards) for uid, cards in self._pods.shares} if self._pods else {}
        if not self._agent.picks:
            return shares
        sizes = {card.uuid: card.memory_mib for card in self._agent.cards}
        return {
            pod.uid: {
                uuid: shares.get(pod.uid, {}).get(uuid, sizes[uuid]) for uuid in pod.cards if uuid in sizes
            }
            for pod in placed
        }

    def _owners(self, processes: tuple[GPUProcess, ...]) -> dict[int, ProcessOwner | None] | None:
        """The owner of each process by PID; None if ``/proc`` cannot be read."""
        try:
            return cgroups.owners(self._proc, [each.pid for each in processes])
        except OSError as error:
            self._log_once("processes-unknown", f"{self._proc}: {error.strerror}")
            return None

    def _log_once(self, event: EventName, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            log(event, level="warning", reason=reason)


def _survey_paths(settings: AgentSettings, vendor: Vendor) -> SurveyPaths:
    return SurveyPaths(
        settings.proc,
        settings.cgroups,
        settings.pod_resources,
        settings.runtime_configs,
        settings.close_on_strangers,
        settings.trusted_namespaces,
        vendor,
    )
