"""What the routes work with, given to them at their making."""

from collections.abc import Callable
from dataclasses import dataclass

from timekeeper.api.auth.gate import Gate
from timekeeper.api.ledger.heartbeat_writer import Beating
from timekeeper.api.ledger.ledger_reader import Ledger


@dataclass(frozen=True, slots=True)
class Services:
    """``ca`` gives the bundle that sidecars shall trust, empty where there is none; ``clock``
    milliseconds."""

    ledger: Ledger
    gate: Gate
    beating: Beating
    clock: Callable[[], int]
    ca: Callable[[], str]
