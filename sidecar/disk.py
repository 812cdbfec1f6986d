"""The spool folder: two small files that outlive the process, but not the pod. Each is replaced as a
whole."""

from __future__ import annotations

import json
import os

from sidecar import spool
from sidecar.log import log

SPOOL = "spool.json"
FOLLOWED = "followed-ca.json"
MAX_BYTES = 8 << 20


class SpoolFolder:
    """The folder. If it is full, read-only or missing, the beats stay in memory, and one log line says so."""

    def __init__(self, folder: str, node_boot: str) -> None:
        """``node_boot``: the ID of the node's boot; the spool's moments count from it."""
        self._folder = folder
        self._node_boot = node_boot
        self._works = True

    def load(self, boot: str, now_ms: int) -> spool.Spool:
        """The spool of an earlier process. If it cannot be used: an empty one, and a log line with the
        reason."""
        try:
            text = self.read(SPOOL)
            if text is None:
                return spool.empty(boot)
            return spool.decode(text, self._node_boot, boot, now_ms)
        except (OSError, ValueError) as error:
            log("spool-unreadable", level="warning", reason=error)
            return spool.empty(boot)

    def save(self, beats: spool.Spool) -> None:
        """Write the spool."""
        self.replace(SPOOL, spool.encode(beats, self._node_boot))

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
