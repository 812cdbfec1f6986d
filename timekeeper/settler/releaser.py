"""Removes Bursar's scheduling gate from the pods whose turn it is. Runs in a thread of the settler.

Each release is decided from one tick of the settler. A pod whose gate the API server was asked to remove
takes its part of the limits from that moment on, until a tick sees the pod without the gate: then the
reservations of that tick contain it. After a restart the pods themselves say the same. A pod that declares
its time is released in two steps: one transaction writes its reservation, then the gate is removed, again
after a restart if need be.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event
from typing import Any, Literal

from timekeeper import metrics
from timekeeper.accounts.held.declared import DeclaredReservation
from timekeeper.accounts.held.gangs import WaitingGang
from timekeeper.accounts.held.limits import HeldView, ReleaseLimits, whole_seconds
from timekeeper.accounts.held.order import HeldPod, next_released, queues_after, queues_of
from timekeeper.core import names
from timekeeper.core.decisions import MESSAGE, Decision, Figure, Record, record_nothing
from timekeeper.core.decisions import RELEASED as RELEASED_KIND
from timekeeper.edge.clock import monotonic_ms
from timekeeper.log import log, log_exception
from timekeeper.runtime.api_server import ANSWER_S, STRATEGIC_MERGE, Answered, Api, Reply
from timekeeper.settler.pod_notices import hours_text
from timekeeper.store import fencing, held_pods
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError
from timekeeper.store.fencing import Epoch, EpochOverError

STEP_S = 0.5
MAX_AT_ONCE = 25  # in one step: 50 a second
MANY_UNTRIED = 50  # a step releases nothing while more pods than this wait for our scheduler's first attempt
# Such a pause takes PAUSE_COST of a credit to which each other step adds 1: at first it lasts for 30 seconds,
# and then for one step in six. So 10,000 are released in less than five minutes. A step that has nothing to
# release is no pause: pods that wait for a refill for days take no credit from others.
MAX_CREDIT, PAUSE_COST = 300, 5
CALLS_AT_ONCE = 5  # one after another, calls of more than 20 ms would be slower than that
AWAY_S = 10.0  # if the database is unreachable, or after an unexpected error
# A call of an earlier settler may arrive after its end, and a call without an answer may be done later.
QUIET_MS = 3_000
CONFIRMED_MS = 2_000  # below QUIET_MS: calls go out this long after the epoch was confirmed
UNCLEAR_MS = 30_000
SOON_MS, AWAY_MS = 1_000, 30_000  # until another attempt: the pod has changed; the API server refuses
RELEASED = "Released"

Result = Literal["released", "changed", "refused", "unclear"]
RESULTS: tuple[Result, ...] = ("released", "changed", "refused", "unclear")


class Releaser:
    """Used by one thread for as long as the epoch lasts. ``patch``: sends a strategic merge patch to a path;
    ``report``: posts an Event on a pod, by namespace, name, UID, reason and note; ``view``: the settler's
    last tick; ``steady``: a monotonic clock in milliseconds; ``reserved``: called with the reservations of
    declared time that are written; ``at_once``: how many calls of ``patch`` may be under way."""

    def __init__(
        self,
        store: Store,
        epoch: Epoch,
        patch: Callable[[str, Mapping[str, Any]], Reply],
        report: Callable[[str, str, str, str, str], None],
        view: Callable[[], HeldView],
        steady: Callable[[], int] = monotonic_ms,
        record: Record = record_nothing,
        reserved: Callable[[Sequence[DeclaredReservation]], None] = lambda _: None,
        at_once: int = 1,
    ) -> None:
        self._reserved, self._at_once = reserved, at_once
        self._map = map if at_once == 1 else ThreadPoolExecutor(at_once, "release-call").map
        self._store, self._epoch, self._patch, self._report = store, epoch, patch, report
        self._view, self._steady, self._record = view, steady, record
        self._began_ms = steady()
        self._sent: dict[str, int] = {}  # UID -> until when its release counts as sent
        self._written: set[str] = set()  # UIDs whose reservation is written, and no tick has seen it yet
        self._paused: dict[str, int] = {}  # UID -> until when it is not tried again
        self._served: dict[str, int] = {}  # namespace -> number of its last turn
        self._number = 0
        self._credit, self._formers = MAX_CREDIT, 0
        self._queues: tuple[Mapping[str, HeldPod], dict[str, list[HeldPod]]] = ({}, {})
        for result in RESULTS:
            metrics.RELEASES.labels(result)

    def step(self) -> int:
        """Release the pods that are next; returns to how many a call was sent. A process that stood still
        sends no more: another settler may have started.

        Raises EpochOverError if another settler has started, UnavailableError or ConflictError if the
        database cannot be read.
        """
        view, at_ms = self._view(), self._steady()
        metrics.HELD.set(len(view.pods))
        self._forget(view, at_ms)
        if at_ms - self._began_ms < QUIET_MS:
            return 0
        chosen = self._chosen(view) if view.pods else []
        together = [uid for it in view.gangs.values() for uid in it.paid_out]
        started = [view.gangs[each.uid] for each in chosen if each.uid in view.gangs]
        together += [uid for it in started for uid in it.gated]
        passed = self._sent.keys() | self._paused.keys()
        opened = self._open([uid for uid in together if uid not in passed], view)
        singly = [each for each in chosen if each.uid not in view.gangs]
        return opened + self._release_singly(singly, view, at_ms)

    def _release_singly(self, chosen: Sequence[HeldPod], view: HeldView, at_ms: int) -> int:
        if self._pauses(view, chosen) or not chosen:
            return 0
        self._reserve(chosen, view)
        remaining, sent = iter(chosen), 0
        while self._steady() - at_ms < CONFIRMED_MS and (together := tuple(islice(remaining, self._at_once))):
            sent += len(together)
            answers = self._map(self._remove_gate, together)
            results = [self._release(*each, view) for each in zip(together, answers, strict=True)]
            if "unclear" in results:
                break  # an answer takes long: decide anew
        return sent

    def _open(self, uids: Sequence[str], view: HeldView) -> int:
        """Remove the gates of these members of gangs, all in this step: no limit of single pods splits them.
        Returns to how many a call was sent."""
        members = [view.pods[uid] for uid in uids if uid in view.pods]
        if not members:
            return 0
        self._reserve(members, view)
        answers = self._map(self._remove_gate, members)
        for pod, answer in zip(members, answers, strict=True):
            self._release(pod, answer, view)
        return len(members)

    def _pauses(self, view: HeldView, chosen: Sequence[HeldPod]) -> bool:
        """Whether schedulers get no pod of this step, because they have many to try."""
        if chosen and view.untried > MANY_UNTRIED and self._credit >= PAUSE_COST:
            self._credit -= PAUSE_COST
            return True
        self._credit = min(MAX_CREDIT, self._credit + 1)
        return False

    def _chosen(self, view: HeldView) -> list[HeldPod]:
        """First those that have reserved their time and have the gate all the same, then protected ones, then
        those whose turn it is."""
        single = self._queued(view)
        if self._queues[0] is not single:
            before, queues = self._queues
            self._queues = (single, queues_after(queues, before, single))
        held = (view.reserved & single.keys()) - self._sent.keys() - self._paused.keys()
        again = [view.pods[uid] for uid in sorted(held)][:MAX_AT_ONCE]
        sent = [view.pods[uid] for uid in self._sent if uid not in view.reserved]
        passed = self._paused.keys() | view.reserved
        limits, most = ReleaseLimits(view), MAX_AT_ONCE - len(again)
        if view.protected:
            queues = queues_of(single[uid] for uid in view.protected if uid in single)
            spared = next_released(queues, sent, limits.of_protected, self._served, most, passed, view.fair)
            again, sent, most = again + spared, sent + spared, most - len(spared)
        return again + next_released(self._queues[1], sent, limits.of, self._served, most, passed, view.fair)

    def _queued(self, view: HeldView) -> Mapping[str, HeldPod]:
        """The held pods by UID: a gang that may be paid is one pod, and the members of others that have not
        started are none."""
        if not view.gangs:
            return view.pods
        found, former = dict(view.pods), self._former(view)
        for it in view.gangs.values():
            if it.payment == "singly":
                continue
            for uid in it.gated:
                found.pop(uid, None)
            is_begun = bool(it.paid_out) or not self._sent.keys().isdisjoint(it.gated)
            is_next = it.payment == "together" and not is_begun and (not it.former or it is former)
            if is_next and it.held is not None:
                found[it.key] = it.held
        return found

    def _former(self, view: HeldView) -> WaitingGang | None:
        """The gang without a gate for cards, which a release before it has created, that may be paid in this
        step: another one in each, and none while such a gang waits for cards, for kube-scheduler tries its
        pods again and again."""
        former = [it for it in view.gangs.values() if it.former]
        waits = (member for it in former for member in it.former)
        if any(not member.is_gated or member.uid in self._sent for member in waits):
            return None
        payable = [it for it in former if it.payment == "together"]
        payable.sort(key=lambda it: (it.members[0].created_ms, it.key))
        self._formers += 1
        return payable[(self._formers - 1) % len(payable)] if payable else None

    def _reserve(self, chosen: Sequence[HeldPod], view: HeldView) -> None:
        """Write what these pods reserve of their declared time, in one transaction; without such pods the
        epoch is confirmed alone."""
        new = [
            DeclaredReservation(
                pod.uid,
                pod.namespace,
                pod.name,
                pod.rate_milli,
                pod.length_ms,
                whole_seconds(view.at_ms),
            )
            for pod in chosen
            if pod.length_ms and pod.uid not in view.reserved
        ]
        if not new:
            with self._store.reading() as connection:
                fencing.confirm(connection, self._epoch)
            return
        with fencing.writing(self._store, self._epoch) as connection:
            held_pods.reserve(connection, new)
        until_ms = self._steady() + UNCLEAR_MS
        self._sent.update({reservation.uid: until_ms for reservation in new})
        self._written.update(reservation.uid for reservation in new)
        self._reserved(new)

    def _forget(self, view: HeldView, at_ms: int) -> None:
        """A tick that sees a pod without its gate contains its reservation. A reservation that no tick has
        seen counts as sent for as long as that takes."""
        self._written = {uid for uid in self._written if uid in view.pods and uid not in view.reserved}
        self._sent = {
            uid: until_ms
            for uid, until_ms in self._sent.items()
            if uid in view.pods and (at_ms < until_ms or uid in self._written)
        }
        self._paused = {uid: until_ms for uid, until_ms in self._paused.items() if at_ms < until_ms}
        if len(self._served) > 2 * len(view.pods) + 1_000:
            waiting = {pod.namespace for pod in view.pods.values()}
            self._served = {name: number for name, number in self._served.items() if name in waiting}

    def _serve(self, namespace: str) -> None:
        """The namespace has had its turn."""
        self._number += 1
        self._served[namespace] = self._number

    def _release(self, pod: HeldPod, answer: tuple[Result, str], view: HeldView) -> Result:
        """Note what became of the call for this pod."""
        result, error = answer
        metrics.RELEASES.labels(result).inc()
        until_ms = self._steady() + UNCLEAR_MS
        if result in ("released", "unclear"):
            self._sent[pod.uid] = until_ms
            self._serve(pod.namespace)
        else:
            self._paused[pod.uid] = self._steady() + (AWAY_MS if result == "refused" else SOON_MS)
        log(
            "pod-release",
            level="info" if result == "released" else "warning",
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            result=result,
            error=error or None,
        )
        if result == "released":
            note = _note(pod, pod.uid in view.protected)
            self._report(pod.namespace, pod.name, pod.uid, RELEASED, note)
            self._record(_decision(pod, note, view.at_ms))
        return result

    def _remove_gate(self, pod: HeldPod) -> tuple[Result, str]:
        """The result, and the API server's message unless it removed the gate."""
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        reply = self._patch(path, removal(pod))
        if not isinstance(reply, Answered):
            return "unclear", reply.message
        if reply.status < 300:
            return "released", ""
        error = f"{reply.status} {reply.message}"
        if reply.status >= 500:
            return "unclear", error
        return "changed" if reply.status in (404, 409) else "refused", error


def removal(pod: HeldPod) -> dict[str, Any]:
    """The strategic merge patch that removes our gate from the pod with this UID, and records what its claims
    were judged for, if admission did not know it; nothing else. The API server answers 422 if another pod has
    the name."""
    gate = {"$patch": "delete", "name": names.BUDGET_GATE}
    late = {} if pod.late_devices is None else {"annotations": {names.CLAIMS: str(pod.late_devices)}}
    return {"metadata": {"uid": pod.uid, **late}, "spec": {"schedulingGates": [gate]}}


def _decision(pod: HeldPod, note: str, at_ms: int) -> Decision:
    """The record of a release."""
    figures: dict[str, Figure] = {
        MESSAGE: note,
        "rateMilli": pod.rate_milli,
        "priority": pod.priority,
        "waitedMs": max(0, at_ms - pod.created_ms),
    }
    if pod.length_ms:
        figures |= {"lengthMs": pod.length_ms, "reserved": pod.rate_milli * pod.length_ms}
    where = {"owner": pod.owner, "name": pod.name, "uid": pod.uid}
    return Decision(
        at_ms=at_ms, kind=RELEASED_KIND, reason=RELEASED, namespace=pod.namespace, figures=figures, **where
    )


def _note(pod: HeldPod, is_protected: bool) -> str:
    if pod.length_ms:
        hours = hours_text(pod.rate_milli * pod.length_ms)
        return (
            f"The GPU budget of namespace {pod.namespace} has reserved {hours} GPU-hours, the declared time "
            "of this pod and its grace period; it is no longer held."
        )
    if is_protected:
        return f"The budget of namespace {pod.namespace} protects this pod (protect); it is no longer held."
    if pod.needs_budget:
        return f"The GPU budget of namespace {pod.namespace} can pay this pod; it is no longer held."
    return "It is this pod's turn; it is no longer held."


def patch_with(api: Api) -> Callable[[str, Mapping[str, Any]], Reply]:
    """Sends a strategic merge patch to the API server."""

    def patch(path: str, body: Mapping[str, Any]) -> Reply:
        return api.call("PATCH", path, body, content_type=STRATEGIC_MERGE, timeout_s=ANSWER_S)

    return patch


def keep_releasing(step: Callable[[], int], stop: Event) -> None:
    """Run a releaser's ``step`` several times a second until ``stop``, or until the epoch is over. No other
    error ends it: only the settler releases."""
    pause_s = STEP_S
    while not stop.wait(pause_s):
        began_s = time.monotonic()
        try:
            step()
            pause_s = max(0.0, STEP_S - (time.monotonic() - began_s))
        except EpochOverError as error:
            log("releaser-ends", level="warning", reason="another settler has started", error=error)
            return
        except (UnavailableError, ConflictError) as error:
            log("release-failed", level="error", error=error)
            pause_s = AWAY_S
        except Exception as error:
            log_exception("release-failed", error)
            pause_s = AWAY_S
