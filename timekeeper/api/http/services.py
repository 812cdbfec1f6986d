"""The services that route handlers use, passed in at construction."""

from collections.abc import Callable
from dataclasses import dataclass, field

from timekeeper.api.http.shared_answers import SharedAnswers
from timekeeper.api.ledger.heartbeat_writer import HeartbeatWriter
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.api.ledger.outages import OutageLog
from timekeeper.api.ledger.readiness import ReadinessWatch
from timekeeper.api.ledger.seats import Seats
from timekeeper.runtime.auth.gate import Gate
from timekeeper.runtime.peers import NO_PEERS, Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """``ca`` returns the CA bundle for sidecars, empty if there is none; ``clock`` returns milliseconds since
    1970; ``families``: those that are listened on; ``peers``: the roles that simulations ask;
    ``open_metrics``: `/metrics` needs no token; ``retain_use_ms``: how long measured use is kept, 0: for
    ever."""

    ledger: LedgerReader
    gate: Gate
    beating: HeartbeatWriter
    clock: Callable[[], int]
    ca: Callable[[], str]
    readiness: ReadinessWatch
    outages: OutageLog
    families: tuple[str, ...] = ()
    peers: Peers = NO_PEERS
    open_metrics: bool = False
    retain_use_ms: int = 0
    report_streams: Seats = field(default_factory=Seats)  # of whole reports, sent while read
    report_pages: Seats = field(default_factory=Seats)
    shared: SharedAnswers = field(default_factory=SharedAnswers)
    simulations: Seats = field(default_factory=lambda: Seats(2, what="simulations"))  # one at a time
