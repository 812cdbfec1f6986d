"""Whether a gang can ever start on the nodes that there are, whatever leaves them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler_ext.gangs.capacity import PlanInput
from scheduler_ext.gangs.domains import called, label_value
from scheduler_ext.model.pod import Pod
from scheduler_ext.snapshot.snapshot import Snapshot
from timekeeper.core.dialects.moments import cards_at_once
from timekeeper.core.dialects.nvidia import GPU
from timekeeper.core.kube.node_constraints import NodeConstraints
from timekeeper.core.rating.held import cards_text, least_milli
from timekeeper.core.request.cards import allowed
from timekeeper.core.values import WHOLE_MILLI, GPURequest

_PASSING = "node.kubernetes.io/"  # taints of what passes: not ready, cordoned, under pressure

Kind = tuple[NodeConstraints, GPURequest]


def never_text(pods: Sequence[Pod], needed: int, given: PlanInput, autoscales: bool) -> str:
    """Why as many of these members as it needs cannot start, for people; "": caps allow it and the cards are
    there, held or not, or it is not known of all nodes how many they have, or more may come. Closed nodes
    count."""
    kinds = Counter((pod.node_constraints, pod.request) for pod in pods if pod.request is not None)
    standing, milli = given.standings.of(pods[0].namespace), sum(_least(kinds)[:needed])
    for cap in (standing.caps.own, standing.caps.of_group) if standing.watched is None else ():
        if cap.total_milli is not None and milli > cap.total_milli:
            most = cards_text(cap.total_milli)
            return f"it can never start by maxGPUs: it needs {cards_text(milli)} cards, and may hold {most}"
    named = any(each.ask.resources for _, request in kinds for each in request.asks)
    by_sets = any(request.same_gpu or request.by_set for _, request in kinds)
    if autoscales or not kinds or named or by_sets or any(pod.waits_for_devices for pod in pods):
        return ""  # parts of cards and devices of claims are counted in other ways
    label, snapshot = next((pod.gang.topology for pod in pods if pod.gang), ""), given.snapshot
    told = _lack(kinds, needed, label, snapshot)
    for kind, count in kinds.items() if len(kinds) > 1 and not told else ():
        least = needed - (len(pods) - count)  # of this kind
        told = told or (_lack({kind: count}, least, label, snapshot) if least > 0 else "")
    return told


def _least(kinds: Mapping[Kind, int]) -> list[int]:
    return sorted(least_milli(request) for (_, request), count in kinds.items() for _ in range(count))


def _lack(kinds: Mapping[Kind, int], needed: int, label: str, snapshot: Snapshot) -> str:
    every = _least(kinds)
    milli = sum(every[:needed])
    # of pods that are alike, with whole cards on one node or a part of one card
    (_, request), alike = next(iter(kinds)), every[0] if len(kinds) == 1 else 0
    alike = alike if not alike % WHOLE_MILLI or cards_at_once(request.asks) == 1 else 0
    cards, takes = Counter[str](), Counter[str]()
    for node in snapshot.nodes.values():
        there = node.node_object
        if there is None:
            continue
        labels = there.node_labels
        if labels.taints:
            lasting = (taint for taint in labels.taints if not taint.key.startswith(_PASSING))
            labels = replace(labels, taints=tuple(lasting))
        asked = [request for constraints, request in kinds if constraints.admit(node.name, labels)]
        domain = label_value(node, label) if label else ""
        if not asked or domain is None:
            continue
        is_unknown = not there.cards and (node.undescribed or there.fault == "inventory")
        if is_unknown or dict(there.allocatable).get(GPU, 0) > len(there.cards):
            return ""  # the second: a plugin that shares cards
        count = sum(any(allowed(request, card) for request in asked) for card in there.cards)
        cards[domain] += count
        parts = WHOLE_MILLI // alike if 0 < alike < WHOLE_MILLI else 1
        takes[domain] += count * parts * WHOLE_MILLI // max(alike, WHOLE_MILLI)
        if cards[domain] * WHOLE_MILLI >= milli and (not alike or takes[domain] >= needed):
            return ""
    selectors = {constraints.selector for constraints, _ in kinds}
    selector = ",".join(f"{key}={value}" for key, value in selectors.pop()) if len(selectors) == 1 else ""
    where = f"nodes {f'with {selector}' if selector else 'that it may use'}"
    where += f" in one {called(label)}" if label else ""
    best, most = max(cards.values(), default=0), max(takes.values(), default=0)
    lack = f"it needs {cards_text(milli)} cards on {where}, which have {best}{' at most' if label else ''}"
    if best * WHOLE_MILLI >= milli:
        lack = f"{needed} members need {cards_text(alike)} cards each, and {where} take {most} of them"
    return f"it can never start here: {lack}"
