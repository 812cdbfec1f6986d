"""The agent's own metrics, and the port on which they and its state of health are read."""

from __future__ import annotations

import http.server
import socket
import sys
import threading

from sidecar.log import say
from sidecar.node.exporter import metric
from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.node.agent import Agent

TEXT = "text/plain; version=0.0.4; charset=utf-8"
STUCK_MS = 120_000
REQUEST_S = 5


@value
class Page:
    """What is shown: the metrics, whether the node has been written, and when (by the boot clock)."""

    text: str
    ready: bool
    at_ms: int


class Board:
    """The page that is shown now; the main thread puts up another, those that serve read it."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.page = Page("", False, clock())

    def show(self, text: str, ready: bool) -> None:
        """Put up another page."""
        self.page = Page(text, ready, self._clock())

    def answer(self, path: str) -> tuple[int, str]:
        """Status and text of a GET."""
        page = self.page
        if path == "/metrics":
            return 200, page.text
        if path == "/livez":
            stuck = self._clock() - page.at_ms > STUCK_MS
            return (503, "the agent's loop stands still\n") if stuck else (200, "ok\n")
        if path == "/readyz":
            return (200, "ok\n") if page.ready else (503, "the node has not been written yet\n")
        return 404, "there are /metrics, /livez and /readyz\n"


def of_agent(agent: Agent, boot_to_wall_ms: int, events: dict[str, int]) -> str:
    """How the agent and its cards are. ``boot_to_wall_ms``: what is added to its moments for Unix time."""
    cards = [
        ({"uuid": card.uuid, "index": card.index, "model": card.model}, int(card.healthy))
        for card in agent.cards
    ]
    written: list[tuple[dict[str, object], int]] = (
        [({}, (agent.written_ms + boot_to_wall_ms) // 1000)] if agent.written_ms is not None else []
    )
    return (
        metric("bursar_node_nvml_up", "gauge", "Whether NVML answered last.", [({}, int(agent.nvml_answers))])
        + metric("bursar_node_looks_total", "counter", "Looks at NVML.", [({}, agent.looks)])
        + metric("bursar_node_card_healthy", "gauge", "Whether the card may be given out.", cards)
        + metric("bursar_node_cards_healthy", "gauge", "Healthy cards.", [({}, sum(n for _, n in cards))])
        + metric(
            "bursar_node_card_mps",
            "gauge",
            "Whether processes compute on the card through MPS.",
            [({"uuid": card.uuid}, int(card.uuid in agent.on_mps)) for card in agent.cards],
        )
        + metric(
            "bursar_node_last_write_timestamp_seconds", "gauge", "When the node was last written.", written
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


def serve(board: Board, host: str, port: int) -> http.server.ThreadingHTTPServer:
    """Listen and answer in threads of its own; raises OSError where it cannot listen."""
    server = (_OverIPv6 if ":" in host else _Server)((host, port), _handler(board))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: object, client_address: object) -> None:
        """One line: who asked went away before the answer, most likely."""
        say("scrape-failed", error=type(sys.exception()).__name__)


class _OverIPv6(_Server):
    address_family = socket.AF_INET6


def _handler(board: Board) -> type[http.server.BaseHTTPRequestHandler]:
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
            """Not one line a scrape."""

    return Handler
