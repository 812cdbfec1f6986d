"""Why a pod cannot have a node, as a value: one sentence for users, and its kind for metrics.

kube-scheduler writes the sentence into the pod's status, and a changed status makes it try the pod again.
A sentence with a varying figure would make one waiting pod return hundreds of times a second. So a sentence
stays the same for a pod until the node has really changed: it names what the pod needs, never what is free.
And kube-scheduler takes the message of its Event for a format, so no sentence has a percent sign.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from scheduler_ext.model.node import CLOSED, Node
from scheduler_ext.model.topology import farthest
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.rating.held import cards_text
from timekeeper.core.standings import payer
from timekeeper.core.values import Ask, Card, GPURequest
from timekeeper.core.violation import first_of, shown

RefusalKind = Literal[
    "malformed",
    "closed",
    "unknown-node",
    "no-cards",
    "unhealthy",
    "cordoned",
    "family",
    "search",
    "full",
    "constraint",
    "budget",
    "cap",
    "gang",
    "drained",
]
KINDS: tuple[RefusalKind, ...] = get_args(RefusalKind)


@dataclass(frozen=True, slots=True)
class Refusal:
    """``sentence``: for users, constant per pod. ``kind``: the label value in metrics and pages."""

    sentence: str
    kind: RefusalKind

    def __post_init__(self) -> None:
        if "%" in self.sentence:  # of what the pod says
            object.__setattr__(self, "sentence", self.sentence.replace("%", " percent"))

    @property
    def shortage(self) -> bool:
        """True if the node would do once cards are free; False if the node itself is unsuitable."""
        return self.kind in ("full", "search")


LONGEST_MALFORMED = 400  # characters; the webhook's refusal has the whole sentence
MAX_LISTED = 5  # names or amounts in one sentence, which is repeated for every node

NO_CARDS = Refusal("no GPU cards here", "no-cards")
NOT_DESCRIBED = Refusal(
    "no inventory describes the GPUs here yet: Bursar's node agent writes it, or the plugin of their system",
    "no-cards",
)
UNKNOWN_NODE = Refusal("node is not known to the extender yet", "unknown-node")
NO_HEALTHY_CARD = Refusal("no healthy GPU card here", "unhealthy")
CORDONED = Refusal("every healthy GPU card here is cordoned", "cordoned")
NOT_BY_CHOICE = Refusal("cards here cannot be chosen by model, UUID or topology", "constraint")
SEVERAL_CARDS = Refusal(
    "requests in several containers, or in an init container, need a node with one card", "constraint"
)
NO_XE_LINKS = Refusal("no Xe links between the cards here", "constraint")
_NEAR = {"pair": "linked with each other", "numa": "on one NUMA node"}

GANG_WAITS = Refusal("no cards are kept for all of the pod's gang yet", "gang")
GANG_ELSEWHERE = Refusal("the pod's gang has cards kept for it on another node", "gang")
GIVEN_UP = Refusal("no layout of its containers was found in time", "search")
NOT_TRIED = Refusal("no layout of its containers was searched for yet", "search")


def spent(namespace: str, group: str) -> Refusal:
    """``group``: whose account decides; "": the namespace's."""
    return Refusal(f"{payer(namespace, group)} has spent its GPU budget", "budget")


def capped(whose: str, name: str, field: str, milli: int) -> Refusal:
    """A cap of the namespace or group does not allow what the pod needs. ``milli``: the cap, in milli-GPU."""
    return Refusal(f"above the cap of {whose} {name} ({field}: {cards_text(milli)})", "cap")


def closed(key: str) -> Refusal:
    """The node is closed for sharing. ``key``: of `node.CLOSED`."""
    return Refusal(f"node is closed for sharing: {CLOSED[key]}", "closed")


def drained(whose: str, how_long: str, passes: str) -> Refusal:
    """The node's cards are kept empty for a gang. ``whose``: which gang; ``how_long``: until when;
    ``passes``: which pods may use the cards meanwhile. All three are words for people."""
    return Refusal(f"kept for {whose} {how_long}; {passes}", "drained")


def by_claims(drivers: Sequence[str]) -> Refusal:
    """Other pods get the node's GPUs, by claims on devices of these drivers."""
    named = first_of(drivers, MAX_LISTED, " and ")
    return Refusal(f"{CLOSED['claims']} of {named}; ask for them by a claim", "closed")


def malformed(sentence: str) -> Refusal:
    """The pod's request is invalid. ``sentence``: the webhook's, cut to `LONGEST_MALFORMED`."""
    cut = sentence if len(sentence) <= LONGEST_MALFORMED else f"{sentence[: LONGEST_MALFORMED - 3]}..."
    return Refusal(f"malformed GPU request: {cut}", "malformed")


def another_family(request: GPURequest, node: Node) -> Refusal:
    """The node's cards are requested as another resource than the pod's."""
    resource = BY_NAME[node.family].first_name
    if node.plugin_chooses and not all(each.ask.whole for each in request.asks):
        return Refusal(f"only whole cards here, requested as {resource}", "family")
    return Refusal(f"cards here are requested as {resource}", "family")


def not_allowed(request: GPURequest) -> Refusal:
    """None of the node's cards satisfies the pod's own constraints."""
    if request.models:
        return Refusal(f"no {first_of(request.models, MAX_LISTED, ' or ')} here", "constraint")
    if request.uuids:
        return Refusal("none of the cards that the pod names is here", "constraint")
    if request.model_pattern:
        return Refusal(f"no card like {shown(request.model_pattern)} here", "constraint")
    if request.min_memory_mib and not request.exclude_models:
        return _too_small(request.min_memory_mib)
    if not request.exclude_models:
        return Refusal("the pod excludes each of the cards here", "constraint")
    return Refusal(
        f"all cards here are of excluded models ({first_of(request.exclude_models, MAX_LISTED, ' or ')})",
        "constraint",
    )


def no_usable_card(cards: Iterable[Card]) -> Refusal:
    """Every card of the node is unhealthy or cordoned."""
    return CORDONED if any(card.healthy for card in cards) else NO_HEALTHY_CARD


def not_known(topology: str) -> Refusal:
    """The node's inventory lacks what this topology needs."""
    what = "which cards are linked" if topology == "pair" else "which NUMA node a card is on"
    return Refusal(f"the inventory here does not say {what}", "constraint")


def never_near(topology: str, together: int) -> Refusal:
    """Even the empty node has fewer than ``together`` cards near each other."""
    return Refusal(f"no {together} cards {_NEAR[topology]} here", "constraint")


def no_such_sets(ask: Ask, cards: Iterable[Card]) -> Refusal:
    """Even the empty node does not have the cards of the ask's sets."""
    largest, most = max(card.memory_mib for card in cards), max(each.min_memory_mib for each in ask.sets)
    if largest < most:
        return _too_small(most)
    if not ask.grouped:
        return Refusal(f"fewer than {ask.devices} cards with the memory requested here", "constraint")
    return Refusal(f"no {ask.devices} cards in groups as requested here", "constraint")


def _too_small(memory_mib: int) -> Refusal:
    return Refusal(f"no card with {memory_mib} MiB of memory here", "constraint")


def not_enough_free(request: GPURequest) -> Refusal:
    """The node's cards are taken. The sentence names the pod's need alone."""
    near = f", {_NEAR[request.topology]}" if farthest(request) else ""
    near += ", with Xe links in pairs" if request.xe_linked else ""
    if len(request.asks) > 1:
        parts = Counter(_amount(each.ask) for each in request.asks)
        counted = [f"{count} x {part}" if count > 1 else part for part, count in parts.items()]
        listed = first_of(counted, MAX_LISTED, " + ")
        same = f", {len(request.same_gpu)} of them on one card" if request.same_gpu else ""
        return Refusal(f"not enough free for {listed}{same}{near}", "full")
    ask = request.asks[0].ask
    if ask.whole:
        return Refusal(f"not enough free GPUs ({ask.devices} needed{near})", "full")
    if ask.devices > 1:
        return Refusal(f"not enough GPUs with {_each(ask)} free ({ask.devices} needed{near})", "full")
    return Refusal(f"no card has {_each(ask)} free", "full")


def _amount(ask: Ask) -> str:
    if ask.whole:
        return f"{ask.devices} whole card{'s' if ask.devices > 1 else ''}"
    return f"{ask.devices} cards with {_each(ask)}" if ask.devices > 1 else _each(ask)


def _each(ask: Ask) -> str:
    """What the ask needs of one card."""
    parts = [f"{ask.share_milli // 10} percent"] if ask.share_milli else []
    if ask.memory_mib:
        parts.append(f"{ask.memory_mib} MiB")
    elif ask.memory_milli:
        parts.append(f"{ask.memory_milli // 10} percent of the memory")
    parts += [f"{amount} {name}" for name, amount in ask.resources]
    return " and ".join(parts)
