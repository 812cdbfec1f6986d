"""Where the settings say that the use of cards is measured."""

from collections.abc import Callable

from scheduler_ext.clients import card_load_poller, prometheus
from scheduler_ext.clients.timekeeper import client
from scheduler_ext.scoring.card_points import Samples
from scheduler_ext.settings import ExtenderSettings
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.timekeeper_client import Polled

Source = tuple[Polled, Callable[[bytes], Samples]]
"""What to poll, and the reader of its answers."""


def source_of(settings: ExtenderSettings, api: Api) -> Source | None:
    """Prometheus where it is set, else the timekeeper; None without either."""
    if settings.prometheus.url or settings.prometheus.namespace:
        weighed = [name for name, _ in settings.scale.weights]
        return prometheus.Prometheus(settings.prometheus, weighed, api), prometheus.read
    if settings.timekeeper.url:
        return client(settings.timekeeper, card_load_poller.PATH), card_load_poller.decode
    return None
