"""What the routes work with, given to them at their making."""

from collections.abc import Callable
from dataclasses import dataclass

from timekeeper.app.beating import Beating
from timekeeper.app.gate import Gate
from timekeeper.app.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Services:
    """``ca`` gives the bundle that sidecars shall trust, empty where there is none; ``clock``
    milliseconds."""

    ledger: Ledger
    gate: Gate
    beating: Beating
    clock: Callable[[], int]
    ca: Callable[[], str]
