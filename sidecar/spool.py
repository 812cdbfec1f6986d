"""The beats that the timekeeper has not acknowledged yet: pure values, no clock, no disk.

Moments are milliseconds of the node's boot clock, which goes on while a process restarts; they become ages
only when they are sent. At most one post is under way. It keeps its ``boot``, its ``sequence`` and its beats
until it is acknowledged, also by the next process of the same container, so that a post whose answer was lost
is recognised as a repeat: nothing is lost, nothing is counted twice.

The spool is bounded. When it is full, the beat whose loss leaves the smallest gap is folded into its
neighbours, never the first or the last: the interval that the beats cover stays whole, only its grain
coarsens.
"""

from __future__ import annotations

import json
import re

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from timekeeper.core.wire import BeatDevice, Heartbeats

MOST_IN_A_POST = 64
MOST_WAITING = 448
MOST_BEATS = MOST_IN_A_POST + MOST_WAITING
# The timekeeper refuses a body above 256 KiB, for ever, and what is kept must fit twice into a folder of
# 4 MiB: a pod of many cards has fewer beats in a post, and fewer that wait. A figure takes 200 bytes at most.
MOST_FIGURES_IN_A_POST = 1_024
MOST_FIGURES_WAITING = 8_192
MOST_AGE_MS = 30 * 86_400_000  # the oldest that the timekeeper takes: after a longer outage it is that old
# What else it takes: one post that it refuses would keep all others back.
MOST_CARDS = 64
MOST_UUID = 128
MOST_FIGURE = 2**31
MOST_SEQUENCE = 2**53

_BOOT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


@value
class SpooledBeat:
    """The pod ran at ``at_ms``; ``devices`` is what NVML said of its cards then, if anything."""

    at_ms: int
    devices: tuple[BeatDevice, ...]


@value
class HeartbeatPost:
    """Beats as they were first sent together, under the run and the count of then."""

    boot: str
    sequence: int
    beats: tuple[SpooledBeat, ...]


@value
class Spool:
    """``boot`` names this run of the sidecar, ``sequence`` its next post; ``post`` is sent and unanswered."""

    boot: str
    sequence: int
    post: HeartbeatPost | None
    waiting: tuple[SpooledBeat, ...]

    def beats(self) -> tuple[SpooledBeat, ...]:
        """Every beat not acknowledged, in the order of time."""
        return (self.post.beats if self.post else ()) + self.waiting


def empty(boot: str) -> Spool:
    """The spool of a run that has not beaten yet."""
    return Spool(boot, 1, None, ())


def add(spool: Spool, beat: SpooledBeat) -> Spool:
    """The spool with one beat more, folded where it was full."""
    return Spool(spool.boot, spool.sequence, spool.post, _folded((*spool.waiting, beat)))


def fold(beats: tuple[SpooledBeat, ...], most: int) -> tuple[SpooledBeat, ...]:
    """At most ``most`` (two or more) of the beats, first and last among them, with gaps as even as may be."""
    while len(beats) > most:
        gaps = ((beats[i + 1].at_ms - beats[i - 1].at_ms, i) for i in range(1, len(beats) - 1))
        _, least = min(gaps)
        beats = beats[:least] + beats[least + 1 :]
    return beats


def sending(spool: Spool) -> Spool:
    """The spool with a post under way: the unanswered one again, else one of the oldest beats that wait."""
    if spool.post or not spool.waiting:
        return spool
    most = min(MOST_IN_A_POST, MOST_FIGURES_IN_A_POST // _most_figures(spool.waiting))
    post = HeartbeatPost(spool.boot, spool.sequence, spool.waiting[:most])
    return Spool(spool.boot, spool.sequence + 1, post, spool.waiting[most:])


def delivered(spool: Spool) -> Spool:
    """The spool after the timekeeper acknowledged the post under way."""
    return Spool(spool.boot, spool.sequence, None, spool.waiting)


def document(post: HeartbeatPost, now_ms: int) -> Heartbeats:
    """The body of ``POST /v1/heartbeats``, with ages as of now."""
    return {
        "version": 1,
        "boot": post.boot,
        "sequence": post.sequence,
        "beats": [
            {"age_ms": min(MOST_AGE_MS, max(0, now_ms - beat.at_ms)), "devices": list(beat.devices)}
            for beat in post.beats
        ],
    }


def encode(spool: Spool, node_boot: str) -> str:
    """The spool as text for the disk; ``node_boot`` names the boot that its moments count from."""
    post = spool.post
    return json.dumps(
        {
            "version": 1,
            "node_boot": node_boot,
            "post": post and {"boot": post.boot, "sequence": post.sequence, "beats": _written(post.beats)},
            "waiting": _written(spool.waiting),
        },
        separators=(",", ":"),
    )


def decode(text: str, node_boot: str, boot: str, now_ms: int) -> Spool:
    """What an earlier process of this container left, as the spool of the run ``boot``.

    Its unanswered post keeps its own run and count, the other beats go under the new run. ValueError, with
    the reason, for a text that we did not write, or not since the node booted: such beats have no age.
    """
    try:
        read = json.loads(text)
        version, left_in = read["version"], read["node_boot"]
        post, waiting = read["post"], _beats(read["waiting"], now_ms)
        sent = post and _post(post, now_ms)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("it is no spool") from None
    if version != 1 or left_in != node_boot:
        raise ValueError("it is from another boot of the node or another version")
    return Spool(boot, 1, sent or None, _folded(waiting))


def _folded(beats: tuple[SpooledBeat, ...]) -> tuple[SpooledBeat, ...]:
    return fold(beats, _room(beats))


def _room(beats: tuple[SpooledBeat, ...]) -> int:
    return min(MOST_WAITING, MOST_FIGURES_WAITING // _most_figures(beats))


def _most_figures(beats: tuple[SpooledBeat, ...]) -> int:
    return max((len(beat.devices) for beat in beats), default=0) or 1


def _written(beats: tuple[SpooledBeat, ...]) -> list[tuple[int, tuple[BeatDevice, ...]]]:
    return [(beat.at_ms, beat.devices) for beat in beats]


def _post(read: dict[str, object], now_ms: int) -> HeartbeatPost:
    beats = _beats(read["beats"], now_ms)
    if not 1 <= len(beats) <= MOST_IN_A_POST or not _BOOT.fullmatch(str(read["boot"])):
        raise ValueError
    if len(beats) * _most_figures(beats) > MOST_FIGURES_IN_A_POST:
        raise ValueError
    return HeartbeatPost(str(read["boot"]), _whole(read["sequence"], MOST_SEQUENCE), beats)


def _beats(read: object, now_ms: int) -> tuple[SpooledBeat, ...]:
    return tuple(_beat(each, now_ms) for each in _rows(read, MOST_BEATS))


def _beat(read: object, now_ms: int) -> SpooledBeat:
    at, devices = _rows(read, 2)
    return SpooledBeat(_whole(at, now_ms), tuple(map(_device, _rows(devices, MOST_CARDS))))


def _whole(read: object, most: int) -> int:
    if not isinstance(read, int) or isinstance(read, bool) or not 0 <= read <= most:
        raise ValueError
    return read


def _rows(read: object, most: int) -> list[object]:
    if not isinstance(read, list) or len(read) > most:
        raise ValueError
    return read


def _device(read: object) -> BeatDevice:
    if not isinstance(read, dict) or set(read) != {"uuid", "utilisation", "memory_mib", "scope"}:
        raise ValueError
    uuid = str(read["uuid"])
    if not 1 <= len(uuid) <= MOST_UUID:
        raise ValueError
    return {
        "uuid": uuid,
        "utilisation": _figure(read["utilisation"]),
        "memory_mib": _figure(read["memory_mib"]),
        "scope": "exclusive" if read["scope"] == "exclusive" else "shared",
    }


def _figure(read: object) -> int | None:
    return None if read is None else _whole(read, MOST_FIGURE)
