"""The events that the timekeeper writes to its log: docs/metrics.md explains each."""

from typing import Literal

from timekeeper.edge import log as edge
from timekeeper.edge import log_events as edge_events

LogEvent = (
    edge_events.LogEvent
    | Literal["serving", "workers-ended", "settler-ended", "child-killed", "settler-started"]
    | Literal["settler-follows", "settler-ends", "clock-differs", "node-clock-differs"]
    | Literal["decisions-not-deleted", "decisions-not-written", "decisions-written"]
    | Literal["tick-failed", "tick-recovered"]
    | Literal["session-opened", "posted", "granted"]
    | Literal["standing-changed", "pod-not-charged", "pods-not-charged", "pod-ignored", "pod-ends-lost"]
    | Literal["budgets", "stored-entry-unreadable", "budget-objects-failed", "budget-objects-written"]
    | Literal["ca-not-published", "mode-label-changed", "month-closed", "month-not-closed"]
    | Literal["spent-not-written", "spent-written", "modes-not-written", "modes-written"]
    | Literal["grace-policies-differ", "grace-policies-agree", "law-broken", "sessions-folded"]
    | Literal["session-not-folded", "sessions-not-folded", "folding-ends", "pod-release", "release-failed"]
    | Literal["releaser-ends", "overuse-eviction", "eviction-check-failed", "evictor-ends"]
    | Literal["gang-eviction", "overtime-eviction", "idle-eviction"]
    | Literal["claim-excess-eviction", "claim-reclaim-eviction", "claim-reclaim-spared"]
    | Literal["claim-reclaim-ended", "device-taints-failed", "budget-eviction", "notice-not-written"]
    | Literal["would-evict", "card-use-read", "card-use-failed", "card-use-not-written", "would-not-written"]
    | Literal["free-not-written"]
    | Literal["pod-not-judged", "condition-refused", "watch-failed", "database-unavailable"]
    | Literal["database-recovered", "logged-in", "logged-out", "login-failed", "front-proxy-unknown"]
    | Literal["queues-not-held", "database-damaged", "database-newer", "ledger-unreadable"]
)
Log = edge_events.EventLog[LogEvent]
log: Log = edge.log
log_exception: edge_events.ErrorLog[LogEvent] = edge.log_exception
