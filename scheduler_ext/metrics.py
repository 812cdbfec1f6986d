"""What Prometheus sees of the extender. Everything lives in one process, in a registry of its own."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_ext.facts import CLOSED
from scheduler_ext.snapshot import Snapshot

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


class Metrics:
    """``snapshot``: what is known now; ``waiting``: how many pods wait; ``silent_s``: seconds since the API
    server was last heard, by what is watched."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        waiting: Callable[[], int],
        silent_s: Callable[[], dict[str, float]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Books(snapshot, waiting, silent_s))
        self._seconds = Histogram(
            "bursar_extender_verb_seconds",
            "Time to answer a call.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._results = Counter(
            "bursar_extender_verbs",
            "Calls by result: fit, none, bound, refused, error, malformed.",
            ["verb", "result"],
            registry=self._registry,
        )

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One call."""
        self._seconds.labels(verb).observe(seconds)
        self._results.labels(verb, result).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Books(Collector):
    """Counted at each scrape from the snapshot, so that nothing can drift."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        waiting: Callable[[], int],
        silent_s: Callable[[], dict[str, float]],
    ) -> None:
        self._snapshot, self._waiting, self._silent_s = snapshot, waiting, silent_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry."""
        snapshot = self._snapshot()
        nodes = list(snapshot.nodes.values())
        closed = Tally(node.closed for node in nodes if node.closed)
        seats = [snapshot.seat(uid) for uid in snapshot.unsure]
        unsure = Tally[str](seat.held for seat in seats if seat is not None)
        rooms = [room for node in nodes if not node.closed for room in node.shape.rooms]
        yield _gauge(
            "bursar_extender_nodes_closed",
            "Nodes closed for sharing, by why.",
            "reason",
            {**dict.fromkeys(CLOSED, 0), **closed},
        )
        yield _gauge(
            "bursar_extender_pods_unsure",
            "Pods whose cards are assumed, or that vanished.",
            "held",
            {**{"assumed": 0, "vanished": 0}, **unsure},
        )
        yield _gauge(
            "bursar_extender_api_silent_seconds",
            "Since the API server was last heard.",
            "kind",
            self._silent_s(),
        )
        yield GaugeMetricFamily(
            "bursar_extender_nodes", "Nodes with cards.", sum(1 for n in nodes if n.cards)
        )
        yield GaugeMetricFamily("bursar_extender_pods_waiting", "Pods refused everywhere.", self._waiting())
        yield GaugeMetricFamily("bursar_extender_cards", "Healthy cards on open nodes.", len(rooms))
        yield GaugeMetricFamily(
            "bursar_extender_cards_untouched",
            "Of these, those that nobody is on.",
            sum(room.untouched for room in rooms),
        )
        yield GaugeMetricFamily(
            "bursar_extender_free_gpus",
            "Free compute on these, in cards.",
            sum(room.share_milli for room in rooms) / 1000,
        )


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family
