"""The body of a poll becomes the table of standings."""

import orjson

from timekeeper.core import standings
from timekeeper.core.admission.table import StandingsTable, read_entry, read_settings


def decode(body: bytes, etag: str, now_ms: int) -> StandingsTable:
    """The table in a 200's body. Raises `standings.UndecodableStandingsError`."""
    return standings.decode(orjson.loads, body, etag, now_ms, read_settings, read_entry)
