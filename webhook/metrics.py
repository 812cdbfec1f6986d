"""The webhook's metrics, summed over its workers.

Import this after PROMETHEUS_MULTIPROC_DIR is set (or deliberately not set): prometheus_client decides at
import whether its values are in files that all workers share.
"""

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from timekeeper.core.findings import (
    METRIC,
    METRIC_LABELS,
    METRIC_MEANS,
    WATCH_FAILS,
    counted,
    of_sources,
    published,
)
from timekeeper.edge.memory_outbox import RESULTS
from timekeeper.edge.source_health import SourceHealth
from timekeeper.runtime.recording.decision_posts import RESULTS_MEAN
from webhook.wire.pod_review import AdmissionAnswer

M = TypeVar("M", Counter, Histogram)

_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


class FiguresGoneError(Exception):
    """The folder of the workers' shared figures was removed; a restart creates it again."""


class WebhookMetrics:
    """The counters of one worker; ``exposition`` gives the text of all workers together."""

    def __init__(self, exposition: Callable[[], bytes], registry: CollectorRegistry) -> None:
        self.exposition = exposition
        self._reviews = Counter(
            "bursar_webhook_reviews",
            "reviews answered. `governed` and `unchanged`: a GPU pod passed, with and without a patch; "
            "`passed`: nothing to do; `valid`; `refused`; `warned`, `observed`: it broke rules that "
            "only warn, or in mode `observe`; webhook: `mutate`, `validate`, `templates`, `jobs`, "
            "`budgets`",
            ["webhook", "verdict"],
            registry=registry,
        )
        self._violations = Counter(
            "bursar_webhook_violations",
            "reviews that broke the rule, by result: `enforce` refused, `warn` warned, `observe` would "
            "have been refused",
            ["rule", "mode"],
            registry=registry,
        )
        self._malformed = Counter(
            "bursar_webhook_malformed",
            "bodies that are not an AdmissionReview",
            registry=registry,
        )
        self._not_ready = Counter(
            "bursar_webhook_not_ready",
            "reviews answered with 503, so that pods are refused, because the CA bundle for sidecars had not "
            "been read",
            ["webhook"],
            registry=registry,
        )
        self._not_ready.labels("mutate")  # there from the first scrape on
        self._unknown = Counter(
            "bursar_webhook_unknown_standing",
            "pods governed while their standing was UNKNOWN",
            registry=registry,
        )
        self._seconds = Histogram(
            "bursar_webhook_review_seconds",
            "from a whole request to its answer",
            ["webhook"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._heard = Gauge(
            "bursar_webhook_standings_last_success_timestamp_seconds",
            "last answer of the timekeeper, Unix time, of the worker that waits longest; 0: a worker has had "
            "none",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._expiry = Gauge(
            "bursar_webhook_certificate_expiration_timestamp_seconds",
            "expiry of the served certificate, Unix time, the first of all workers; 0: a worker has none yet",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._polls = Counter(
            "bursar_webhook_standings_polls",
            "polls of the timekeeper, one a second and worker: `heard`, `failed`",
            ["outcome"],
            registry=registry,
        )
        self._decisions = Counter(
            "bursar_webhook_decisions",
            f"decisions {RESULTS_MEAN}",
            ["result"],
            registry=registry,
        )
        for result in RESULTS:
            self._decisions.labels(result)
        self._found = Gauge(
            METRIC, METRIC_MEANS, METRIC_LABELS, multiprocess_mode="livemax", registry=registry
        )

    def answered(self, webhook: str, answer: AdmissionAnswer, seconds: float) -> None:
        """Counts a review that was answered."""
        _of(self._reviews, webhook, answer.verdict).inc()
        _of(self._seconds, webhook).observe(seconds)
        for rule, mode in answer.rules:
            _of(self._violations, rule, mode).inc()
        if answer.audit.get("standing") == "UNKNOWN" and answer.operations:
            self._unknown.inc()

    def certificate_loaded(self, expires: datetime) -> None:
        """Records the expiry of the certificate that is served from now on."""
        self._expiry.set(expires.timestamp())

    def malformed(self) -> None:
        """Counts a body that was answered with 400."""
        self._malformed.inc()

    def not_ready(self, webhook: str) -> None:
        """Counts a review that was answered with 503."""
        _of(self._not_ready, webhook).inc()

    def decided(self, result: str, number: int) -> None:
        """Counts decisions that were sent, dropped or refused, and posts that failed."""
        self._decisions.labels(result).inc(number)

    def found(self, sources: Iterable[SourceHealth]) -> None:
        """Records what is wrong with what this worker follows."""
        wrong = counted(published(of_sources(sources)))
        for code in (WATCH_FAILS, "object-unread"):
            self._found.labels("webhook", code).set(wrong[code])

    def polled(self, outcome: str) -> None:
        """Counts a poll of the timekeeper, heard or failed."""
        self._polls.labels(outcome).inc()
        if outcome == "heard":
            self._heard.set_to_current_time()


@lru_cache(maxsize=4096)
def _of(metric: M, *labels: str) -> M:
    """The metric with these labels, cached because the library's lookup is slow."""
    return metric.labels(*labels)


def of_all_workers() -> WebhookMetrics:
    """Metrics of one of several workers that share the folder PROMETHEUS_MULTIPROC_DIR."""

    def exposition() -> bytes:
        together = CollectorRegistry()
        try:
            MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        except ValueError as error:  # the temporary folder was removed
            raise FiguresGoneError from error
        return generate_latest(together)

    if values.ValueClass is not values.MutexValue:  # the folder existed when the library was imported
        values.ValueClass = _values_of(os.getpid())  # as its documentation has it
    return WebhookMetrics(exposition, CollectorRegistry())


@lru_cache(maxsize=1)
def _values_of(pid: int) -> Any:
    """Values in the files of this process, which does not fork. By default the library asks the kernel for
    the process's id at each change."""
    return values.MultiProcessValue(lambda: pid)  # type: ignore[no-untyped-call]
