"""What the evictors of one term share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.decisions import Record, record_nothing
from timekeeper.runtime.api_server import Api
from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.event_recorder import EventRecorder
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import Store
from timekeeper.store.writes.fencing import Epoch


@dataclass(frozen=True, slots=True)
class SettlerView:
    """What another thread may read from the settler; each is one immutable value that the settler replaces as
    a whole."""

    # the pod of a UID; None before the settler's first decision, because budgets may have changed while no
    # settler was running
    pod: Callable[[str], LedgerPod | None]
    history: Callable[[], History]  # the budgets
    pods: Callable[[], tuple[LedgerPod, ...]]  # all that exist
    # each listed namespace's account as of this time; None before the first decision
    statements: Callable[[], tuple[Mapping[str, Statement], int] | None]


def view_of(settler: Settler) -> SettlerView:
    """The view of this settler, from its first decision on."""

    def pod(uid: str) -> LedgerPod | None:
        return settler.cluster.pods.get(uid) if settler.has_decided else None

    def pods() -> tuple[LedgerPod, ...]:
        return tuple(settler.cluster.pods.copy().values())  # a copy is one step for other threads

    def statements() -> tuple[Mapping[str, Statement], int] | None:
        cache = settler.ledger.statement_cache
        if not settler.has_decided or cache is None:
            return None
        return cache.statements.namespaces, settler.ledger.pulse.decided_ms

    return SettlerView(pod, lambda: settler.ledger.history, pods, statements)


@dataclass(frozen=True, slots=True)
class EvictorContext:
    """``clock``: the time in Unix milliseconds, which dates notices; ``steady``: a monotonic clock in
    milliseconds, which spaces and counts evictions; ``record``: keeps a decision."""

    store: Store
    term: Epoch
    api: Api
    events: EventRecorder
    view: SettlerView
    clock: Callable[[], int]
    steady: Callable[[], int] = monotonic_ms
    record: Record = record_nothing
