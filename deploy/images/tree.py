"""A tree of files in memory, as a layer of an image has it, and what packages put there."""

import io
import posixpath
import re
import tarfile
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

from deploy.images import debian
from deploy.images.roles import USER


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a symbolic link to ``target``, or where both are missing a folder. Root owns it."""

    data: bytes | None = None
    target: str | None = None
    mode: int = 0o644


Tree = dict[str, Entry]  # by paths without a slash in front

_MERGED = re.compile(r"(?:bin|sbin|lib|lib32|lib64|libx32)/")
# Debian's tools, documents but licences, and what of Python's library no role uses
_LEFT_OUT = re.compile(
    r"usr/share/(?:man|locale|lintian|info|bug|bash-completion|perl5|binfmts|doc-base|base-files|python3|dict)/"
    r"|usr/share/doc/(?![^/]+/copyright$)"
    r"|usr/share/zoneinfo/(?:posix|right)/"
    r"|usr/(?:sbin|games)/|usr/bin/(?!python)|var/|root/|etc/(?:init\.d|update-motd\.d|cron|skel|kernel|profile)"
    r"|usr/lib/[^/]+/(?:gconv|perl[^/]*)/|usr/lib/valgrind/|usr/share/gcc"
    r"|usr/lib/python[0-9.]+/(?:test|idlelib|tkinter|turtledemo|lib2to3|ensurepip|pydoc_data)/"
)
_CERTIFICATES = re.compile(r"usr/share/ca-certificates/.+\.crt$")
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_USERS = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{0}:{0}:nonroot:/:/sbin/nologin\n"


def base(files: Iterable[Path], python: str) -> Tree:
    """The root file system: packages of Debian, as if they were installed where /usr is merged."""
    tree: Tree = {name: Entry(mode=0o755) for name in ("dev", "proc", "run", "sys")}
    tree["tmp"] = Entry(mode=0o1777)
    tree |= {name: Entry(target=f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")}
    described: Tree = {}
    for file in files:
        told = debian.control(file)
        name = told.partition("\n")[0].removeprefix("Package: ")
        described[f"var/lib/dpkg/status.d/{name}"] = Entry(told.encode())  # where scanners look
        tree |= _of_debian(file)
    bundle = b"".join(tree[name].data or b"" for name in sorted(tree) if _CERTIFICATES.match(name))
    user = USER.partition(":")[0]
    return {name: each for name, each in tree.items() if not _CERTIFICATES.match(name)} | {
        _BUNDLE: Entry(bundle),
        "usr/lib/ssl/cert.pem": Entry(target=f"/{_BUNDLE}"),  # where OpenSSL looks
        "usr/bin/python": Entry(target=f"python{python}"),
        "etc/passwd": Entry(_USERS.format(user).encode()),
        "etc/group": Entry(f"root:x:0:\nnonroot:x:{user}:\n".encode()),
        **described,
    }


def _of_debian(file: Path) -> Tree:
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(debian.contents(file))) as tar:
        for member in tar:
            name = _merged(posixpath.normpath(member.name))
            if member.isdir() or _LEFT_OUT.match(name):
                continue
            if member.issym():
                tree[name] = Entry(target=member.linkname)
            elif content := tar.extractfile(member):  # a hard link gives its file's content
                tree[name] = Entry(content.read(), mode=0o755 if member.mode & 0o111 else 0o644)
    return tree


def _merged(name: str) -> str:
    return f"usr/{name}" if _MERGED.match(name) else name


def packages(wheels: Iterable[Path], python: str) -> Tree:
    """Python's packages where Debian's Python looks for them."""
    tree: Tree = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                inside = re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", name)
                if not name.endswith("/") and not re.search(r"^[^/]+\.data/|/tests/", inside):
                    mode = 0o755 if ".so" in name else 0o644
                    tree[f"{_place(python)}/{inside}"] = Entry(archive.read(name), mode=mode)
    return tree


def code(wheel: Path, python: str, parts: tuple[str, ...]) -> Tree:
    """Our wheel, with its console scripts; of ``parts`` alone without them."""
    tree = packages([wheel], python)
    if parts:
        places = tuple(f"{_place(python)}/{part}" for part in parts)
        return {name: entry for name, entry in tree.items() if name.startswith(places)}
    (listed,) = (each for name, each in tree.items() if name.endswith(".dist-info/entry_points.txt"))
    declared = ConfigParser()
    declared.read_string((listed.data or b"").decode())
    for name, place in declared["console_scripts"].items():
        module, _, function = place.partition(":")
        run = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        tree[f"usr/local/bin/{name}"] = Entry(f"#!/usr/bin/python{python}\n{run}".encode(), mode=0o755)
    return tree


def _place(python: str) -> str:
    return f"usr/local/lib/python{python}/dist-packages"
