"""What others wrote since a settler's last tick, read at once: a database may be far away."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Executable

from timekeeper.accounts.ends import ReportedEnd
from timekeeper.accounts.pods import ReportedBinding
from timekeeper.core.ledger.metering import Interval
from timekeeper.store import bindings, ends, ledger
from timekeeper.store.engine.engine import Connection, read_together


@dataclass(frozen=True, slots=True)
class News:
    """``grants_mark``: two numbers that change with every added grant; ``beats``: the latest of each session;
    ``bindings``: of pods without a session; ``ends``: by UID. What was not asked for is empty."""

    grants_mark: tuple[int, int]
    beats: Mapping[str, int]
    bindings: tuple[ReportedBinding, ...]
    ends: Mapping[str, ReportedEnd]


def read(
    connection: Connection, beats_since_ms: int | None, of_bindings: Interval | None, of_ends: Interval | None
) -> News:
    """On PostgreSQL one round trip. ``beats_since_ms``: heartbeats that were received since then, 0: all of
    unsettled sessions; ``of_bindings``, ``of_ends``: those that were received in these spans. None: not asked
    for."""
    asked: dict[str, tuple[Executable, dict[str, int]]] = {"mark": (ledger.GRANTS_MARK, {})}
    if beats_since_ms is not None:
        new = (ledger.NEW_BEATS, {"since_ms": beats_since_ms})
        asked["beats"] = new if beats_since_ms else (ledger.ALL_BEATS, {})
    for name, statement, span in (
        ("bindings", bindings.UNOPENED, of_bindings),
        ("ends", ends.NEWS, of_ends),
    ):
        if span is not None:
            asked[name] = statement, {"from_ms": span.start_ms, "to_ms": span.end_ms}
    found = dict(zip(asked, read_together(connection, *asked.values()), strict=True))
    ((count, last),) = found["mark"]
    return News(
        (int(count), int(last)),
        dict(map(tuple, found.get("beats", ()))),
        tuple(bindings.reported(found.get("bindings", ()))),
        ends.reported(found.get("ends", ())),
    )
