"""``make images`` writes the images of the last commit into dist/images, and values of the chart with their
digests; with PUSH it pushes them too. ``make images-lock`` renews the lock of their packages."""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from deploy.images import lock, push, renew
from deploy.images.downloads import Downloads
from deploy.images.lock import ImagesError
from deploy.images.make import Made, Making
from deploy.images.roles import ARCHITECTURES, ROLES
from deploy.local.errors import LocalError
from deploy.release import archives
from deploy.release.archives import ROOT, ReleaseError


def main() -> int:
    """The exit code. An error is one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m deploy.images", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "dist" / "images", help="(%(default)s)"
    )
    parser.add_argument("--push", default="", metavar="REGISTRY/PREFIX", help="push the images too")
    parser.add_argument("--architecture", action="append", help="one of several (amd64 and arm64)")
    parser.add_argument("--role", action="append", choices=ROLES, help="one of several (all)")
    parser.add_argument("--lock", action="store_true", help="write deploy/images/lock.json anew instead")
    arguments = parser.parse_args()
    architectures = tuple(arguments.architecture or ARCHITECTURES)
    try:
        if arguments.lock:
            lock.PATH.write_text(lock.text(renew.renewed(architectures, _say)))
        else:
            _make(arguments.folder, architectures, arguments.role or list(ROLES), arguments.push)
    except (ImagesError, ReleaseError, LocalError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _make(folder: Path, architectures: tuple[str, ...], roles: list[str], prefix: str) -> None:
    if prefix:
        push.check(prefix)
    if archives.uncommitted():
        _say("note: files differ from the commit, and the images have what is committed; commit first")
    folder.mkdir(parents=True, exist_ok=True)
    with archives.committed() as commit, tempfile.TemporaryDirectory() as temporary:
        wheel = archives.wheel(commit, Path(temporary))
        made = Making(lock.read(), architectures, Downloads(_say), commit, wheel, _say).images(roles, folder)
        tag = wheel.name.split("-")[1]
    for role, image in made.items():
        print(f"{image.digest}  {role}  {_sizes(image)}")
    if prefix:
        push.push(prefix, tag, made, _say)
    (folder / "values.yaml").write_text(values(made, prefix))


def values(made: Mapping[str, Made], prefix: str) -> str:
    """Values of the chart that name the images, by their digests."""
    named = {"prefix": prefix} if prefix else {}
    return yaml.safe_dump(
        {"images": {**named, "digests": {role: each.digest for role, each in made.items()}}}
    )


def _sizes(image: Made) -> str:
    return ", ".join(
        f"{name} {image.packed[name] / 1e6:.1f} MB ({image.plain[name] / 1e6:.0f} MB unpacked)"
        for name in image.packed
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
