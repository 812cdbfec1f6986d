"""The answers of Prometheus' API to queries: series with their samples, checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from timekeeper.core.json_values import mapping

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
    """``samples``: moments in milliseconds since 1970 with values, None for one that is no amount: NaN,
    infinite or negative."""

    labels: Mapping[str, str]
    samples: tuple[tuple[int, float | None], ...]


def read_series(answer: object, kind: Literal["vector", "matrix"]) -> list[Series]:
    """The series of an answer in JSON. Raises UnreadableSeriesError."""
    data = mapping(mapping(answer).get("data"))
    if data.get("resultType") != kind:
        raise UnreadableSeriesError(f"Prometheus answers with a {data.get('resultType')}, not a {kind}")
    result = data.get("result")
    if not isinstance(result, list) or len(result) > MAX_SERIES:
        raise UnreadableSeriesError(f"Prometheus answers without a list of at most {MAX_SERIES} series")
    return [_series(each, kind) for each in result]


def _series(raw: object, kind: str) -> Series:
    labels = {name: text for name, text in mapping(mapping(raw).get("metric")).items() if type(text) is str}
    values = mapping(raw).get("values") if kind == "matrix" else [mapping(raw).get("value")]
    if not isinstance(values, list):
        raise UnreadableSeriesError("a series of Prometheus' answer has no samples")
    return Series(labels, tuple(_samples(values)))


def _samples(values: list[Any]) -> Iterator[tuple[int, float | None]]:
    for each in values:
        try:
            at_s, text = each
            at_ms, value = round(1000 * float(at_s)), float(text)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnreadableSeriesError(f"a sample of Prometheus' answer: {error}") from error
        yield at_ms, value if 0 <= value < float("inf") else None
