"""The events in the logs of sidecar and node agent: docs/governed-pods.md and docs/node-agent.md have each.
The sidecar imports this for type checkers alone."""

from typing import Literal

from timekeeper.edge.log_events import EventLog, OfSources

OfSidecar = (
    Literal["started", "no-cards", "standing", "not-known-yet", "timekeeper-away", "timekeeper-back"]
    | Literal["spool-full", "spool-not-written", "spool-unreadable", "followed-ca-unreadable", "ca-followed"]
    | Literal["no-figures", "card-silent", "nvml-hangs", "figures-back", "unacknowledged", "fault"]
)
OfHolders = Literal["not-seen", "seen-again", "stranger", "runtime-open"]
OfNode = (
    Literal["started", "card-unhealthy", "card-healthy-again", "events-lost", "reader-silent", "reader-back"]
    | Literal["not-written", "not-followed", "nri-connected", "nri-lost", "nri-refused", "cdi-unreadable"]
    | Literal["event-dropped", "event-not-posted", "processes-unknown", "scrape-failed", "timekeeper-away"]
    | Literal["timekeeper-back", "use-kept", "use-lost", "use-unreadable", "fault"]
    | OfSources
)
EventName = OfSidecar | OfHolders | OfNode
Log = EventLog[EventName]
