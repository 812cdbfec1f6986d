"""The services that route handlers use, passed in at construction."""

from collections.abc import Callable
from dataclasses import dataclass

from timekeeper.api.auth.gate import Gate
from timekeeper.api.ledger.heartbeat_writer import HeartbeatWriter
from timekeeper.api.ledger.ledger_reader import LedgerReader


@dataclass(frozen=True, slots=True)
class Services:
    """``ca`` returns the CA bundle for sidecars, empty if there is none; ``clock`` returns milliseconds since
    1970."""

    ledger: LedgerReader
    gate: Gate
    beating: HeartbeatWriter
    clock: Callable[[], int]
    ca: Callable[[], str]
