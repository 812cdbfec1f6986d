"""A folder in TMPDIR for the metrics of several processes, which prometheus_client adds up.

A process that is killed cannot remove its folder. Its children do so when they end, and the next start
removes what is left: the owner of a folder, and the processes that it forked, lock it while they live.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it when it is imported


@contextmanager
def metrics_folder(prefix: str) -> Iterator[Path]:
    """A new folder whose name begins with ``prefix``. The process that made it removes it at the end, or one
    that it forked where it is gone. First, folders of this prefix that no process locks are removed."""
    _remove_abandoned(prefix)
    new, owner = Path(tempfile.mkdtemp(prefix=f"new-{prefix}")), os.getpid()
    number = os.open(new, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    folder = new.rename(new.with_name(new.name.removeprefix("new-")))  # locked before it has its name
    try:
        yield folder
    finally:
        os.close(number)
        if os.getpid() == owner or os.getppid() != owner:
            remove(folder)


def remove(folder: Path | str) -> None:
    """Removes the folder with its files. Another process may be doing the same."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_ours() -> None:
    """Removes the folder that this process was given, if any: its owner is gone."""
    if folder := os.environ.get(VARIABLE):
        remove(folder)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, or just removed
            if _is_abandoned(folder):
                remove(folder)


def _is_abandoned(folder: Path) -> bool:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(number).st_uid == os.getuid()
    except BlockingIOError:
        return False
    finally:
        os.close(number)
