"""Standings, PodDisruptionBudgets and clusters at one moment, for whoever is to leave."""

from typing import Any

from scheduler_ext.model.pdb import NONE, PDBs, read_pdb
from scheduler_ext.model.pod import Pod
from scheduler_ext.model.standing import UNHEARD, NamespaceStanding, NamespaceStandings
from scheduler_ext.preemption.cooldown import NOTHING_DONE, Cooldown
from scheduler_ext.preemption.victims import Choice, PreemptionContext, choose
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.scheduler_ext.worlds import node, rebuilt
from tests.worlds import Json, card

NOW_MS = 1_800_000_000_000
IN = NamespaceStanding("IN_BUDGET", "reclaim")
OVER = NamespaceStanding("OVER_BUDGET", "reclaim")
DEMOTED = NamespaceStanding("OVER_BUDGET", "deprioritize")
UNLIMITED = NamespaceStanding("UNLIMITED", "reclaim")


def standing(**namespaces: NamespaceStanding) -> NamespaceStandings:
    """Who stands how, with ``_`` for the dash; everybody else is UNKNOWN."""
    return NamespaceStandings({name.replace("_", "-"): each for name, each in namespaces.items()})


def of(raw: Json, namespace: str, owner: str = "", labels: Json | None = None, started: str = "") -> Json:
    """The pod in this namespace, made by that controller, with labels, started at a time of 2027."""
    metadata = raw["metadata"] | {"namespace": namespace}
    if owner:
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "uid": owner, "controller": True}]
    if labels is not None:
        metadata["labels"] = labels
    status = raw["status"] | ({"startTime": f"2027-01-01T{started}Z"} if started else {})
    return {**raw, "metadata": metadata, "status": status}


def budget(namespace: str, allowed: int, selector: Json | None, name: str = "pdb", **disrupted: str) -> Json:
    """A PodDisruptionBudget with its status."""
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {} if selector is None else {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": disrupted},
    }


def pdbs(*budgets: Json) -> PDBs:
    """The value of these PodDisruptionBudgets."""
    grouped: dict[str, tuple[Any, ...]] = {}
    for raw in budgets:
        each = read_pdb(raw)
        grouped[each.namespace] = (*grouped.get(each.namespace, ()), each)
    return PDBs(grouped)


def cards(count: int, *pods: Json) -> Snapshot:
    """A node "n" of so many cards of 16000 MiB, with these pods on it."""
    return rebuilt([node("n", *(card(at) for at in range(count)))], list(pods))


def at(
    snapshot: Snapshot,
    standings: NamespaceStandings = UNHEARD,
    promised: PDBs = NONE,
    cooldown: Cooldown = NOTHING_DONE,
    now_ms: int = NOW_MS,
) -> PreemptionContext:
    """The moment of this snapshot."""
    return PreemptionContext(snapshot.pods, standings, now_ms, promised, cooldown)


def chosen(
    waiting: Pod, snapshot: Snapshot, context: PreemptionContext | None = None, where: str = "n"
) -> Choice | None:
    """The choice on that node."""
    return choose(waiting, snapshot.node(where), context or at(snapshot))


def names_of(choice: Choice | None) -> list[str] | None:
    """The victims' names in order, None for no choice."""
    return None if choice is None else sorted(pod.name for pod in choice.victims)
