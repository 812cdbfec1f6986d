"""Debian packages that some tests need: installed only where that was asked for, else named."""

import os
import shutil
import subprocess
from pathlib import Path

NEEDED = {
    "cc": ("gcc", "libc6-dev")
}  # command -> packages; the C compiler builds the NVML library that tests load


def missing() -> list[str]:
    """The packages whose command is not on the PATH."""
    return [
        package for command, packages in NEEDED.items() if not shutil.which(command) for package in packages
    ]


def may_install() -> bool:
    """Only as root on Debian, and only with CI=true or BURSAR_APT=1."""
    asked = os.environ.get("CI") == "true" or os.environ.get("BURSAR_APT") == "1"
    return asked and os.geteuid() == 0 and Path("/etc/debian_version").exists()


def install() -> None:
    """Installs what is missing where that is allowed, and otherwise says what will be skipped for want of
    what."""
    packages = missing()
    if not packages:
        return
    if not may_install():
        print(f"missing: {' '.join(packages)}; what needs them is skipped (BURSAR_APT=1 as root installs)")
        return
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], check=True)
