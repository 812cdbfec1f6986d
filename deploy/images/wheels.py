"""Python's packages by pip, as wheels of an architecture that this machine need not have."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images.debian import Say
from deploy.images.lock import RENEW, ImagesError, Package
from deploy.local.golang import known_failure, last_lines
from deploy.release.archives import ROOT

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# the versions of glibc for which wheels are built, up to Debian's
_GLIBC = ("2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_31", "_2_34", "_2_35", "_2_36")
_GONE = re.compile(r"No matching distribution found for (\S+)")
_OTHER = re.compile(r"DO NOT MATCH THE HASHES.*\n\s+([^\s:]+)")


def resolved(
    architecture: str, python: str, wanted: Iterable[Requirement], folder: Path
) -> dict[str, Package]:
    """The packages, in the versions of constraints.txt, and all that these need. Raises ImagesError."""
    report = folder / "report.json"
    options = ["--dry-run", "--ignore-installed", "--report", str(report), "--target", str(folder / "none")]
    _pip(
        "install",
        architecture,
        python,
        *options,
        "-c",
        str(ROOT / "constraints.txt"),
        *(str(each) for each in wanted),
    )
    found: dict[str, Package] = {}
    for each in json.loads(report.read_text())["install"]:
        name = canonicalize_name(each["metadata"]["name"])
        digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
        found[name] = Package(name, each["metadata"]["version"], digest)
    return found


def download(
    architecture: str, python: str, packages: Iterable[Package], folder: Path, say: Say
) -> list[Path]:
    """The packages' wheels, in a folder. Raises ImagesError, which names one that is gone or another one."""
    lines = [f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in packages]
    say(f"{architecture}: downloading {len(lines)} of Python's packages")
    (folder / "wheels").mkdir(parents=True)
    (folder / "wanted.txt").write_text("".join(lines))
    options = ["--no-deps", "--require-hashes", "--dest", str(folder / "wheels")]
    _pip("download", architecture, python, *options, "-r", str(folder / "wanted.txt"))
    return list((folder / "wheels").iterdir())


def _pip(command: str, architecture: str, python: str, *arguments: str) -> None:
    platforms = [f"--platform=manylinux{each}_{_MACHINES[architecture]}" for each in _GLIBC]
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--only-binary=:all:",
        "--implementation=cp",
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            command,
            *options,
            f"--python-version={python}",
            *platforms,
            *arguments,
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ImagesError(_why(command, architecture, done.stdout + done.stderr))


def _why(command: str, architecture: str, output: str) -> str:
    if gone := _GONE.search(output):
        return (
            f"the package index has no wheel of {gone[1]} for {architecture}: choose another version in"
            f" constraints.txt, then {RENEW}"
        )
    if other := _OTHER.search(output):
        return (
            f"the package index gives another file for {other[1]} than deploy/images/lock.json says: find out"
            f" why; {RENEW} accepts it"
        )
    return f"pip {command} for {architecture} failed: {known_failure(output) or last_lines(output, 3)}"
