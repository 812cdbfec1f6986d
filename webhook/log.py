"""The events that the webhook's servers write to their log: docs/metrics.md explains each."""

from typing import Literal

from timekeeper.edge import log as edge
from timekeeper.edge import log_events as edge_events

LogEvent = (
    edge_events.LogEvent
    | Literal["review", "simulated", "malformed", "unverified-caller", "not-ready", "serving"]
    | Literal["standings-updated", "standings-failed", "watch-failed", "no-events"]
)
Log = edge_events.EventLog[LogEvent]
log: Log = edge.log
