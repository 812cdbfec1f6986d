"""The extender's Prometheus metrics, in a registry of its own; the extender is one process."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler_ext.model.node import CLOSED
from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.reports.totals import Total, Totals, drained_milli
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.findings import METRIC, METRIC_LABELS, METRIC_MEANS
from timekeeper.core.gangs import MAX_SIZE
from timekeeper.core.standings import WORDS
from timekeeper.runtime.recording.decision_posts import RESULTS_MEAN

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


_SIZES = ((8, "1-8"), (64, "9-64"), (512, "65-512"), (MAX_SIZE, "513-1024"))
_GANG_COUNTS = {
    "plans": ("plans for gangs that wait: `fits`; `none`: too few members fit", "result"),
    "failed_starts": (
        "starts by whose deadline too few members had a node: `some-bound` (those are evicted), `none-bound`;"
        " `not-ready`: gangs that left because a pod stayed Pending",
        "reason",
    ),
    "drains": (
        "drains by their end: `fit` (the gang has its cards), `over` (no time is left), `none` (no cards "
        "that become free would be enough), `gone` (the gang)",
        "end",
    ),
    "evictions": (
        "evictions of pods of gangs that did not start in time: `done`, `refused`, `unclear`",
        "result",
    ),
}


class GangFigures(NamedTuple):
    """``kept_milli``: what plans keep, in thousandths of a card; ``counts``: by name and result."""

    waiting: int
    kept_milli: int
    counts: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of a scrape. ``waiting``: pods refused everywhere, by standing. ``silent_s``: seconds since
    the last sign of the API server, by watched kind. ``refused``: refused nodes by kind of reason.
    ``events``: Events by outcome. ``bindings``, ``ends`` and ``decisions``: reports to the timekeeper by
    outcome. ``gangs``: those that wait, and what became of them.
    ``preempted``: the preemptor's counts. ``leading``: whether this replica leads, and how often it has
    started to. ``fencing``: pods whose failing touches keep it from leading, and pods that it does not bind
    because they are too large for the store. ``wrong``: by code, what is found."""

    snapshot: Callable[[], Snapshot]
    totals: Totals
    waiting: Callable[[], Mapping[str, int]]
    silent_s: Callable[[], Mapping[str, float]]
    refused: Callable[[], Mapping[str, int]]
    events: Callable[[], Mapping[str, int]]
    bindings: Callable[[], Mapping[str, int]]
    ends: Callable[[], Mapping[str, int]]
    decisions: Callable[[], Mapping[str, int]]
    preempted: Callable[[], PreemptionCounts]
    gangs: Callable[[], GangFigures]
    leading: Callable[[], tuple[bool, int]]
    fencing: Callable[[], tuple[int, int]]
    wrong: Callable[[], Mapping[str, int]]


class ExtenderMetrics:
    """Counters of calls and polls; everything else is read from ``sources`` at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ScrapedMetrics(sources))
        self._seconds = Histogram(
            "bursar_extender_verb_seconds",
            "time to answer a call of `filter`, `prioritize`, `preempt`, `bind` or `dryrun`; a bind's "
            "includes the API server's",
            ["verb"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._results = Counter(
            "bursar_extender_verbs",
            "calls: `fit` and `none` (some node fits, or none does), `bound` and `refused`, `error` "
            "(the state is not complete yet), `malformed`",
            ["verb", "result"],
            registry=self._registry,
        )
        # the verbs and their results are a few words of ours, and the library takes its time to look them up
        self._seconds_of, self._results_of = cache(self._seconds.labels), cache(self._results.labels)
        self._gang_starts = Histogram(
            "bursar_extender_gang_start_seconds",
            "from the creation of a waiting gang's first pod until enough of its pods have a node, by its "
            "number of pods: `1-8`, `9-64`, `65-512`, `513-1024`",
            ["pods"],
            buckets=(1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400),
            registry=self._registry,
        )
        self._polls = Counter(
            "bursar_extender_standings_polls",
            "polls of the timekeeper: `heard`, `failed`",
            ["outcome"],
            registry=self._registry,
        )
        self._standings_heard = Gauge(
            "bursar_extender_standings_last_success_timestamp_seconds",
            "last answer of the timekeeper, Unix time; 0: never",
            registry=self._registry,
        )
        self._usage_polls = Counter(
            "bursar_extender_usage_polls",
            "polls of the cards' measured use, for the policy `load` alone: `heard`, `failed`",
            ["outcome"],
            registry=self._registry,
        )
        self._usage_heard = Gauge(
            "bursar_extender_usage_last_success_timestamp_seconds",
            "last answer to a poll of the cards' use, Unix time; 0: never",
            registry=self._registry,
        )

    def polled(self, outcome: str) -> None:
        """One poll of the timekeeper, heard or failed."""
        self._polls.labels(outcome).inc()
        if outcome == "heard":
            self._standings_heard.set_to_current_time()

    def measured(self, outcome: str) -> None:
        """One poll of the cards' measured use, heard or failed."""
        self._usage_polls.labels(outcome).inc()
        if outcome == "heard":
            self._usage_heard.set_to_current_time()

    def gang_started(self, size: int, seconds: int) -> None:
        """A gang has started, so long after its first pod was created. A label that another scheduler reads
        may say any size."""
        pods = next((name for most, name in _SIZES if size <= most), _SIZES[-1][1])
        self._gang_starts.labels(pods).observe(seconds)

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One call."""
        self._seconds_of(verb).observe(seconds)
        self._results_of(verb, result).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class ScrapedMetrics(Collector):
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
        yield _of_demotions(snapshot)
        yield from _of_cards(total)
        yield from self._of_pods(unsure, snapshot)
        yield from self._of_what_happened()

    def _of_pods(self, unsure: Tally[str], snapshot: Snapshot) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "bursar_extender_reservations",
            "waiting pods for which cards are held",
            unsure.pop("reserved", 0),
        )
        yield GaugeMetricFamily(
            "bursar_extender_drained_gpus",
            "empty compute that a drain keeps for a gang, in cards",
            drained_milli(snapshot) / 1000,
        )
        yield _gauge(
            "bursar_extender_pods_unsure",
            "pods whose cards are `assumed` (the bind is under way, or not settled) or `orphaned` "
            "(deleted by force, and perhaps still running)",
            "held",
            {"assumed": 0, "orphaned": 0, **unsure},
        )
        yield _gauge(
            "bursar_extender_pods_waiting",
            "pods that are refused everywhere, but for claims, by their namespaces' standing",
            "standing",
            {**dict.fromkeys(WORDS, 0), **self._sources.waiting()},
        )

    def _of_what_happened(self) -> Iterator[Metric]:
        yield _gauge(
            "bursar_extender_api_silent_seconds",
            "age of the state: time since the last answer of the API server, by kind of object",
            "kind",
            self._sources.silent_s(),
        )
        yield _counter(
            "bursar_extender_nodes_refused",
            "nodes refused to pods that fit on none, by the kind of the reason",
            "reason",
            self._sources.refused(),
        )
        yield _counter(
            "bursar_extender_events",
            "Events: `posted`; `repeated` (the same was written just before); `dropped` (more than "
            "1,000 waited); `failed`",
            "result",
            self._sources.events(),
        )
        yield _counter(
            "bursar_extender_bindings_reported",
            f"bound pods {RESULTS_MEAN}",
            "result",
            self._sources.bindings(),
        )
        yield _counter(
            "bursar_extender_ends_reported",
            "removed pods reported to the timekeeper, with the same results as bound pods; `dropped`: more "
            "than 50,000 waited, and the oldest are lost",
            "result",
            self._sources.ends(),
        )
        yield _counter(
            "bursar_extender_decisions_reported",
            "decisions reported to the timekeeper, with the same results as bound pods",
            "result",
            self._sources.decisions(),
        )
        yield from _of_preemptions(self._sources.preempted())
        yield from _of_gangs(self._sources.gangs())
        yield from self._of_leadership()
        family = GaugeMetricFamily(METRIC, METRIC_MEANS, labels=METRIC_LABELS)
        for code, number in self._sources.wrong().items():
            family.add_metric(["extender", code], number)
        yield family

    def _of_leadership(self) -> Iterator[Metric]:
        leads, takeovers = self._sources.leading()
        yield GaugeMetricFamily("bursar_extender_leads", "1 while this replica may bind, else 0", leads)
        yield CounterMetricFamily(
            "bursar_extender_takeovers", "how often this process began to lead", takeovers
        )
        stuck, excluded = self._sources.fencing()
        yield GaugeMetricFamily(
            "bursar_extender_fencing_stuck_pods",
            "pods that cannot be changed for 5 s and keep this replica from leading",
            stuck,
        )
        yield GaugeMetricFamily(
            "bursar_extender_pods_too_large",
            "waiting pods that the leader does not bind because etcd takes no change of them",
            excluded,
        )


def _of_gangs(now: GangFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily("bursar_extender_gangs_waiting", "gangs of which a pod has no node", now.waiting)
    yield GaugeMetricFamily(
        "bursar_extender_planned_gpus",
        "compute that is kept for members of gangs that start, in cards",
        now.kept_milli / 1000,
    )
    for name, (text, label) in _GANG_COUNTS.items():
        yield _counter(f"bursar_extender_gang_{name}", text, label, now.counts[name])


def _of_preemptions(done: PreemptionCounts) -> Iterator[Metric]:
    results = CounterMetricFamily(
        "bursar_extender_preemptions",
        "pods for which cards were held, by result: `bound`, `elsewhere`, `gone`, `withdrawn`; or `observed`",
        labels=["kind", "result"],
    )
    victims = CounterMetricFamily(
        "bursar_extender_preemption_victims",
        "victims of preemption: `evicted`, `deleted`, `shortened` (the grace period of their deletion)",
        labels=["kind", "how"],
    )
    for family, counts in ((results, done.results), (victims, done.victims)):
        for labels, value in sorted(counts.items()):
            family.add_metric(labels, value)
        yield family
    yield CounterMetricFamily(
        "bursar_extender_evictions_refused", "evictions that a PodDisruptionBudget refused", done.protected
    )


def _of_nodes(total: Total) -> Iterator[Metric]:
    yield GaugeMetricFamily("bursar_extender_nodes", "nodes with cards", total.nodes)
    yield _gauge(
        "bursar_extender_nodes_closed",
        "closed nodes",
        "reason",
        {**dict.fromkeys(CLOSED, 0), **total.closed},
    )


def _of_demotions(snapshot: Snapshot) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "bursar_extender_node_demoted_until_timestamp_seconds",
        "until when other nodes come first, because the node's kubelet refused pods for reasons of devices, "
        "Unix time; `namespace`: for its pods alone, empty: for all",
        labels=["node", "namespace", "reason"],
    )
    for name, known in snapshot.rejections.items():
        for namespace, demotion in known.demotions.items():
            family.add_metric([name, namespace, demotion.why.partition(":")[0]], demotion.until_ms / 1000)
    return family


def _of_cards(total: Total) -> Iterator[Metric]:
    figures = total.figures
    for name, text, value in (
        ("cards", "cards that may be given out, on open nodes", figures.cards),
        ("cards_untouched", "cards on open nodes that may be given out and have no pod", figures.untouched),
        ("free_gpus", "free compute, in cards", figures.free_milli / 1000),
        (
            "reserved_gpus",
            "compute held for waiting pods and kept for gangs, in cards; it is not free",
            figures.reserved_milli / 1000,
        ),
        (
            "fragmented_gpus",
            "free compute with memory that a typical pod cannot use, in cards",
            total.milli(figures.fragmented) / 1000,
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
