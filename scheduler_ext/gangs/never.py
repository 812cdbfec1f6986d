"""Whether a gang can ever start on the nodes that there are, whatever leaves them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

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


def never_text(pods: Sequence[Pod], needed: int, snapshot: Snapshot) -> str:
    """Why as many of these members as it needs cannot start, for people; "": the cards are there, held or
    not, or it is not known of all nodes how many they have. Closed nodes count."""
    kinds = Counter((pod.node_constraints, pod.request) for pod in pods if pod.request is not None)
    if any(pod.waits_for_devices for pod in pods) or any(
        each.ask.resources for _, request in kinds for each in request.asks
    ):
        return ""  # parts of cards and devices of claims are counted in other ways
    label = next((pod.gang.topology for pod in pods if pod.gang is not None), "")
    told = _lack(kinds, needed, label, snapshot)
    for kind, count in kinds.items() if len(kinds) > 1 and not told else ():
        least = needed - (len(pods) - count)  # of this kind
        told = told or (_lack({kind: count}, least, label, snapshot) if least > 0 else "")
    return told


def _lack(kinds: Mapping[Kind, int], needed: int, label: str, snapshot: Snapshot) -> str:
    least = sorted(_milli(request) for (_, request), count in kinds.items() for _ in range(count))[:needed]
    milli, whole = sum(least), 0
    if len(kinds) == 1 and least and least[0] % WHOLE_MILLI == 0:
        whole = least[0] // WHOLE_MILLI  # on one node each
    cards, takes = Counter[str](), Counter[str]()
    for node in snapshot.nodes.values():
        there = node.node_object
        if there is None:
            continue
        labels = there.node_labels
        taints = tuple(taint for taint in labels.taints if not taint.key.startswith(_PASSING))
        labels = labels if taints == labels.taints else replace(labels, taints=taints)
        asked = [request for constraints, request in kinds if constraints.admit(node.name, labels)]
        domain = label_value(node, label) if label and asked else ""
        if not asked or domain is None:
            continue
        is_known = there.cards or not (node.undescribed or there.fault == "inventory")
        if not is_known or dict(there.allocatable).get(GPU, 0) > len(there.cards):
            return ""  # the second: a plugin that shares cards
        count = sum(any(allowed(request, card) for request in asked) for card in there.cards)
        cards[domain] += count
        takes[domain] += count // whole if whole else 0
        if cards[domain] * WHOLE_MILLI >= milli and (not whole or takes[domain] >= needed):
            return ""
    best = max(cards.values(), default=0)
    selectors = {constraints.selector for constraints, _ in kinds}
    selector = ",".join(f"{key}={value}" for key, value in selectors.pop()) if len(selectors) == 1 else ""
    where = f"nodes with {selector}" if selector else "nodes that it may use"
    where += f" in one {called(label)}" if label else ""
    if best * WHOLE_MILLI < milli:
        have = f"{best} at most" if label else f"{best}"
        return f"it can never start here: it needs {cards_text(milli)} cards on {where}, which have {have}"
    most = max(takes.values(), default=0)
    return f"it can never start here: {needed} members need {whole} cards each; {where} take {most} of them"


def _milli(request: GPURequest) -> int:
    """What a member needs of cards at least."""
    is_whole = all(each.ask.whole for each in request.asks)
    return cards_at_once(request.asks) * WHOLE_MILLI if is_whole else least_milli(request)
