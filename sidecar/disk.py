"""The spool folder: what must outlive the process but not the pod, in two small files replaced as a whole."""

from __future__ import annotations

import json
import os

from sidecar import spool
from sidecar.log import say

SPOOL = "spool.json"
FOLLOWED = "followed-ca.json"
MOST_BYTES = 8 << 20


class SpoolFolder:
    """A folder that may turn out full, read-only or gone: then the beats are kept in memory alone, and one
    line says so."""

    def __init__(self, folder: str, node_boot: str) -> None:
        """``node_boot`` names the boot of the node, to which the spool's moments belong."""
        self._folder = folder
        self._node_boot = node_boot
        self._well = True

    def load(self, boot: str, now_ms: int) -> spool.Spool:
        """What an earlier process left, or an empty spool with a line that says why."""
        try:
            text = self.read(SPOOL)
            if text is None:
                return spool.empty(boot)
            return spool.decode(text, self._node_boot, boot, now_ms)
        except (OSError, ValueError) as error:
            say("spool-unreadable", reason=error)
            return spool.empty(boot)

    def keep(self, kept: spool.Spool) -> None:
        """Write the spool."""
        self.replace(SPOOL, spool.encode(kept, self._node_boot))

    def followed(self) -> tuple[str, str] | None:
        """The configured CA bundle and the one that took its place, as ``follow`` was told."""
        try:
            text = self.read(FOLLOWED)
            if text is None:
                return None
            read = json.loads(text)
            return str(read["configured"]), str(read["followed"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            say("followed-ca-unreadable", reason=error)
            return None

    def follow(self, configured: str, followed: str) -> None:
        """Remember that the bundle ``followed`` took the place of the configured one."""
        say("ca-followed")
        self.replace(FOLLOWED, json.dumps({"configured": configured, "followed": followed}))

    def read(self, name: str) -> str | None:
        """What a file of the folder holds; None where there is none. Raises OSError, and ValueError where it
        is no text."""
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                return file.read(MOST_BYTES)
        except FileNotFoundError:
            return None

    def replace(self, name: str, text: str) -> bool:
        """Write a file of the folder as a whole; False where that failed, which is said once."""
        path = os.path.join(self._folder, name)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            _write(path + ".new", text)
            os.replace(path + ".new", path)
            self._well = True
        except OSError as error:
            if self._well:
                say("spool-not-written", reason=error.strerror, folder=self._folder)
            self._well = False
        return self._well


def node_boot() -> str:
    """The kernel's name of this boot; empty where it is hidden."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
