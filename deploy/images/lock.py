"""The lock: every package of an image, with its version and digest, for each architecture."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("lock.json")
RENEW = "make images-lock"


class ImagesError(Exception):
    """Why there can be no images, in a sentence."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package's file."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Packages:
    """What the images of one architecture are made of."""

    debian: Mapping[str, Package]
    python: Mapping[str, Package]
    roles: Mapping[str, tuple[str, ...]]  # names of Python's packages

    def all(self) -> list[Package]:
        """Debian's and Python's."""
        return [*self.debian.values(), *self.python.values()]


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock. ``python`` is the series of Debian's Python, such as 3.11."""

    python: str
    architectures: Mapping[str, Packages]

    def of(self, architecture: str) -> Packages:
        """The packages of an architecture. Raises ImagesError where there are none."""
        if architecture not in self.architectures:
            raise ImagesError(
                f"deploy/images/lock.json has no architecture {architecture}, only"
                f" {', '.join(self.architectures)}: name one of these"
            )
        return self.architectures[architecture]


def read(path: Path = PATH) -> Lock:
    """The lock in a file. Raises ImagesError."""
    try:
        told = json.loads(path.read_text())
        return Lock(told["python"], {name: _packages(each) for name, each in told["architectures"].items()})
    except OSError as error:
        raise ImagesError(f"{path.name} cannot be read ({error.strerror}): {RENEW} writes it") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImagesError(f"{path.name} is no lock of images ({error!r}): {RENEW} writes it anew") from error


def text(lock: Lock) -> str:
    """The lock as its file has it, one package a line."""
    told = {
        "python": lock.python,
        "architectures": {
            name: {
                "debian": _lines(each.debian),
                "python": _lines(each.python),
                "roles": {role: " ".join(names) for role, names in each.roles.items()},
            }
            for name, each in sorted(lock.architectures.items())
        },
    }
    return json.dumps(told, indent=1) + "\n"


def _lines(packages: Mapping[str, Package]) -> dict[str, str]:
    return {name: f"{each.version} {each.sha256}" for name, each in sorted(packages.items())}


def _packages(told: Any) -> Packages:
    def parsed(lines: Mapping[str, str]) -> dict[str, Package]:
        return {name: Package(name, *line.split()) for name, line in lines.items()}

    roles = {role: tuple(names.split()) for role, names in told["roles"].items()}
    return Packages(parsed(told["debian"]), parsed(told["python"]), roles)
