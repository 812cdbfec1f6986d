"""The beats that the timekeeper has not acknowledged. Pure: no clock, no disk.

Moments are milliseconds of the node's boot clock, which a restart of the process does not change; they become
ages when a post is sent. At most one post is in flight. Its ``boot``, ``sequence`` and beats stay the same
until it is acknowledged, also across a restart in the same container, so the timekeeper recognises a repeat
of a post whose reply was lost: no beat is lost, and none is counted twice.

The spool is bounded. If it is full, the beat whose removal leaves the smallest gap is removed, but never the
first or the last: the beats still cover the same time, with a coarser grain.
"""

from __future__ import annotations

import json
import re

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from timekeeper.core.wire import BeatDevice, Heartbeats

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
MAX_SEQUENCE = 2**53

_BOOT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


@value
class SpooledBeat:
    """The pod ran at ``at_ms``."""

    at_ms: int
    devices: tuple[BeatDevice, ...]  # NVML's figures of its cards at that moment, if any


@value
class SpooledPost:
    """Beats that are sent, and repeated, together."""

    boot: str  # the run of the sidecar that sent them first
    sequence: int  # the number of this post within that run
    beats: tuple[SpooledBeat, ...]


@value
class Spool:
    """All beats that are not acknowledged."""

    boot: str  # the ID of this run of the sidecar
    sequence: int  # of the run's next post
    post: SpooledPost | None  # sent, not acknowledged
    waiting: tuple[SpooledBeat, ...]  # not sent

    def beats(self) -> tuple[SpooledBeat, ...]:
        """Every beat that is not acknowledged, in order of time."""
        return (self.post.beats if self.post else ()) + self.waiting


def empty(boot: str) -> Spool:
    """The spool of a new run."""
    return Spool(boot, 1, None, ())


def add(spool: Spool, beat: SpooledBeat) -> Spool:
    """The spool with one more beat, folded if it was full."""
    return Spool(spool.boot, spool.sequence, spool.post, _folded((*spool.waiting, beat)))


def fold(beats: tuple[SpooledBeat, ...], most: int) -> tuple[SpooledBeat, ...]:
    """At most ``most`` (two or more) of the beats, always the first and the last, with gaps as even as
    possible."""
    while len(beats) > most:
        gaps = ((beats[i + 1].at_ms - beats[i - 1].at_ms, i) for i in range(1, len(beats) - 1))
        _, least = min(gaps)
        beats = beats[:least] + beats[least + 1 :]
    return beats


def sending(spool: Spool) -> Spool:
    """The spool with a post in flight: the unacknowledged one again, else a new one with the oldest beats."""
    if spool.post or not spool.waiting:
        return spool
    most = min(MAX_IN_A_POST, MAX_FIGURES_IN_A_POST // _most_figures(spool.waiting))
    post = SpooledPost(spool.boot, spool.sequence, spool.waiting[:most])
    return Spool(spool.boot, spool.sequence + 1, post, spool.waiting[most:])


def delivered(spool: Spool) -> Spool:
    """The spool after the timekeeper acknowledged the post in flight."""
    return Spool(spool.boot, spool.sequence, None, spool.waiting)


def document(post: SpooledPost, now_ms: int) -> Heartbeats:
    """The body of ``POST /v1/heartbeats``, with ages at ``now_ms``."""
    return {
        "version": 1,
        "boot": post.boot,
        "sequence": post.sequence,
        "beats": [
            {"age_ms": min(MAX_AGE_MS, max(0, now_ms - beat.at_ms)), "devices": list(beat.devices)}
            for beat in post.beats
        ],
    }


def encode(spool: Spool, node_boot: str) -> str:
    """The spool as text for the disk. ``node_boot``: the ID of the boot that its moments count from."""
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
    """The spool that an earlier process of this container wrote, for the run ``boot``.

    Its unacknowledged post keeps its run and sequence; the other beats belong to the new run. Raises
    ValueError, with the reason, for any other text, and for a spool of another boot of the node: its beats
    have no age.
    """
    try:
        read = json.loads(text)
        version, written_in = read["version"], read["node_boot"]
        post, waiting = read["post"], _beats(read["waiting"], now_ms)
        sent = post and _post(post, now_ms)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("it is not a spool") from None
    if version != 1 or written_in != node_boot:
        raise ValueError("it is from another boot of the node or another version")
    return Spool(boot, 1, sent or None, _folded(waiting))


def _folded(beats: tuple[SpooledBeat, ...]) -> tuple[SpooledBeat, ...]:
    return fold(beats, min(MAX_WAITING, MAX_FIGURES_WAITING // _most_figures(beats)))


def _most_figures(beats: tuple[SpooledBeat, ...]) -> int:
    return max((len(beat.devices) for beat in beats), default=0) or 1


def _written(beats: tuple[SpooledBeat, ...]) -> list[tuple[int, tuple[BeatDevice, ...]]]:
    return [(beat.at_ms, beat.devices) for beat in beats]


def _post(read: dict[str, object], now_ms: int) -> SpooledPost:
    beats = _beats(read["beats"], now_ms)
    if not 1 <= len(beats) <= MAX_IN_A_POST or not _BOOT.fullmatch(str(read["boot"])):
        raise ValueError
    if len(beats) * _most_figures(beats) > MAX_FIGURES_IN_A_POST:
        raise ValueError
    return SpooledPost(str(read["boot"]), _whole(read["sequence"], MAX_SEQUENCE), beats)


def _beats(read: object, now_ms: int) -> tuple[SpooledBeat, ...]:
    return tuple(_beat(each, now_ms) for each in _rows(read, MAX_BEATS))


def _beat(read: object, now_ms: int) -> SpooledBeat:
    at, devices = _rows(read, 2)
    return SpooledBeat(_whole(at, now_ms), tuple(map(_device, _rows(devices, MAX_CARDS))))


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
    if not 1 <= len(uuid) <= MAX_UUID:
        raise ValueError
    return {
        "uuid": uuid,
        "utilisation": _figure(read["utilisation"]),
        "memory_mib": _figure(read["memory_mib"]),
        "scope": "exclusive" if read["scope"] == "exclusive" else "shared",
    }


def _figure(read: object) -> int | None:
    return None if read is None else _whole(read, MAX_FIGURE)
