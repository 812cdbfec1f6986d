"""The events in the extender's log, which docs/metrics.md explains, and the reasons of its Events on pods and
nodes, which docs/extender.md explains."""

from typing import Literal

from timekeeper.edge import log as edge
from timekeeper.edge import log_events as edge_events

LogEvent = (
    edge_events.LogEvent
    | Literal["filter", "bind", "preempt", "malformed", "woken", "settled", "unsettled", "gang", "drain"]
    | Literal["gang-ends"]
    | Literal["drain-ends", "hold", "let-go", "condition-refused", "preempted", "stays", "preemption"]
    | Literal["simulated", "would-preempt", "would-refuse", "cluster-failed"]
    | Literal["cluster-sent", "cluster-refused", "bindings-failed", "bindings-sent", "bindings-dropped"]
    | Literal["binding-refused"]
    | Literal["ends-failed", "ends-sent", "end-refused", "ends-dropped", "closed", "opened", "leads"]
    | Literal["follows", "fences", "too-large", "unmarked", "untouched", "standings-updated"]
    | Literal["standings-failed", "usage-updated", "usage-failed", "unhealthy-list", "listed", "unheard"]
    | Literal["demoted", "complete", "learned", "deschedule-label", "policy", "serving", "died"]
)
EventReason = Literal[
    "BindTakenBack",
    "GangWaits",
    "GangEviction",
    "CardsHeld",
    "CardsLetGo",
    "Preempted",
    "Reclaimed",
    "EvictionRefused",
    "CardsClosed",
    "CardsOpen",
    "NodeDemoted",
]
Log = edge_events.EventLog[LogEvent]
log: Log = edge.log
log_exception: edge_events.ErrorLog[LogEvent] = edge.log_exception
