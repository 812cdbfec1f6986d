"""What a node's programs make outside of its folder, whatever they are told; and taking that away, no more.

A runtime that is installed meanwhile keeps its state in the same places. So what goes is what bears a name of
ours, or what can only be of the node's programs while none of others runs and nothing else lies there.
"""

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

_LOGS = "/var/log/containers"
# Folders, and what the shims of an older containerd, which has no setting for that, and the kubelet leave in
# them.
MADE = {
    "/run/containerd": ("s/*",),
    "/var/lib/cni": (),
    "/var/lib/kubelet": ("device-plugins/kubelet.sock", "device-plugins/kubelet_internal_checkpoint"),
    _LOGS: (),
}
# libcni keeps what each plugin answered in a folder that containerd cannot be told.
_RESULTS = "/var/lib/cni/results"


def absent(root: Path) -> list[str]:
    """Which of the folders are not there below ``root`` (``/`` but for tests)."""
    return [folder for folder in MADE if not _below(root, folder).exists()]


def take_named(root: Path, network: str, folder: Path) -> None:
    """Take away what bears our names: the network's results, and links to logs below ``folder``."""
    results = _below(root, _RESULTS)
    for result in list(results.glob(f"{network}-*")):
        sandbox = result.name.removeprefix(f"{network}-").partition("-")[0]
        (results / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)
        result.unlink()
    for link in list(_below(root, _LOGS).glob("*")):
        if link.is_symlink() and link.readlink().is_relative_to(folder):
            link.unlink()


def take_made(root: Path, folders: Iterable[str], mounts: Iterable[str]) -> None:
    """Take away what else the node's programs left in these of the folders, and the folders where they are
    empty then. Only for when no program of others runs; ``mounts``: every mount point."""
    points = [Path(point) for point in mounts]
    for folder in folders:
        place = _below(root, folder)
        if folder in MADE and place.is_dir() and not any(each.is_relative_to(place) for each in points):
            _take_made(place, MADE[folder])


def _take_made(place: Path, patterns: tuple[str, ...]) -> None:
    found = set(_files(place))
    made = {each for pattern in patterns for each in place.glob(pattern)}
    if found <= made:  # else somebody else is at home here
        for each in found:
            each.unlink(missing_ok=True)
        _remove_if_empty(place)


def _files(place: Path) -> Iterator[Path]:
    return (each for each in place.rglob("*") if each.is_symlink() or not each.is_dir())


def _remove_if_empty(place: Path) -> None:
    folders = [each for each in place.rglob("*/") if each.is_dir() and not each.is_symlink()]
    for each in sorted([place, *folders], reverse=True):
        try:
            each.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _below(root: Path, folder: str) -> Path:
    return root / folder.removeprefix("/")
