"""``/v1/nodeusage``: what the node agent measures."""

from typing import Annotated

from msgspec import Struct

from timekeeper.wire.forms import NotAllowedError, items, like, whole
from timekeeper.wire.values import MAX_BEATS, MAX_FIGURE, Age, Identifier, Sequence, Version

MAX_NODE_PODS = 1_024
MAX_NODE_CARDS = 256


class CardUse(Struct, frozen=True):
    """A pod's use of one card by NVML's accounting of its processes; null: the card does not report it.
    ``utilisation``: percent of the card's time; ``memory_mib``: memory in use."""

    uuid: Annotated[str, like(r"[\x21-\x7e]{1,128}", "it must be 1 to 128 visible ASCII characters")]
    utilisation: Annotated[int, whole(100, "it must be a whole number from 0 to 100, or null")] | None = None
    memory_mib: (
        Annotated[int, whole(MAX_FIGURE, f"it must be a whole number from 0 to {MAX_FIGURE}, or null")] | None
    ) = None


CardUses = Annotated[list[CardUse], items(0, MAX_NODE_CARDS)]
_EACH_CARD_ONCE = "each card must appear once"


class PodUse(Struct, frozen=True):
    """One pod's use of its cards."""

    uid: Identifier
    cards: CardUses

    def __post_init__(self) -> None:
        if len({card.uuid for card in self.cards}) < len(self.cards):
            raise NotAllowedError("cards", _EACH_CARD_ONCE)


class Use(Struct, frozen=True):
    """One sample of a node. ``age_ms``: when sent, by the agent's monotonic clock; ``cards``: each card's use
    as a whole."""

    age_ms: Age
    pods: Annotated[list[PodUse], items(0, MAX_NODE_PODS)]
    cards: CardUses

    def __post_init__(self) -> None:
        if len({pod.uid for pod in self.pods}) < len(self.pods):
            raise NotAllowedError("pods", "each pod must appear once")
        if len({card.uuid for card in self.cards}) < len(self.cards):
            raise NotAllowedError("cards", _EACH_CARD_ONCE)


class NodeUsage(Struct, frozen=True):
    """A post, authenticated as a node's agent; the node is the one that the token names. ``boot``: of the
    agent's run; ``sequence``: number of this post within the run; a retry has the same number."""

    version: Version
    boot: Identifier
    sequence: Sequence
    uses: Annotated[list[Use], items(1, MAX_BEATS)]


class NodeUsageAnswer(Struct, frozen=True, omit_defaults=True):
    """The answer to a post of node usage. ``interval_ms``: when to report next; ``ca``: CA bundle (PEM) to
    trust from now on."""

    version: Version
    interval_ms: int
    ca: str = ""


class MeasuredCards(Struct, frozen=True):
    """Reports of the last two minutes. ``nodes``: node -> card UUID -> its use as a whole."""

    version: Version
    nodes: dict[str, dict[str, CardUse]]
