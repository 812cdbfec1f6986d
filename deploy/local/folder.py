"""Temporary folders that are removed even if their process is killed.

The owning process holds a lock on the folder's file `owner`. The next process removes folders without a lock
holder.
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
# Not locked yet, so a sweep must not touch it.
_PREFIX_UNCLAIMED = "bursar-new-"


class OwnedFolder:
    """A context manager: a new temporary folder that only its user may read."""

    def __enter__(self) -> Path:
        sweep()
        try:
            unclaimed = Path(tempfile.mkdtemp(prefix=_PREFIX_UNCLAIMED))
            self._lock = (unclaimed / "owner").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # The lock is on the file, not on its path: when a sweep first sees the folder, it is locked.
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
    """Delete the folders of this user's ended processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _lock_of_the_dead(folder)
        if lock is not None:
            with lock:
                # Two sweeps may run at once; the second finds files that are deleted already.
                shutil.rmtree(folder, ignore_errors=True)


def _lock_of_the_dead(folder: Path) -> IO[str] | None:
    """The lock of a folder whose owner has ended; None if the owner runs, or the folder is not ours."""
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
