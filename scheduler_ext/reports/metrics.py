"""The extender's Prometheus metrics, in a registry of its own; the extender is one process."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_ext.model.node import CLOSED
from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.reports.totals import Total, Totals
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.standings import WORDS

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a scrape. ``waiting``: pods refused everywhere, by standing. ``silent_s``: seconds since
    the last sign of the API server, by watched kind. ``refused``: refused nodes by kind of reason.
    ``events``: Events by outcome. ``bindings`` and ``decisions``: reports to the timekeeper by outcome.
    ``preempted``: the preemptor's counts. ``leading``: whether this replica leads, and how often it has
    started to. ``fencing``: pods whose failing touches keep it from leading, and pods that it does not bind
    because they are too large for the store."""

    snapshot: Callable[[], Snapshot]
    totals: Totals
    waiting: Callable[[], Mapping[str, int]]
    silent_s: Callable[[], Mapping[str, float]]
    refused: Callable[[], Mapping[str, int]]
    events: Callable[[], Mapping[str, int]]
    bindings: Callable[[], Mapping[str, int]]
    decisions: Callable[[], Mapping[str, int]]
    preempted: Callable[[], PreemptionCounts]
    leading: Callable[[], tuple[bool, int]]
    fencing: Callable[[], tuple[int, int]]


class ExtenderMetrics:
    """Counters of calls and polls; everything else is read from ``sources`` at each scrape."""

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
        self._simulations = Counter(
            "bursar_extender_simulations",
            "Simulations by result: done, busy (another was running), ended (killed, or failed).",
            ["result"],
            registry=self._registry,
        )
        for result in ("done", "busy", "ended"):
            self._simulations.labels(result)
        self._polls = Counter(
            "bursar_extender_standings_polls",
            "Polls of the standings: heard, failed.",
            ["outcome"],
            registry=self._registry,
        )
        self._standings_age = Gauge(
            "bursar_extender_standings_age_seconds",
            "Seconds since the timekeeper's last answer; -1: never.",
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
            "Seconds since the last figures of the cards' use, as of the last poll; -1: never.",
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

    def simulated(self, result: str) -> None:
        """One simulation."""
        self._simulations.labels(result).inc()

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One call."""
        self._seconds.labels(verb).observe(seconds)
        self._results.labels(verb, result).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Scrape(Collector):
    """Computed from the snapshot at each scrape, so nothing can drift."""

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
            "Waiting pods for which cards are reserved.",
            unsure.pop("reserved", 0),
        )
        yield _gauge(
            "bursar_extender_pods_unsure",
            "Pods whose cards are assumed, and orphaned pods that still hold cards.",
            "held",
            {"assumed": 0, "orphaned": 0, **unsure},
        )
        yield _gauge(
            "bursar_extender_pods_waiting",
            "Pods refused everywhere, by the standing of their namespaces.",
            "standing",
            {**dict.fromkeys(WORDS, 0), **self._sources.waiting()},
        )

    def _of_what_happened(self) -> Iterator[Metric]:
        yield _gauge(
            "bursar_extender_api_silent_seconds",
            "Seconds since the last answer of the API server, by kind of object.",
            "kind",
            self._sources.silent_s(),
        )
        yield _counter(
            "bursar_extender_nodes_refused",
            "Nodes refused to pods that fit on none, by kind of reason.",
            "reason",
            self._sources.refused(),
        )
        yield _counter(
            "bursar_extender_events",
            "Events: posted, repeated, dropped, failed.",
            "result",
            self._sources.events(),
        )
        yield _counter(
            "bursar_extender_bindings_reported",
            "Bound pods reported to the timekeeper: sent, dropped; and failed posts.",
            "result",
            self._sources.bindings(),
        )
        yield _counter(
            "bursar_extender_decisions_reported",
            "Decisions reported to the timekeeper, by result.",
            "result",
            self._sources.decisions(),
        )
        yield from _of_preemptions(self._sources.preempted())
        leads, takeovers = self._sources.leading()
        yield GaugeMetricFamily("bursar_extender_leads", "1 while this replica may bind, else 0.", leads)
        yield CounterMetricFamily(
            "bursar_extender_takeovers", "How often this process became the leader.", takeovers
        )
        stuck, excluded = self._sources.fencing()
        yield GaugeMetricFamily(
            "bursar_extender_fencing_stuck_pods",
            "Pods that cannot be changed and keep this replica from leading.",
            stuck,
        )
        yield GaugeMetricFamily(
            "bursar_extender_pods_too_large",
            "Waiting pods that the leader does not bind: the store takes no change of them.",
            excluded,
        )


def _of_preemptions(done: PreemptionCounts) -> Iterator[Metric]:
    results = CounterMetricFamily(
        "bursar_extender_preemptions",
        "Pods for which cards were reserved, by outcome: bound, elsewhere, gone, withdrawn; or observed.",
        labels=["kind", "result"],
    )
    victims = CounterMetricFamily(
        "bursar_extender_preemption_victims",
        "Victims of preemption: evicted, deleted, shortened (their deletion's grace period).",
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
        "Nodes closed for sharing, by reason.",
        "reason",
        {**dict.fromkeys(CLOSED, 0), **total.closed},
    )


def _of_cards(total: Total) -> Iterator[Metric]:
    figures = total.figures
    for name, text, value in (
        ("cards", "Usable cards on open nodes.", figures.cards),
        ("cards_untouched", "Usable cards on open nodes without a pod.", figures.untouched),
        ("free_gpus", "Free compute on usable cards, in cards.", figures.free_milli / 1000),
        (
            "reserved_gpus",
            "Free compute reserved for waiting pods, in cards; not in bursar_extender_free_gpus.",
            figures.reserved_milli / 1000,
        ),
        (
            "fragmented_gpus",
            "Free compute with memory that a typical pod cannot use, in cards.",
            total.milli(figures.fragmented) / 1000,
        ),
        (
            "stranded_gpus",
            "Free compute with memory but without CPU, in cards.",
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
