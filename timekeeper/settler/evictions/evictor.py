"""Evicts pods over their memory share where the budgets say so, from a thread of the one process that
settles.

Each eviction is decided anew from what the database and the watches say at that moment; between two decisions
nothing is remembered but what was done. A PodDisruptionBudget is respected for as long as it stands: nobody
is deleted in place of an eviction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from timekeeper import metrics
from timekeeper.accounts.budget_history import History
from timekeeper.accounts.card_use.evictions import RESULTS, EvictionCandidate, EvictionHistory, Result, decide
from timekeeper.accounts.card_use.overuse import OverusingPod
from timekeeper.accounts.pods import LedgerPod
from timekeeper.api_server import ApiServer, RefusedError
from timekeeper.core.kube.eviction import eviction, is_gone, is_protected
from timekeeper.core.kube.reflector import ExpiredError, UnreachableError
from timekeeper.runtime.clock import monotonic_ms
from timekeeper.runtime.log import log, log_exception
from timekeeper.settler.evictions.notices import Telling, evicted, protected
from timekeeper.settler.settler import Settler
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.writes import fencing as terms
from timekeeper.store.writes import node_usage as node_uses
from timekeeper.store.writes.fencing import Epoch, EpochOverError

LOOK_S = 10.0
SOON_S = 1.0  # after an attempt that came to something: there may be others that are due
AWAY_S = 30.0  # where the database is away, or something is wrong with us


@dataclass(frozen=True, slots=True)
class SettlerView:
    """What the settler knows, for another thread to look at: the pod of a UID, and the budgets. Each is one
    immutable value, which the settler replaces whole. It knows no pod before the budgets were heard: those in
    the book may have been changed while nobody settled."""

    pod: Callable[[str], LedgerPod | None]
    history: Callable[[], History]


def view_of(settler: Settler) -> SettlerView:
    """What this settler knows, from its first decision on."""

    def pod(uid: str) -> LedgerPod | None:
        return settler.world.pods.get(uid) if settler.has_decided else None

    return SettlerView(pod, lambda: settler.book.history)


class Evictor:
    """One thread uses it, for as long as the term lasts. ``steady`` tells milliseconds like ``clock``, but is
    never set: by it evictions are spaced and counted."""

    def __init__(
        self,
        store: Store,
        term: Epoch,
        api: ApiServer,
        sight: SettlerView,
        clock: Callable[[], int],
        steady: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._store = store
        self._term = term
        self._api = api
        self._sight = sight
        self._clock = clock
        self._steady = steady
        self._telling = Telling(api, term.holder)
        self._past = EvictionHistory(steady())
        for result in RESULTS:
            metrics.OVERUSE_EVICTIONS.labels(result)

    def step(self) -> Result | None:
        """Evict the one that is due, if any; what came of it, None where it was not tried. Raises
        OverError where another settles, UnavailableError or ConflictError where the database cannot be
        asked."""
        now_ms = self._clock()
        with self._store.reading() as connection:
            terms.confirm(connection, self._term)
            over = node_uses.over(connection, "", now_ms)
        history = self._sight.history()
        # where the clock was set back, what was written last still counts
        in_force_ms = max(now_ms, history.newest_ms())
        suspects = (self._suspect(each, history, in_force_ms) for each in over)
        verdict = decide(suspects, self._past, now_ms, self._steady())
        metrics.OVERUSE_HELD_BACK.set(verdict.held_back)
        if verdict.leaves is None:
            return None
        return self._evict(verdict.leaves, now_ms)

    def _suspect(self, over: OverusingPod, history: History, in_force_ms: int) -> EvictionCandidate:
        grace_ms = history.overuse_grace_ms(over.namespace, in_force_ms)
        pod = self._sight.pod(over.uid)
        may_leave = pod is not None and may_be_evicted(pod, over.node)
        return EvictionCandidate(over, grace_ms, may_leave)

    def _evict(self, suspect: EvictionCandidate, now_ms: int) -> Result:
        over = suspect.over
        before = self._past.tried.get(over.uid)
        result, said = self._ask(over)
        self._past = self._past.after(over.uid, over.node, result, self._steady())
        attempt = self._past.tried[over.uid].count
        metrics.OVERUSE_EVICTIONS.labels(result).inc()
        log(
            "overuse-eviction",
            result=result,
            namespace=over.namespace,
            pod=over.name,
            uid=over.uid,
            node=over.node,
            since_ms=over.episode.since_ms,
            grace_ms=suspect.grace_ms,
            cards=_cards(over),
            attempt=attempt,
            error=said or None,
        )
        if result == "evicted":
            self._telling.tell(evicted(suspect, now_ms))
        elif result == "protected" and (before is None or before.result != "protected"):
            self._telling.tell(protected(suspect, now_ms))
        return result

    def _ask(self, over: OverusingPod) -> tuple[Result, str]:
        """What came of it, and the API server's words where it did not simply do it."""
        path = f"/api/v1/namespaces/{over.namespace}/pods/{over.name}/eviction"
        try:
            self._api.post(path, eviction(over.namespace, over.name, over.uid))
        except RefusedError as error:
            return _refusal(error), str(error)
        except ExpiredError:
            return "refused", f"POST {path}: 410"
        except UnreachableError as error:
            return "unclear", str(error)
        except Exception as error:  # of the package that reads our token, say: was it sent? Nobody can tell
            return "unclear", repr(error)
        return "evicted", ""


def may_be_evicted(pod: LedgerPod, node: str) -> bool:
    """Whether the pod is on this node and neither ended nor about to go anyway."""
    ends = pod.deleted_ms is not None or pod.ended_ms is not None or pod.others_ended
    return pod.node == node and not ends


def keep_evicting(step: Callable[[], Result | None], stop: Event) -> None:
    """Take an evictor's next ``step`` every few seconds until ``stop``, or until the term is over. Nothing
    else ends it: whoever settles is the only one who evicts."""
    pause_s = 0.0
    while not stop.wait(pause_s):
        try:
            pause_s = _pause_after_s(step())
        except EpochOverError as error:
            log("evictor-ends", level="warning", reason="another settles, and evicts", error=error)
            return
        except (UnavailableError, ConflictError) as error:
            log("overuse-check-failed", level="error", error=error)
            pause_s = AWAY_S
        except Exception as error:
            log_exception("overuse-check-failed", error)
            pause_s = AWAY_S


def _pause_after_s(result: Result | None) -> float:
    """Until the next step. Whoever refused one, or did not answer, is not asked for the next one at once."""
    return SOON_S if result in ("evicted", "gone", "protected") else LOOK_S


def _refusal(error: RefusedError) -> Result:
    words = str(error)
    if is_gone(error.status, words):
        return "gone"
    if is_protected(error.status, words, error.body):
        return "protected"
    return "refused" if error.status < 500 else "unclear"


def _cards(over: OverusingPod) -> str:
    """``UUID:used/share`` in MiB, with commas."""
    found = (each.excess for each in over.episode.cards)
    return ",".join(f"{each.uuid}:{each.memory_mib}/{each.share_mib}" for each in found)
