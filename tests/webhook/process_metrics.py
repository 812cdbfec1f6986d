"""The webhook's metrics in one process."""

from prometheus_client import CollectorRegistry, generate_latest

from webhook.metrics import WebhookMetrics


def of_this_process() -> WebhookMetrics:
    """Metrics with a registry of their own."""
    registry = CollectorRegistry()
    return WebhookMetrics(lambda: generate_latest(registry), registry)
