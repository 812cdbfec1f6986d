"""`kubectl bursar` as one file that any Python runs, with the packages that it needs inside (zipapp), and the
archive and manifest by which krew installs it.

A zip file cannot hold compiled modules. PyYAML has its parser in Python too; `json_as_orjson` stands for
orjson, which only `check` needs.
"""

import io
import zipfile
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath
from textwrap import dedent

from deploy.release import dependencies
from deploy.release.archives import Commit

# Python's parts that the commands import. `audit` needs the extra kubeconfig, which is compiled in part.
_OURS = (
    "timekeeper/__init__.py",
    *(f"timekeeper/{room}/" for room in ("cli", "core", "edge", "runtime")),
    "webhook/",
)
_COMPILED = "orjson"
_NAME = "kubectl-bursar.pyz"
_MAIN = '''
    """Which of the two commands this file is, by the name that it was given."""

    import os
    import sys

    if sys.version_info < (3, 11):
        sys.exit("kubectl bursar needs Python 3.11 or newer, and this is " + sys.version.split()[0])

    if os.path.basename(sys.argv[0]).startswith("kubectl_complete-"):
        from timekeeper.cli.completion import main
    else:
        from timekeeper.cli.main import main

    main()
'''


def cli_file(wheel: Path, commit: Commit, folder: Path) -> Path:
    """The file, made of a wheel and of packages that are installed here. Raises ReleaseError where these are
    not those of constraints.txt."""
    made = folder / _NAME
    files = {"__main__.py": dedent(_MAIN).lstrip().encode(), **_ours(wheel)}
    files["orjson.py"] = (commit.checkout / "deploy" / "release" / "json_as_orjson.py").read_bytes()
    for package in packages():
        files |= _theirs(package)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, datetime.fromtimestamp(commit.epoch_s, UTC).timetuple()[:6])
            entry.external_attr, entry.create_system = 0o644 << 16, 3
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    made.write_bytes(b"#!/usr/bin/env python3\n" + packed.getvalue())
    made.chmod(0o755)
    return made


def packages() -> list[Distribution]:
    """The packages inside. Raises ReleaseError."""
    alone = dependencies.installed(dependencies.declared()[""])
    return [found for name, (found, _) in alone.items() if name != _COMPILED]


def _ours(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if name.startswith(_OURS) or name.endswith((".dist-info/METADATA", "/licenses/LICENSE"))
        }


def _theirs(package: Distribution) -> dict[str, bytes]:
    """A package's modules, and its licence with its metadata."""
    found: dict[str, bytes] = {}
    for file in package.files or ():
        of_metadata = ".dist-info" in file.parts[0]
        is_text = PurePosixPath(file).suffix == ".py" or of_metadata
        if ".." not in file.parts and is_text and file.name not in ("RECORD", "INSTALLER", "REQUESTED"):
            found[str(file)] = Path(str(file.locate())).read_bytes()
    return found
