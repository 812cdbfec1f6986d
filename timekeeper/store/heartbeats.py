"""Stored heartbeats: the last post of each run of a sidecar, so that a repeated post is recognised."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec import Struct
from sqlalchemy import ARRAY, Executable, Text, any_, bindparam, delete, func, select, text

from timekeeper.accounts.card_use.figures import CardSample, UsageTotals, by_hour, cards_of
from timekeeper.store import node_usage
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import HEARTBEATS, SESSIONS

# A sidecar restarts a few times in a pod's life. Above this many runs the oldest is dropped.
MAX_BOOTS = 8


class HeartbeatPost(Struct, frozen=True):
    """One post of a pod's sidecar. ``sequence``: number of this post within the run ``boot``. ``ages_ms``:
    the ages of its heartbeats at receipt. ``figures``: each heartbeat's figures of its cards, or empty."""

    uid: str
    boot: str
    sequence: int
    ages_ms: tuple[int, ...]
    received_ms: int
    figures: tuple[tuple[CardSample, ...], ...] = ()


class PostOutcome(Enum):
    """Whether a post counted, was received before, or belongs to a pod without a session (yet)."""

    NEW = "new"
    REPEATED = "repeated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PostResult:
    """The outcome of a post. ``namespace`` and ``ended`` come from the ledger, if it knows the pod. ``over``:
    all containers but the sidecar have ended for good."""

    outcome: PostOutcome
    namespace: str = ""
    ended: bool = False
    over: bool = False


def questions(connection: Connection, posts: Sequence[HeartbeatPost]) -> list[tuple[Executable, Any]]:
    """The statements whose rows `decide` takes, in this order, each with its parameters."""
    uids = {"uids": sorted({post.uid for post in posts})}
    return [(statement, uids) for statement in _OF_POSTS[connection.dialect.name]]


def decide(
    posts: Sequence[HeartbeatPost], sessions: Iterable[Any], stored: Iterable[Any], interval_ms: int
) -> tuple[list[PostResult], list[tuple[Executable, Any]]]:
    """Each post's outcome in order, and the statements that write the new ones with their rows.

    A post is new if its sequence is above all that its run has sent. A post overtaken by a later sequence
    adds nothing: only the latest heartbeat counts, and later posts carry later heartbeats. ``interval_ms``:
    the interval between heartbeats; one heartbeat's figures count for at most twice that long.
    """
    known = {row.uid: row for row in sessions}
    runs = {uid: _Runs() for uid in known}
    for uid, boot, sequence, at_ms, received_ms in stored:
        runs[uid].by_boot[boot] = _Run(sequence, at_ms, received_ms, is_stored=True)
    used: dict[node_usage.Hour, UsageTotals] = {}
    answers = []
    for post in posts:
        row = known.get(post.uid)
        if row is None:
            answers.append(PostResult(PostOutcome.UNKNOWN))
            continue
        before_ms = runs[post.uid].latest_ms()
        is_new = runs[post.uid].take(post, row.bound_ms)
        if is_new and post.figures:
            _add_use(used, post, row, before_ms, 2 * interval_ms)
        ended = row.ended_ms is not None
        heard = PostOutcome.NEW if is_new else PostOutcome.REPEATED
        answers.append(PostResult(heard, row.namespace, ended, over=ended or row.others_ended))
    return answers, [*_changes(runs), *node_usage.addition(used)]


# Statements of each group of heartbeats are built once: it takes as long as to execute them.
# The number of unsettled sessions: their sidecars may send heartbeats.
LIVE = select(func.count().label("live")).select_from(SESSIONS).where(SESSIONS.c.settled_ms.is_(None))
_OF_SESSIONS = (
    select(
        SESSIONS.c.uid,
        SESSIONS.c.namespace,
        SESSIONS.c.bound_ms,
        SESSIONS.c.ended_ms,
        SESSIONS.c.others_ended,
        SESSIONS.c.devices,
        SESSIONS.c.requested_milli,
    )
    # Locked, so that of two workers with the same post one waits: a run's first post has no row to lock.
    # In the settler's order, so that transactions cannot deadlock; a foreign key takes no such lock.
    .order_by(SESSIONS.c.uid)
    .with_for_update(key_share=True)
)
_OF_RUNS = (
    select(
        HEARTBEATS.c.session_uid,
        HEARTBEATS.c.boot,
        HEARTBEATS.c.sequence,
        HEARTBEATS.c.beat_ms,
        HEARTBEATS.c.received_ms,
    )
    # in one order, so that two workers on PostgreSQL cannot deadlock
    .order_by(HEARTBEATS.c.session_uid, HEARTBEATS.c.boot)
    .with_for_update()
)
_KEYED = ((_OF_SESSIONS, SESSIONS.c.uid), (_OF_RUNS, HEARTBEATS.c.session_uid))
_ANY = bindparam("uids", type_=ARRAY(Text))  # PostgreSQL's text is the same for any number
_OF_POSTS = {
    "sqlite": [each.where(key.in_(bindparam("uids", expanding=True))) for each, key in _KEYED],
    "postgresql": [each.where(key == any_(_ANY)) for each, key in _KEYED],
}


def _add_use(
    used: dict[node_usage.Hour, UsageTotals], post: HeartbeatPost, session: Any, before_ms: int, most_ms: int
) -> None:
    last_ms = post.received_ms if session.ended_ms is None else session.ended_ms
    moments = (min(last_ms, beat_ms((age,), post.received_ms, session.bound_ms)) for age in post.ages_ms)
    ordered = sorted(zip(moments, post.figures, strict=True), key=lambda beat: beat[0])
    cards = cards_of(session.devices, session.requested_milli)
    for hour_ms, each in by_hour(ordered, before_ms, most_ms, cards).items():
        key = (post.uid, hour_ms)
        used[key] = used[key] + each if key in used else each


def beat_ms(ages_ms: Iterable[int], received_ms: int, bound_ms: int) -> int:
    """The time of the latest heartbeat by the receiver's clock: not after its receipt and not before the pod
    was bound (if both cannot hold, receipt wins)."""
    latest = received_ms - min(ages_ms, default=0)
    return min(received_ms, max(bound_ms, latest, 0))


@dataclass(slots=True)
class _Run:
    """The last post of one run of a sidecar. ``is_stored``: it has a row. ``is_changed``: that row is out of
    date."""

    sequence: int
    beat_ms: int
    received_ms: int
    is_stored: bool
    is_changed: bool = False


@dataclass(slots=True)
class _Runs:
    """The runs of one pod's sidecar."""

    by_boot: dict[str, _Run] = field(default_factory=dict)

    def latest_ms(self) -> int:
        """The latest heartbeat of all runs; 0 if there is none."""
        return max((run.beat_ms for run in self.by_boot.values()), default=0)

    def take(self, post: HeartbeatPost, bound_ms: int) -> bool:
        """Record the post; False if its run already reached that sequence.

        The latest heartbeat of all runs goes into the newest post's row, so an old run's row can be dropped.
        """
        before = self.by_boot.get(post.boot)
        if before is not None and post.sequence <= before.sequence:
            return False
        at_ms = max(beat_ms(post.ages_ms, post.received_ms, bound_ms), self.latest_ms())
        is_stored = before is not None and before.is_stored
        run = _Run(post.sequence, at_ms, max(post.received_ms, at_ms), is_stored, is_changed=True)
        self.by_boot[post.boot] = run
        return True

    def too_old(self) -> list[str]:
        """The runs above the limit, oldest first."""
        by_age = sorted(self.by_boot.items(), key=lambda each: (each[1].received_ms, each[1].beat_ms))
        return [boot for boot, _ in by_age[:-MAX_BOOTS]]


def _changes(runs: Mapping[str, _Runs]) -> list[tuple[Executable, Any]]:
    """At most two statements for any number of posts. Rows come in one order, so two writers cannot
    deadlock."""
    changed: list[dict[str, object]] = []
    gone: list[dict[str, object]] = []
    for uid, mine in sorted(runs.items()):
        dropped = set(mine.too_old())
        gone += [{"b_uid": uid, "b_boot": boot} for boot in sorted(dropped) if mine.by_boot[boot].is_stored]
        changed += [
            {
                "session_uid": uid,
                "boot": boot,
                "sequence": run.sequence,
                "beat_ms": run.beat_ms,
                "received_ms": run.received_ms,
            }
            for boot, run in sorted(mine.by_boot.items())
            if run.is_changed and boot not in dropped
        ]
    both: list[tuple[Executable, Any]] = [(_PUT, changed), (_DELETE, gone)]
    return [each for each in both if each[1]]


# The same SQL on both databases. If another worker has written a run's first post meanwhile, the
# later count stays.
_PUT = text(
    "INSERT INTO heartbeats (session_uid, boot, sequence, beat_ms, received_ms)"
    " VALUES (:session_uid, :boot, :sequence, :beat_ms, :received_ms)"
    " ON CONFLICT (session_uid, boot) DO UPDATE SET"
    " sequence = excluded.sequence, beat_ms = excluded.beat_ms, received_ms = excluded.received_ms"
    " WHERE excluded.sequence > heartbeats.sequence"
)
_HERE = (HEARTBEATS.c.session_uid == bindparam("b_uid"), HEARTBEATS.c.boot == bindparam("b_boot"))
_DELETE = delete(HEARTBEATS).where(*_HERE)
