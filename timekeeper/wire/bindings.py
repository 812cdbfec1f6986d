"""``POST /v1/bindings`` and ``/v1/ends``: what the extender bound, and what it saw end."""

from typing import Annotated

from msgspec import Struct

from timekeeper.core.values import MAX_AMOUNT, WHOLE_MILLI
from timekeeper.wire.forms import NotAllowedError, items, whole
from timekeeper.wire.node_usage import MAX_NODE_CARDS
from timekeeper.wire.values import (
    LATEST_MS,
    MAX_BINDINGS,
    MAX_FIGURE,
    OLDEST_MS,
    Age,
    Identifier,
    KubernetesName,
    Version,
)

MAX_ASKS = 1_000  # above what a Binding can name in its annotations (`admission/rules/size.py`)
MAX_RESOURCES = 64
Moment = Annotated[  # milliseconds since 1970; null: not known
    int, whole(LATEST_MS, f"it must be null or a whole number from 1 to {LATEST_MS}", 1)
]


class BindingAsk(Struct, frozen=True):
    """What one container of a bound pod requests on each of ``devices`` cards. ``resources``: amounts of
    named resources."""

    container: KubernetesName
    init: bool
    devices: Annotated[int, whole(MAX_NODE_CARDS)]
    share_milli: Annotated[int, whole(WHOLE_MILLI)]
    memory_mib: Annotated[int, whole(MAX_FIGURE)]
    memory_milli: Annotated[int, whole(WHOLE_MILLI)] = 0
    resources: Annotated[
        dict[str, Annotated[int, whole(MAX_AMOUNT)]],
        items(0, MAX_RESOURCES, f"it must be an object of at most {MAX_RESOURCES} whole numbers"),
    ] = {}


class BindingEntry(Struct, frozen=True, kw_only=True):
    """A pod that the extender bound. ``age_ms``: since its Binding was sent, when this is sent; ``devices``:
    text of the annotation ``bursar.dev/devices``."""

    uid: Identifier
    namespace: KubernetesName
    pod: KubernetesName
    node: KubernetesName
    age_ms: Age
    dialect: str
    asks: Annotated[list[BindingAsk], items(1, MAX_ASKS)]
    devices: str
    grace_ms: Annotated[int, whole(MAX_FIGURE)]


class Bindings(Struct, frozen=True):
    """A post of the extender."""

    version: Version
    bindings: Annotated[list[BindingEntry], items(1, MAX_BINDINGS)]


class EndEntry(Struct, frozen=True, kw_only=True):
    """What the extender saw of a bound pod whose object was removed: the `core.ledger.hold.PodHold` of all
    that its object ever said, and when the removal was seen. Times in milliseconds since 1970.
    ``removed_age_ms``: since the removal was seen, when this is sent; ``left_age_ms``: since its node's agent
    ceased to list it, where that ended its hold; null: not known (yet)."""

    uid: Identifier
    namespace: KubernetesName
    pod: KubernetesName
    node: KubernetesName
    bound_ms: Moment | None = None
    over: bool
    ended_ms: Moment | None = None
    reported_ms: Moment | None = None
    witnessed_ms: Annotated[int, whole(LATEST_MS)]
    grace_ms: Annotated[int, whole(MAX_FIGURE)]
    deletion_ms: Moment | None = None
    removed_age_ms: Age
    left_age_ms: Annotated[int, whole(OLDEST_MS)] | None = None

    def __post_init__(self) -> None:
        if self.ended_ms is not None and not self.over:
            raise NotAllowedError("ended_ms", "it must be null where `over` is false")


class Ends(Struct, frozen=True):
    """A post of an extender."""

    version: Version
    ends: Annotated[list[EndEntry], items(1, MAX_BINDINGS)]
