"""Evicts pods that use more GPU memory than their share, if the budget says so. Runs in the settler's thread
for evictions, with `budget_evictor`.

Each eviction is decided from what the database and the watches say at that moment; only the history of
evictions is remembered. A PodDisruptionBudget is always respected: a pod is never deleted instead of evicted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.card_use.evictions import RESULTS, EvictionCandidate, EvictionHistory, Result, decide
from timekeeper.accounts.card_use.overuse import OverusingPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.decisions import EVICTED as EVICTED_KIND
from timekeeper.core.decisions import MESSAGE, Decision, Figure, Record, record_nothing
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.event_recorder import EventRecorder
from timekeeper.runtime.log import log, log_exception
from timekeeper.settler.evictions.calls import evict, refusal
from timekeeper.settler.evictions.notices import EVICTED, PROTECTED, evicted, protected
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.writes import fencing, node_usage
from timekeeper.store.writes.fencing import Epoch, EpochOverError

LOOK_S = 10.0
SOON_S = 1.0  # after an attempt with a result: other pods may be due
AWAY_S = 30.0  # if the database is unreachable, or after an unexpected error


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


class Evictor:
    """Used by one thread for as long as the term lasts. ``steady`` is a monotonic clock in milliseconds: it
    spaces and counts evictions."""

    def __init__(
        self,
        store: Store,
        term: Epoch,
        api: Api,
        events: EventRecorder,
        view: SettlerView,
        clock: Callable[[], int],
        steady: Callable[[], int] = monotonic_ms,
        record: Record = record_nothing,
    ) -> None:
        self._store = store
        self._term = term
        self._api = api
        self._events = events
        self._view = view
        self._clock = clock
        self._steady = steady
        self._record_decision = record
        self._history = EvictionHistory(steady())
        for result in RESULTS:
            metrics.OVERUSE_EVICTIONS.labels(result)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        return pause_after_s(self.step())

    def step(self) -> Result | None:
        """Evict the pod that is due, if any; returns the result, None if there was no attempt.

        Raises OverError if another settler has started, UnavailableError or ConflictError if the database
        cannot be read.
        """
        now_ms = self._clock()
        with self._store.reading() as connection:
            fencing.confirm(connection, self._term)
            over = node_usage.over(connection, "", now_ms)
        history = self._view.history()
        # if the clock was set back, the newest entries still count
        in_force_ms = max(now_ms, history.newest_ms())
        candidates = (self._candidate(each, history, in_force_ms) for each in over)
        decision = decide(candidates, self._history, now_ms, self._steady())
        metrics.OVERUSE_HELD_BACK.set(decision.held_back)
        if decision.chosen is None:
            return None
        return self._evict(decision.chosen)

    def _candidate(self, over: OverusingPod, history: History, in_force_ms: int) -> EvictionCandidate:
        grace_ms = history.overuse_grace_ms(over.namespace, in_force_ms)
        pod = self._view.pod(over.uid)
        evictable = pod is not None and may_be_evicted(pod, over.node)
        return EvictionCandidate(over, grace_ms, evictable)

    def _evict(self, candidate: EvictionCandidate) -> Result:
        over = candidate.over
        before = self._history.attempts.get(over.uid)
        result, error_text = self._post_eviction(over)
        self._history = self._history.after(over.uid, over.node, result, self._steady())
        attempt = self._history.attempts[over.uid].count
        metrics.OVERUSE_EVICTIONS.labels(result).inc()
        log(
            "overuse-eviction",
            result=result,
            namespace=over.namespace,
            pod=over.name,
            uid=over.uid,
            node=over.node,
            since_ms=over.episode.since_ms,
            grace_ms=candidate.grace_ms,
            cards=_cards(over),
            attempt=attempt,
            error=error_text or None,
        )
        if result == "evicted":
            self._record(over, EVICTED, evicted(candidate))
            self._record_decision(_decision(candidate, self._clock()))
        elif result == "protected" and (before is None or before.result != "protected"):
            self._record(over, PROTECTED, protected(candidate))
        return result

    def _record(self, over: OverusingPod, reason: str, note: str) -> None:
        self._events.post(over.namespace, over.name, over.uid, reason, note, "Warning")

    def _post_eviction(self, over: OverusingPod) -> tuple[Result, str]:
        """The result, and the API server's message unless it evicted the pod."""
        reply = evict(self._api, over.namespace, over.name, over.uid)
        if not isinstance(reply, Answered):
            return "unclear", reply.message
        return ("evicted", "") if reply.status < 300 else (refusal(reply), f"{reply.status} {reply.message}")


def _decision(candidate: EvictionCandidate, at_ms: int) -> Decision:
    over = candidate.over
    figures: dict[str, Figure] = {
        MESSAGE: evicted(candidate),
        "node": over.node,
        "sinceMs": over.episode.since_ms,
        "graceMs": candidate.grace_ms or 0,
        "cards": _cards(over),
    }
    return Decision(at_ms, EVICTED_KIND, EVICTED, over.namespace, figures, name=over.name, uid=over.uid)


def may_be_evicted(pod: LedgerPod, node: str) -> bool:
    """Whether the pod is on this node, and has neither ended nor is about to."""
    ends = pod.hold.deletion_ms is not None or pod.ended_ms is not None or pod.others_ended
    return pod.node == node and not ends


def pause_after_s(result: Result | None) -> float:
    """Until the next step: longer after a refusal or no answer."""
    return SOON_S if result in ("evicted", "gone", "protected") else LOOK_S


# one decision of an evictor; returns the seconds until the next one
Step = Callable[[], float]


def keep_evicting(steps: Sequence[Step], stop: Event) -> None:
    """Run the evictors' steps in turn, each after its own pause, until ``stop``, or until the term is over.
    No other error ends it: only the settler evicts."""
    left_s = [0.0] * len(steps)
    while not stop.wait(pause_s := min(left_s)):
        for place, step in enumerate(steps):
            left_s[place] -= pause_s
            if left_s[place] > 0:
                continue
            try:
                left_s[place] = step()
            except EpochOverError as error:
                log("evictor-ends", level="warning", reason="another settler has started", error=error)
                return
            except (UnavailableError, ConflictError) as error:
                log("eviction-check-failed", level="error", error=error)
                left_s[place] = AWAY_S
            except Exception as error:
                log_exception("eviction-check-failed", error)
                left_s[place] = AWAY_S


def _cards(over: OverusingPod) -> str:
    """``UUID:used/share`` in MiB, comma-separated."""
    found = (each.excess for each in over.episode.cards)
    return ",".join(f"{each.uuid}:{each.memory_mib}/{each.share_mib}" for each in found)
