"""The release notes, which are the newest sections of the changelog."""

import re

from deploy.release.archives import ReleaseError

_SECTION = re.compile(r"^## (?P<name>\S+).*?(?=^## |\Z)", re.M | re.S)


def notes(changelog: str, version: str) -> str:
    """The section of this version, and above it what the changelog calls unreleased, for the files have that
    too. Raises ReleaseError where there is no such section."""
    newest = []
    for section in _SECTION.finditer(changelog):
        newest.append(section[0].strip())
        if section["name"] == version:
            return "\n\n".join(newest) + "\n"
        if section["name"] != "Unreleased":
            break
    raise ReleaseError(
        f"CHANGELOG.md has no section of {version} below Unreleased: give its newest section this number,"
        f' such as "## {version} (2026-11-26)", or set the version in timekeeper/core/__init__.py'
    )
