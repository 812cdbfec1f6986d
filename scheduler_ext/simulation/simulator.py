"""Answers ``POST /v1/simulate``, which the timekeeper sends: reads the pods, and bounds their simulation."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import orjson

from scheduler_ext.log import Log
from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.simulation.simulate import PROCESSOR_S, SimulatedPod, SimulationInput, simulate
from timekeeper.runtime.http.problem_details import bad

MAX_PODS = 50
MAX_REASONS = 5
_WORK_S, _REST_S = 0.001, 0.003  # of a processor's time, and then of the verbs' turn


class Simulator:
    """``books``: the state of this moment. Simulations run one at a time, and rest often, so that the verbs
    go on beside them. ``spent_s``: the seconds of a processor that the thread has used."""

    def __init__(
        self,
        books: Callable[[], SimulationInput],
        log: Log,
        spent_s: Callable[[], float] = time.thread_time,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self._books, self._log, self._spent_s, self._rest = books, log, spent_s, rest
        self._one = Lock()

    def __call__(self, body: bytes) -> bytes:
        """The answer to a body. Raises a Problem for a bad one."""
        with self._one:
            left_s = self._clock()
            pods, protected = read_simulation(body)
            books = self._books()
            books = replace(
                books,
                standings=protecting(books.standings, pods, protected),
                left_s=left_s,
            )
            simulated = simulate(pods, books)
            partial = any(pod.is_partial for pod in simulated)
            answer = orjson.dumps({"version": 1, "partial": partial, "pods": list(map(_answer, simulated))})
            ms = 1000 * (PROCESSOR_S - left_s())
        self._log("simulated", level="info", pods=len(pods), ms=f"{ms:.0f}")
        return answer

    def _clock(self) -> Callable[[], float]:
        """What is left of the processor's time from now on. Who asks rests, if it has worked."""
        began_s = rested_s = self._spent_s()

        def left_s() -> float:
            nonlocal rested_s
            now_s = self._spent_s()
            if now_s - rested_s > _WORK_S:
                rested_s = now_s
                self._rest(_REST_S)
            return PROCESSOR_S - (now_s - began_s)

        return left_s


def protecting(
    known: NamespaceStandings, pods: Sequence[Pod], protected: Collection[str]
) -> NamespaceStandings:
    """The known standings, in which pods with these UIDs are protected by their namespace's budget."""
    if not protected:
        return known
    listed = dict(known.listed)
    for namespace in {pod.namespace for pod in pods}:
        standing = known.of(namespace)
        listed[namespace] = replace(standing, protected=standing.protected | frozenset(protected))
    return replace(known, listed=listed)


def read_simulation(body: bytes) -> tuple[list[Pod], list[str]]:
    """The pods, and the UIDs of those that are protected. Raises a Problem that names the field."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad("", f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    pods, protected = raw.get("pods"), raw.get("protected", [])
    if not isinstance(pods, list) or not 1 <= len(pods) <= MAX_PODS:
        raise bad("pods", f"it must be a list of 1 to {MAX_PODS} pods")
    if not isinstance(protected, list) or not all(isinstance(uid, str) for uid in protected):
        raise bad("protected", "it must be a list of UIDs")
    return [_pod(pod, f"pods[{at}]") for at, pod in enumerate(pods)], protected


def _pod(raw: Any, where: str) -> Pod:
    """A pod that waits, whatever its gates and its status say. Raises a Problem."""
    unset = {"nodeName": None, "schedulingGates": None}
    try:
        spec = {**raw["spec"], **unset}
        pod = read_pod({**raw, "spec": spec, "status": {}})
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise bad(where, f"it cannot be read as a Pod: {error!r}") from error
    if pod is None:
        raise bad(where, "it requests no GPU")
    return pod


def _answer(simulated: SimulatedPod) -> Mapping[str, Any]:
    """`outcome`: `fits`, `waits`, or `unknown` where the time did not suffice. `unnamed`: whole cards of this
    `model` that only the device plugin could name."""
    allocation = simulated.allocation
    there = {card.uuid: card for card in simulated.cards}
    uses = allocation.uses if allocation is not None else ()
    return {
        "uid": simulated.pod.uid,
        "outcome": "fits" if simulated.node else "unknown" if simulated.is_partial else "waits",
        "node": simulated.node,
        "nodesThatFit": simulated.fitting,
        "cards": [
            {
                "uuid": uuid,
                "index": there[uuid].index,
                "model": there[uuid].model,
                "cardMemoryMib": there[uuid].memory_mib,
                "cardResources": dict(there[uuid].resources),
                "shareMilli": amount.share_milli,
                "memoryMib": amount.memory_mib,
                "resources": dict(amount.resources),
            }
            for uuid, amount in uses
            if uuid in there
        ],
        "unnamed": allocation.unnamed if allocation is not None else 0,
        "model": simulated.cards[0].model if simulated.cards else "",
        "reasons": [
            {"reason": why.refusal.sentence, "kind": why.refusal.kind, "nodes": why.nodes}
            for why in simulated.reasons[:MAX_REASONS]
        ],
        "hasUnreadConstraints": simulated.pod.constrained,
    }
