"""Judges the new pods of metered namespaces as admission would, and finds the running ones that would have
been evicted. Runs in a thread of the settler, which waits for nothing here; no pod is touched."""

import time
from collections.abc import Callable, Iterable, Mapping
from threading import Event

import orjson

from timekeeper import metrics
from timekeeper.accounts.exhaustion.evictions import BudgetEvictionMemory
from timekeeper.accounts.exhaustion.terms import EvictingNamespaces
from timekeeper.accounts.held.order import pod_milli
from timekeeper.accounts.would import (
    TOO_MANY,
    CardHolder,
    LeavingMemory,
    Verdict,
    cards_taken,
    leaving,
    terms_of,
    verdict,
)
from timekeeper.core.json_values import Json
from timekeeper.core.rating.held import least_milli
from timekeeper.core.request.request import parse_new
from timekeeper.core.standings import Caps, caps
from timekeeper.edge.clock import monotonic_ms
from timekeeper.log import log, log_exception
from timekeeper.settler.new_pods import NewPod, NewPods
from timekeeper.settler.settler import Settler
from timekeeper.settler.state.tick_view import TickView
from timekeeper.store import would
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.fencing import EpochOverError, FencedStore
from timekeeper.store.would import WouldRow

TOGETHER = 50  # pods in one step: about 20 ms of work
IDLE_S, AGAIN_S = 0.5, 5.0
_NOTED_MS = 60_000
_SHOWN_MS = 10_000  # by then the cluster shows a pod that was judged
_SENTENCE = "The namespace's GPU budget is spent (onExhausted: evict): the pod would have been evicted."


class WouldJudge:
    """Used by one thread for as long as the epoch lasts. ``steady``: a monotonic clock in milliseconds."""

    def __init__(
        self,
        pods: NewPods,
        store: Store,
        settler: Settler,
        now_ms: Callable[[], int],
        steady: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._pods, self._store, self._settler = pods, store, settler
        self._now_ms, self._steady = now_ms, steady
        self._fenced = FencedStore(store, settler.epoch)
        self._taken: list[NewPod] = []  # judged when the database can be written
        self._document: tuple[str, Json] = ("", {})
        self._evicting = EvictingNamespaces()
        self._leaving = LeavingMemory(BudgetEvictionMemory(steady()))
        # UID -> pod of a capped namespace, and when it was judged by the monotonic clock
        self._recent: dict[str, tuple[CardHolder, int]] = {}
        self._noted_ms = 0

    def keep(self, stop: Event) -> None:
        """Judge until ``stop``, or until the epoch is over. No other error ends it. It works for at most half
        of the time."""
        pause_s = 0.0
        while not stop.wait(pause_s):
            began_s = time.monotonic()
            try:
                is_busy = self.step()
                pause_s = max(0.02, time.monotonic() - began_s) if is_busy else IDLE_S
            except EpochOverError:
                return
            except (UnavailableError, ConflictError) as error:
                pause_s = AGAIN_S
                log("would-not-written", level="warning", error=error)
            except Exception as error:
                pause_s = AGAIN_S
                log_exception("would-not-written", error)

    def step(self) -> bool:
        """Judge some of the pods that wait; returns whether there were any. Raises UnavailableError,
        ConflictError, EpochOverError: then the same ones are judged again."""
        view, now_ms = self._settler.view, self._now_ms()
        document = view.published
        if document is None:
            return False
        metrics.WOULD.labels("dropped").inc(self._pods.take_dropped())
        self._taken = self._taken or self._pods.take(TOGETHER)
        if self._document[0] != document.revision:
            self._document = document.revision, orjson.loads(document.body)
        evicted, remembered = self._evicted(view, now_ms)
        since_ms = self._steady() - _SHOWN_MS
        recent = {uid: judged for uid, judged in self._recent.items() if judged[1] > since_ms}
        rows = [*self._judged(view, now_ms, recent), *evicted]
        is_old = bool(self._taken) or not 0 <= now_ms - self._noted_ms < _NOTED_MS
        is_due = is_old and not self._pods.are_waiting()
        if rows or is_due:
            with self._fenced.writing() as connection:
                would.record(connection, rows)
                if is_due:
                    would.note(connection, view.cluster.pods_current_ms)
            self._noted_ms = now_ms if is_due else self._noted_ms
        self._leaving, self._recent = remembered, recent
        for row in rows:
            metrics.WOULD.labels(row.verdict).inc()
        had_any, self._taken = bool(self._taken), []
        return had_any

    def _judged(
        self, view: TickView, now_ms: int, recent: dict[str, tuple[CardHolder, int]]
    ) -> Iterable[WouldRow]:
        """The rows of the pods that were taken. Those with a cap to keep are added to ``recent``."""
        for pod in self._taken:
            if not view.cluster.metered.meters(pod.namespace):
                continue
            found = self._verdict(view, pod, now_ms, recent)
            if found is not None:
                about = pod.uid, found.word, pod.namespace, pod.name, found.rule, found.sentence
                yield WouldRow(*about, pod.created_ms, now_ms)

    def _cards_taken(
        self, view: TickView, pod: NewPod, recent: Mapping[str, tuple[CardHolder, int]]
    ) -> Mapping[str, int]:
        """What earlier pods would hold of the caps that this one has to keep. Of pods that were created in
        the same second, those are earlier that were judged before."""
        document, cluster = self._document[1], view.cluster

        def caps_of(namespace: str) -> Caps:
            return caps(document["namespaces"].get(namespace, document["default"]))

        own = caps_of(pod.namespace)
        if own.own.total_milli is None and own.of_group.total_milli is None:
            return {}
        there_are = {*cluster.namespaces, *(judged.namespace for judged, _ in recent.values())}
        names = {name for name in there_are if own.group and caps_of(name).group == own.group}
        names.add(pod.namespace)
        uids = (uid for name in names for uid in cluster.namespaces.get(name, ()) if uid not in recent)
        shown = [
            there
            for there in map(cluster.pods.__getitem__, uids)
            if there.created_ms < pod.created_ms and there.ended_ms is None
        ]
        with self._store.reading() as connection:
            away = would.not_there(connection, {there.uid for there in shown}, ("refused", "evicted"))
        older = [judged for judged, _ in recent.values() if judged.namespace in names]
        for there in shown:
            if there.uid not in away:
                is_placed = pod_milli(there, cluster.cards(there.node)) if there.node else 0
                milli = is_placed or least_milli(view.unallocated.get(there.uid, there.request))
                older.append(CardHolder(there.namespace, there.created_ms, milli))
        claims = {name: view.claims_milli.get(name, 0) for name in names}
        return cards_taken(older, claims, caps_of)

    def _verdict(
        self, view: TickView, pod: NewPod, now_ms: int, recent: dict[str, tuple[CardHolder, int]]
    ) -> Verdict | None:
        if not pod.body:
            return TOO_MANY
        taken = self._cards_taken(view, pod, recent)
        try:
            raw, terms = orjson.loads(pod.body), terms_of(self._document[1], pod.namespace, now_ms, taken)
            found = verdict(raw, pod.namespace, terms, pod.is_bound)
            if found is not None and terms.policy.caps.is_set:
                policy = terms.policy
                request = parse_new(raw, policy.unknown_accelerators, named=policy.accelerators).request
                milli = 0 if request is None or found.word == "refused" else least_milli(request)
                recent[pod.uid] = CardHolder(pod.namespace, pod.created_ms, milli), self._steady()
            return found
        except Exception as error:  # a fault of ours costs one pod its verdict, not all pods theirs
            log_exception("pod-not-judged", error, namespace=pod.namespace, pod=pod.name)
            return Verdict("unjudged", sentence="The pod could not be judged; the timekeeper's log says why.")

    def _evicted(self, view: TickView, now_ms: int) -> tuple[list[WouldRow], LeavingMemory]:
        """The pods whose turn to leave it is, and what is then remembered. One that would not be there takes
        no turn."""
        cluster = view.cluster
        if view.statements is None:
            return [], self._leaving
        settings = view.history.settings(now_ms)
        exhausted = self._evicting.terms(view.statements.namespaces, settings, now_ms)
        metered = {name: each for name, each in exhausted.items() if cluster.metered.meters(name)}
        pods = [cluster.pods[uid] for name in metered for uid in cluster.namespaces.get(name, ())]
        found, remembered = leaving(pods, metered, self._leaving, now_ms, self._steady(), view.is_protected)
        away: set[str] = set()
        if found:
            with self._store.reading() as connection:
                away = would.not_there(connection, {each.pod.uid for each in found})
        there = [each for each in found if each.pod.uid not in away]
        remembered = remembered.without(away)
        for each in there:
            remembered = remembered.after(each, self._steady())
        leavers = (each.pod for each in there)
        rows = [
            WouldRow(pod.uid, "evicted", pod.namespace, pod.name, "", _SENTENCE, now_ms, now_ms)
            for pod in leavers
        ]
        return rows, remembered
