"""The beats that the timekeeper has not acknowledged: what one is, its bounds, and its forms in a post and on
the disk. Pure. `timekeeper.edge.saved_outbox` says what becomes of them."""

from __future__ import annotations

from timekeeper.edge import saved_outbox
from timekeeper.edge.outbox import OutboxLimits
from timekeeper.edge.saved_outbox import rows, whole
from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from timekeeper.edge.outbox import Left, Post

FILE = "spool.json"
MAX_IN_A_POST = 64
MAX_WAITING = 448
MAX_BEATS = MAX_IN_A_POST + MAX_WAITING
# The timekeeper refuses a body above 256 KiB, and two copies of the spool must fit into a folder of 4 MiB. So
# with many cards a post has fewer beats, and fewer beats wait. A figure takes 200 bytes at most.
MAX_FIGURES_IN_A_POST = 1_024
MAX_FIGURES_WAITING = 8_192
MAX_AGE_MS = 30 * 86_400_000  # the timekeeper accepts no greater age; beats of a longer outage get this one
# Other bounds of the timekeeper. A post that it refuses would hold back all later ones.
MAX_CARDS = 64
MAX_UUID = 128
MAX_FIGURE = 2**31


@value
class SpooledBeat:
    """The pod ran at ``at_ms``."""

    at_ms: int
    devices: tuple[dict[str, Any], ...]  # NVML's figures of its cards at that moment, if any


def limits(fraction: Callable[[], float]) -> OutboxLimits[SpooledBeat]:
    """Of the outbox. A beat is never given up, for its time is charged."""
    return OutboxLimits(
        _batch, _spare, lambda failures: saved_outbox.pause_ms(failures, fraction()), gives_up=False
    )


def document(post: Post[SpooledBeat], now_ms: int) -> dict[str, Any]:
    """The body of ``POST /v1/heartbeats``, with ages at ``now_ms``."""
    return {
        "version": 1,
        "boot": post.boot,
        "sequence": post.sequence,
        "beats": [
            {"age_ms": min(MAX_AGE_MS, max(0, now_ms - beat.at_ms)), "devices": list(beat.devices)}
            for beat in post.records
        ],
    }


def encode(post: Post[SpooledBeat] | None, waiting: Sequence[SpooledBeat], node_boot: str) -> str:
    """The text for the disk. ``node_boot``: the ID of the boot that the moments count from."""
    return saved_outbox.encode(post, waiting, node_boot, "beats", lambda beat: (beat.at_ms, beat.devices))


def decode(text: str, node_boot: str, now_ms: int) -> Left[SpooledBeat]:
    """What an earlier process of this container saved. Raises ValueError, with the reason, for any other
    text."""
    post, waiting = saved_outbox.decode(
        text, node_boot, "beats", lambda _: lambda read: _beat(read, now_ms), MAX_BEATS
    )
    if post and len(post.records) > _batch(post.records):
        raise ValueError("its post is too large")
    return post, waiting


def _batch(beats: Sequence[SpooledBeat]) -> int:
    return min(MAX_IN_A_POST, MAX_FIGURES_IN_A_POST // _most_figures(beats))


def _spare(beats: Sequence[SpooledBeat]) -> int | None:
    is_within = len(beats) <= min(MAX_WAITING, MAX_FIGURES_WAITING // _most_figures(beats))
    return None if is_within else saved_outbox.smallest_gap(beats)


def _most_figures(beats: Sequence[SpooledBeat]) -> int:
    return max((len(beat.devices) for beat in beats), default=0) or 1


def _beat(read: object, now_ms: int) -> SpooledBeat:
    at, devices = rows(read, 2)
    return SpooledBeat(whole(at, now_ms), tuple(map(_device, rows(devices, MAX_CARDS))))


def _device(read: object) -> dict[str, Any]:
    if not isinstance(read, dict) or set(read) != {"uuid", "utilisation", "memory_mib", "scope"}:
        raise ValueError
    uuid = str(read["uuid"])
    if not 1 <= len(uuid) <= MAX_UUID:
        raise ValueError
    return {
        "uuid": uuid,
        "utilisation": _figure(read["utilisation"]),
        "memory_mib": _figure(read["memory_mib"]),
        "scope": "exclusive" if read["scope"] == "exclusive" else "shared",
    }


def _figure(read: object) -> int | None:
    return None if read is None else whole(read, MAX_FIGURE)
