"""What a pod is told of a node it may not have: sentences that stay the same for a pod until something about
the node has really changed.

kube-scheduler writes the text into the pod's status, and a status that changes wakes the pod: a figure that
moves in it would make one waiting pod ask hundreds of times a second. So the sentence of a want of room names
what the pod needs, never what there is.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_ext.fit.topology import farthest
from scheduler_ext.model.node import CLOSED, Node
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.values import Ask, Card, GPURequest
from timekeeper.core.violation import first_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod cannot have a node. ``shortage``: for want of free room, not for what the node is."""

    sentence: str
    shortage: bool = False


LONGEST_MALFORMED = 400  # characters; the webhook tells the whole of it
MOST_TOLD = 5  # names or amounts in one sentence, which is told of every node

NO_CARDS = Refusal("no GPU cards here")
UNKNOWN_NODE = Refusal("node is not known to the extender yet")
NO_HEALTHY_CARD = Refusal("no healthy GPU card here")
CORDONED = Refusal("every healthy GPU card here is cordoned")
NOT_BY_CHOICE = Refusal("cards here cannot be chosen by model, UUID or topology")
_NEAR = {"pair": "linked with each other", "numa": "on one NUMA node"}

GIVEN_UP = Refusal("no layout of its containers was found in time", shortage=True)
NOT_TRIED = Refusal("no layout of its containers was looked for yet", shortage=True)


def closed(word: str) -> Refusal:
    """For a node that is closed, by a word of `node.CLOSED`."""
    return Refusal(f"node is closed for sharing: {CLOSED[word]}")


def malformed(sentence: str) -> Refusal:
    """For a pod that the webhook would have refused."""
    cut = sentence if len(sentence) <= LONGEST_MALFORMED else f"{sentence[: LONGEST_MALFORMED - 3]}..."
    return Refusal(f"malformed GPU request: {cut}")


def another_family(request: GPURequest, node_object: Node) -> Refusal:
    """For a node whose cards are asked for in another dialect."""
    resource = BY_NAME[node_object.family].resources[0]
    if node_object.plugin_chooses and not all(each.ask.whole for each in request.asks):
        return Refusal(f"only whole cards here, asked for as {resource}")
    return Refusal(f"cards here are asked for as {resource}")


def not_allowed(request: GPURequest) -> Refusal:
    """For a node none of whose cards the pod's own constraints let it use."""
    if request.models:
        return Refusal(f"no {first_of(request.models, MOST_TOLD, ' or ')} here")
    if request.uuids:
        return Refusal("none of the cards it names is here")
    return Refusal(f"no card but {first_of(request.exclude_models, MOST_TOLD, ' or ')} here")


def no_usable_card(cards: Iterable[Card]) -> Refusal:
    """For a node none of whose cards is to be given out."""
    return CORDONED if any(card.healthy for card in cards) else NO_HEALTHY_CARD


def not_known(request: GPURequest) -> Refusal:
    """For a node whose inventory does not tell what the pod's topology asks about."""
    what = "which cards are linked" if request.topology == "pair" else "which NUMA node a card is on"
    return Refusal(f"the inventory here does not tell {what}")


def never_near(request: GPURequest, together: int) -> Refusal:
    """For a node that has not so many cards near each other, however empty."""
    return Refusal(f"no {together} cards {_NEAR[request.topology]} here")


def no_room(request: GPURequest) -> Refusal:
    """For a node whose cards are taken: the pod's need, and nothing of the node."""
    near = f", {_NEAR[request.topology]}" if farthest(request) else ""
    if len(request.asks) > 1:
        parts = Counter(_amount(each.ask) for each in request.asks)
        counted = [f"{count} x {part}" if count > 1 else part for part, count in parts.items()]
        listed = first_of(counted, MOST_TOLD, " + ")
        same = f", {len(request.same_gpu)} of them on one card" if request.same_gpu else ""
        return Refusal(f"no room for {listed}{same}{near}", shortage=True)
    ask = request.asks[0].ask
    if ask.whole:
        return Refusal(f"{_amount(ask)} needed{near}", shortage=True)
    if ask.devices > 1:
        return Refusal(f"{_amount(ask)} free needed{near}", shortage=True)
    return Refusal(f"no card has {_amount(ask)} free", shortage=True)


def _amount(ask: Ask) -> str:
    if ask.whole:
        return f"{ask.devices} whole card{'s' if ask.devices > 1 else ''}"
    parts = [f"{ask.share_milli // 10}%"] if ask.share_milli else []
    parts += [f"{ask.memory_mib} MiB"] if ask.memory_mib else []
    each = " and ".join(parts)
    return f"{ask.devices} cards with {each}" if ask.devices > 1 else each
