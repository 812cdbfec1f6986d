"""gunicorn's loggers, with our lines."""

import logging
from typing import Any

from gunicorn import glogging

from timekeeper.runtime.log import line

_LEVELS = {"CRITICAL": "error", "ERROR": "error", "WARNING": "warning"}


class LineFormatter(logging.Formatter):
    """A library's record as the event ``server``: its message and, on the same line, its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Called by the logging library."""
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        level = _LEVELS.get(record.levelname, "info")
        return line(level, "server", {"message": record.getMessage()}, trace)


class ServerLogger(glogging.Logger):  # type: ignore[misc]
    """What `gunicorn` is given as its ``logger_class``."""

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(LineFormatter())
