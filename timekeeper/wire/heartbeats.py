"""``POST /v1/heartbeats``, by a pod's sidecar."""

from typing import Annotated, Literal

from msgspec import Struct

from timekeeper.wire.forms import allowed, items, text, whole
from timekeeper.wire.values import MAX_BEATS, MAX_FIGURE, Age, Identifier, Sequence, Version

MAX_DEVICES = 64  # of one heartbeat
_NO_FIGURES = "it does not have the form of a card's figures"
_Figure = Annotated[int, whole(MAX_FIGURE, _NO_FIGURES)]


class BeatDevice(Struct, frozen=True, kw_only=True):
    """NVML's figures for one card as seen in the pod. ``utilisation``: percent; ``scope``: whether other pods
    are on the card."""

    uuid: Annotated[str, text(128, 1, _NO_FIGURES)]
    utilisation: _Figure | None = None
    memory_mib: _Figure | None = None
    scope: Annotated[Literal["exclusive", "shared"], allowed(_NO_FIGURES)]


class Beat(Struct, frozen=True):
    """One heartbeat of a pod's sidecar. ``age_ms``: when sent, by the sender's monotonic clock."""

    age_ms: Age
    devices: Annotated[
        list[Annotated[BeatDevice, allowed(_NO_FIGURES)]],
        items(0, MAX_DEVICES, f"it must be a list of at most {MAX_DEVICES} cards"),
    ]


class Heartbeats(Struct, frozen=True):
    """Heartbeats of a pod. ``boot``: of the sidecar's run; ``sequence``: number of this post within the run;
    a retry has the same number."""

    version: Version
    boot: Identifier
    sequence: Sequence
    beats: Annotated[list[Beat], items(1, MAX_BEATS, f"it must be a list of 1 to {MAX_BEATS} beats")]


class HeartbeatAnswer(Struct, frozen=True, omit_defaults=True):
    """The answer to a post of heartbeats. ``interval_ms``: when to send the next; ``in_budget``: whether the
    namespace is in budget; ``over``: every other container of the pod has ended for good, absent: no, or not
    known; ``ca``: CA bundle (PEM) to trust from now on."""

    version: Version
    interval_ms: int
    in_budget: bool
    over: bool = False
    ca: str = ""
