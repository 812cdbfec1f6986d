"""The agent's main loop: connects its parts to the clock, threads, the reader of cards, the API server and
the timekeeper.

One thread reads the cards, for that may hang; two watch the node and its pods; one sends Events; a background
thread at a time posts usage. They put their results into the event loop. The main thread alone changes the
agent's state and writes the node.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from sidecar.background import run_in_background
from sidecar.disk import SpoolFolder, node_boot
from sidecar.event_loop import End, EventLoop
from sidecar.heartbeat_client import HeartbeatClient
from sidecar.log import log
from sidecar.node import metrics
from sidecar.node.agent import Agent, AgentPorts
from sidecar.node.devices import reader_of
from sidecar.node.kube import api
from sidecar.node.kube.informer import follow
from sidecar.node.settings import ACCOUNT
from sidecar.node.state import api_objects, device_slices, report_spool, reports
from sidecar.node.usage_tasks import UsageTasks
from sidecar.node.values import CardFailed, DeviceReading, NodeState
from sidecar.run import UNTRIED, PostDone, boot_ms, fraction
from timekeeper.edge.clock import now_ms
from timekeeper.edge.events import EventRecorder
from timekeeper.edge.reflector import UnreachableError
from timekeeper.edge.saved_outbox import OutboxPorts
from timekeeper.edge.source_health import SourceHealth
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from sidecar.node.devices import DeviceReader
    from sidecar.node.nri_tasks import NriTasks
    from sidecar.node.settings import AgentSettings
    from sidecar.node.state.api_objects import NodePods
    from sidecar.node.state.overuse import AgentEvent
    from sidecar.node.state.reports import UsageInterval
    from timekeeper.edge.outbox import Post

BREATH_MS = 200  # pause after a driver event, so that many events do not cause as many readings
AFTER_A_FAULT_MS = 5_000
TICK_MS = 1_000
REPORTER = "bursar.dev/node"
MAX_EVENTS_PER_OBJECT = 64  # in five minutes: all cards of a node may fail at once
SLICES_S = 2.0  # the main loop waits for no longer


@value
class ReadingTaken:
    """The cards were read."""

    reading: DeviceReading


@value
class NodeChanged:
    """The Node object was read; None: there is none of this name."""

    node: NodeState | None


@value
class PodsChanged:
    """The node's pods that have not ended were read."""

    pods: NodePods


@value
class PodsUnknown:
    """The watch of the pods broke: the list may be outdated."""


def until_the_end(settings: AgentSettings, loop: EventLoop) -> None:
    """Run until SIGTERM. Raises OSError if the metrics' port is taken, and UnusableDevicesError."""
    reader = reader_of(settings.devices, boot_ms, settings.ignore_xids, settings.driver_root)
    server = api.NodeApi(settings.api_url, f"{ACCOUNT}/ca.crt", f"{ACCOUNT}/token")
    events = _events(server, settings.node_name)
    post = partial(_post, events, settings.node_name)
    sources = tuple(SourceHealth(name, log, now_ms) for name in ("nodes", "pods"))
    board = metrics.MetricsPage(boot_ms, sources)
    metrics.serve(board, *settings.listen)
    boot = node_boot()
    ports = _ports(server, post, settings.node_name)
    remove_taint = _taint_remover(server, settings) if settings.startup_taint else None
    nri = _nri(settings, server, reader)
    agent = Agent(ports, boot, settings.look_every_ms, boot_ms(), remove_taint, reader.vendor)
    reports = _usage_reports(settings, loop)
    path = device_slices.slices_path(settings.node_name)
    slices = partial(server.call, "GET", path, within_s=SLICES_S)
    tasks = UsageTasks(settings, agent, reports, post, boot, slices)
    log("started", node=settings.node_name, api=settings.api_url, reports=bool(reports))
    _start("cards", lambda: watch_cards(reader, loop, settings.look_every_ms))
    _start("node", lambda: _follow_node(server, settings.node_name, loop, sources[0]))
    _start("pods", lambda: _follow_pods(server, settings.node_name, loop, nri, sources[1]))
    _start("events", partial(events.run, threading.Event()))
    if nri:
        nri.start()
    _run_loop(loop, agent, tasks, board, nri, events)


def watch_cards(reader: DeviceReader, loop: EventLoop, every_ms: int) -> None:
    """Forever: read the cards, then wait for a driver event or the next reading."""
    while True:
        loop.put(ReadingTaken(reader.look()))
        until = boot_ms() + every_ms
        while (remaining := until - boot_ms()) > 0:
            if not reader.waits:
                time.sleep(remaining / 1000)
                break
            if failed := reader.wait(remaining):
                loop.put(failed)
                time.sleep(BREATH_MS / 1000)
                break


def _run_loop(
    loop: EventLoop,
    agent: Agent,
    tasks: UsageTasks,
    board: metrics.MetricsPage,
    nri: NriTasks | None,
    events: EventRecorder[str],
) -> None:
    faults: set[str] = set()
    wait_ms = 0
    while not tasks.ended(boot_ms()):
        try:
            event = loop.wait(wait_ms)
            while event is not None:  # all of them: a reading that waits in the queue must not look overdue
                _handle(event, agent, tasks, nri)
                event = loop.wait(0)
            now = boot_ms()
            agent.tick(now)
            if nri:
                nri.tick(agent, now)
            tasks.tick(now)
            agent.write_if_due(now)
            board.show(_page(agent, tasks, nri, events), agent.written_ms is not None)
            due = tasks.due_ms()
            wait_ms = TICK_MS if due is None else max(0, min(TICK_MS, due - boot_ms()))
        except Exception as error:
            # A defect of ours must not end the agent: it would be restarted again and again.
            wait_ms = AFTER_A_FAULT_MS
            if str(error) not in faults:
                faults.add(str(error))
                log("fault", level="error", where="loop", reason=f"{type(error).__name__}: {error}")


def _handle(event: object, agent: Agent, tasks: UsageTasks, nri: NriTasks | None) -> None:
    now = boot_ms()
    match event:
        case ReadingTaken():
            agent.on_reading(event.reading, now)
            tasks.on_reading(event.reading, now)
            if nri:
                nri.on_reading(agent, tasks.runtime_open)
        case CardFailed():
            agent.on_card_failed(event, now)
        case NodeChanged():
            agent.on_node(event.node, now)
            tasks.on_node(agent.node)
        case PodsChanged():
            agent.pods = event.pods.pods
            tasks.on_pods(event.pods)
        case PodsUnknown():
            tasks.on_pods_unknown()
        case PostDone():
            tasks.on_posted(event.outcome, now)
        case End():
            tasks.end(now)


def _page(agent: Agent, tasks: UsageTasks, nri: NriTasks | None, events: EventRecorder[str]) -> str:
    own = metrics.of_agent(agent, now_ms() - boot_ms(), events.results())
    return own + tasks.page() + (nri.page() if nri else "")


def _nri(settings: AgentSettings, server: api.NodeApi, reader: DeviceReader) -> NriTasks | None:
    if not settings.nri_socket:
        return None
    # protobuf takes memory that an agent without NRI need not spend
    from sidecar.node.nri_tasks import NriTasks

    return NriTasks(settings, server, reader)


def _events(server: api.NodeApi, node: str) -> EventRecorder[str]:
    def send(path: str, event: Mapping[str, Any]) -> tuple[int, str]:
        try:
            answer = server.call("POST", path, event)
        except UnreachableError as error:
            return 0, str(error)
        return answer.status, answer.message

    return EventRecorder(send, REPORTER, node, now_ms, log, MAX_EVENTS_PER_OBJECT)


def _post(events: EventRecorder[str], node: str, event: AgentEvent) -> None:
    if event.namespace:
        events.post(event.namespace, event.name, event.uid, event.reason, event.note, event.kind)
    else:
        events.post_on_node(node, event.reason, event.note, event.kind)


def _ports(server: api.NodeApi, post: Callable[[AgentEvent], None], node: str) -> AgentPorts:
    path = f"/api/v1/nodes/{node}/status"
    return AgentPorts(lambda patch: server.call("PATCH", path, patch, api.MERGE), post, log)


def _taint_remover(server: api.NodeApi, settings: AgentSettings) -> Callable[[dict[str, Any]], api.ApiAnswer]:
    path = f"/api/v1/nodes/{settings.node_name}"
    return lambda patch: server.call("PATCH", path, patch, api.MERGE)


def _usage_reports(settings: AgentSettings, loop: EventLoop) -> reports.UsageReports | None:
    timekeeper = settings.timekeeper
    if timekeeper is None:
        return None
    boot = node_boot()
    disk = SpoolFolder(timekeeper.spool)

    def save(post: Post[UsageInterval] | None, waiting: Sequence[UsageInterval]) -> bool:
        return disk.replace(report_spool.FILE, report_spool.encode(post, waiting, boot))

    client = HeartbeatClient(
        timekeeper,
        boot_ms,
        disk.followed(),
        disk.follow,
        path=reports.PATH,
        document=reports.document,
    )
    ports = reports.UsagePorts(
        outbox=OutboxPorts(
            post=lambda post: run_in_background(loop, lambda: PostDone(client.deliver(post)), UNTRIED),
            save=save,
        ),
        fraction=fraction,
        log=log,
    )
    left = disk.load(
        report_spool.FILE, lambda text: report_spool.decode(text, boot, boot_ms()), "use-unreadable"
    )
    return reports.UsageReports(ports, os.urandom(8).hex(), boot_ms(), left)


def _follow_node(server: api.NodeApi, name: str, loop: EventLoop, health: SourceHealth) -> None:
    def changed(objects: dict[str, Any]) -> None:
        loop.put(NodeChanged(next(map(api_objects.read_node, objects.values()), None)))

    path, failed = api_objects.node_path(name), _LogOnChange("node")
    follow(server, path, api.JSON, changed, failed, health, api_objects.read_node)


def _follow_pods(
    server: api.NodeApi, name: str, loop: EventLoop, nri: NriTasks | None, health: SourceHealth
) -> None:
    def changed(objects: dict[str, Any]) -> None:
        read = api_objects.read_all(objects.values())
        if nri:
            nri.on_pods(read, objects)
        loop.put(PodsChanged(read))

    log_on_change = _LogOnChange("pods")

    def failed(reason: str) -> None:
        loop.put(PodsUnknown())
        log_on_change(reason)

    def check(raw: dict[str, Any]) -> object:
        return api_objects.read_all([raw])

    follow(server, api_objects.pods_path(name), api.METADATA, changed, failed, health, check)


class _LogOnChange:
    """Logs a reason if it differs from the last."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, ""

    def __call__(self, reason: str) -> None:
        if reason != self._last:
            self._last = reason
            log("not-followed", level="warning", what=self._what, reason=reason)


def _start(name: str, work: Any) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()
