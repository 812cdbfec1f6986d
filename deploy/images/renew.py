"""``make images-lock``: the lock of what apt's sources and the package index have today."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from deploy.images import wheels
from deploy.images.debian import Apt, Say
from deploy.images.lock import Lock, Package, Packages
from deploy.images.roles import DEBIAN, ROLES


def renewed(architectures: Iterable[str], say: Say) -> Lock:
    """A new lock. Raises ImagesError."""
    found: dict[str, Packages] = {}
    python = ""
    for architecture in architectures:
        with tempfile.TemporaryDirectory() as temporary:
            apt = Apt(Path(temporary), architecture, say)
            apt.update()
            debian = apt.resolved(DEBIAN)
            python = ".".join(debian["python3-minimal"].version.split(".")[:2])
            found[architecture] = _with_wheels(debian, architecture, python, Path(temporary), say)
    return Lock(python, found)


def _with_wheels(
    debian: dict[str, Package], architecture: str, python: str, folder: Path, say: Say
) -> Packages:
    packages: dict[str, Package] = {}
    roles: dict[str, tuple[str, ...]] = {}
    for name, role in ROLES.items():
        say(f"{architecture}: asking the package index for what {name} needs")
        needed = wheels.resolved(architecture, python, role.requirements(), folder)
        packages |= needed
        roles[name] = tuple(sorted(needed))
    return Packages(debian, packages, roles)
