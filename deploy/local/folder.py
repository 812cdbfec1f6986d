"""Temporary folders that are removed even when their owner dies.

A folder belongs to whoever holds the lock on its file `owner`; what nobody holds, the next to come sweeps.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

from deploy.local.errors import LocalError

_PREFIX = "bursar-local-"
# Not yet locked, hence not to be looked at by a sweep.
_PREFIX_UNCLAIMED = "bursar-new-"


class OwnedFolder:
    """A context manager: a fresh temporary folder, for its user alone."""

    def __enter__(self) -> Path:
        sweep()
        try:
            unclaimed = Path(tempfile.mkdtemp(prefix=_PREFIX_UNCLAIMED))
            self._lock = (unclaimed / "owner").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # The lock is on the file, whatever its path: when a sweep first sees the folder, it is held.
            claimed = unclaimed.name.replace(_PREFIX_UNCLAIMED, _PREFIX)
            self._path = unclaimed.rename(unclaimed.with_name(claimed))
        except OSError as error:
            raise LocalError(
                f"cannot make a temporary folder in {tempfile.gettempdir()}: {error.strerror}"
            ) from error
        return self._path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._path)
        self._lock.close()


def sweep() -> None:
    """Delete the folders that this user's dead processes left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _lock_of_the_dead(folder)
        if lock is not None:
            with lock:
                # Two sweeps may meet here; whoever comes second finds less and less to delete.
                shutil.rmtree(folder, ignore_errors=True)


def _lock_of_the_dead(folder: Path) -> IO[str] | None:
    """The lock of a folder whose owner is gone; None if the owner lives, or it is not a folder of ours."""
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        lock = (folder / "owner").open("r+")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock
