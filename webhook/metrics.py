"""What the webhook counts, summed over its workers.

Import this only after PROMETHEUS_MULTIPROC_DIR is set (or deliberately is not): prometheus_client chooses at
import whether its values live in files that all workers share.
"""

import os
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from webhook.wire.pod_review import AdmissionAnswer

M = TypeVar("M", Counter, Histogram)

_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


class FiguresGoneError(Exception):
    """The workers' shared figures have been removed from under them; a restart makes them anew."""


class Metrics:
    """The counters of one worker; ``exposition`` gives the text of all workers together."""

    def __init__(self, exposition: Callable[[], bytes], registry: CollectorRegistry) -> None:
        self.exposition = exposition
        self._reviews = Counter(
            "bursar_webhook_reviews", "Reviews answered.", ["webhook", "verdict"], registry=registry
        )
        self._violations = Counter(
            "bursar_webhook_violations", "Reviews that broke a rule.", ["rule", "mode"], registry=registry
        )
        self._malformed = Counter(
            "bursar_webhook_malformed", "Bodies that are no AdmissionReview.", registry=registry
        )
        self._not_ready = Counter(
            "bursar_webhook_not_ready",
            "Reviews answered with a 503, for the files to govern with had not been read.",
            ["webhook"],
            registry=registry,
        )
        self._unknown = Counter(
            "bursar_webhook_unknown_standing",
            "Pods governed while their standing was UNKNOWN.",
            registry=registry,
        )
        self._seconds = Histogram(
            "bursar_webhook_review_seconds",
            "Time from a whole request to its answer.",
            ["webhook"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._age = Gauge(
            "bursar_webhook_standings_age_seconds",
            "Since the timekeeper was last heard, in the worker that heard it longest ago; -1: never.",
            multiprocess_mode="livemax",
            registry=registry,
        )
        self._expiry = Gauge(
            "bursar_webhook_certificate_expiration_timestamp_seconds",
            "When the certificate that is served runs out, Unix time, of the worker whose runs out first; 0: "
            "one has none yet.",
            multiprocess_mode="livemin",
            registry=registry,
        )
        self._polls = Counter(
            "bursar_webhook_standings_polls", "Polls of the standings.", ["outcome"], registry=registry
        )

    def answered(self, webhook: str, answer: AdmissionAnswer, seconds: float) -> None:
        """One review was answered."""
        _of(self._reviews, webhook, answer.verdict).inc()
        _of(self._seconds, webhook).observe(seconds)
        for rule, mode in answer.rules:
            _of(self._violations, rule, mode).inc()
        if answer.audit.get("standing") == "UNKNOWN" and answer.operations:
            self._unknown.inc()

    def certificate_loaded(self, expires: datetime) -> None:
        """Another certificate is served from now on."""
        self._expiry.set(expires.timestamp())

    def malformed(self) -> None:
        """One body was refused with a 400."""
        self._malformed.inc()

    def not_ready(self, webhook: str) -> None:
        """One review was sent away with a 503."""
        _of(self._not_ready, webhook).inc()

    def polled(self, outcome: str, age_s: float) -> None:
        """The timekeeper was asked; ``age_s`` since it last answered, -1 for never."""
        self._polls.labels(outcome).inc()
        self._age.set(age_s)


@lru_cache(maxsize=4096)
def _of(metric: M, *labels: str) -> M:
    """The metric with these labels; the library looks them up anew each time, and slowly."""
    return metric.labels(*labels)


def of_this_process() -> Metrics:
    """For a process without siblings."""
    registry = CollectorRegistry()
    return Metrics(lambda: generate_latest(registry), registry)


def of_all_workers() -> Metrics:
    """For one of several workers that share the folder PROMETHEUS_MULTIPROC_DIR."""

    def exposition() -> bytes:
        together = CollectorRegistry()
        try:
            MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        except ValueError as error:  # somebody has cleaned up the temporary folder
            raise FiguresGoneError from error
        return generate_latest(together)

    if values.ValueClass is not values.MutexValue:  # the folder was there when the library was imported
        values.ValueClass = _values_of(os.getpid())  # as its documentation has it
    return Metrics(exposition, CollectorRegistry())


@lru_cache(maxsize=1)
def _values_of(pid: int) -> Any:
    """Values in the files of this process, which does not fork any more: left alone, the library asks the
    kernel at each change whose files to write."""
    return values.MultiProcessValue(lambda: pid)  # type: ignore[no-untyped-call]
