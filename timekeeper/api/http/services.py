"""The services that route handlers use, passed in at construction."""

from collections.abc import Callable
from dataclasses import dataclass, field

from timekeeper.api.ledger.heartbeat_writer import HeartbeatWriter
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.api.ledger.outage_log import OutageLog
from timekeeper.runtime.auth.gate import Gate


@dataclass(frozen=True, slots=True)
class Services:
    """``ca`` returns the CA bundle for sidecars, empty if there is none; ``clock`` returns milliseconds since
    1970; ``damage`` what is wrong with the database's file, empty if nothing is; ``clock_fault`` the
    same for this machine's clock."""

    ledger: LedgerReader
    gate: Gate
    beating: HeartbeatWriter
    clock: Callable[[], int]
    ca: Callable[[], str]
    damage: Callable[[], str] = lambda: ""
    clock_fault: Callable[[], str] = lambda: ""
    outages: OutageLog = field(default_factory=OutageLog)
