"""The answers of Prometheus' API to queries: series with their newest samples, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from timekeeper.core.json_values import Json, mapping

MAX_SERIES = 200_000


class UnreadableSeriesError(ValueError):
    """The answer is not what Prometheus answers to such a query."""


class PrometheusQueries(Protocol):
    """It answers queries, as `PrometheusClient` does."""

    def ask(self, path: str, **parameters: str) -> bytes:
        """The answer to a GET. Raises ValueError."""

    def close(self) -> None:
        """Closes the connection."""


@dataclass(frozen=True, slots=True)
class Series:
    """Its newest sample: when, in milliseconds since 1970, and its value, None if that is no amount: NaN,
    infinite or negative."""

    labels: Mapping[str, str]
    at_ms: int
    value: float | None


def read_series(answer: object) -> list[Series]:
    """The series of an instant query's answer in JSON. Raises UnreadableSeriesError."""
    data = mapping(mapping(answer).get("data"))
    if data.get("resultType") != "vector":
        raise UnreadableSeriesError(f"Prometheus answers with a {data.get('resultType')}, not a vector")
    result = data.get("result")
    if not isinstance(result, list) or len(result) > MAX_SERIES:
        raise UnreadableSeriesError(f"Prometheus answers without a list of at most {MAX_SERIES} series")
    return [_series(mapping(raw)) for raw in result]


def _series(raw: Json) -> Series:
    labels = {name: text for name, text in mapping(raw.get("metric")).items() if type(text) is str}
    sample: Any = raw.get("value")
    try:
        at_s, text = sample
        at_ms, value = round(1000 * float(at_s)), float(text)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnreadableSeriesError(f"a sample of Prometheus' answer: {error}") from error
    return Series(labels, at_ms, value if 0 <= value < float("inf") else None)
