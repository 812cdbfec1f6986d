"""The client of the timekeeper that the settings name."""

from scheduler_ext.settings import Timekeeper
from timekeeper.runtime.timekeeper_client import TimekeeperClient


def client(timekeeper: Timekeeper, path: str) -> TimekeeperClient:
    """For one path; the CA bundle is read before each request."""
    return TimekeeperClient(
        timekeeper.url, path, timekeeper.token_file, lambda: timekeeper.ca.read_text(encoding="ascii")
    )
