"""What a Prometheus says of the time before the ledger, asked for estimates, and kept for a while."""

import time
from dataclasses import dataclass, field
from threading import Lock

import orjson

from timekeeper.accounts import estimate as estimating
from timekeeper.accounts.card_use.prometheus_answers import PrometheusQueries, Series, read_series
from timekeeper.accounts.estimate import EstimateQueries, HeldDevices
from timekeeper.core.ledger.metering import Interval
from timekeeper.runtime.http.problem_details import Problem

_WITHIN_S = 60.0  # for all questions of one estimate
_KEPT_S = 3_600.0
_FAILED_KEPT_S = 60.0
_SILENT = 2  # failures in a row, after which it is asked no more


@dataclass(slots=True)
class DevicesBefore:
    """The last answers. One caller at a time asks for new ones."""

    prometheus: PrometheusQueries
    _asking: Lock = field(default_factory=Lock)
    _kept: tuple[EstimateQueries, HeldDevices] | None = None
    _until_s: float = 0.0

    def get(self, span: Interval, queries: EstimateQueries) -> HeldDevices:
        """What Prometheus says to these queries, or said in the last hour. Raises a Problem while another
        caller asks it."""
        kept = self._kept
        if kept and (kept[0], kept[1].span) == (queries, span) and time.monotonic() < self._until_s:
            return kept[1]
        if not self._asking.acquire(blocking=False):
            busy = "the estimate is being made; ask again in a minute"
            raise Problem(429, busy, headers={"Retry-After": "10"})
        try:
            held, known, failures = series_of(self.prometheus, span, queries)
            found = estimating.held_devices(span, held, known, failures)
            self._kept = queries, found
            self._until_s = time.monotonic() + (_FAILED_KEPT_S if failures else _KEPT_S)
            return found
        finally:
            self._asking.release()


def series_of(
    prometheus: PrometheusQueries, span: Interval, queries: EstimateQueries
) -> tuple[list[Series], list[Series], list[str]]:
    """The series of all parts of the span, and why there are none of some: those parts are unknown."""
    found: tuple[list[Series], list[Series], list[str]] = ([], [], [])
    until_s, silent = time.monotonic() + _WITHIN_S, 0
    for part in reversed(list(estimating.parts(span))):
        try:
            if silent == _SILENT or time.monotonic() > until_s:
                raise ValueError("Prometheus is not asked about all of the time: it answers too slowly")
            devices = _range(prometheus, queries.held, part)
            found[1].extend(_range(prometheus, queries.known, part))
            found[0].extend(devices)
            silent = 0
        except ValueError as error:
            silent = min(_SILENT, silent + 1)
            found[2].append(str(error))
            prometheus.close()
    return found


def _range(prometheus: PrometheusQueries, query: str, part: Interval) -> list[Series]:
    """The samples at the beginnings of the part's steps. Raises ValueError."""
    step_ms = estimating.STEP_MS
    times = {"start": part.start_ms, "end": part.end_ms - step_ms, "step": step_ms}
    seconds = {name: str(ms // 1000) for name, ms in times.items()}
    body = prometheus.ask("/api/v1/query_range", query=query, **seconds)
    return read_series(orjson.loads(body), "matrix")
