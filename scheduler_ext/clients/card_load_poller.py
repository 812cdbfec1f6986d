"""Asks the timekeeper or Prometheus how busy the cards are, for the policy `load`, while there are pods that
go by it."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from scheduler_ext.clients.timekeeper import client
from scheduler_ext.log import Log, LogEvent
from scheduler_ext.scoring import load_series
from scheduler_ext.scoring.card_points import BUSY, USED_MEMORY, Samples, Scale, loads
from scheduler_ext.scoring.load import LoadByCard
from scheduler_ext.settings import ExtenderSettings
from timekeeper.core.values import Card
from timekeeper.edge.timekeeper_client import Polled, TimekeeperAnswer, TimekeeperPoller
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.prometheus import PrometheusClient
from timekeeper.runtime.prometheus_settings import PrometheusSettings

PATH = "/v1/nodeusage"
# Each new measurement makes the extender score every node again for pods with this policy, so the interval
# is long.
POLL_EVERY_MS = 10_000
STALE_MS = 120_000  # older measurements are ignored
WANTED_MS = 120_000  # `load` counts as in use for this long after a decision used it
LOOK_EVERY_S = 0.5

CardsByNode = Callable[[], Iterable[tuple[str, Card]]]
"""Returns each card of the cluster, with its node."""


class Prometheus:
    """One instant query for ``figures``. For one thread."""

    def __init__(self, settings: PrometheusSettings, figures: Iterable[str], api: Api) -> None:
        self._client = PrometheusClient(settings, api)
        self._query = load_series.query(figures)

    def get(self, etag: str) -> TimekeeperAnswer:
        """The answer to the query. Raises PrometheusError."""
        return TimekeeperAnswer(True, "", self._client.ask("/api/v1/query", query=self._query))

    def close(self) -> None:
        """Closes the connection; the next call finds the Service again, and opens another."""
        self._client.close()


def read_samples(body: bytes) -> Samples:
    """The figures by card in an answer. Raises ValueError."""
    return load_series.read_answer(orjson.loads(body))


class UndecodableUsageError(ValueError):
    """The timekeeper's answer is no `node_usage.MeasuredCards`; the last figures stay until too old."""


class Measuring(TimekeeperPoller[Samples, LogEvent]):
    """Polls ``source`` while `figures` is in use, or always with ``always``. ``read`` decodes an answer, and
    raises ValueError. ``cards``: those that the figures may be of. See `TimekeeperPoller`."""

    def __init__(
        self,
        source: Polled,
        read: Callable[[bytes], Samples],
        cards: CardsByNode,
        scale: Scale,
        now_ms: Callable[[], int],
        log: Log,
        polled: Callable[[str], None],
        always: bool = False,
    ) -> None:
        events: tuple[LogEvent, LogEvent] = "usage-updated", "usage-failed"
        super().__init__(
            source, lambda body, *_: read(body), lambda known, _: known, now_ms, log, events, polled
        )
        self._cards, self._scale, self._always = cards, scale, always
        self._polled_ms: int | None = None
        self._wanted_ms: int | None = None
        self._loads: LoadByCard = {}

    def figures(self) -> LoadByCard | None:
        """The last figures, the same object while they are the same; None where there are none, or the source
        has not answered for `STALE_MS`."""
        self._wanted_ms = self._now_ms()
        return None if self.is_older_than(STALE_MS) else self._loads or None

    def run(self, stop: threading.Event, every_s: float = LOOK_EVERY_S) -> None:
        """Polls when it is due, until ``stop``."""
        while not stop.is_set():
            if self.due():
                self.poll()
            stop.wait(every_s)
        self.close()

    def due(self) -> bool:
        """True where the figures are in use, and it is time to ask for newer ones."""
        now_ms, wanted_ms, polled_ms = self._now_ms(), self._wanted_ms, self._polled_ms
        is_wanted = self._always or (wanted_ms is not None and now_ms - wanted_ms <= WANTED_MS)
        return is_wanted and (polled_ms is None or now_ms - polled_ms >= POLL_EVERY_MS)

    def poll(self) -> None:
        """As `TimekeeperPoller.poll`; then the figures of every card follow from the last answer."""
        self._polled_ms = self._now_ms()
        super().poll()
        found = loads(self.value or {}, self._cards(), self._scale)
        if found != self._loads:
            self._loads = found


def decode(body: bytes) -> Samples:
    """The figures that node agents measured. Cards without any are left out, and so are cards that two nodes
    report, because one of them is wrong. Raises UndecodableUsageError."""
    try:
        whole = orjson.loads(body)
        if whole["version"] != 1:
            raise UndecodableUsageError("usage: not version 1")
        found: dict[str, dict[str, int]] = {}
        claimed: set[str] = set()
        for cards in whole["nodes"].values():
            for uuid, use in cards.items():
                if use["utilisation"] is not None and uuid not in claimed:
                    found[uuid] = {BUSY: _amount(use["utilisation"], 100)}
                    if use["memory_mib"] is not None:
                        found[uuid][USED_MEMORY] = _amount(use["memory_mib"], 2**53)
                if uuid in claimed:
                    found.pop(uuid, None)
                claimed.add(uuid)
        return found
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UndecodableUsageError(f"usage: {type(error).__name__} {error}") from error


def _amount(value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UndecodableUsageError("usage: a figure is no percentage, or no amount of memory")
    return value


Source = tuple[Polled, Callable[[bytes], Samples]]
"""What to poll, and the reader of its answers."""


def source_of(settings: ExtenderSettings, api: Api) -> Source | None:
    """Prometheus where it is set, else the timekeeper; None without either."""
    if settings.prometheus.is_given:
        weighed = [name for name, _ in settings.scale.weights]
        return Prometheus(settings.prometheus, weighed, api), read_samples
    if settings.timekeeper.url:
        return client(settings.timekeeper, PATH), decode
    return None
