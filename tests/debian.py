"""Debian packages that some tests need: installed as root where there is apt, else named."""

import os
import shutil
import subprocess

# command -> packages; the C compiler builds the NVML library that tests load, buildah the images on a base of
# Debian's packages
NEEDED = {
    "cc": ("gcc", "libc6-dev"),
    "ip": ("iproute2",),
    "pkg-config": ("pkg-config",),
    "buildah": ("buildah",),
    "mmdebstrap": ("mmdebstrap", "debian-archive-keyring"),
    "chromium": ("chromium", "fonts-dejavu-core"),
    "mkfs.ext4": ("e2fsprogs",),
}
# library, by its name for pkg-config -> packages; a real node's runc is built with it
LIBRARIES = {"libseccomp": ("libseccomp-dev",)}


def missing() -> list[str]:
    """The packages whose command is not on the PATH, or whose library is not there."""
    commands = [packages for command, packages in NEEDED.items() if not shutil.which(command)]
    libraries = [packages for library, packages in LIBRARIES.items() if not _is_there(library)]
    return [package for packages in (*commands, *libraries) for package in packages]


def _is_there(library: str) -> bool:
    program = shutil.which("pkg-config")
    return program is not None and subprocess.run([program, "--exists", library]).returncode == 0


def may_install() -> bool:
    """As root where there is apt, unless BURSAR_APT=0."""
    return os.environ.get("BURSAR_APT") != "0" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install() -> None:
    """Installs what is missing where that is allowed, and otherwise says what will be skipped for want of
    what."""
    packages = missing()
    if not packages:
        return
    names = " ".join(packages)
    if not may_install():
        print(f"what needs one of these is skipped; as root: apt-get install {names}", flush=True)
        return
    print(f"installing Debian packages (BURSAR_APT=0 forbids it): {names}", flush=True)
    apt = ["apt-get", "-qq", "-o", "Acquire::Retries=5"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "-y", "--no-install-recommends", *packages], check=True)
