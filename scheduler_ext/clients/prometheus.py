"""Asks Prometheus for the use of cards."""

from collections.abc import Iterable

import orjson

from scheduler_ext.scoring import load_series
from scheduler_ext.scoring.card_points import Samples
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.prometheus import PrometheusClient
from timekeeper.runtime.prometheus_settings import PrometheusSettings
from timekeeper.runtime.timekeeper_client import TimekeeperAnswer


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


def read(body: bytes) -> Samples:
    """The figures by card in an answer. Raises ValueError."""
    return load_series.read_answer(orjson.loads(body))
