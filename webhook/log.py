"""The events that the webhook's servers write to their log: docs/metrics.md explains each."""

from typing import Literal

from timekeeper.runtime import log as runtime

LogEvent = (
    runtime.LogEvent
    | Literal["review", "simulated", "malformed", "unverified-caller", "not-ready", "serving"]
    | Literal["standings-updated", "standings-failed", "watch-failed", "no-events"]
)
Log = runtime.EventLog[LogEvent]
log: Log = runtime.log
