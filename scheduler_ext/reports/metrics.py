"""What Prometheus sees of the extender. Everything lives in one process, in a registry of its own."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_ext.model.node import CLOSED
from scheduler_ext.model.standing import Word
from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.reports.totals import Total, Totals
from scheduler_ext.snapshot.snapshot import Snapshot

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures of a scrape come from. ``waiting``: how many pods are refused everywhere, by
    standing; ``silent_s``: seconds since the API server was last heard, by what is watched; ``refused``: how
    often a node was refused, by what the reason is about; ``events``: Events by what became of them;
    ``preempted``: what the preemptor has done; ``leading``: whether this replica leads, and how often it has
    begun to."""

    snapshot: Callable[[], Snapshot]
    totals: Totals
    waiting: Callable[[], Mapping[str, int]]
    silent_s: Callable[[], Mapping[str, float]]
    refused: Callable[[], Mapping[str, int]]
    events: Callable[[], Mapping[str, int]]
    preempted: Callable[[], PreemptionCounts]
    leading: Callable[[], tuple[bool, int]]


class Metrics:
    """What is counted as it happens is here; the rest is asked of ``sources`` at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Scrape(sources))
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
        self._polls = Counter(
            "bursar_extender_standings_polls",
            "Polls of the standings: heard, failed.",
            ["outcome"],
            registry=self._registry,
        )
        self._standings_age = Gauge(
            "bursar_extender_standings_age_seconds",
            "Since the timekeeper was last heard; -1: never.",
            registry=self._registry,
        )
        self._standings_age.set(-1)
        self._usage_polls = Counter(
            "bursar_extender_usage_polls",
            "Polls of the cards' measured use: heard, failed.",
            ["outcome"],
            registry=self._registry,
        )
        self._usage_age = Gauge(
            "bursar_extender_usage_age_seconds",
            "Since the cards' measured use was last heard, as of the last poll; -1: never.",
            registry=self._registry,
        )
        self._usage_age.set(-1)

    def polled(self, outcome: str, age_s: float) -> None:
        """One poll of the timekeeper, heard or failed, and how old its table is after it."""
        self._polls.labels(outcome).inc()
        self._standings_age.set(age_s)

    def measured(self, outcome: str, age_s: float) -> None:
        """One poll of the cards' measured use, heard or failed, and how old it is after that."""
        self._usage_polls.labels(outcome).inc()
        self._usage_age.set(age_s)

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One call."""
        self._seconds.labels(verb).observe(seconds)
        self._results.labels(verb, result).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Scrape(Collector):
    """Counted at each scrape from the snapshot, so that nothing can drift."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        snapshot = self._sources.snapshot()
        total = self._sources.totals.now(snapshot.nodes)
        allocations = [snapshot.allocation(uid) for uid in snapshot.unsure]
        unsure = Tally[str](allocation.state for allocation in allocations if allocation is not None)
        yield from _of_nodes(total)
        yield from _of_cards(total)
        yield from self._of_pods(unsure)
        yield from self._of_what_happened()

    def _of_pods(self, unsure: Tally[str]) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "bursar_extender_reservations",
            "Waiting pods for which cards are held.",
            unsure.pop("reserved", 0),
        )
        yield _gauge(
            "bursar_extender_pods_unsure",
            "Pods whose cards are assumed, or that vanished.",
            "held",
            {"assumed": 0, "orphaned": 0, **unsure},
        )
        yield _gauge(
            "bursar_extender_pods_waiting",
            "Pods refused everywhere, by the standing of their namespaces.",
            "standing",
            {**dict.fromkeys(get_args(Word), 0), **self._sources.waiting()},
        )

    def _of_what_happened(self) -> Iterator[Metric]:
        yield _gauge(
            "bursar_extender_api_silent_seconds",
            "Since the API server was last heard.",
            "kind",
            self._sources.silent_s(),
        )
        yield _counter(
            "bursar_extender_nodes_refused",
            "Nodes refused to pods that fitted on none, by what the reason is about.",
            "reason",
            self._sources.refused(),
        )
        yield _counter(
            "bursar_extender_events",
            "Events: posted, repeated, dropped, failed.",
            "result",
            self._sources.events(),
        )
        yield from _of_preemptions(self._sources.preempted())
        leads, takeovers = self._sources.leading()
        yield GaugeMetricFamily("bursar_extender_leads", "1 while this replica may bind, else 0.", leads)
        yield CounterMetricFamily(
            "bursar_extender_takeovers", "How often this process has begun to lead.", takeovers
        )


def _of_preemptions(done: PreemptionCounts) -> Iterator[Metric]:
    results = CounterMetricFamily(
        "bursar_extender_preemptions",
        "Pods for which cards were held, by how that ended: bound, elsewhere, gone, withdrawn; or observed.",
        labels=["kind", "result"],
    )
    victims = CounterMetricFamily(
        "bursar_extender_preemption_victims",
        "Pods that had to leave, by how: evicted, deleted.",
        labels=["kind", "how"],
    )
    for family, counts in ((results, done.results), (victims, done.victims)):
        for labels, value in sorted(counts.items()):
            family.add_metric(labels, value)
        yield family
    yield CounterMetricFamily(
        "bursar_extender_evictions_refused", "Evictions that a PodDisruptionBudget refused.", done.protected
    )


def _of_nodes(total: Total) -> Iterator[Metric]:
    yield GaugeMetricFamily("bursar_extender_nodes", "Nodes with cards.", total.nodes)
    yield _gauge(
        "bursar_extender_nodes_closed",
        "Nodes closed for sharing, by why.",
        "reason",
        {**dict.fromkeys(CLOSED, 0), **total.closed},
    )


def _of_cards(total: Total) -> Iterator[Metric]:
    figures = total.figures
    for name, text, value in (
        ("cards", "Cards on open nodes that may be given out.", figures.cards),
        ("cards_untouched", "Of these, those that nobody is on.", figures.untouched),
        ("free_gpus", "Free compute on these, in cards.", figures.free_milli / 1000),
        (
            "reserved_gpus",
            "Free compute that is held for waiting pods, in cards; not in bursar_extender_free_gpus.",
            figures.reserved_milli / 1000,
        ),
        (
            "fragmented_gpus",
            "Free compute with memory beside it that a typical pod could not use, in cards.",
            total.milli(figures.fragmented) / 1000,
        ),
        (
            "stranded_gpus",
            "Free compute with memory but no CPU beside it, in cards.",
            total.milli(figures.stranded) / 1000,
        ),
    ):
        yield GaugeMetricFamily(f"bursar_extender_{name}", text, value)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family
