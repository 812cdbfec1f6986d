"""The packages' files in the cache folder, by their digests: what is there is not downloaded again."""

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

from deploy.images import wheels
from deploy.images.debian import Apt, Say
from deploy.images.lock import RENEW, ImagesError, Lock, Package
from deploy.local.tools import cache_folder


class Downloads:
    """The files. Raises ImagesError with a sentence."""

    def __init__(self, say: Say, folder: Path | None = None) -> None:
        self.say = say
        self.folder = folder or cache_folder() / "images"

    def fetch(self, lock: Lock, architectures: Iterable[str]) -> None:
        """Download what is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for architecture in architectures:
            packages = lock.of(architecture)
            with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
                if debian := self._missing(packages.debian.values()):
                    apt = Apt(Path(temporary), architecture, self.say)
                    apt.update()
                    self._keep(debian, apt.download(debian))
                if python := self._missing(packages.python.values()):
                    found = wheels.download(architecture, lock.python, python, Path(temporary), self.say)
                    self._keep(python, found)

    def file(self, package: Package) -> Path:
        """A package's file."""
        return self.folder / package.sha256

    def _missing(self, packages: Iterable[Package]) -> list[Package]:
        return [each for each in packages if not self.file(each).is_file()]

    def _keep(self, wanted: list[Package], files: list[Path]) -> None:
        found = {_sha256(file): file for file in files}
        for each in wanted:
            if each.sha256 not in found:
                raise ImagesError(
                    f"the file of {each.name} {each.version} that came is not the one of"
                    f" deploy/images/lock.json: find out why; {RENEW} accepts it"
                )
            found[each.sha256].replace(self.file(each))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
