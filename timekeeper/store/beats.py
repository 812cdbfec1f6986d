"""Heartbeats on disk: each run of a sidecar by its last post, so that a repeat is known for one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from timekeeper.store.engine import Connection
from timekeeper.store.schema import HEARTBEATS, SESSIONS

# A sidecar starts again a few times in a pod's life; whoever names more runs than this only loses his oldest.
MOST_BOOTS = 8


@dataclass(frozen=True, slots=True)
class Post:
    """One post of a pod's sidecar: ``ages_ms`` of its beats when it was received."""

    uid: str
    boot: str
    sequence: int
    ages_ms: tuple[int, ...]
    received_ms: int


class Heard(Enum):
    """What became of a post: it counted, or it had been heard before, or its pod has no session (yet)."""

    NEW = "new"
    REPEATED = "repeated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of a post; ``namespace`` and whether the pod has ended are the ledger's, where it knows the
    pod. ``over``: every container of it but our sidecar has ended for good."""

    heard: Heard
    namespace: str = ""
    ended: bool = False
    over: bool = False


def record(connection: Connection, posts: Sequence[Post]) -> list[Answered]:
    """Write the posts that are new, in their order, and tell of each what became of it.

    A post is new where its count is above all that its run has sent before. What a later count has overtaken
    adds nothing, for only the latest beat counts, and later counts carry later beats.
    """
    wanted = {post.uid for post in posts}
    columns = (
        SESSIONS.c.uid,
        SESSIONS.c.namespace,
        SESSIONS.c.bound_ms,
        SESSIONS.c.ended_ms,
        SESSIONS.c.others_ended,
    )
    known = {row.uid: row for row in connection.execute(select(*columns).where(SESSIONS.c.uid.in_(wanted)))}
    runs = _runs_of(connection, known)
    answers = []
    for post in posts:
        row = known.get(post.uid)
        if row is None:
            answers.append(Answered(Heard.UNKNOWN))
            continue
        heard = Heard.NEW if runs[post.uid].take(post, row.bound_ms) else Heard.REPEATED
        ended = row.ended_ms is not None
        answers.append(Answered(heard, row.namespace, ended, over=ended or row.others_ended))
    _write(connection, runs)
    return answers


def beat_ms(ages_ms: Iterable[int], received_ms: int, bound_ms: int) -> int:
    """The moment of the latest beat by the receiver's clock: never after its receipt, never before the pod
    was bound (where our clock allows both, receipt wins)."""
    latest = received_ms - min(ages_ms, default=0)
    return min(received_ms, max(bound_ms, latest, 0))


@dataclass(slots=True)
class _Run:
    """The last post of one run of a sidecar. ``is_stored``: it has a row; ``is_changed``: which no longer
    says so."""

    sequence: int
    beat_ms: int
    received_ms: int
    is_stored: bool
    is_changed: bool = False


@dataclass(slots=True)
class _Runs:
    """What is known of one pod's sidecar, by run."""

    by_boot: dict[str, _Run] = field(default_factory=dict)

    def take(self, post: Post, bound_ms: int) -> bool:
        """Note the post; False where its run had got as far before.

        The latest beat of all runs goes into the newest post's row, so that an old run's row can be dropped.
        """
        before = self.by_boot.get(post.boot)
        if before is not None and post.sequence <= before.sequence:
            return False
        earlier = (run.beat_ms for run in self.by_boot.values())
        at_ms = max(beat_ms(post.ages_ms, post.received_ms, bound_ms), *earlier, 0)
        is_stored = before is not None and before.is_stored
        run = _Run(post.sequence, at_ms, max(post.received_ms, at_ms), is_stored, is_changed=True)
        self.by_boot[post.boot] = run
        return True

    def too_old(self) -> list[str]:
        """The runs that are one too many, the oldest of all."""
        by_age = sorted(self.by_boot.items(), key=lambda each: (each[1].received_ms, each[1].beat_ms))
        return [boot for boot, _ in by_age[:-MOST_BOOTS]]


def _runs_of(connection: Connection, uids: Iterable[str]) -> dict[str, _Runs]:
    columns = (
        HEARTBEATS.c.session_uid,
        HEARTBEATS.c.boot,
        HEARTBEATS.c.sequence,
        HEARTBEATS.c.beat_ms,
        HEARTBEATS.c.received_ms,
    )
    stored = select(*columns).where(HEARTBEATS.c.session_uid.in_(list(uids))).with_for_update()
    runs = {uid: _Runs() for uid in uids}
    for uid, boot, sequence, at_ms, received_ms in connection.execute(stored):
        runs[uid].by_boot[boot] = _Run(sequence, at_ms, received_ms, is_stored=True)
    return runs


def _write(connection: Connection, runs: Mapping[str, _Runs]) -> None:
    """Three statements at most, however many posts there were."""
    new: list[dict[str, object]] = []
    changed: list[dict[str, object]] = []
    gone: list[dict[str, object]] = []
    for uid, mine in runs.items():
        dropped = set(mine.too_old())
        gone += [{"b_uid": uid, "b_boot": boot} for boot in dropped if mine.by_boot[boot].is_stored]
        for boot, run in mine.by_boot.items():
            if run.is_changed and boot not in dropped:
                row = {
                    "b_uid": uid,
                    "b_boot": boot,
                    "b_sequence": run.sequence,
                    "b_beat_ms": run.beat_ms,
                    "b_received_ms": run.received_ms,
                }
                (changed if run.is_stored else new).append(row)
    if new:
        connection.execute(_INSERT, new)
    if changed:
        connection.execute(_UPDATE, changed)
    if gone:
        connection.execute(_DELETE, gone)


_FIGURES: dict[str, Any] = {name: bindparam(f"b_{name}") for name in ("sequence", "beat_ms", "received_ms")}
_HERE = (HEARTBEATS.c.session_uid == bindparam("b_uid"), HEARTBEATS.c.boot == bindparam("b_boot"))
_INSERT = insert(HEARTBEATS).values(session_uid=bindparam("b_uid"), boot=bindparam("b_boot"), **_FIGURES)
_UPDATE = update(HEARTBEATS).where(*_HERE).values(_FIGURES)
_DELETE = delete(HEARTBEATS).where(*_HERE)


def count(connection: Connection) -> int:
    """How many runs of sidecars are known."""
    return connection.execute(select(func.count()).select_from(HEARTBEATS)).scalar_one()
