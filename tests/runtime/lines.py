"""Log lines that a test collects."""

from timekeeper.edge.log import line
from timekeeper.edge.log_events import Level, Log


def into(lines: list[str]) -> Log:
    """A log that appends each line, without its time and role: ``info event=review ...``."""

    def log(event: str, *, level: Level = "info", **fields: object) -> None:
        lines.append(f"{level} event={line(level, event, fields).partition(' event=')[2]}")

    return log
