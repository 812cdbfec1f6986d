"""Puts the parts of one worker together."""

from flask import Flask

from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.log import log
from webhook.metrics import Metrics
from webhook.reloaded import Reloaded, ca_text
from webhook.server.app import create_app
from webhook.server.reviewer import Reviewer
from webhook.server.standings_poller import Standings
from webhook.settings.settings import WebhookSettings


def application(settings: WebhookSettings, metrics: Metrics) -> Flask:
    """The application of one worker, with its thread that polls the standings; call it after the fork."""
    ca = Reloaded[str]((settings.ca,), lambda: ca_text(settings.ca), monotonic_ms, log)
    standings = Standings(settings.timekeeper_url, settings.token_file, ca, monotonic_ms, log, metrics)
    standings.start()
    admission = Reviewer(
        settings.policy, standings.table, ca, monotonic_ms, settings.stale_after_ms, standings.asked
    )
    return create_app(admission, metrics, log, settings.template_paths)
