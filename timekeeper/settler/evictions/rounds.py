"""Rounds over pods that use more GPU memory than their share, hardly use theirs, hold cards past their
declared time, or belong to a gang below its minimum.

A round decides from what the database and the watches say at that moment; only attempts are remembered. For
overuse and idleness a PodDisruptionBudget is always respected, for overtime during ``pdbGrace``. The kubelet
itself ends a pod past its declared time: what is left are pods whose kubelet does not, or is not heard.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from timekeeper import metrics
from timekeeper.accounts.card_use import idleness
from timekeeper.accounts.card_use.evictions import RESULTS, EvictionHistory, candidate, due
from timekeeper.accounts.card_use.idleness import DueStep, IdlePod, Spared
from timekeeper.accounts.exhaustion.evictions import Pods
from timekeeper.accounts.exhaustion.units import LeavingUnits
from timekeeper.accounts.held import declared
from timekeeper.accounts.held.gangs import BrokenGang
from timekeeper.accounts.pods import LedgerPod
from timekeeper.core import names
from timekeeper.core.kube.eviction import EvictionResult
from timekeeper.log import log
from timekeeper.runtime.api_server import Answered, Reply
from timekeeper.settler.evictions import calls, owners, reasons
from timekeeper.settler.evictions.calls import EvictorContext
from timekeeper.settler.evictions.evictor import GONE, evict, evict_together, tell, warn
from timekeeper.settler.evictions.owners import TopmostOwner
from timekeeper.settler.evictions.reasons import Reason
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import fencing, node_usage
from timekeeper.store.engine.engine import Connection

OVERUSE_S, IDLE_S, OVERTIME_S, GANG_S = 10.0, 10.0, 5.0, 2.0  # between two rounds
SOON_S = 1.0  # after an attempt with a result: other pods may be due
FINALIZER_S, MOST_FINALIZERS = 10.0, 50  # between two steps that remove finalizers, and in each
WRITTEN_MS = 30_000  # the watch shows what was written within this time


class OveruseRound:
    """Used by one thread for as long as the epoch lasts."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._history = EvictionHistory(context.steady())
        for result in RESULTS:
            metrics.OVERUSE_EVICTIONS.labels(result)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        return pause_after_s(self.step())

    def step(self) -> EvictionResult | None:
        """Evict the pod that is due, if any; returns the result, None if there was no attempt.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        now_ms = self._context.clock()
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
            over = node_usage.over(connection, "", now_ms)
        view = self._context.view()
        history, in_force_ms = view.history, _in_force_ms(view, now_ms)
        candidates = (candidate(each, view.pod(each.uid), history, in_force_ms) for each in over)
        decision = due(candidates, self._history, now_ms, self._context.steady())
        metrics.OVERUSE_HELD_BACK.set(decision.held_back)
        chosen = decision.chosen
        if chosen is None or chosen.pod is None:
            return None
        pod, before = chosen.pod, self._history
        attempt = before.attempt_of(pod.uid, self._context.steady())
        result = evict(self._context, pod, reasons.overuse(chosen, attempt))
        self._history = before.after(pod.uid, pod.node, result, self._context.steady())
        if result == "protected" and not before.was_protected(pod.uid):
            warn(self._context, pod, reasons.OVERUSE_PROTECTED, reasons.overuse_protected(chosen))
        return result


class IdleRound:
    """Warns idle pods, and lets other pods take their cards or evicts them, if the budget says so. What is to
    be done follows from the agents' reports and the pods' annotations.

    Used by one thread for as long as the epoch lasts. ``read``: the pods that are idle now, from a
    connection.
    """

    def __init__(
        self,
        context: EvictorContext,
        read: Callable[[Connection, int], Iterable[IdlePod]] = node_usage.idle,
    ) -> None:
        self._context, self._read = context, read
        self._history = EvictionHistory(context.steady())
        self._written_ms: dict[str, int] = {}  # UID -> when its annotations were last written

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return IDLE_S

    def step(self) -> None:
        """Do what is due about each pod; at most one pod is evicted, with those that leave together with it.
        Raises as `OveruseRound.step`."""
        now_ms, view = self._context.clock(), self._context.view()
        if view.statements is None:
            return
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
            found = {each.uid: each for each in self._read(connection, now_ms)}
        metrics.IDLE_PODS.set(len(found))
        history, in_force_ms = view.history, _in_force_ms(view, now_ms)
        enforced = {
            uid: each
            for uid, each in found.items()
            if (pod := view.pod(uid)) is not None and history.was_enforced(pod)
        }
        units = view.units()
        wholes = {uid: it for uid in enforced if (it := _whole(view, uid, enforced, units)) is not None}
        leaving = idleness.of_wholes(enforced, wholes)
        pods = (each for each in view.pods() if not self._was_just_written(each.uid))
        steps = idleness.due(pods, leaving, lambda name: history.idle_terms(name, in_force_ms), now_ms)
        evicted: dict[str, DueStep] = {}
        for action in steps:
            if isinstance(action, DueStep) and action.step in ("evict", "scale"):
                evicted[action.pod.uid] = action
            else:
                self._note(action)
        whys = {
            uid: (action.pod, reasons.idle(action, *owned))
            for uid, action in evicted.items()
            if (owned := self._scaled(action, evicted, view)) is not None
        }
        self._history = _evict_wholes(self._context, whys, view, units, self._history)

    def _scaled(
        self, action: DueStep, due: Mapping[str, DueStep], view: TickView
    ) -> tuple[TopmostOwner | None, str] | None:
        """None: the pod's topmost owner is scaled to zero. Else the owner, where it was looked for, and why
        not: so also while another of its pods uses its cards."""
        pod, at_ms = action.pod, self._context.steady()
        if self._was_just_written(pod.uid):
            return None  # one of the pods whose owner has just been scaled
        stays = self._history.is_limited(at_ms) or self._history.is_paused(pod.uid, at_ms)
        owner = None if stays or action.step != "scale" else owners.topmost(self._context.api, pod)
        if owner is None:
            return None, ""
        pods = [mate for mate in view.pods() if mate.is_staying and _same_owner(mate, pod)]
        if any(mate.uid not in due for mate in pods):
            return owner, "other pods of it use their cards"
        if why := owners.obstacle(self._context.api, owner):
            return owner, why
        reply = owners.scale_to_zero(self._context.api, owner, self._context.clock())
        metrics.IDLE_EVICTIONS.labels("scaled" if _is_accepted(reply) else "refused").inc()
        if not _is_accepted(reply):
            return owner, reply.message
        self._history = self._history.after(pod.uid, pod.node, "evicted", at_ms)
        self._written_ms |= dict.fromkeys((mate.uid for mate in pods), at_ms)
        tell(self._context, pod, reasons.idle_step(action, owner))
        return None

    def _note(self, action: DueStep | Spared) -> None:
        if not self._annotate(action.pod, _noted(action)) or not isinstance(action, DueStep):
            return
        api, is_warned = self._context.api, action.terms.action != "reclaim"
        owner = owners.topmost(api, action.pod) if is_warned else None
        why = owners.obstacle(api, owner) if owner and action.terms.action == "scale" else ""
        tell(self._context, action.pod, reasons.idle_step(action, owner, why))

    def _annotate(self, pod: LedgerPod, annotations: dict[str, str | None]) -> bool:
        reply = calls.annotate(self._context.api, pod, annotations)
        if _is_accepted(reply):
            self._written_ms[pod.uid] = self._context.steady()
            return True
        log("notice-not-written", level="warning", namespace=pod.namespace, pod=pod.name, error=reply.message)
        return False

    def _was_just_written(self, uid: str) -> bool:
        at_ms = self._context.steady()
        self._written_ms = {key: each for key, each in self._written_ms.items() if at_ms - each < WRITTEN_MS}
        return uid in self._written_ms


class OvertimeRound:
    """Used by one thread for as long as the epoch lasts. A warning is given once in an epoch; Events and
    decisions that repeat are counted, not added."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._history = EvictionHistory(context.steady())
        self._warned: set[str] = set()

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return OVERTIME_S

    def step(self) -> None:
        """Do what is due about each pod past its declared time. Raises as `OveruseRound.step`."""
        now_ms, view = self._context.clock(), self._context.view()
        if view.statements is None:
            return
        late = declared.due(view.pods(), view.history, now_ms)
        metrics.OVERTIME_PODS.set(len(late))
        self._warned &= {each.pod.uid for each in late}
        if not late:
            return
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
        for each in late:
            if each.pod.uid not in self._warned:
                self._warned.add(each.pod.uid)
                tell(self._context, each.pod, reasons.overtime_warning(each))
        whys = {each.pod.uid: (each.pod, reasons.overtime(each)) for each in late if each.is_due}
        self._history = _evict_wholes(self._context, whys, view, view.units(), self._history)


class GangRound:
    """Evicts what is left of gangs that were preempted. Used by one thread for as long as the epoch lasts."""

    def __init__(self, context: EvictorContext) -> None:
        self._context = context
        self._evicted_ms: dict[str, int] = {}  # UID -> when it was evicted last
        for result in RESULTS:
            metrics.GANG_EVICTIONS.labels(result)

    def run(self) -> float:
        """One step; returns the seconds until the next. Raises what `step` raises."""
        self.step()
        return GANG_S

    def step(self) -> None:
        """Evict what is due. Raises as `OveruseRound.step`."""
        at_ms = self._context.steady()
        self._evicted_ms = {uid: each for uid, each in self._evicted_ms.items() if at_ms - each < WRITTEN_MS}
        view = self._context.view()
        if not view.held.broken:
            return
        with self._context.store.reading() as connection:
            fencing.confirm(connection, self._context.epoch)
        for gang in view.held.broken:
            self._end(gang, view)

    def _end(self, it: BrokenGang, view: TickView) -> None:
        """Evict all that is left of it, unless one stays."""
        if not self._evicted_ms.keys().isdisjoint(it.uids):
            return
        found = [pod for uid in it.uids if (pod := view.pod(uid)) is not None]
        if any(view.is_protected(pod) or not view.history.was_enforced(pod) for pod in found):
            return
        self._evicted_ms |= dict.fromkeys(it.uids, self._context.steady())
        evict_together(self._context, [(each, reasons.broken(each, it)) for each in found])


def remove_finalizers(context: EvictorContext) -> float:
    """Let go of pods on which an older extender wrote `names.GANG_FORGIVEN`, once the ledger knows them. The
    next release does not. Returns the seconds until the next step. Raises RuntimeError if the API server
    refuses."""
    view = context.view()
    if view.statements is None:
        return FINALIZER_S
    pods = [pod for pod in view.pods() if pod.hold.has_finalizer][:MOST_FINALIZERS]
    results = [calls.result_of(calls.remove_finalizer(context.api, pod)) for pod in pods]
    refused = [text for result, text in results if result not in GONE]
    if refused:
        raise RuntimeError(f"finalizer {names.GANG_FORGIVEN} of {len(refused)} pods: {refused[0]}")
    return FINALIZER_S


def _is_accepted(reply: Reply) -> bool:
    return isinstance(reply, Answered) and reply.status < 300


def _same_owner(pod: LedgerPod, other: LedgerPod) -> bool:
    return (pod.namespace, pod.owner) == (other.namespace, other.owner)


def _noted(action: DueStep | Spared) -> dict[str, str | None]:
    """What is written on the pod."""
    if isinstance(action, Spared):
        return {names.IDLE_UNTIL: None, names.RECLAIMABLE: None}
    if action.step == "reclaim":
        return {names.RECLAIMABLE: "idle"}
    return {names.IDLE_UNTIL: calls.timestamp(action.until_ms), names.RECLAIMABLE: None}


def pause_after_s(result: EvictionResult | None) -> float:
    """Until the next round over overusing pods: longer after a refusal or no answer."""
    return SOON_S if result in ("evicted", "gone", "protected") else OVERUSE_S


def _whole(view: TickView, uid: str, idle: Mapping[str, IdlePod], units: LeavingUnits) -> Pods | None:
    """The pods that end a hold if they leave together with this one, and are all idle; None if there are
    none."""
    pod = view.pod(uid)
    sets = map(units.whole, view.together(pod)) if pod is not None else ()
    return next((some for some in sets if all(it.uid in idle for it in some if it.is_staying)), None)


def _evict_wholes(
    context: EvictorContext,
    due: Mapping[str, tuple[LedgerPod, Reason]],
    view: TickView,
    units: LeavingUnits,
    history: EvictionHistory,
) -> EvictionHistory:
    """Evict the pods that are due, by UID, each with those that leave together with it, once all of these
    are due; the history after that."""
    sets = (units.whole(some) for pod, _ in due.values() for some in view.together(pod))
    wholes = {id(each): each for each in sets if each}  # all pods of a gang have the same set
    for whole in wholes.values():
        staying = [each.uid for each in whole if each.is_staying]
        if due.keys() >= set(staying):
            history = _evict_together(context, [due[uid] for uid in staying], history)
    return history


def _evict_together(
    context: EvictorContext, leaving: Sequence[tuple[LedgerPod, Reason]], history: EvictionHistory
) -> EvictionHistory:
    """Evict pods that leave together unless evictions are limited now; the history after that. The limit
    counts each."""
    at_ms = context.steady()
    if history.is_limited(at_ms) or any(history.is_paused(pod.uid, at_ms) for pod, _ in leaving):
        return history
    for pod, result in evict_together(context, leaving):
        history = history.after(pod.uid, pod.node, result, context.steady())
    return history


def _in_force_ms(view: TickView, now_ms: int) -> int:
    """The time of the entries in force: if the clock was set back, the newest ones still count."""
    return max(now_ms, view.history.newest_ms())
