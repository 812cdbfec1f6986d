"""The body of ``POST /v1/simulate`` and its answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from scheduler_ext.model.pod import Pod, read_pod
from scheduler_ext.model.standing import NamespaceStandings
from scheduler_ext.simulation.simulate import SimulatedPod
from timekeeper.core.json_values import Json
from timekeeper.core.request.host import encode_host
from timekeeper.runtime.http.problem_details import bad

MAX_PODS = 50
MAX_REASONS = 5
_FIELDS = ("version", "pods", "protected")


@dataclass(frozen=True, slots=True)
class Asked:
    """Pods that do not exist; ``protected``: UIDs of those that their namespace's budget would protect."""

    pods: tuple[Pod, ...]
    protected: frozenset[str]

    def standings(self, known: NamespaceStandings) -> NamespaceStandings:
        """The known standings, in which these pods are protected."""
        if not self.protected:
            return known
        listed = dict(known.listed)
        for namespace in {pod.namespace for pod in self.pods}:
            standing = known.of(namespace)
            listed[namespace] = replace(standing, protected=standing.protected | self.protected)
        return replace(known, listed=listed)


def read_simulation(body: bytes) -> Asked:
    """Parses the body. Raises a Problem that names the field."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad("", f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise bad("", "the body must be an object")
    for name in raw:
        if name not in _FIELDS:
            raise bad(str(name), f"no such field; allowed: {', '.join(_FIELDS)}")
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    pods = raw.get("pods")
    if not isinstance(pods, list) or not 1 <= len(pods) <= MAX_PODS:
        raise bad("pods", f"it must be a list of 1 to {MAX_PODS} pods")
    found = tuple(_pod(each, f"pods[{at}]") for at, each in enumerate(pods))
    if len({pod.uid for pod in found}) < len(found):
        raise bad("pods", "each must have a UID of its own")
    protected = raw.get("protected", [])
    if not isinstance(protected, list) or not all(isinstance(uid, str) for uid in protected):
        raise bad("protected", "it must be a list of UIDs")
    return Asked(found, frozenset(protected))


def _pod(raw: object, where: str) -> Pod:
    """A pod that waits, whatever its gates and its status say."""
    if not isinstance(raw, dict):
        raise bad(where, "it must be a Pod")
    for name in ("metadata", "spec"):
        if not isinstance(raw.get(name), dict):
            raise bad(f"{where}.{name}", "it must be an object")
    for name in ("name", "namespace", "uid"):
        if not isinstance(raw["metadata"].get(name), str) or not raw["metadata"][name]:
            raise bad(f"{where}.metadata.{name}", "it must be a text")
    spec = {key: value for key, value in raw["spec"].items() if key not in ("nodeName", "schedulingGates")}
    try:
        pod = read_pod({**raw, "spec": spec, "status": {}})
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise bad(where, f"it cannot be read as a Pod: {error}") from error
    if pod is None:
        raise bad(where, "it requests no GPU")
    return pod


def answer_of(found: list[SimulatedPod], standings: NamespaceStandings) -> bytes:
    """The answer's JSON."""
    return orjson.dumps({"version": 1, "pods": [_shown(each, standings) for each in found]})


def _shown(each: SimulatedPod, standings: NamespaceStandings) -> dict[str, Any]:
    outcome = "waits" if not each.node else "preempts" if each.victims or each.awaited else "fits"
    return {
        "name": each.pod.name,
        "namespace": each.pod.namespace,
        "uid": each.pod.uid,
        "outcome": outcome,
        "node": each.node,
        "nodesThatFit": each.fitting,
        **_cards(each),
        "host": encode_host(each.host) if each.host is not None else "",
        "kind": each.kind,
        "victims": [_victim(victim, standings) for victim in each.victims],
        "awaited": each.awaited,
        "reasons": [
            {"reason": why.refusal.sentence, "kind": why.refusal.kind, "nodes": why.nodes}
            for why in each.reasons[:MAX_REASONS]
        ],
        "hasUnreadConstraints": each.pod.constrained,
    }


def _cards(each: SimulatedPod) -> Mapping[str, Any]:
    """What it takes of each card; ``unnamed``: whole cards that only the device plugin could name."""
    if each.allocation is None:
        return {"cards": [], "unnamed": 0, "model": ""}
    there = {card.uuid: card for card in each.cards}
    cards = [
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
        for uuid, amount in each.allocation.uses
        if uuid in there
    ]
    model = each.cards[0].model if each.cards else ""
    return {"cards": cards, "unnamed": each.allocation.unnamed, "model": model}


def _victim(pod: Pod, standings: NamespaceStandings) -> Json:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
        "standing": standings.of(pod.namespace).status,
    }
