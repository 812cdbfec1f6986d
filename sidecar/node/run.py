"""The agent's loop: joins its parts to clock, threads, NVML, the API server and the timekeeper.

One thread looks at the cards, for NVML may hang; two follow node and pods; one sends Events; one errand at a
time reports use. What they bring lies in the inbox, and the main thread does the rest: it alone changes what
the agent knows, and writes the node.
"""

from __future__ import annotations

import os
import threading
import time

from sidecar.background import run_in_background
from sidecar.disk import SpoolFolder, node_boot
from sidecar.event_loop import End, EventLoop
from sidecar.heartbeat_client import HeartbeatClient
from sidecar.log import log
from sidecar.node import metrics
from sidecar.node.agent import Agent, AgentPorts
from sidecar.node.kube import api
from sidecar.node.kube.events import EventPoster
from sidecar.node.kube.informer import follow
from sidecar.node.nvml.cards import NvmlReader
from sidecar.node.state import api_objects, report_spool, reports
from sidecar.node.usage_tasks import UsageTasks
from sidecar.node.values import CardFailed, NodeState, NvmlReading
from sidecar.run import UNTRIED, PostDone, boot_ms, fraction
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from typing import Any

    from sidecar.node.settings import AgentSettings
    from sidecar.node.state.api_objects import NodePods

BREATH_MS = 200  # after an event of the driver, so that a storm of them is no storm of looks
AFTER_A_FAULT_MS = 5_000
TICK_MS = 1_000


@value
class ReadingTaken:
    """NVML was read."""

    look: NvmlReading


@value
class NodeChanged:
    """The node as it stands; None: there is none of this name."""

    node: NodeState | None


@value
class PodsChanged:
    """All pods of the node that have not ended."""

    pods: NodePods


@value
class PodsUnknown:
    """They cannot be followed now: what was heard last may be old."""


def until_the_end(settings: AgentSettings, loop: EventLoop) -> None:
    """Be the node's agent until SIGTERM is in the inbox. Raises OSError where the metrics' port is taken."""
    server = api.NodeApi(settings.api_url, settings.api_ca, settings.api_token_file)
    events = EventPoster(server, settings.node_name)
    board = metrics.MetricsPage(boot_ms)
    metrics.serve(board, settings.host, settings.port)
    boot = node_boot()
    agent = Agent(_ports(server, events, settings.node_name), boot, settings.look_every_ms, boot_ms())
    told = _reports(settings, loop)
    duties = UsageTasks(settings, agent, told, events, boot)
    log("started", node=settings.node_name, api=settings.api_url, reports=bool(told))
    _start(
        "cards", lambda: watch_cards(NvmlReader(boot_ms, settings.ignored_xids), loop, settings.look_every_ms)
    )
    _start("node", lambda: _follow_node(server, settings.node_name, loop))
    _start("pods", lambda: _follow_pods(server, settings.node_name, loop))
    _start("events", events.run)
    _loop(loop, agent, duties, board)


def watch_cards(reader: NvmlReader, loop: EventLoop, every_ms: int) -> None:
    """For ever: look, then wait for an event of the driver, or for the next look."""
    while True:
        loop.put(ReadingTaken(reader.look()))
        until = boot_ms() + every_ms
        while (left := until - boot_ms()) > 0:
            if not reader.waits:
                time.sleep(left / 1000)
                break
            if broke := reader.wait(left):
                loop.put(broke)
                time.sleep(BREATH_MS / 1000)
                break


def _loop(loop: EventLoop, agent: Agent, duties: UsageTasks, board: metrics.MetricsPage) -> None:
    faults: set[str] = set()
    wait_ms = 0
    while not duties.ended(boot_ms()):
        try:
            event = loop.wait(wait_ms)
            while event is not None:  # all that came, or what waits behind others would seem not to have come
                _take(event, agent, duties)
                event = loop.wait(0)
            now = boot_ms()
            agent.tick(now)
            duties.tick(now)
            agent.write_if_due(now)
            board.show(_page(agent, duties), agent.written_ms is not None)
            due = duties.due_ms()
            wait_ms = TICK_MS if due is None else max(0, min(TICK_MS, due - boot_ms()))
        except Exception as error:
            # A fault of our own must not take the agent down: it would only be started again, for ever.
            wait_ms = AFTER_A_FAULT_MS
            if str(error) not in faults:
                faults.add(str(error))
                log("fault", where="loop", reason=f"{type(error).__name__}: {error}")


def _take(event: object, agent: Agent, duties: UsageTasks) -> None:
    now = boot_ms()
    match event:
        case ReadingTaken():
            agent.looked(event.look, now)
            duties.looked(event.look, now)
        case CardFailed():
            agent.broke(event, now)
        case NodeChanged():
            agent.saw_node(event.node, now)
            duties.saw_node(agent.node)
        case PodsChanged():
            agent.pods = event.pods.pods
            duties.saw_pods(event.pods)
        case PodsUnknown():
            duties.lost_pods()
        case PostDone():
            duties.posted(event.outcome, now)
        case End():
            duties.end(now)


def _page(agent: Agent, duties: UsageTasks) -> str:
    wall = time.time_ns() // 1_000_000 - boot_ms()
    return metrics.of_agent(agent, wall, duties.events.results) + duties.page()


def _ports(server: api.NodeApi, events: EventPoster, node: str) -> AgentPorts:
    path = f"/api/v1/nodes/{node}/status"
    return AgentPorts(lambda patch: server.call("PATCH", path, patch, api.MERGE), events.post, log)


def _reports(settings: AgentSettings, loop: EventLoop) -> reports.UsageReports | None:
    if settings.timekeeper is None:
        return None
    boot = node_boot()
    disk = SpoolFolder(settings.timekeeper.spool, boot)
    client = HeartbeatClient(
        settings.timekeeper,
        boot_ms,
        disk.followed(),
        disk.follow,
        path=reports.PATH,
        document=reports.document,
    )
    ports = reports.UsagePorts(
        post=lambda post: run_in_background(loop, lambda: PostDone(client.deliver(post)), UNTRIED),
        keep=lambda post, waiting: disk.replace(report_spool.FILE, report_spool.encode(post, waiting, boot)),
        fraction=fraction,
        log=log,
    )
    return reports.UsageReports(ports, os.urandom(8).hex(), boot_ms(), _left(disk, boot))


def _left(disk: SpoolFolder, boot: str) -> tuple[reports.UsagePost | None, tuple[reports.UsageInterval, ...]]:
    """The reports that an earlier process of this container kept."""
    try:
        text = disk.read(report_spool.FILE)
        return (None, ()) if text is None else report_spool.decode(text, boot, boot_ms())
    except (OSError, ValueError) as error:
        log("use-unreadable", reason=error)
        return None, ()


def _follow_node(server: api.NodeApi, name: str, loop: EventLoop) -> None:
    def heard(objects: dict[str, Any]) -> None:
        loop.put(NodeChanged(next(map(api_objects.read_node, objects.values()), None)))

    follow(server, api_objects.node_path(name), api.JSON, heard, _LogOnChange("node"))


def _follow_pods(server: api.NodeApi, name: str, loop: EventLoop) -> None:
    def heard(objects: dict[str, Any]) -> None:
        loop.put(PodsChanged(api_objects.read_all(objects.values())))

    once = _LogOnChange("pods")

    def failed(reason: str) -> None:
        loop.put(PodsUnknown())
        once(reason)

    follow(server, api_objects.pods_path(name), api.METADATA, heard, failed)


class _LogOnChange:
    """Says each new reason once."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, ""

    def __call__(self, reason: str) -> None:
        if reason != self._last:
            self._last = reason
            log("not-followed", what=self._what, reason=reason)


def _start(name: str, work: Any) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()
