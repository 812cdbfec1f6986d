"""Debian's packages by apt, with the machine's sources and keys, and a state of its own for an architecture.

What only the installation of packages needs counts as installed, and so stays out.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.images.lock import RENEW, ImagesError, Package
from deploy.local.golang import known_failure, last_lines

Say = Callable[[str], None]

_INSTALLED = """\
Package: {name}
Status: install ok installed
Version: 9999
Architecture: all
Multi-Arch: foreign
Maintainer: nobody
Description: {name}
Provides: {provides}

"""
_LEFT_OUT = {
    "dpkg": "awk, debconf (= 9999), debconf-2.0",
    "openssl": "no-openssl",
    "readline-common": "no-readline",
}
_SELECTED = re.compile(r"^Inst (\S+) \((\S+) ", re.M)
_FIELD = re.compile(r"^(Package|Version|SHA256): (\S+)$", re.M)
_GONE = re.compile(r"^E: (?:Unable to locate package|Version '.*' for) '?([a-z0-9.+-]+)", re.M)


@dataclass(frozen=True, slots=True)
class Apt:
    """apt for one architecture, in an empty folder."""

    folder: Path
    architecture: str
    say: Say

    def update(self) -> None:
        """Fetch the lists of packages. Raises ImagesError."""
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise ImagesError("images are made of Debian's packages, and this machine has no apt: use Debian")
        for name in ("state/lists/partial", "cache/archives/partial", "files"):
            (self.folder / name).mkdir(parents=True)
        stubs = (_INSTALLED.format(name=name, provides=what) for name, what in _LEFT_OUT.items())
        (self.folder / "status").write_text("".join(stubs))
        self.say(f"{self.architecture}: asking apt's sources for Debian's packages")
        self._run("apt-get", "update")

    def resolved(self, wanted: Iterable[str]) -> dict[str, Package]:
        """The packages, and all that these need. Raises ImagesError."""
        planned = self._run("apt-get", "--simulate", "install", *wanted)
        chosen = _SELECTED.findall(planned)
        told = self._run("apt-cache", "show", *(f"{name}={version}" for name, version in chosen))
        records = [dict(_FIELD.findall(record)) for record in told.split("\n\n") if record.strip()]
        return {
            each["Package"]: Package(*(each[key] for key in ("Package", "Version", "SHA256")))
            for each in records
        }

    def download(self, packages: Iterable[Package]) -> list[Path]:
        """The packages' files. Raises ImagesError, which names one that is gone."""
        wanted = [f"{each.name}={each.version}" for each in packages]
        self.say(f"{self.architecture}: downloading {len(wanted)} of Debian's packages")
        self._run("apt-get", "download", *wanted)
        return list((self.folder / "files").iterdir())

    def _run(self, program: str, *arguments: str) -> str:
        settings = {
            "Dir::State": self.folder / "state",
            "Dir::State::status": self.folder / "status",
            "Dir::Cache": self.folder / "cache",
            "APT::Architecture": self.architecture,
            "APT::Architectures": "",
            "APT::Architectures::": self.architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
        }
        options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        done = subprocess.run(
            [program, "--quiet", *options, *arguments],
            cwd=self.folder / "files",
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ImagesError(self._why(f"{program} {arguments[0]}", done.stdout + done.stderr))
        return done.stdout

    def _why(self, command: str, output: str) -> str:
        gone = _GONE.findall(output)
        if gone:
            return (
                f"apt's sources have no {', '.join(gone)} in the version of deploy/images/lock.json for"
                f" {self.architecture} any more: {RENEW} takes the one that they have"
            )
        return f"{command} for {self.architecture} failed: {known_failure(output) or last_lines(output, 3)}"


def control(file: Path) -> str:
    """What a package says of itself."""
    return _dpkg_deb("--field", file).decode()


def contents(file: Path) -> bytes:
    """A package's files, as a tar archive."""
    return _dpkg_deb("--fsys-tarfile", file)


def _dpkg_deb(option: str, file: Path) -> bytes:
    try:
        return subprocess.run(["dpkg-deb", option, file], check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise ImagesError(
            "images are made of Debian's packages, and this machine has no dpkg-deb: use Debian"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ImagesError(
            f"{file} is no package of Debian ({error.stderr.decode().strip()}): delete it"
        ) from error
