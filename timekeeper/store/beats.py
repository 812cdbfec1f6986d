"""Heartbeats on disk: each run of a sidecar by its last post, so that a repeat is known for one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import delete, func, insert, select, update

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
    pod."""

    heard: Heard
    namespace: str = ""
    ended: bool = False


def record(connection: Connection, posts: Sequence[Post]) -> list[Answered]:
    """Write the posts that are new, in their order, and tell of each what became of it.

    A post is new where its count is above all that its run has sent before. What a later count has overtaken
    adds nothing, for only the latest beat counts, and later counts carry later beats.
    """
    wanted = {post.uid for post in posts}
    columns = (SESSIONS.c.uid, SESSIONS.c.namespace, SESSIONS.c.bound_ms, SESSIONS.c.ended_ms)
    rows = connection.execute(select(*columns).where(SESSIONS.c.uid.in_(wanted)))
    known = {row.uid: row for row in rows}
    answers = []
    for post in posts:
        row = known.get(post.uid)
        if row is None:
            answers.append(Answered(Heard.UNKNOWN))
            continue
        heard = Heard.NEW if _is_new(connection, post, row.bound_ms) else Heard.REPEATED
        answers.append(Answered(heard, row.namespace, row.ended_ms is not None))
    return answers


def beat_ms(ages_ms: Iterable[int], received_ms: int, bound_ms: int) -> int:
    """The moment of the latest beat by the receiver's clock: never after its receipt, never before the pod
    was bound (where our clock allows both, receipt wins)."""
    latest = received_ms - min(ages_ms, default=0)
    return min(received_ms, max(bound_ms, latest, 0))


def _is_new(connection: Connection, post: Post, bound_ms: int) -> bool:
    """Writes the post, unless its run had got as far before."""
    boots = connection.execute(
        select(HEARTBEATS.c.boot, HEARTBEATS.c.sequence, HEARTBEATS.c.beat_ms)
        .where(HEARTBEATS.c.session_uid == post.uid)
        .order_by(HEARTBEATS.c.received_ms.desc())
        .with_for_update()
    ).all()
    sequence = next((row.sequence for row in boots if row.boot == post.boot), None)
    if sequence is not None and post.sequence <= sequence:
        return False
    at_ms = max(beat_ms(post.ages_ms, post.received_ms, bound_ms), *(row.beat_ms for row in boots), 0)
    # the earlier beats of all runs are in the newest row, so that an old run's row can go
    values = {
        "sequence": post.sequence,
        "beat_ms": at_ms,
        "received_ms": max(post.received_ms, at_ms),
    }
    here = (HEARTBEATS.c.session_uid == post.uid, HEARTBEATS.c.boot == post.boot)
    if sequence is not None:
        connection.execute(update(HEARTBEATS).where(*here).values(values))
        return True
    connection.execute(insert(HEARTBEATS).values(session_uid=post.uid, boot=post.boot, **values))
    gone = [row.boot for row in boots[MOST_BOOTS - 1 :]]
    if gone:
        connection.execute(
            delete(HEARTBEATS).where(HEARTBEATS.c.session_uid == post.uid, HEARTBEATS.c.boot.in_(gone))
        )
    return True


def count(connection: Connection) -> int:
    """How many runs of sidecars are known."""
    return connection.execute(select(func.count()).select_from(HEARTBEATS)).scalar_one()
