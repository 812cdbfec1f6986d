"""The agent's own metrics, and the HTTP server for /metrics, /livez and /readyz."""

from __future__ import annotations

import contextlib
import http.server
import socket
import sys
import threading
import time

from sidecar.log import log
from sidecar.node.state.exporter import metric
from timekeeper.edge.families import listening_family, take_both
from timekeeper.edge.source_health import readiness_lines
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from sidecar.node.agent import Agent
    from timekeeper.edge.source_health import SourceHealth

TEXT = "text/plain; version=0.0.4; charset=utf-8"
STUCK_MS = 120_000
REQUEST_S = 5
MAX_AT_ONCE = 8
FREE_WITHIN_S = 1.0  # a thread is free this long after its connection was closed


@value
class Page:
    """The contents at a moment."""

    text: str  # the metrics
    ready: bool  # the node has been written
    at_ms: int  # by the boot clock


class MetricsPage:
    """The present page. The main thread replaces it, the server's threads read it. ``sources``: what is
    followed."""

    def __init__(self, clock: Callable[[], int], sources: Sequence[SourceHealth] = ()) -> None:
        self._clock, self.sources = clock, sources
        self.page = Page("", False, clock())

    def show(self, text: str, ready: bool) -> None:
        """Replace the page."""
        self.page = Page(text, ready, self._clock())

    def answer(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        page = self.page
        if path == "/metrics":
            return 200, page.text + (of_sources(self.sources) if self.sources else "")
        if path == "/livez":
            stuck = self._clock() - page.at_ms > STUCK_MS
            return (503, "the agent's main loop is stuck\n") if stuck else (200, "ok\n")
        if path == "/readyz":
            lines = "".join(f"{line}\n" for line in ("ok", *readiness_lines(self.sources)))
            return (200, lines) if page.ready else (503, "the node has not been written yet\n")
        return 404, "not found; the paths are /metrics, /livez and /readyz\n"


def of_agent(agent: Agent, boot_to_wall_ms: int, events: Mapping[str, int]) -> str:
    """The metrics of the agent and its cards. ``boot_to_wall_ms``: Unix time minus the boot clock."""
    cards = [
        ({"uuid": card.uuid, "index": card.index, "model": card.model}, int(card.healthy))
        for card in agent.cards
    ]
    written: list[tuple[dict[str, object], int]] = (
        [({}, (agent.written_ms + boot_to_wall_ms) // 1000)] if agent.written_ms is not None else []
    )
    return (
        metric(
            "bursar_node_nvml_up",
            "gauge",
            "Whether the last reading of the cards succeeded.",
            [({}, int(agent.nvml_answers))],
        )
        + metric("bursar_node_looks_total", "counter", "Readings of the cards.", [({}, agent.looks)])
        + metric("bursar_node_card_healthy", "gauge", "Whether the card may be allocated.", cards)
        + metric("bursar_node_cards_healthy", "gauge", "Healthy cards.", [({}, sum(n for _, n in cards))])
        + metric(
            "bursar_node_card_mps",
            "gauge",
            "Whether processes use the card through MPS.",
            [({"uuid": card.uuid}, int(card.uuid in agent.on_mps)) for card in agent.cards],
        )
        + metric(
            "bursar_node_last_write_timestamp_seconds", "gauge", "Last successful write of the node.", written
        )
        + metric(
            "bursar_node_writes_total",
            "counter",
            "Writes of the node by result.",
            [({"result": result}, count) for result, count in agent.writes.items()],
        )
        + metric(
            "bursar_node_events_total",
            "counter",
            "Events by result.",
            [({"result": result}, count) for result, count in events.items()],
        )
    )


def of_sources(sources: Sequence[SourceHealth]) -> str:
    """How many of what is followed do not get on, and how many objects are skipped."""
    wrong = {
        "watch-fails": sum(bool(source.stuck()) for source in sources),
        "object-unread": sum(len(source.unread) for source in sources),
    }
    rows: list[tuple[dict[str, object], int]] = [
        ({"role": "node", "code": code}, number) for code, number in wrong.items()
    ]
    return metric("bursar_findings", "gauge", "What the role finds wrong, by code.", rows)


def serve(
    board: MetricsPage, host: str, port: int, request_s: float = REQUEST_S
) -> http.server.ThreadingHTTPServer:
    """Start a server with its own threads. A request may take ``request_s``; its client is reset if it takes
    nothing for as long, also after the close. Raises OSError if it cannot listen."""
    family, host = listening_family(host)
    over = _OverIPv6 if family is socket.AF_INET6 else _BoundedServer
    server = over((host, port), _handler(board), request_s)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _BoundedServer(http.server.ThreadingHTTPServer):
    """Any client that reaches the node can connect, so threads are few and a request's time is bounded. If
    all threads are busy, a new connection replaces the oldest one: the kubelet's probes are quick."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[http.server.BaseHTTPRequestHandler],
        request_s: float,
    ) -> None:
        super().__init__(address, handler)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * request_s))
        self._request_s = request_s
        self._free = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._since: dict[Any, float] = {}  # by connection, the oldest first

    def service_actions(self) -> None:
        """Called every 0.5 s: close the connections whose request took too long."""
        for connection, since in list(self._since.items()):
            if time.monotonic() - since > self._request_s:
                _hang_up(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the request in a thread, once one is free."""
        if not self._free.acquire(blocking=False):
            for oldest in list(self._since)[:1]:
                _hang_up(oldest)
            if not self._free.acquire(timeout=FREE_WITHIN_S):
                self.shutdown_request(request)
                return
        self._since[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As in the base class; then the thread is free."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        del self._since[request]
        self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log one line: most likely the client closed the connection before the answer."""
        log("scrape-failed", level="warning", error=type(sys.exception()).__name__)


class _OverIPv6(_BoundedServer):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        take_both(self.socket, str(self.server_address[0]))
        super().server_bind()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed just now
        connection.shutdown(socket.SHUT_RDWR)


def _handler(board: MetricsPage) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            status, text = board.answer(self.path.partition("?")[0])
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """No line for each scrape."""

    return Handler
