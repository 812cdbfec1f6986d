"""The log of sidecar and node agent: `timekeeper.edge.log` with the names of their events."""

from __future__ import annotations

from timekeeper.edge import log as edge
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.log_events import Log

log: Log = edge.log
