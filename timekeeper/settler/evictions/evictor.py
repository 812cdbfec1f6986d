"""Evicts pods that use more GPU memory than their share, if the budget says so. Runs in the settler's thread
for evictions, with `budget_evictor`.

Each eviction is decided from what the database and the watches say at that moment; only the history of
evictions is remembered. A PodDisruptionBudget is always respected: a pod is never deleted instead of evicted.
"""

from collections.abc import Callable, Sequence
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.card_use.evictions import RESULTS, EvictionCandidate, EvictionHistory, Result, decide
from timekeeper.accounts.card_use.overuse import OverusingPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core.decisions import EVICTED as EVICTED_KIND
from timekeeper.core.decisions import MESSAGE, Decision, Figure
from timekeeper.core.object_names import timestamp
from timekeeper.runtime.log import log, log_exception
from timekeeper.settler.evictions.calls import EvictorContext, evict, result_of
from timekeeper.store import fencing, node_usage
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.store.fencing import EpochOverError

EVICTED = "GPUMemoryEviction"
PROTECTED = "GPUMemoryEvictionRefused"


def evicted(candidate: EvictionCandidate) -> str:
    """The Event's text for a pod that was evicted."""
    return f"Evicted by Bursar: {_why(candidate)}"


def protected(candidate: EvictionCandidate) -> str:
    """The Event's text for a pod that a PodDisruptionBudget protects."""
    return f"A PodDisruptionBudget prevents the eviction of this pod: {_why(candidate)}"


def _why(candidate: EvictionCandidate) -> str:
    episode = candidate.over.episode
    since = timestamp(episode.since_ms)
    found = (each.excess for each in episode.cards)
    cards = ", ".join(f"{each.memory_mib} MiB of {each.uuid} (share {each.share_mib} MiB)" for each in found)
    grace_s = (candidate.grace_ms or 0) / 1000
    used = f"the pod has used more GPU memory than its share since {since}, now {cards}"

    return f"{used}; overuseGrace is {grace_s:g}s"


LOOK_S = 10.0
SOON_S = 1.0  # after an attempt with a result: other pods may be due
AWAY_S = 30.0  # if the database is unreachable, or after an unexpected error


class Evictor:
    """Used by one thread for as long as the epoch lasts."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._history = EvictionHistory(context.steady())
        for result in RESULTS:
            metrics.OVERUSE_EVICTIONS.labels(result)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        return pause_after_s(self.step())

    def step(self) -> Result | None:
        """Evict the pod that is due, if any; returns the result, None if there was no attempt.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        now_ms = self._context.clock()
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
            over = node_usage.over(connection, "", now_ms)
        history = self._context.view.history()
        # if the clock was set back, the newest entries still count
        in_force_ms = max(now_ms, history.newest_ms())
        candidates = (self._candidate(each, history, in_force_ms) for each in over)
        decision = decide(candidates, self._history, now_ms, self._context.steady())
        metrics.OVERUSE_HELD_BACK.set(decision.held_back)
        if decision.chosen is None:
            return None
        return self._evict(decision.chosen)

    def _candidate(self, over: OverusingPod, history: History, in_force_ms: int) -> EvictionCandidate:
        grace_ms = history.overuse_grace_ms(over.namespace, in_force_ms)
        pod = self._context.view.pod(over.uid)
        evictable = pod is not None and may_be_evicted(pod, over.node)
        return EvictionCandidate(over, grace_ms, evictable)

    def _evict(self, candidate: EvictionCandidate) -> Result:
        over = candidate.over
        before = self._history.attempts.get(over.uid)
        result, error_text = result_of(evict(self._context.api, over.namespace, over.name, over.uid))
        self._history = self._history.after(over.uid, over.node, result, self._context.steady())
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
            pod = self._context.view.pod(over.uid)
            self._context.record(_decision(candidate, pod.owner if pod else "", self._context.clock()))
        elif result == "protected" and (before is None or before.result != "protected"):
            self._record(over, PROTECTED, protected(candidate))
        return result

    def _record(self, over: OverusingPod, reason: str, note: str) -> None:
        self._context.events.post(over.namespace, over.name, over.uid, reason, note, "Warning")


def _decision(candidate: EvictionCandidate, owner: str, at_ms: int) -> Decision:
    over = candidate.over
    figures: dict[str, Figure] = {
        MESSAGE: evicted(candidate),
        "node": over.node,
        "sinceMs": over.episode.since_ms,
        "graceMs": candidate.grace_ms or 0,
        "cards": _cards(over),
    }
    where = {"owner": owner, "name": over.name, "uid": over.uid}
    return Decision(at_ms, EVICTED_KIND, EVICTED, over.namespace, figures, **where)


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
    """Run the evictors' steps in turn, each after its own pause, until ``stop``, or until the epoch is over.
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
