"""The spool folder: small files that outlive the process, but not the pod. Each is replaced as a whole."""

from __future__ import annotations

import json
import os

from sidecar.log import log
from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.log_events import EventName
    from timekeeper.edge.outbox import Left, R

FOLLOWED = "followed-ca.json"
MAX_BYTES = 8 << 20


class SpoolFolder:
    """The folder. If it is full, read-only or missing, the beats stay in memory, and one log line says so."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._works = True

    def load(self, name: str, decode: Callable[[str], Left[R]], unreadable: EventName) -> Left[R]:
        """The records that an earlier process left in a file; none, and this event in the log with the
        reason, if they cannot be used."""
        try:
            text = self.read(name)
            return (None, ()) if text is None else decode(text)
        except (OSError, ValueError) as error:
            log(unreadable, level="warning", reason=error)
            return None, ()

    def followed(self) -> tuple[str, str] | None:
        """The configured CA bundle and the one that replaced it, as saved by `follow`."""
        try:
            text = self.read(FOLLOWED)
            if text is None:
                return None
            read = json.loads(text)
            return str(read["configured"]), str(read["followed"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log("followed-ca-unreadable", level="warning", reason=error)
            return None

    def follow(self, configured: str, followed: str) -> None:
        """Save that the bundle ``followed`` replaced the configured one."""
        log("ca-followed")
        self.replace(FOLLOWED, json.dumps({"configured": configured, "followed": followed}))

    def read(self, name: str) -> str | None:
        """The text of a file in the folder, None if there is no such file. Raises OSError, or ValueError if
        it is not UTF-8."""
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                return file.read(MAX_BYTES)
        except FileNotFoundError:
            return None

    def replace(self, name: str, text: str) -> bool:
        """Replace a file in the folder. False if that failed; the first failure in a row is logged."""
        path = os.path.join(self._folder, name)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            _write(path + ".new", text)
            os.replace(path + ".new", path)
            self._works = True
        except OSError as error:
            if self._works:
                log("spool-not-written", level="warning", reason=error.strerror, folder=self._folder)
            self._works = False
        return self._works


def node_boot() -> str:
    """The kernel's ID of this boot, empty if it is not readable."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
